"""Damaged, foreign and malicious files: an error that says what is wrong, never wrong data."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import simplejpeg
import torch
import xxhash
from click.testing import CliRunner
from PIL import Image
from samples import (
    EVERY_KIND,
    SUFFIXES,
    forge,
    forge_manifest,
    header_of,
    make_records,
    mask,
    photo,
    pil_encode,
    put_blob,
    write_shard,
    write_shards,
)

import fastdata
from fastdata.cli import main
from fastdata.codecs.blobs import encode_jpeg
from fastdata.errors import (
    DatasetNotFoundError,
    FastdataError,
    FormatError,
    OptionError,
    ShardCorruptError,
)
from fastdata.formats.reader import ShardReader, find_damage
from fastdata.schema import Schema, StringField
from fastdata.transforms import RandomResizedCrop
from fastdata.verifying import verify

# Readers know no containers: a footer and a header say where everything is.  So damage is tried in
# one container; only whole files, cut short or extended, are tried in each.


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A shard of six labelled JPEGs."""
    return write_shard(tmp_path / "shard.lmdb", make_records())


@pytest.fixture
def each_shard(tmp_path: Path, container: str) -> Path:
    """The same in every container in turn."""
    return write_shard(tmp_path / f"shard{SUFFIXES[container]}", make_records())


@pytest.fixture
def rich_shard(tmp_path: Path) -> Path:
    """A shard of six samples with a field of every kind."""
    records = make_records(EVERY_KIND, codec=("jpeg", "png", "raw", "file"))
    return write_shard(tmp_path / "rich.h5", records, EVERY_KIND)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A directory of three shards of 3, 1 and 2 labelled JPEGs."""
    records = make_records()
    return write_shards(tmp_path / "shards", (records[:3], records[3:4], records[4:]))


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Flip bits of one byte of a file."""
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def damage(path: Path) -> list[str]:
    """Verify a dataset; what cannot be opened counts as found."""
    try:
        return [str(found) for found in verify(path, progress=False).damage]
    except FastdataError as error:
        return [str(error)]


# -- what is no dataset -----------------------------------------------------------------


def _plain_lmdb(path: Path) -> None:
    environment = lmdb.open(str(path), subdir=False, lock=False, lib_version=0)
    with environment, environment.begin(write=True) as transaction:
        transaction.put(b"key", b"value")


def _plain_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["image"] = np.zeros((3, 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(63)),
        lambda path: path.write_bytes(bytes(64)),
        lambda path: path.write_bytes(bytes(5000)),
        lambda path: path.write_text("path,label\na.jpg,cat\n" * 20),
        lambda path: path.write_bytes(encode_jpeg(photo(40, 50))),
        lambda path: os.mkfifo(path),
        _plain_lmdb,
        _plain_hdf5,
    ],
    ids=["empty", "63", "64", "zeros", "text", "jpeg", "pipe", "lmdb", "hdf5"],
)
def test_what_is_no_shard_is_called_so(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    path = tmp_path / "thing"
    make(path)
    with pytest.raises(FormatError, match=r"thing: not a fastdata shard"):
        fastdata.open(path)


def test_a_shard_in_a_folder_of_lmdb_is_no_shard(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "data.mdb"), lib_version=0):
        pass
    with pytest.raises(DatasetNotFoundError, match="without a readable manifest"):
        fastdata.open(tmp_path / "data.mdb")


@pytest.mark.parametrize(
    ("footer", "error", "message"),
    [
        ({"version": 2}, FormatError, "version 2 is newer than 1, .*pip install --upgrade"),
        ({"version": 2**32 - 1}, FormatError, "version 4294967295 is newer than 1"),
        ({"version": 0}, FormatError, "no format version 0"),
        ({"flags": 1}, FormatError, "flags 0x1"),
        ({"magic": b"fastdata"}, FormatError, "not a fastdata shard"),
        ({"file_bytes": 1}, ShardCorruptError, "1 bytes were written but the file has"),
        ({"offset": 2**64 - 1}, ShardCorruptError, "cut or extended"),
        ({"length": 2**64 - 1}, ShardCorruptError, "cut or extended"),
        # The sum wraps to a place inside the file where integers are of 64 bits.
        ({"offset": 2**64 - 100, "length": 200}, ShardCorruptError, "cut or extended"),
        ({"offset": 0}, ShardCorruptError, "the header's checksum does not match"),
        ({"length": 0}, ShardCorruptError, "the header's checksum does not match"),
        ({"checksum": 0}, ShardCorruptError, "the header's checksum does not match"),
    ],
    ids=str,
)
def test_a_footer_that_cannot_be_is_refused(
    shard: Path, footer: dict[str, Any], error: type[Exception], message: str
) -> None:
    forge(shard, **footer)
    with pytest.raises(error, match=message):
        fastdata.open(shard)


