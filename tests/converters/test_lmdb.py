"""What is special to LMDB files: texts, lists of keys, damage, and no traces."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import lmdb
import pytest
from case_lmdb import write_lmdb
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import SourceError
from fastdata.formats.lmdb_pages import Entry, LmdbFile

COUNT = 9


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(COUNT)


def named(pictures: list[Picture]) -> list[tuple[bytes, bytes]]:
    return [(f"cls{p.label}/{p.name}".encode(), p.data) for p in pictures]


def pack(location: Path, path: Path) -> Any:
    return fastdata.pack(location, path, codec="keep", num_workers=0, progress=False)


def samples(path: Path) -> dict[str, Any]:
    dataset = fastdata.open(path)
    return dict(zip(dataset.keys, dataset, strict=True))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("count", [1, 40, 3000])
def test_the_tree_is_read_as_lmdb_reads_it(tmp_path: Path, version: int, count: int) -> None:
    """Short values, long values, several levels of pages, deleted and overwritten ones."""
    path = tmp_path / "a"
    content = {f"{k:05}".encode() * (1 + k % 9): bytes([k % 256]) * (k % 40) for k in range(count)}
    content |= {f"big{'x' * k}".encode(): os.urandom(3000 + 5000 * k) for k in range(5)}
    write_lmdb(path, content.items(), lib_version=version)
    gone = list(content)[::7]
    with (
        lmdb.open(str(path), map_size=256 << 20, lib_version=version) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key in gone:
            transaction.delete(key)
        transaction.put(b"00001", b"again")
        wanted = list(transaction.cursor())
    data = (path / "data.mdb").read_bytes()
    found = list(LmdbFile(path / "data.mdb").entries())
    assert all(isinstance(entry, Entry) for entry in found)
    assert [(e.key, data[e.offset :][: e.length]) for e in found] == wanted  # type: ignore[union-attr]


def test_nothing_is_left_beside_the_file(pictures: list[Picture], tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", named(pictures))
    (path / "lock.mdb").unlink()
    before = (path / "data.mdb").stat()
    os.chmod(path, 0o500)
    pack(path, tmp_path / "b.lmdb")
    assert sorted(os.listdir(path)) == ["data.mdb"]
    after = (path / "data.mdb").stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_it_is_read_while_it_is_open_in_this_process(
    pictures: list[Picture], tmp_path: Path
) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", named(pictures))
    with lmdb.open(str(path), lib_version=0, readonly=True, lock=False):
        report = pack(path, tmp_path / "b.lmdb")
    assert report.num_samples == COUNT


def test_keys_that_only_the_list_has_are_rejects(pictures: list[Picture], tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", ((p.name.encode(), p.data) for p in pictures))
    lines = [f"{p.name}.png (40,48,3) 1\n" for p in pictures]
    (path / "meta_info.txt").write_text("".join(lines) + "lost_s001.png (40,48,3) 1\n")
    report = pack(path, tmp_path / "b.lmdb")
    assert [reject.key for reject in report.rejects] == ["lost_s001"]
    assert "meta_info.txt names this key" in report.rejects[0].reason
    assert report.num_samples == COUNT


def test_texts_belong_to_the_images_of_their_numbers(
    pictures: list[Picture], tmp_path: Path
) -> None:
    content = [(f"image-{k:09}".encode(), p.data) for k, p in enumerate(pictures, 1)]
    content += [(f"label-{k:09}".encode(), f"wörd {k}".encode()) for k in range(1, COUNT + 3)]
    content += [(b"num-samples", str(COUNT).encode())]
    content = [pair for pair in content if pair[0] != b"label-000000004"]
    report = pack(write_lmdb(tmp_path / "a", content), tmp_path / "b.lmdb")
    found = {key: sample.text for key, sample in samples(tmp_path / "b.lmdb").items()}
    assert found == {f"image-{k:09}": f"wörd {k}" for k in range(1, COUNT + 1) if k != 4}
    assert [reject.key for reject in report.rejects] == ["image-000000004"]
    assert any("2 texts without an image" in note for note in report.notes)
    assert any("num-samples" in note for note in report.notes)


def test_databases_with_names_are_refused(pictures: list[Picture], tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "a"), map_size=1 << 24, max_dbs=4, lib_version=0) as environment:
        for name in (b"train", b"val"):
            database = environment.open_db(name)
            with environment.begin(write=True, db=database) as transaction:
                for key, data in named(pictures):
                    transaction.put(key, data)
    with pytest.raises(SourceError, match="has databases with names, which are not read"):
        find_source(tmp_path / "a")


def test_other_values_are_refused_and_not_run(tmp_path: Path) -> None:
    content = [(f"{k}".encode(), pickle.dumps((b"x", k))) for k in range(5)]
    with pytest.raises(SourceError, match=r"expected image files.*pickled samples are not read"):
        find_source(write_lmdb(tmp_path / "a", content))


def test_fastdatas_own_shards_are_refused(pictures: list[Picture], tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a", named(pictures))
    pack(path, tmp_path / "one.lmdb")
    with pytest.raises(SourceError, match=r"dataset of fastdata's already.*--format fastdata"):
        find_source(tmp_path / "one.lmdb", format="lmdb")
    fastdata.pack(path, tmp_path / "many", shards=2, num_workers=0, progress=False)
    with pytest.raises(SourceError, match="no LMDB there"):
        find_source(tmp_path / "many", format="lmdb")


def test_a_bad_image_costs_itself(pictures: list[Picture], tmp_path: Path) -> None:
    content = named(pictures)
    content[4] = (content[4][0], content[4][1][:100])
    report = pack(write_lmdb(tmp_path / "a", content), tmp_path / "b.lmdb")
    assert [reject.key for reject in report.rejects] == [content[4][0].decode()]


def test_a_lost_page_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    pictures = make_pictures(400, 16, 16)
    path = write_lmdb(tmp_path / "a", ((p.name.encode(), p.data) for p in pictures))
    file = path / "data.mdb"
    data = bytearray(file.read_bytes())
    leaves = [
        at
        for at in range(2 * 4096, len(data), 4096)
        if struct.unpack_from("<H", data, at + 10)[0] == 2
    ]
    inside = struct.unpack_from("<H", data, leaves[20] + 12)[0] - 16 >> 1
    data[leaves[20] + 10] = 0x77
    file.write_bytes(data)
    report = pack(path, tmp_path / "b.lmdb")
    assert report.num_samples == 400 - inside
    reasons = [reject.reason for reject in report.rejects]
    assert f"page {leaves[20] // 4096:,} is neither branch nor leaf" in reasons[0]
    assert f"{inside} of 400 entries are not there" in reasons[1]


def test_pages_that_lead_to_each_other_end(tmp_path: Path) -> None:
    pictures = make_pictures(400, 16, 16)
    path = write_lmdb(tmp_path / "a", ((p.name.encode(), p.data) for p in pictures))
    file = path / "data.mdb"
    data = bytearray(file.read_bytes())
    metas = [struct.unpack_from("<QQQ", data, at + 128) for at in (0, 4096)]
    root = max((transaction, root) for root, _, transaction in metas)[1]
    first = struct.unpack_from("<H", data, root * 4096 + 16)[0]
    struct.pack_into("<HHH", data, root * 4096 + first, root & 0xFFFF, root >> 16, 0)
    file.write_bytes(data)
    report = pack(path, tmp_path / "b.lmdb")
    assert any("stands twice in the tree" in reject.reason for reject in report.rejects)
    assert 0 < report.num_samples < 400


def test_an_absurd_length_is_a_reject(pictures: list[Picture], tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a", [(b"a", pictures[0].data), (b"b", os.urandom(9000))])
    file = path / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.rindex((9000).to_bytes(4, "little") + b"\x01\x00\x01\x00b")
    struct.pack_into("<I", data, at, 0xFFFFFFFF)
    file.write_bytes(data)
    report = pack(path, tmp_path / "b.lmdb")
    assert [reject.key for reject in report.rejects][:1] == ["a#1"]
    assert "the value of key 'b' is beyond the file's end" in report.rejects[0].reason


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.lmdb").write_bytes(bytes(8192))
    with pytest.raises(SourceError, match="no LMDB there"):
        find_source(tmp_path / "a.lmdb", format="lmdb")
    head = bytes(16) + struct.pack("<II", 0xBEEFC0DE, 99)
    (tmp_path / "b.lmdb").write_bytes(head + bytes(8192))
    with pytest.raises(SourceError, match="no LMDB file, or of"):
        find_source(tmp_path / "b.lmdb")
