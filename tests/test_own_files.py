"""What lies in the place of a file that fastdata writes for itself is never written through."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import run
from pack_helpers import FORMS, SMALL, digest_of, image_folder, unfinished_pack, with_bad_images

import fastdata
from fastdata.converters.exporting.export import export
from fastdata.errors import FastdataError, NotRegularFileError, OptionError
from fastdata.own_files import create_own, make_own_folder, open_own, open_own_file, remove_own
from fastdata.pages import write_page
from fastdata.remote.folder import CacheFolder

pytestmark = [pytest.mark.usefixtures("small_chunks"), pytest.mark.timeout(60)]

VICTIM = b"all my work\n" * 1000


class Planted:
    """A file or folder of the user, and what leads to it from the place of an own file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "victim" / "thesis.txt"
        self.file.parent.mkdir()
        self.file.write_bytes(VICTIM)

    def link(self, path: Path) -> None:
        path.symlink_to(self.file)

    def hard_link(self, path: Path) -> None:
        os.link(self.file, path)

    def dangling(self, path: Path) -> None:
        path.symlink_to(self.file.parent / "new")

    def folder(self, path: Path) -> None:
        path.symlink_to(self.file.parent)

    def pipe(self, path: Path) -> None:
        os.mkfifo(path)

    def check(self) -> None:
        assert self.file.read_bytes() == VICTIM
        assert os.listdir(self.file.parent) == [self.file.name]


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path)


KINDS = ["link", "hard_link", "dangling", "folder", "pipe"]


@pytest.mark.parametrize("kind", KINDS)
def test_own_files_are_opened_or_refused_and_created_ones_are_new(
    tmp_path: Path, planted: Planted, kind: str
) -> None:
    path = tmp_path / "state.json"
    getattr(planted, kind)(path)
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT):
        with pytest.raises(NotRegularFileError, match=r"state\.json: .*Nothing was written"):
            os.close(open_own(path, flags))
    planted.check()
    descriptor = create_own(path)
    os.write(descriptor, b"own")
    os.close(descriptor)
    with open_own_file(path) as file:
        assert file.read() == b"own"
    planted.check()


def test_own_folders_are_no_links_and_removing_one_follows_none(
    tmp_path: Path, planted: Planted
) -> None:
    planted.folder(tmp_path / "shards")
    with pytest.raises(NotRegularFileError, match="shards: a link, where fastdata keeps a folder"):
        make_own_folder(tmp_path / "shards")
    remove_own(tmp_path / "shards")
    make_own_folder(tmp_path / "shards" / "deep")
    planted.folder(tmp_path / "shards" / "deep" / "inside")
    remove_own(tmp_path / "shards")
    assert not (tmp_path / "shards").exists()
    planted.check()


def spoil_mode(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o022)


def spoil_owner(path: Path) -> None:
    os.chown(path, 12345, 12345)


SPOILED = {
    "mode": (spoil_mode, r"other users may write there \(mode \d+\).*chmod go-w "),
    "owner": (spoil_owner, r"another user's \(12345, and you are 0\)"),
}
"""What other users may have done to an own file or folder, and what is said of it."""

spoiled = pytest.mark.parametrize(
    "how",
    ["mode", pytest.param("owner", marks=pytest.mark.skipif(os.geteuid() != 0, reason="root"))],
)


@spoiled
def test_what_others_own_or_may_write_is_neither_read_nor_written(tmp_path: Path, how: str) -> None:
    spoil, said = SPOILED[how]
    file, folder = tmp_path / "state.json", tmp_path / "shards"
    file.write_bytes(b"theirs")
    folder.mkdir()
    spoil(file)
    spoil(folder)
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT):
        with pytest.raises(NotRegularFileError, match=rf"state\.json: {said}"):
            os.close(open_own(file, flags))
    with pytest.raises(NotRegularFileError, match=rf"shards: {said}"):
        make_own_folder(folder)
    assert file.read_bytes() == b"theirs"