# -- files cut, extended and flipped --------------------------------------------------------


def test_a_file_cut_anywhere_does_not_open(each_shard: Path) -> None:
    data = each_shard.read_bytes()
    cuts = {*range(0, len(data), 997), *range(len(data) - 130, len(data))}
    for length in sorted(cuts, reverse=True):
        os.truncate(each_shard, length)
        with pytest.raises((FormatError, ShardCorruptError), match=each_shard.name):
            fastdata.open(each_shard)


def test_a_file_with_something_behind_it_does_not_open(each_shard: Path) -> None:
    data = each_shard.read_bytes()
    for more in (b"\0", data[-64:], data):
        each_shard.write_bytes(data + more)
        with pytest.raises((FormatError, ShardCorruptError), match=each_shard.name):
            fastdata.open(each_shard)


def test_a_cut_shard_of_a_directory_is_named(shards: Path) -> None:
    victim = sorted(shards.glob("shard-*"))[1]
    os.truncate(victim, victim.stat().st_size - 1)
    with pytest.raises(ShardCorruptError, match=r"shard-00001\.\w+: \d+ bytes were written but"):
        fastdata.open(shards)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A shard of two small images."""
    records = make_records(count=2, codec=("jpeg", "raw"), size=(4, 5))
    return write_shard(tmp_path / "tiny.h5", records)


def test_verify_finds_a_flip_of_any_byte_of_an_image(tiny: Path) -> None:
    data = tiny.read_bytes()
    dataset = fastdata.open(tiny)
    expected = [sample.image.tolist() for sample in dataset]
    (reader,) = dataset.shards
    offsets, lengths = reader.column("image.offset"), reader.column("image.length")
    places = [
        (index, start + k)
        for index, start, length in zip(range(2), offsets.tolist(), lengths.tolist(), strict=True)
        for k in range(length)
    ]
    assert len(places) > 500
    # Of a byte in the middle every fifth: the checksum is of all of them alike.
    ends = {edge for start in offsets.tolist() for edge in (start, start + 1)}
    chosen = [place for k, place in enumerate(places) if k % 5 == 0 or place[1] in ends]
    for index, position in [*chosen, places[-1]]:
        flip(tiny, position, 1 << position % 8)
        (found,) = find_damage(ShardReader(tiny))
        key = make_records()[index].key
        assert found.place == f"'image' of sample {index} (key {key!r})"
        assert found.reason == "the checksum does not match"
        flip(tiny, position, 1 << position % 8)
    assert tiny.read_bytes() == data
    assert [sample.image.tolist() for sample in fastdata.open(tiny)] == expected


def test_verify_finds_a_flip_of_any_byte_of_columns_header_and_footer(tiny: Path) -> None:
    size = tiny.stat().st_size
    footer = struct.unpack("<8sIIQQQQ8xQ", tiny.read_bytes()[-64:])
    places = [*range(size - 64, size), *range(footer[3], footer[3] + footer[4], 7)]
    for column in header_of(tiny)["columns"].values():
        length = int(np.prod(column["shape"])) * np.dtype(column["dtype"]).itemsize
        places += range(column["offset"], column["offset"] + length)
    for position in places:
        flip(tiny, position, 0x10)
        assert damage(tiny), f"a flip at byte {position} was not found"
        flip(tiny, position, 0x10)
    assert damage(tiny) == []


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw", "file"])
def test_a_flipped_image_is_an_error_and_its_neighbours_are_read(
    tmp_path: Path, container: str, codec: str
) -> None:
    path = write_shard(tmp_path / f"shard{SUFFIXES[container]}", make_records(codec=codec))
    before = fastdata.open(path)
    expected = [sample.image.tolist() for sample in before]
    (reader,) = before.shards
    middle = int(reader.column("image.offset")[2]) + int(reader.column("image.length")[2]) // 2
    flip(path, middle)
    dataset = fastdata.open(path)
    with pytest.raises(ShardCorruptError, match=r"'image' of sample 2 \(key '2/kéy 2.jpg'\)"):
        dataset[2]
    with pytest.raises(ShardCorruptError, match=r"fastdata verify .*shard.* lists all damage"):
        dataset._images("image", [2]).read(0)
    assert [dataset[i].image.tolist() for i in (0, 1, 3, 4, 5)] == expected[:2] + expected[3:]


@pytest.mark.parametrize("column", ["label", "image.offset", "image.height", "key.data"])
def test_a_flipped_column_is_an_error_where_it_is_used(shard: Path, column: str) -> None:
    flip(shard, header_of(shard)["columns"][column]["offset"])
    with pytest.raises(ShardCorruptError, match=f"the checksum of column '{column}'"):
        read_all(shard)
    assert f"column '{column}': the checksum does not match" in "\n".join(damage(shard))


# -- headers with every checksum right -----------------------------------------------------


def _set(*keys: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of one place in a JSON document."""

    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    change.__name__ = f"{'.'.join(map(str, keys))}={to!r}"[:60]
    return change


