"""Pipes and devices where files are expected: an error or a reject, and no waiting."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import make_records, photo, pil_encode, write_shards

import fastdata
from fastdata.errors import FastdataError, FormatError, NotRegularFileError
from fastdata.regular_files import open_regular, read_regular
from fastdata.verifying import verify

pytestmark = pytest.mark.timeout(30)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.fspath(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a named pipe"),
        (os.mkdir, "a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (make_socket, "not a regular file"),
    ],
    ids=["pipe", "folder", "device", "socket"],
)
def test_only_regular_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    make(Path("thing"))
    with pytest.raises(NotRegularFileError, match=f"thing: {kind}"):
        read_regular("thing")


def test_links_to_files_are_followed_and_too_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"
    os.close(open_regular(tmp_path / "link"))
    with pytest.raises(NotRegularFileError, match="7 bytes, where at most 6 are read"):
        read_regular(tmp_path / "link", 6)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")


@pytest.mark.parametrize("workers", [0, 2])
def test_pipes_in_class_folders_are_rejected(tmp_path: Path, workers: int) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "a.jpg").write_bytes(pil_encode(photo(20, 30), "JPEG"))
        os.mkfifo(tmp_path / "images" / name / "b.jpg")
    report = fastdata.pack(
        tmp_path / "images", tmp_path / "out.lmdb", num_workers=workers, progress=False
    )
    assert (report.num_samples, report.num_rejected) == (2, 2)
    assert 'b.jpg,"a named pipe, not a regular file"' in report.rejects_path.read_text()


def test_pipes_and_devices_in_a_manifest_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(pil_encode(photo(20, 30), "JPEG"))
    os.mkfifo(tmp_path / "b.jpg")
    lines = ["path,label", "a.jpg,1", "b.jpg,2", "/dev/zero,3", "/dev/random,4"]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    report = fastdata.pack(
        tmp_path / "list.csv", tmp_path / "out.h5", num_workers=0, progress=False
    )
    assert (report.num_samples, report.num_rejected) == (1, 3)
    text = report.rejects_path.read_text()
    assert 'b.jpg,"a named pipe' in text
    assert '/dev/zero,"a device' in text


@pytest.mark.parametrize("format", [None, "manifest"])
def test_a_pipe_as_manifest_is_refused(tmp_path: Path, format: str | None) -> None:
    os.mkfifo(tmp_path / "list.csv")
    with pytest.raises(FastdataError, match=r"list\.csv"):
        fastdata.pack(tmp_path / "list.csv", tmp_path / "out.h5", format=format)


def test_a_pipe_as_schema_beside_a_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label\na.jpg,1\n")
    os.mkfifo(tmp_path / "list.schema.json")
    with pytest.raises(FastdataError, match="named pipe"):
        fastdata.pack(tmp_path / "list.csv", tmp_path / "out.h5")


@pytest.mark.parametrize("call", [fastdata.open, fastdata.loader, verify])
@pytest.mark.parametrize("suffix", [".lmdb", ".h5"])
def test_a_pipe_as_shard_is_refused(
    tmp_path: Path, suffix: str, call: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    with pytest.raises(FormatError, match="named pipe, not a regular file"):
        call(tmp_path / f"pipe{suffix}")


@pytest.mark.parametrize("call", [fastdata.open, fastdata.loader])
def test_a_pipe_as_manifest_of_shards_is_refused(
    tmp_path: Path, call: Callable[[Path], object]
) -> None:
    folder = write_shards(tmp_path / "shards", [make_records(count=2)], container="hdf5")
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    with pytest.raises(FastdataError, match="named pipe"):
        call(folder)


def test_a_pipe_in_the_place_of_a_listed_shard_is_damage(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", [make_records(count=2)], container="hdf5")
    (folder / "shard-00000.h5").unlink()
    os.mkfifo(folder / "shard-00000.h5")
    report = verify(folder, progress=False)
    assert any("named pipe" in one.reason for one in report.damage)