@spoiled
def test_no_command_goes_on_with_what_others_may_have_written(tmp_path: Path, how: str) -> None:
    """Working folders, and each file in the one of an unfinished pack."""
    spoil, said = SPOILED[how]
    source = image_folder(tmp_path / "images", 14)
    unfinished_pack(source, tmp_path / "left", SMALL, chunks=3)
    fastdata.pack(source, tmp_path / "whole.lmdb", **SMALL)
    runs: dict[str, Callable[[], Any]] = {
        "x.partial": lambda: fastdata.pack(source, tmp_path / "x", **SMALL),
        "x.partial/lock": lambda: fastdata.pack(source, tmp_path / "x", **SMALL),
        "x.partial/job.json": lambda: fastdata.pack(source, tmp_path / "x", **SMALL),
        "x.partial/state.json": lambda: fastdata.pack(source, tmp_path / "x", **SMALL),
        "x.partial/shards": lambda: fastdata.pack(source, tmp_path / "x", **SMALL),
        "whole.lmdb.append": lambda: fastdata.append(tmp_path / "whole.lmdb", source),
        "out.exporting": lambda: export(tmp_path / "whole.lmdb", tmp_path / "out", format="folder"),
        "parts/divide.partial": lambda: fastdata.subset(
            tmp_path / "whole.lmdb", tmp_path / "parts", divide={"a": 0.5, "b": 0.5}
        ),
        "inparts": lambda: fastdata.pack(
            source, tmp_path / "inparts", part="0/1", shards=3, **SMALL
        ),
        "inparts/unfinished": lambda: fastdata.pack(
            source, tmp_path / "inparts", part="0/1", shards=3, **SMALL
        ),
    }
    for name, call in runs.items():
        shutil.rmtree(tmp_path / "x.partial", ignore_errors=True)
        shutil.copytree(tmp_path / "left.partial", tmp_path / "x.partial")
        shutil.rmtree(tmp_path / "inparts", ignore_errors=True)
        fastdata.pack(source, tmp_path / "inparts", part="plan", shards=3, **SMALL)
        if not (tmp_path / name).exists():
            (tmp_path / name).mkdir(mode=0o700, parents=True)
        spoil(tmp_path / name)
        with pytest.raises(FastdataError, match=rf"{name}: {said}"):
            call()


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o077])
def test_an_unfinished_pack_is_resumed_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    source = image_folder(tmp_path / "images", 14)
    before = os.umask(mask)
    try:
        for form, options in FORMS.items():
            unfinished_pack(source, tmp_path / form, {**SMALL, **options}, chunks=3)
            assert os.stat(tmp_path / f"{form}.partial").st_mode & 0o777 == 0o700
            report = fastdata.pack(source, tmp_path / form, **SMALL, **options)
            assert report.resumed_at > 0
            assert os.stat(tmp_path / form).st_mode & 0o777 & (mask | 0o022) == 0
        fastdata.append(tmp_path / "lmdb", source, num_workers=0)
        fastdata.pack(source, tmp_path / "inparts", part="plan", shards=3, **SMALL)
        fastdata.pack(source, tmp_path / "inparts", part="0/1", shards=3, **SMALL)
        fastdata.pack(source, tmp_path / "inparts", part="commit", shards=3, **SMALL)
        assert len(fastdata.open(tmp_path / "inparts")) == 14
    finally:
        os.umask(before)


def test_a_destination_below_a_dangling_link_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "disk").symlink_to(tmp_path / "gone")
    with pytest.raises(NotRegularFileError, match="disk: no folder"):
        fastdata.pack(image_folder(tmp_path / "images", 2), tmp_path / "disk" / "x", **SMALL)


def names_in(partial: Path) -> list[str]:
    """Return the names that a pack has, or will have, in the folder of an unfinished pack."""
    found = [str(path.relative_to(partial)) for path in sorted(partial.rglob("*"))]
    suffix = "lmdb" if any(name.endswith(".lmdb") for name in found) else "h5"
    number = max(name for name in found if name.startswith("shard-")).partition("/")[0]
    later = [f"{name}.new" for name in ("job.json", "state.json", "rejects.csv")]
    later += [f"{number}/shard.{suffix}", "shards/shard-00000.h5", "shards/manifest.json.new"]
    return sorted({*found, *later, "replaced"})