def _drop(*keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    change.__name__ = f"no {'.'.join(map(str, keys))}"
    return change


STRANGE: list[Any] = [None, True, -1, 1.5, 10**30, "", "x", "NaN", [], {}, [[]], {"a": 1}]
HEADER_PLACES: list[tuple[Any, ...]] = [
    ("num_samples",),
    ("schema",),
    ("schema", 0),
    ("schema", 0, "name"),
    ("schema", 0, "kind"),
    ("schema", 0, "channels"),
    ("schema", 1, "dtype"),
    ("schema", 1, "classes"),
    ("columns",),
    ("columns", "label"),
    ("columns", "label", "dtype"),
    ("columns", "label", "shape"),
    ("columns", "label", "shape", 0),
    ("columns", "key.data", "shape", 0),
    ("columns", "image.offset", "offset"),
    ("columns", "label", "checksum"),
    ("digest",),
    ("blob_bytes",),
    ("options",),
    ("container",),
]


def read_all(path: Path, *, check: bool = True) -> None:
    """Do with a dataset everything that there is to do."""
    dataset = fastdata.open(path, check=check)
    assert len(dataset) >= 0
    repr(dataset)
    list(dataset.keys)
    for sample in dataset:
        assert len(sample) == len(dataset.schema)
    for name in dataset.schema:
        if name in dataset.schema.images:
            dataset._images(name, range(len(dataset)))
        else:
            dataset._gather(name, range(len(dataset)))
    assert isinstance(dataset.digest, str)


@pytest.mark.parametrize("place", HEADER_PLACES, ids=lambda place: ".".join(map(str, place)))
def test_headers_with_strange_values_raise_nothing_but_fastdata_errors(
    tmp_path: Path, place: tuple[Any, ...]
) -> None:
    """Some of these make a sound dataset; none may make another exception."""
    original = write_shard(tmp_path / "original.h5", make_records(count=2, size=(5, 4)))
    path = tmp_path / "shard.h5"
    for strange in [*STRANGE, float("nan"), float("inf"), "delete"]:
        change = _drop(*place) if strange == "delete" else _set(*place, to=strange)
        shutil.copy(original, path)
        forge(path, header=change)
        with contextlib.suppress(FastdataError):
            read_all(path)
        damage(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("num_samples", to=-1), "num_samples=-1 is not an integer"),
        (_set("num_samples", to=7), r"has the shape \(6,\)|has the shape \(7,\)"),
        (_set("num_samples", to=float("nan")), "ValueError"),
        (_set("num_samples", to=float("inf")), "Infinity is not a finite number"),
        (_set("columns", "label", "dtype", to="|O"), "'label' has the dtype '|O'"),
        (_set("columns", "label", "dtype", to="(1,2"), "'label' has the dtype '.1,2'"),
        (_set("columns", "label", "dtype", to=">i8"), "'label' has the dtype '>i8'"),
        (_set("columns", "label", "shape", to=[6, 1]), r"'label' has the shape \(6, 1\)"),
        (_set("columns", "key.data", "shape", to=[-8]), "length=-8 is not an integer"),
        (_set("columns", "label", "offset", to=-8), "offset=-8 is not an integer"),
        (_drop("columns", "label"), "KeyError.'label'"),
        (_set("schema", 0, "kind", to="video"), "unknown kind 'video'"),
        (_set("schema", 0, "depth", to=16), "depth"),
        (_set("schema", 0, "channels", to=3.0), "channels, not 3.0"),
        (_set("schema", 0, "mask", to="\ud800"), "a text has a lone surrogate"),
        (_set("schema", 1, "name", to="image"), "field 'image' stands twice"),
        (_set("schema", 1, "name", to="a-b"), "'a-b' is not a letter followed by"),
        (_set("schema", 1, "classes", to=[1]), "Unicode text without NUL, not 1"),
        (lambda document: [document], "TypeError"),
        (lambda document: "text", "TypeError"),
    ],
)
def test_headers_that_cannot_be_are_refused(shard: Path, change: Any, message: str) -> None:
    forge(shard, header=change)
    with pytest.raises(FormatError, match=f"shard.*the header is not that .*{message}"):
        fastdata.open(shard)


