"""Packs, appends and parts remove their own files, and nothing of others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from pack_helpers import QUICK, image_folder

import fastdata
from fastdata import replacing
from fastdata.errors import DestinationExistsError
from fastdata.own_files import remove_own
from fastdata.storage import LocalStore

IN_PARTS = {**QUICK, "shards": 2}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), 8)


def mine_in(folder: Path) -> Path:
    """Make a folder with a file that no one may remove."""
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("all my work")
    return folder / "thesis.txt"


@pytest.mark.parametrize("name", ["shards", "shard-00000", "replaced", "state.json"])
def test_a_folder_of_others_beside_the_destination_is_not_emptied(
    images: Path, tmp_path: Path, name: str
) -> None:
    theirs = mine_in(tmp_path / "x.lmdb.partial" / name)
    with pytest.raises(
        DestinationExistsError, match=rf"x.lmdb.partial is in the way: it has {name}"
    ):
        fastdata.pack(images, tmp_path / "x.lmdb", **QUICK)
    assert theirs.read_text() == "all my work"


def test_what_others_have_in_a_folder_of_a_dataset_is_not_overwritten(
    images: Path, tmp_path: Path
) -> None:
    fastdata.pack(images, tmp_path / "x", **IN_PARTS)
    theirs = mine_in(tmp_path / "x" / ".git")
    with pytest.raises(DestinationExistsError, match=r"x has \.git, which does not belong to the"):
        fastdata.pack(images, tmp_path / "x", **IN_PARTS, overwrite=True)
    assert theirs.read_text() == "all my work"
    shutil.rmtree(theirs.parent)
    (tmp_path / "x" / "shard-00000.lmdb-lock").touch()
    manifest = tmp_path / "x" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:100])
    assert fastdata.pack(images, tmp_path / "x", **IN_PARTS, overwrite=True).num_samples == 8


def test_an_append_removes_its_own_files_only(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    fastdata.pack(images, path, **QUICK)
    theirs = mine_in(tmp_path / "x.lmdb.append" / "notes")
    fastdata.append(path, images, num_workers=0)
    assert len(fastdata.open(path)) == 16
    assert theirs.read_text() == "all my work"
    shutil.rmtree(theirs.parents[1])
    theirs = mine_in(tmp_path / "x.lmdb.append" / "new.lmdb")
    with pytest.raises(
        DestinationExistsError, match=r"x.lmdb.append is in the way: it has new.lmdb"
    ):
        fastdata.append(path, images, num_workers=0)
    assert theirs.read_text() == "all my work"


def test_an_append_leaves_files_that_have_the_name_of_a_new_shard(
    images: Path, tmp_path: Path
) -> None:
    fastdata.pack(images, tmp_path / "x", **IN_PARTS)
    (tmp_path / "x" / "shard-00002.lmdb").write_text("all my work")
    (tmp_path / "x" / "shard-00003.lmdb").symlink_to(images)
    shutil.copy(tmp_path / "x" / "shard-00001.lmdb", tmp_path / "x" / "shard-00004.lmdb")
    fastdata.append(tmp_path / "x", images, num_workers=0)
    data = fastdata.open(tmp_path / "x")
    assert len(data) == 16
    assert len({path.name for path in data.paths}) == len(data.paths)
    assert (tmp_path / "x" / "shard-00002.lmdb").read_text() == "all my work"
    assert (tmp_path / "x" / "shard-00003.lmdb").is_symlink()


def test_parts_remove_their_own_files_only(images: Path, tmp_path: Path) -> None:
    theirs = mine_in(tmp_path / "x" / "unfinished")
    with pytest.raises(DestinationExistsError, match=r"it has unfinished/thesis.txt"):
        fastdata.pack(images, tmp_path / "x", part="plan", **IN_PARTS)
    shutil.rmtree(theirs.parent)
    for part in ("plan", "0/1"):
        fastdata.pack(images, tmp_path / "x", part=part, **IN_PARTS)
    (plan,) = (path for path in (tmp_path / "x" / "unfinished").iterdir() if path.is_dir())
    kept = [mine_in(tmp_path / "x" / "unfinished" / "a"), plan / "notes.json"]
    kept[1].write_text("all my work")
    fastdata.pack(images, tmp_path / "x", part="commit", **IN_PARTS)
    assert len(fastdata.open(tmp_path / "x")) == 8
    assert [path.read_text() for path in kept] == ["all my work"] * 2


def test_a_store_removes_unfinished_files_and_no_folders_or_links(tmp_path: Path) -> None:
    name = ".fastdata-0123456789abcdef.new"
    theirs = mine_in(tmp_path / "x" / name)
    (tmp_path / "x" / "a").mkdir()
    (tmp_path / "x" / "a" / name).symlink_to(theirs)
    (tmp_path / "x" / "b").mkdir()
    (tmp_path / "x" / "b" / name).touch()
    LocalStore(tmp_path / "x").remove_unfinished()
    assert theirs.read_text() == "all my work"
    assert (tmp_path / "x" / "a" / name).is_symlink()
    assert not (tmp_path / "x" / "b" / name).exists()


# -- what a user names is replaced only if it is proven to be fastdata's ---------------------------


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((4, 8, 8, 3), np.uint8)


def _lmdb(path: Path) -> None:
    environment = lmdb.open(str(path), subdir=False, lock=False)
    with environment, environment.begin(write=True) as transaction:
        transaction.put(b"header", b"mine")


def _folder(name: str, content: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        (path / name).write_text(content)

    return make


FOREIGN: tuple[Callable[[Path], Any], ...] = (
    lambda path: path.symlink_to(path.parent / "images"),
    lambda path: path.symlink_to(path.parent / "ref.lmdb"),
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to("/proc/self/fd/1"),
    os.mkfifo,
    Path.touch,
    Path.mkdir,
    _hdf5,
    _lmdb,
    _folder("manifest.json", '{"manifest_version": 3}'),  # an extension of a browser
    _folder("shard-00000.lmdb", "all my work"),
    _folder("manifest.schema.json", '{"fields": []}'),
    _folder("fastdata.json", '{"fastdata": "export"}'),
)


def state_of(path: Path) -> object:
    if path.is_symlink():
        return os.readlink(path)
    if path.is_dir():
        return {each.name: state_of(each) for each in path.iterdir()}
    return path.lstat().st_mode, path.read_bytes() if path.is_file() else b""


@pytest.fixture
def work(images: Path, tmp_path: Path) -> Path:
    """A folder with images and two datasets."""
    shutil.copytree(images, tmp_path / "images")
    fastdata.pack(images, tmp_path / "ref.lmdb", **QUICK)
    fastdata.pack(images, tmp_path / "shards", **IN_PARTS)
    return tmp_path


def test_no_command_replaces_what_is_not_proven_to_be_ours(work: Path) -> None:
    place, ref = work / "x.lmdb", work / "ref.lmdb"
    calls: list[Callable[[], object]] = [
        lambda: fastdata.pack(work / "images", place, **QUICK, overwrite=True),
        lambda: fastdata.pack(work / "images", place, **IN_PARTS, overwrite=True),
        lambda: fastdata.merge([ref], place, overwrite=True),
        lambda: fastdata.subset(ref, place, indices=[0], overwrite=True),
        lambda: fastdata.subset(ref, work, divide={"x": 0.5, "y": 0.5}, overwrite=True),
        lambda: fastdata.export(ref, place, overwrite=True),
        lambda: fastdata.view(ref, place),
    ]
    for make in FOREIGN:
        make(place)
        before = state_of(place)
        # Of a folder, `view` says the name of a file in it.
        for call in calls[:-1] if place.is_dir() else calls:
            with pytest.raises(DestinationExistsError, match=r"x\.lmdb .*, so it is not replaced"):
                call()
            assert state_of(place) == before
        assert sorted(os.listdir(work)) == ["images", "ref.lmdb", "shards", "x.lmdb"]
        remove_own(place)


@pytest.mark.parametrize("suffix", [".lmdb", ".h5"])
def test_a_damaged_dataset_is_replaced(work: Path, suffix: str) -> None:
    whole = work / f"whole{suffix}"
    fastdata.pack(work / "images", whole, **QUICK)
    data = whole.read_bytes()
    for damaged in (data[:-64], data + b"more", data[:-9] + bytes(9), data[:4000] + bytes(9)):
        path = work / f"damaged{suffix}"
        path.write_bytes(damaged)
        if suffix == ".lmdb" and len(damaged) < 5000:  # its keys are gone
            with pytest.raises(DestinationExistsError, match="is a file, not a dataset"):
                fastdata.pack(work / "images", path, **QUICK, overwrite=True)
        else:
            fastdata.pack(work / "images", path, **QUICK, overwrite=True)
            assert len(fastdata.open(path)) == 8


def test_no_source_is_replaced_by_what_is_made_of_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    os.link("ref.lmdb", "hard.lmdb")
    os.symlink("ref.lmdb", "soft.lmdb")
    shutil.copy("ref.lmdb", "images/x.lmdb")
    shutil.copy("ref.lmdb", "other.lmdb")
    same = ["ref.lmdb", "shards/../ref.lmdb", "hard.lmdb", "soft.lmdb", f"file://{work}/ref.lmdb"]
    pairs = [(one, "ref.lmdb") for one in (*same, "re[f].lmdb")]
    pairs += [("shards/shard-00000.lmdb", "shards"), ("shards/*.lmdb", "shards")]
    pairs += [("shards", "shards"), ("shards/*.lmdb", "shards/shard-00001.lmdb")]
    before = state_of(work)
    for source, place in pairs:
        for overwrite in (True, False):
            with pytest.raises(DestinationExistsError, match=r"(is|contains|lies in) the source"):
                fastdata.pack(source, place, **QUICK, overwrite=overwrite)
            if "://" not in source:
                with pytest.raises(DestinationExistsError, match=r"the source"):
                    fastdata.merge(["other.lmdb", source], place, overwrite=overwrite)
                with pytest.raises(DestinationExistsError, match=r"the source"):
                    fastdata.subset(source, place, indices=[0], overwrite=overwrite)
    with pytest.raises(DestinationExistsError, match="lies in the source images"):
        fastdata.pack("images", "images/x.lmdb", **QUICK, overwrite=True)
    with pytest.raises(DestinationExistsError, match="is one shard of the dataset shards"):
        fastdata.pack("images", "shards/shard-00001.lmdb", **QUICK, overwrite=True)
    assert state_of(work) == before


@pytest.mark.parametrize("format", ["folder", "webdataset", "tfrecord", "parquet"])
def test_an_export_with_files_of_others_is_not_replaced(work: Path, format: str) -> None:
    ref, out = work / "ref.lmdb", work / "out"

    def refused(name: str) -> None:
        before = state_of(out)
        with pytest.raises(DestinationExistsError, match=name):
            fastdata.export(ref, out, format=format, overwrite=True, progress=False)
        assert state_of(out) == before

    for overwrite in (False, True):
        fastdata.export(ref, out, format=format, overwrite=overwrite, progress=False)
    file = sorted(path for path in out.rglob("*") if path.suffix not in (".csv", ".json", ""))[0]
    for name in (".hidden", f"{file.name}.bak", "checkpoints/best.pt", "dataset/manifest.json"):
        theirs = file.parent / name
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_text("all my work")
        refused(rf"out has {file.parent.relative_to(out) / name.partition('/')[0]}, which does not")
        theirs.unlink()
        if "/" in name:
            theirs.parent.rmdir()
    file.unlink()
    file.symlink_to(ref)
    refused(f"out has {file.relative_to(out)}, which does not belong to the export")
    file.unlink()
    if format == "folder":
        labels = (out / "manifest.csv").read_text()
        (out / "manifest.csv").write_text(labels + labels.splitlines()[-1] + "\n")
        refused("its list of files was changed")
        (out / "manifest.csv").write_text(labels)
    fastdata.export(ref, out, format=format, overwrite=True, progress=False)


def test_a_list_of_others_is_not_taken_for_one_of_rejects(work: Path) -> None:
    (work / "images" / "ant" / "broken.jpg").write_bytes(b"")
    for name, call in {
        "x.lmdb.rejects.csv": lambda: fastdata.pack(work / "images", work / "x.lmdb", **QUICK),
        "ref.lmdb.append.rejects.csv": lambda: fastdata.append(work / "ref.lmdb", work / "shards"),
    }.items():
        theirs = work / name
        for make in (lambda path: path.write_text("key,why\n"), Path.mkdir):
            make(theirs)
            before = state_of(work)
            with pytest.raises(DestinationExistsError, match=rf"{name} is not a list of rejects"):
                call()
            assert state_of(work) == before
            remove_own(theirs)
    theirs = work / "ref.lmdb.rejects.csv"
    theirs.write_text("mine")
    (work / "ref.lmdb.append.json.new").write_text("mine")
    assert fastdata.append(work / "ref.lmdb", work / "shards").num_samples == 8
    assert [path.read_text() for path in work.glob("ref.lmdb.*")] == ["mine"] * 2


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("theirs", ["file", "dataset", "folder"])
def test_what_appears_just_before_the_last_rename_is_kept(
    work: Path, monkeypatch: pytest.MonkeyPatch, theirs: str, exchange: bool
) -> None:
    """Also a dataset: it is not the one that was looked at."""
    renamed = replacing._renamed
    other = work / "other"
    if theirs == "file":
        other.write_text("all my work")
    else:
        shutil.copytree(work / "shards", other)
        if theirs == "folder":
            (other / "notes.txt").write_text("all my work")
    kept = state_of(other)

    def late(old: Path, new: Path, flag: int) -> bool:
        if flag == replacing._EXCHANGE and other.exists():
            remove_own(new)
            other.rename(new)
        return exchange and renamed(old, new, flag)

    monkeypatch.setattr(replacing, "_renamed", late)
    # Where files cannot change places, a file replaces a file by one rename.
    place = work / ("shards" if theirs == "file" or not exchange else "ref.lmdb")
    with pytest.raises(DestinationExistsError, match="appeared or changed meanwhile"):
        fastdata.pack(work / "images", place, **IN_PARTS, overwrite=True, limit=5)
    assert state_of(place) == kept
