"""A byte of an unfinished pack that changed is noticed: the shard is packed again, or refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pack_helpers import (
    FORMS,
    SMALL,
    digest_of,
    image_folder,
    rejects_of,
    run_child,
    unfinished_pack,
    with_bad_images,
)

import fastdata
from fastdata.converters.combining import append as append_module
from fastdata.errors import FastdataError, JobChangedError
from fastdata.own_files import remove_own

pytestmark = pytest.mark.usefixtures("small_chunks")

RAW = {**SMALL, "codec": "raw"}
PACKS: dict[str, dict[str, Any]] = {
    **{name: {**SMALL, **form} for name, form in FORMS.items()},
    "lmdb raw": {**RAW, "container": "lmdb"},
    "hdf5 raw": {**RAW, "container": "hdf5"},
}


def changed(data: bytes, position: int, bit: int = 0) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def resumed(source: Path, path: Path, options: dict[str, Any]) -> tuple[str, str, int]:
    """Go on with a pack, again after a refusal; return digest, rejects and refusals."""
    refusals = 0
    while True:
        try:
            report = fastdata.pack(source, path, **options)
        except FastdataError as error:
            assert f"{path}.partial" in str(error)  # noqa: PT017 (it may go on without)
            refusals += 1
            if refusals == 3:
                raise
        else:
            assert report.digest == digest_of(path)
            return report.digest, rejects_of(path), refusals


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return with_bad_images(image_folder(tmp_path / "images", 22), (1, 13))


@pytest.mark.parametrize("form", PACKS)
def test_a_flipped_byte_in_any_file_of_an_unfinished_pack_is_noticed(
    tmp_path: Path, source: Path, form: str
) -> None:
    options = PACKS[form]
    fastdata.pack(source, tmp_path / "whole", **options)
    whole = digest_of(tmp_path / "whole"), rejects_of(tmp_path / "whole")
    unfinished_pack(source, tmp_path / "left", options, chunks=5)
    left = tmp_path / "left.partial"
    files = [path for path in sorted(left.rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(files) > 10
    for file in files:
        data = file.read_bytes()
        for position in sorted({0, len(data) // 3, len(data) // 2, len(data) - 1}):
            path = tmp_path / "x"
            shutil.copytree(left, tmp_path / "x.partial")
            (tmp_path / "x.partial" / file.relative_to(left)).write_bytes(changed(data, position))
            found = resumed(source, path, options)
            assert found[:2] == whole, (file, position)
            # What has a checksum in the state is found before anything is packed.
            assert not found[2] or file.name in ("shard.lmdb", "column.image.blobs", "image.blobs")
            remove_own(path)
            path.with_name("x.rejects.csv").unlink(missing_ok=True)


@pytest.mark.parametrize("form", ["lmdb", "hdf5 shards"])
@pytest.mark.parametrize("file", ["column.label", "column.key.data", "rejects.csv", "shards"])
@pytest.mark.parametrize("kind", ["changed", "short", "missing"])
def test_a_note_says_what_is_packed_again(
    tmp_path: Path, source: Path, form: str, file: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**SMALL, **FORMS[form]}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    unfinished_pack(source, tmp_path / "x", options, chunks=5)
    partial = tmp_path / "x.partial"
    found = sorted([*partial.rglob(file), *partial.rglob(f"{file}/*.h5")])
    if file == "shards" and form == "lmdb":
        pytest.skip("no shard is finished yet")
    path = next(path for path in found if path.is_file())
    data = path.read_bytes()
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if kind == "short" else changed(data, len(data) // 2))
    report = fastdata.pack(source, tmp_path / "x", **options)
    assert (report.digest, digest_of(tmp_path / "x")) == (whole.digest, whole.digest)
    assert rejects_of(tmp_path / "x") == rejects_of(tmp_path / "whole")
    (note,) = [note for note in report.notes if "packed again" in note]
    assert str(path) in note
    assert note in caplog.text
    first = {"rejects.csv": 0, "shards": 0}.get(file, 0 if form == "lmdb" else 10)
    assert report.resumed_at == first


def test_an_undisturbed_pack_that_goes_on_has_no_note(tmp_path: Path, source: Path) -> None:
    unfinished_pack(source, tmp_path / "x", {**SMALL, "shard_size": 5}, chunks=5)
    report = fastdata.pack(source, tmp_path / "x", **SMALL, shard_size=5)
    assert report.resumed_at > 5
    assert not [note for note in report.notes if "again" in note]


@pytest.mark.parametrize("added", [False, True])
def test_a_flipped_byte_in_an_unfinished_append_adds_nothing_twice(
    tmp_path: Path, source: Path, added: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = tmp_path / "whole", tmp_path / "x"
    for each in (whole, path):
        fastdata.pack(source, each, **SMALL, shard_size=10)
    other = image_folder(tmp_path / "more", 8, classes=("ant", "bee"))
    expected = fastdata.append(whole, other, num_workers=0).digest

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(append_module, "remove_own" if added else "_add_shards", stop)
        with pytest.raises(KeyboardInterrupt):
            fastdata.append(path, other, num_workers=0)
    before = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-before")
    for file in sorted([before / "x.append.json", *(before / "x.append").rglob("*")]):
        if not file.is_file() or not file.stat().st_size:
            continue
        for position in (0, file.stat().st_size // 2):
            for each in (path, tmp_path / "x.append"):
                remove_own(each)
                shutil.copytree(before / each.name, each)
            shutil.copy2(before / "x.append.json", tmp_path)
            one = tmp_path / file.relative_to(before)
            one.write_bytes(changed(file.read_bytes(), position))
            try:
                fastdata.append(path, other, num_workers=0)
            except JobChangedError as error:
                assert "append.json is damaged" in str(error)  # noqa: PT017
                assert file.name == "x.append.json"
            else:
                assert digest_of(path) == expected


def _go_on(source: Path, path: Path, options: dict[str, Any]) -> None:
    resumed(source, path, options)


@pytest.mark.fuzz
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["lmdb", "lmdb raw"])
def test_any_flipped_byte_of_an_lmdb_under_construction_ends_no_process(
    tmp_path: Path, form: str
) -> None:
    """LMDB believes every pointer of a file: what it gets must have been looked at."""
    source = image_folder(tmp_path / "images", 300)
    options = PACKS[form]
    whole = fastdata.pack(source, tmp_path / "whole", **options).digest
    unfinished_pack(source, tmp_path / "left", options, chunks=60)
    random = np.random.default_rng(5)
    file = tmp_path / "left.partial" / "shard-00000" / "shard.lmdb"
    data = file.read_bytes()
    # The structure: meta pages, and those whose flags say branch, leaf or overflow.
    pages = [at for at in range(0, len(data), 4096) if data[at + 10] in (1, 2, 4, 8)]
    for _ in range(150):
        page = int(random.choice(pages))
        span = 24 if data[page + 10] == 4 else int(random.choice([24, 200, 4096]))
        position = page + int(random.integers(span))
        shutil.copytree(tmp_path / "left.partial", tmp_path / "x.partial")
        copy = tmp_path / "x.partial" / "shard-00000" / "shard.lmdb"
        copy.write_bytes(changed(data, position, int(random.integers(8))))
        assert run_child(_go_on, source, tmp_path / "x", options) == 0, position
        assert digest_of(tmp_path / "x") == whole, position
        os.unlink(tmp_path / "x")