ODD_HEADERS = {
    "NaN in options": _set("options", to={"x": float("nan")}),
    "a lone surrogate in options": _set("options", to={"a": "\ud800"}),
    "a list of lists in options": _set("options", to={"codec": [[1]]}),
    "an object in options": _set("options", to={"size": [1, {}]}),
    "a digest that is no hex": _set("digest", to="zz"),
    "a digest in capitals": _set("digest", to="A" * 32),
    "a short checksum": _set("columns", "label", "checksum", to="0" * 15),
    "no classes": _set("schema", 1, "classes", to=[]),
    "a text for classes": _set("schema", 1, "classes", to="abc"),
    "NUL in a class": _set("schema", 1, "classes", to=["a", "b\0", "c"]),
    "a bool for a number": _set("blob_bytes", to=True),
    "a float for a number": _set("num_samples", to=6.0),
    "a text for a number": _set("columns", "label", "offset", to="64"),
    "another container": _set("container", to="tar"),
    "another version": _set("version", to=1.0),
    "a list for the writer": _set("writer", to=[]),
    "a shape that is text": _set("columns", "label", "shape", to="6"),
    "deep nesting": _set("more", to=[json.loads("[" * 500 + "]" * 500)]),
}


@pytest.mark.parametrize("name", ODD_HEADERS)
def test_odd_headers_end_every_command_with_path_and_reason(
    tmp_path: Path, shard: Path, name: str
) -> None:
    forge(shard, header=ODD_HEADERS[name])
    _refused_everywhere(tmp_path, shard, sound=name == "deep nesting")


def test_a_member_that_stands_twice_is_refused(tmp_path: Path, shard: Path) -> None:
    text = json.dumps(header_of(shard))
    forge(shard, text=f'{text[:-1]}, "num_samples": 6}}'.encode())
    _refused_everywhere(tmp_path, shard)


def test_images_without_pixels_are_damage(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard.h5", make_records(codec="raw", size=(8, 8)))
    put_blob(path, 0, b"", codec=0, height=0, width=0)
    assert any("not an image" in reason for reason in map(str, damage(path)))
    for words in (
        ["merge", path, "o.lmdb"],
        *(["export", path, "o", "--format", f] for f in FORMS),
    ):
        done = run_command(tmp_path, *words)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "has 0 x 0 pixels" in done.stderr


def run_command(folder: Path, *words: object) -> Any:
    """Run a command of which everything that begins with an o is written to a folder."""
    placed = [str(folder / word) if str(word)[0] == "o" else str(word) for word in words]
    return CliRunner().invoke(main, placed)


FORMS = ("folder", "webdataset", "tfrecord", "parquet")


def _refused_everywhere(folder: Path, path: Path, *, sound: bool = False) -> None:
    """Run every command on a shard; all say its path and that the header is wrong."""
    for words in (
        *(["info", path], ["view", path, "--html", "o.html"], ["merge", path, "o.lmdb"]),
        *(["subset", path, "o2.lmdb", "--indices", "0:2"], ["pack", path, "o3.lmdb", "-q"]),
        *(["export", path, f"o-{form}", "--format", form] for form in FORMS),
    ):
        done = run_command(folder, *words)
        refused = f"{path.name}: the header is not that of a version-1 shard" in done.stderr
        assert (done.exit_code, refused) == ((0, False) if sound else (1, True)), (
            words,
            done.stderr,
        )


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"\xff\xfe{", b"[" * 100_000, b"9" * 5000, b'{"schema": NaN}', b"\0" * 9],
    ids=lambda text: repr(text[:8]),
)
def test_headers_that_are_no_json_are_refused(shard: Path, text: bytes) -> None:
    forge(shard, text=text)
    with pytest.raises(FormatError, match="the header is not that of a version-1 shard"):
        fastdata.open(shard)


@pytest.mark.parametrize("offset", [2**31, 2**63 - 1, 2**63, 2**64 - 8, 2**64, 10**30])
def test_columns_beyond_the_end_of_the_file_are_refused(shard: Path, offset: int) -> None:
    forge(shard, header=_set("columns", "label", "offset", to=offset))
    message = "column 'label' ends beyond the end of the file|has more than 64 bits"
    with pytest.raises((ShardCorruptError, FormatError), match=message):
        fastdata.open(shard)


@pytest.mark.parametrize("beyond", [0, 1])
def test_columns_may_end_where_the_footer_begins_and_no_later(shard: Path, beyond: int) -> None:
    """The last bytes of a header, which are spaces, serve as labels."""
    document = header_of(shard)
    document["columns"]["label"] |= {
        "offset": shard.stat().st_size - 64 + 9000 - 48 + beyond,
        "checksum": f"{xxhash.xxh3_64_intdigest(b' ' * 48):016x}",
    }
    forge(shard, text=json.dumps(document).encode().ljust(9000))
    if beyond:
        with pytest.raises(ShardCorruptError, match="'label' ends beyond the end of the file"):
            fastdata.open(shard)
    else:
        assert fastdata.open(shard)[5].label == 0x2020202020202020


