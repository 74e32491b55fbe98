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
    with pytest.raises(OptionError, match="a named pipe"):
        CacheFolder.open(tmp_path)
