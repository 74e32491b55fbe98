"""Packs, appends and parts remove their own files, and nothing of others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pack_helpers import QUICK, image_folder

import fastdata
from fastdata.errors import DestinationExistsError
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