@pytest.mark.parametrize("huge", [2**31, 2**62, 2**64, 10**30])
def test_samples_beyond_counting_are_refused(tmp_path: Path, huge: int) -> None:
    schema = Schema({"text": StringField()})
    path = write_shard(tmp_path / "shard.lmdb", make_records(schema), schema)

    def change(document: dict[str, Any]) -> None:
        document["num_samples"] = huge
        for name in ("key.bounds", "text.bounds"):
            document["columns"][name]["shape"] = [huge + 1]

    forge(path, header=change)
    message = "'key.bounds' ends beyond the end of the file|has more than 64 bits|is not an integer"
    with pytest.raises((ShardCorruptError, FormatError), match=message):
        fastdata.open(path)


# -- columns with every checksum right ------------------------------------------------------


def _put(index: int, value: Any) -> Callable[[np.ndarray[Any, Any]], None]:
    return lambda column: column.__setitem__(index, value)


LIES = [
    ({"image.offset": 2**64 - 1}, "ends at byte .*, beyond the data's end"),
    ({"image.length": 2**64 - 1}, "ends at byte .*, beyond the data's end"),
    ({"image.offset": 2**64 - 50, "image.length": 100}, "ends at byte 18446744073709551666"),
    ({"image.length": 0}, "does not match"),
    ({"image.offset": 0}, "does not match"),
    ({"image.codec": 4}, "unknown codec 4"),
    ({"image.codec": 255}, "unknown codec 255"),
    ({"image.codec": 0}, "are not a raw image of shape"),
    ({"image.codec": 2}, "an 8-bit PNG of shape"),
    ({"image.height": 0}, r"the image has shape .*, the columns say \(0, |has \d+ x 0 pixels"),
    ({"image.width": 1}, r"the image has shape .*, the columns say \(\d+, 1, 3\)"),
    ({"image.height": 2**32 - 1, "image.width": 2**32 - 1}, "the columns say"),
    ({"image.height": 2**32 - 1, "image.width": 2**32 - 1, "image.codec": 0}, "not a raw"),
    ({"image.height": 2**32 - 1, "image.width": 2**32 - 1, "image.codec": 2}, "8-bit PNG"),
    ({"image.height": 2**32 - 1, "image.width": 2**32 - 1, "image.codec": 3}, "the columns"),
]


@pytest.mark.parametrize(("columns", "message"), LIES, ids=str)
def test_columns_that_lie_about_an_image_are_found_out(
    shard: Path, columns: dict[str, int], message: str
) -> None:
    forge(shard, columns={name: _put(3, value) for name, value in columns.items()})
    dataset = fastdata.open(shard)
    assert dataset[2].label == 2
    with pytest.raises(ShardCorruptError, match=rf"sample 3 .*{message}"):
        dataset[3]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("columns", [columns for columns, _ in LIES], ids=str)
def test_columns_that_lie_about_an_image_are_found_out_by_a_loader(
    shard: Path, columns: dict[str, int], check: bool
) -> None:
    forge(shard, columns={name: _put(3, value) for name, value in columns.items()})
    dataset = fastdata.open(shard, check=check)
    crop = [RandomResizedCrop(16)]
    with fastdata.loader(dataset, batch_size=6, transform=crop, num_workers=0) as it:
        with pytest.raises(FastdataError):
            next(iter(it))
        it.set_epoch(0)