@pytest.mark.parametrize("form", ["lmdb", "hdf5 shards"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [True, False])
def test_links_in_an_unfinished_pack_are_not_followed(
    tmp_path: Path, planted: Planted, form: str, kind: str, begun: bool
) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 14), (1,))
    options = {**SMALL, **FORMS[form]}
    whole = fastdata.pack(source, tmp_path / "whole", **options).digest
    unfinished_pack(source, tmp_path / "left", options, chunks=3)
    left = tmp_path / "left.partial"
    outcomes = {}
    for name in names_in(left):
        path, partial = tmp_path / "x", tmp_path / "x.partial"
        shutil.copytree(left, partial)
        remove_own(partial / name)
        if not begun:  # by a pack: somebody else has made the folder
            (partial / "job.json").unlink(missing_ok=True)
        getattr(planted, kind)(partial / name)
        try:
            outcomes[name] = fastdata.pack(source, path, **options).digest == whole
            assert digest_of(path) == whole
        except FastdataError as error:
            outcomes[name] = str(path) in str(error)
        planted.check()
        remove_own(path)
        remove_own(partial)
        path.with_name("x.rejects.csv").unlink(missing_ok=True)
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize("suffix", [".partial", ".append", ".exporting"])
def test_a_link_in_the_place_of_a_working_folder_is_refused(
    tmp_path: Path, planted: Planted, suffix: str
) -> None:
    source = image_folder(tmp_path / "images", 8)
    path = tmp_path / "x.lmdb"
    run: dict[str, Callable[[], Any]] = {
        ".partial": lambda: fastdata.pack(source, path, **SMALL),
        ".append": lambda: fastdata.append(path, source, num_workers=0),
        ".exporting": lambda: export(tmp_path / "whole.lmdb", path, format="folder"),
    }
    fastdata.pack(source, tmp_path / "whole.lmdb", **SMALL)
    if suffix == ".append":
        shutil.copyfile(tmp_path / "whole.lmdb", path)
    planted.folder(tmp_path / f"x.lmdb{suffix}")
    with pytest.raises(FastdataError, match=rf"x\.lmdb\{suffix}"):
        run[suffix]()
    planted.check()


@pytest.mark.parametrize("kind", ["link", "hard_link", "dangling", "folder", "pipe"])
@pytest.mark.parametrize("name", ["lock", "append.json", "append.json.new"])
def test_links_in_an_append_are_not_followed(
    tmp_path: Path, planted: Planted, kind: str, name: str
) -> None:
    source, path = image_folder(tmp_path / "images", 8), tmp_path / "x.lmdb"
    fastdata.pack(source, path, **SMALL)
    (tmp_path / "x.lmdb.append").mkdir()
    getattr(planted, kind)(tmp_path / "x.lmdb.append" / name)
    try:
        fastdata.append(path, source, num_workers=0)
    except FastdataError as error:
        said = str(error)
        assert "x.lmdb.append" in said
        assert name in said
    else:
        assert len(fastdata.open(path)) == 16
    planted.check()


@pytest.mark.parametrize("kind", ["link", "hard_link", "dangling", "folder", "pipe"])
@pytest.mark.parametrize("name", ["lock", "files", "replaced"])
def test_links_in_an_export_are_not_followed(
    tmp_path: Path, planted: Planted, kind: str, name: str
) -> None:
    fastdata.pack(image_folder(tmp_path / "images", 8), tmp_path / "x.lmdb", **SMALL)
    (tmp_path / "out.exporting").mkdir()
    (tmp_path / "out.exporting" / "lock").touch()
    remove_own(tmp_path / "out.exporting" / name)
    getattr(planted, kind)(tmp_path / "out.exporting" / name)
    try:
        export(tmp_path / "x.lmdb", tmp_path / "out", format="folder")
    except FastdataError as error:
        assert "out.exporting" in str(error)  # noqa: PT017 (or it went on without)
    else:
        assert (tmp_path / "out" / "manifest.csv").exists()
    planted.check()


def test_the_scratch_file_of_a_page_is_new(tmp_path: Path, planted: Planted) -> None:
    planted.link(tmp_path / f".page.html.{os.getpid()}.new")
    write_page("<!doctype html><p>new</p>", tmp_path / "page.html")
    assert "new" in (tmp_path / "page.html").read_text()
    planted.check()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_command_line_names_the_file_that_is_in_the_way(tmp_path: Path, kind: str) -> None:
    images = image_folder(tmp_path / "images", 2)
    lock = tmp_path / "x.lmdb.partial" / "lock"
    lock.parent.mkdir()
    if kind == "link":
        lock.symlink_to(tmp_path / "victim")
    else:
        os.mkfifo(lock)
    result = run("pack", images, tmp_path / "x.lmdb")
    assert result.exit_code == 1
    assert f"error: {lock}: " in result.stderr


def test_a_pipe_in_the_place_of_a_caches_mark_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fastdata-cache.json")
    with pytest.raises(OptionError, match="not a regular file"):
        CacheFolder.open(tmp_path)