@pytest.mark.parametrize("beyond", [0, 1])
def test_images_may_end_where_the_footer_begins_and_no_later(shard: Path, beyond: int) -> None:
    forge(shard)
    before = shard.stat().st_size
    forge(shard)  # adds a header as long as the last one, as the next call will
    end = 2 * shard.stat().st_size - before - 64
    length = end - int(ShardReader(shard).column("image.offset")[5]) + beyond
    forge(shard, columns={"image.length": _put(5, length)})
    assert shard.stat().st_size == end + 64
    reader = ShardReader(shard)
    if beyond:
        with pytest.raises(ShardCorruptError, match=rf"ends at byte {end + 1}, beyond .* {end}\."):
            reader.raw_blob("image", 5)
    else:
        assert len(reader.raw_blob("image", 5)) == length


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"caption.bounds": _put(3, 2**64 - 1)}, "'caption' of sample 2 lies outside its column"),
        ({"caption.bounds": _put(3, 0)}, "'caption' of sample 2 lies outside its column"),
        ({"caption.bounds": _put(-1, 10**6)}, "'caption' of sample 5 lies outside its column"),
        ({"caption.data": _put(slice(None), 0xFF)}, "'caption' of sample 1 is not UTF-8"),
        ({"extra.bounds": _put(1, 2**63)}, "'extra' of sample 0 lies outside its column"),
        ({"points.shape": _put(0, 2**32 - 1)}, "'points' of sample 0 has .* bytes, which do not"),
        ({"points.shape": _put((0, 1), 3)}, "'points' of sample 0 has .* bytes, which do not"),
        ({"ragged.bounds": _put(1, 3)}, "'ragged' of sample 0 .*|lies outside"),
        ({"key.bounds": _put(2, 2**64 - 2)}, "'key' of sample 1 lies outside its column"),
    ],
)
def test_bounds_and_shapes_that_lie_are_found_out(
    rich_shard: Path, columns: dict[str, Any], message: str
) -> None:
    forge(rich_shard, columns=columns)
    with pytest.raises(ShardCorruptError, match=message):
        read_all(rich_shard)


JPEG, PNG = encode_jpeg(photo(24, 40)), pil_encode(photo(24, 40), "PNG")


def _png_of_size(height: int, width: int) -> bytes:
    """Return a PNG whose header, checksum and all, claims another size."""
    header = b"IHDR" + struct.pack(">II", width, height) + PNG[24:29]
    return PNG[:12] + header + struct.pack(">I", zlib.crc32(header)) + PNG[33:]


def _jpeg_of_size(height: int, width: int) -> bytes:
    """Return a JPEG whose frame header claims another size."""
    start = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:start] + struct.pack(">HH", height, width) + JPEG[start + 4 :]


def _png(mode: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(photo(24, 40)).convert("L").convert(mode).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "columns", "message"),
    [
        (JPEG[:100], {"codec": 1}, "the JPEG cannot be decoded"),
        (b"", {"codec": 1}, "the JPEG cannot be decoded"),
        (PNG, {"codec": 1}, "the JPEG cannot be decoded"),
        # Bombs: 65,500 pixels a side take 12 GB; the bytes must be refused by their header.
        (_jpeg_of_size(65500, 65500), {"codec": 1}, "65500, 65500, 3"),
        (_png_of_size(65535, 65535), {"codec": 2}, "8-bit PNG of shape"),
        (_jpeg_of_size(65500, 65500), {"codec": 3}, "limit of 960"),
        (_png_of_size(9000, 9000), {"codec": 3}, "limit of 960"),
        (_png_of_size(65535, 65535), {"codec": 3}, "exceeds limit"),
        (_png("L"), {"codec": 2}, "8-bit PNG of shape"),
        (_png("I;16"), {"codec": 2}, "8-bit PNG of shape"),
        (_png("P"), {"codec": 2}, "8-bit PNG of shape"),
        (_png("LA"), {"codec": 2}, "8-bit PNG of shape"),
        (JPEG, {"codec": 2}, "8-bit PNG of shape"),
        (PNG[:26], {"codec": 2}, "the PNG cannot be decoded"),
        (PNG[:20], {"codec": 2}, "8-bit PNG of shape"),
        (b"", {"codec": 2}, "8-bit PNG of shape"),
        (b"", {"codec": 0}, "0 bytes are not a raw image"),
        (b"", {"codec": 3}, "the file is empty"),
        (b"GIF89a", {"codec": 3}, "damaged or of an unusual kind: GIF"),
        (encode_jpeg(photo(40, 24)), {"codec": 1}, r"has shape \(40, 24, 3\), the columns say"),
        (pil_encode(photo(40, 24), "BMP"), {"codec": 3}, r"has shape \(40, 24, 3\), the columns"),
    ],
)
def test_bytes_that_are_not_the_image_are_refused(
    shard: Path, data: bytes, columns: dict[str, int], message: str
) -> None:
    put_blob(shard, 0, data, **columns)
    assert damage(shard) == [] or "digest" in damage(shard)[0]
    with pytest.raises(ShardCorruptError, match=f"'image' of sample 0 .*{message}"):
        fastdata.open(shard)[0]
    assert fastdata.open(shard)[1].label == 1


def test_a_bomb_is_not_decoded_to_see_its_size(
    shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """simplejpeg takes 12 GB for 65,500 pixels a side before it sees that they are not there."""
    put_blob(shard, 0, _jpeg_of_size(65500, 65500), codec=1)
    dataset = fastdata.open(shard, check=False)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    with pytest.raises(ShardCorruptError, match=r"has shape \(65500, 65500, 3\), the columns say"):
        dataset[0]


def test_colours_are_no_mask(tmp_path: Path) -> None:
    """OpenCV would turn them into luma, which are no classes."""
    schema = Schema({name: EVERY_KIND[name] for name in ("image", "mask")})
    path = write_shard(tmp_path / "shard.h5", make_records(schema, 1, size=(24, 40)), schema)
    assert fastdata.open(path)[0].mask.numpy().tobytes() == mask(24, 40, 0).tobytes()
    put_blob(path, 0, PNG, "mask")
    with pytest.raises(ShardCorruptError, match=r"'mask' of sample 0 .* 8-bit PNG of shape"):
        fastdata.open(path)[0]


# -- directories ------------------------------------------------------------------------


def test_a_missing_shard_is_named(shards: Path) -> None:
    victim = sorted(shards.glob("shard-*"))[1]
    victim.unlink()
    with pytest.raises(DatasetNotFoundError, match=r"shard-00001\.\w+: this shard .* is missing"):
        fastdata.open(shards)
    assert len(fastdata.open([p for p in sorted(shards.glob("shard-*"))])) == 5


def test_a_shard_that_is_there_twice_is_refused(tmp_path: Path, shards: Path) -> None:
    one, two = sorted(shards.glob("shard-*"))[:2]
    link, hard = tmp_path / f"link{one.suffix}", tmp_path / f"hard{one.suffix}"
    link.symlink_to(one)
    hard.hardlink_to(one)
    spelled = f"{shards}/../{shards.name}/{one.name}"
    for given in ([one, one], [two, one, link], [one, hard], [spelled, one], [shards, two]):
        with pytest.raises(OptionError, match="is there twice"):
            fastdata.open(given)
        with pytest.raises(OptionError, match="is there twice"):
            fastdata.merge(given, tmp_path / "o.lmdb", progress=False)
    twice = torch.utils.data.ConcatDataset([fastdata.open(one)] * 2)
    with fastdata.loader(twice, batch_size=1, num_workers=0) as loader:
        assert sum(len(batch.label) for batch in loader) == 2 * len(fastdata.open(one))


def test_swapped_shards_are_found_out(tmp_path: Path, container: str) -> None:
    records = make_records(count=4, codec="raw", size=(8, 8))
    path = write_shards(tmp_path / "shards", [records[:2], records[2:]], container=container)
    one, two = sorted(path.glob("shard-*"))
    assert one.stat().st_size == two.stat().st_size
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    dataset = fastdata.open(path)
    for index in range(4):
        with pytest.raises(ShardCorruptError, match="this is not the shard that the manifest"):
            dataset[index]
    assert len(damage(path)) == 2


def test_a_shard_of_another_dataset_is_found_out(shards: Path) -> None:
    victim = sorted(shards.glob("shard-*"))[2]
    size = victim.stat().st_size
    other = make_records(count=3)[1:]
    write_shard(victim, other)
    with pytest.raises(ShardCorruptError, match="shard-00002"):
        fastdata.open(shards)[5]
    assert victim.stat().st_size != size or damage(shards)


def test_a_manifest_cut_anywhere_does_not_open(shards: Path) -> None:
    path = shards / "manifest.json"
    data = path.read_bytes()
    for length in range(0, len(data), 13):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError, match=r"manifest.json: not the manifest"):
            fastdata.open(shards)


def test_a_flip_of_any_byte_of_a_manifest_is_found(shards: Path) -> None:
    path = shards / "manifest.json"
    for position in range(path.stat().st_size):
        flip(path, position, 1 << position % 7)
        with pytest.raises(FormatError, match=r"manifest.json: (not the manifest|format version)"):
            fastdata.open(shards)
        flip(path, position, 1 << position % 7)
    assert len(fastdata.open(shards)) == 6


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"3", b'"text"', b"\xff", b"[" * 100_000, b"{}", b"9" * 5000],
    ids=lambda text: repr(text[:6]),
)
def test_a_manifest_that_is_no_json_is_refused(shards: Path, text: bytes) -> None:
    (shards / "manifest.json").write_bytes(text)
    with pytest.raises(FormatError, match=r"manifest.json: not the manifest of a fastdata"):
        fastdata.open(shards)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("version", to=2), "format version 2 is newer than 1"),
        (_set("version", to=0), "not the manifest"),
        (_set("version", to=float("inf")), "not the manifest"),
        (_set("version", to=None), "not the manifest"),
        (_set("format", to="other"), "format is 'other'"),
        (_set("shards", to=[]), "lists no shards"),
        (_set("shards", to={}), "lists no shards"),
        (_set("shards", to=None), "not the manifest"),
        (_set("shards", 0, to=3), "not the manifest"),
        (_drop("shards", 0, "digest"), "not the manifest"),
        (_drop("options"), "not the manifest"),
        (_set("options", to=[1]), "not the manifest"),
        (_set("schema", to=[]), "bad schema: a schema has at least one field"),
        *((_set("shards", 0, "file", to=v), "not the manifest") for v in (5, None, ["a"], {})),
        *(
            (_set("shards", 0, "file", to=v), "outside the directory")
            for v in ("../shard", "/etc/passwd", "a/b", "..", "a\0b", "./x", "")
        ),
        *(
            (_set("shards", 0, "file", to=v), "cannot be called")
            for v in ("manifest.json", "dataset.json", "dataset.json.new", "present", ".fastdata-a")
        ),
        (_set("shards", 0, "file", to="\ud800"), "not the manifest"),
        *(
            (_set("shards", 0, "num_samples", to=v), "is not an integer|64 bits|finite")
            for v in (-1, 2**63, 10**30, "3", 1.5, None, True, float("nan"))
        ),
        (_set("shards", 0, "file_bytes", to=0), "cannot be true"),
        *((_set("shards", 0, "file_bytes", to=v), "an integer|64 bits") for v in (2**64, "1")),
        *((_set("shards", 0, "digest", to=v), "hexadecimal digits") for v in (7, "zz", "A" * 32)),
        (lambda document: document["shards"].append(document["shards"][0]), "shard.* twice"),
        (_set("num_samples", to=3), "num_samples is not the sum"),
    ],
)
def test_manifests_that_cannot_be_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = write_shards(tmp_path / "shards", [make_records(count=2)], container="hdf5")
    forge_manifest(path, change)
    with pytest.raises(FormatError, match=rf"manifest.json: .*{message}"):
        fastdata.open(path)


def _move_a_sample(document: dict[str, Any]) -> None:
    for number, change in enumerate((-1, 1)):
        document["shards"][number]["num_samples"] += change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_move_a_sample, r"shard-00000.*it has 3 samples .* not 2 and"),
        (_set("shards", 1, "digest", to="0" * 32), "this is not the shard that the manifest"),
        (_set("shards", 1, "file_bytes", to=10**6), "1000000 bytes were written but the file has"),
        (_set("shards", 1, "file", to="x" * 300), "this shard of the dataset is missing"),
    ],
)
def test_manifests_that_lie_about_a_shard_are_found_out(
    shards: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    forge_manifest(shards, change)
    assert damage(shards)
    with pytest.raises((ShardCorruptError, DatasetNotFoundError), match=message):
        read_all(shards)


def test_a_manifest_of_other_fields_than_its_shards_is_found_out(shards: Path) -> None:
    forge_manifest(shards, _set("schema", 1, "dtype", to="float32"))
    with pytest.raises(FastdataError, match="shard-00000"):
        list(fastdata.open(shards))


def test_the_manifest_itself_may_not_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DatasetNotFoundError, match=r"without a readable manifest\.json"):
        fastdata.open(tmp_path)


def test_numbers_in_manifests_are_not_trusted_to_be_small(shards: Path) -> None:
    text = (shards / "manifest.json").read_text()
    (shards / "manifest.json").write_text(text.replace('"version": 1', '"version": 1e999'))
    with pytest.raises(FormatError, match="not the manifest"):
        fastdata.open(shards)
    assert json.loads(text)["version"] == 1


def test_a_schema_of_very_many_fields_is_only_slow(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard.h5", make_records(count=1))
    fields = [{"name": f"f{n}", "kind": "scalar"} for n in range(20_000)]
    forge(path, header=_set("schema", to=fields))
    with pytest.raises(FormatError, match=r"KeyError.'f0'"):
        fastdata.open(path)


def test_without_checks_bounds_are_still_kept(shard: Path) -> None:
    forge(shard, columns={"image.offset": _put(1, 2**64 - 1)})
    with pytest.raises(ShardCorruptError, match="beyond the data's end"):
        fastdata.open(shard, check=False)[1]
    flip(shard, header_of(shard)["columns"]["image.length"]["offset"] + 7, 0x80)
    with pytest.raises(ShardCorruptError, match="beyond the data's end"):
        fastdata.open(shard, check=False)[0]


def test_append_refuses_a_header_of_a_pack_that_cannot_be(tmp_path: Path, shard: Path) -> None:
    other = write_shard(tmp_path / "other.lmdb", make_records(count=2))
    for options in ({"quality": "x"}, {"size": [8, "a"]}, {"resize": []}, {"codec": None}):
        forge(shard, header=_set("options", to=options))
        with pytest.raises(FormatError, match=r"shard\..*says how it was packed: "):
            fastdata.append(shard, other, num_workers=0, progress=False)
