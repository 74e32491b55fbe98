"""The file beside an export that says what it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_helpers import NAMES, PLAIN, every_format, made, pack
from samples import EVERY_KIND, encode, photo, write_shard

from fastdata import export
from fastdata.converters.finding import find_source
from fastdata.errors import (
    OptionError,
    SourceError,
)
from fastdata.formats.writer import Record
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema


def change(out: Path, **entries: Any) -> None:
    path = out / "fastdata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"fastdata": 1}, "its 'fastdata' is '1', not 'export'"),
        ({"version": 2}, "its 'version' is '2', not 1"),
        ({"version": None}, "its 'version' is 'None'"),
        ({"format": "folder"}, "its 'format' is 'folder', not 'webdataset'"),
        ({"fields": None}, "bad schema"),
        ({"fields": [{"name": "image", "kind": "tune"}]}, "unknown kind"),
        ({"fields": [{"name": "../x", "kind": "image"}]}, "field name"),
        ({"stored_as": None}, "does not say where image, label are"),
        ({"stored_as": {"image": "x"}}, "does not say where image, label are"),
        ({"stored_as": {"image": "x", "label": 3}}, "an entry that is no name"),
        ({"stored_as": {"image": "x", "label": ""}}, "an entry that is no name"),
        ({"packed_with": []}, '"packed_with" is no object'),
    ],
)
def test_a_side_file_that_does_not_fit_is_named(
    tmp_path: Path, entries: dict[str, Any], reason: str
) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format="webdataset", progress=False)
    change(tmp_path / "out", **entries)
    with pytest.raises(SourceError, match=rf"fastdata\.json: .*{re.escape(reason)}.*remove it"):
        find_source(tmp_path / "out")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '"\udcff"', "NaN"])
def test_a_damaged_side_file_is_named(tmp_path: Path, text: str) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format="tfrecord", progress=False)
    (tmp_path / "out/fastdata.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SourceError, match=r"fastdata\.json: not .*JSON"):
        find_source(tmp_path / "out")


@every_format
def test_every_format_reads_its_side_file(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    change(tmp_path / "out", format="folder")
    with pytest.raises(SourceError, match=r"its 'format' is 'folder', not '\w+'.*remove it"):
        find_source(tmp_path / "out")


@every_format
def test_a_side_file_that_names_what_is_not_there(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb", count=3)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    change(tmp_path / "out", stored_as={"image": "../../etc/passwd", "label": "nothing"})
    with pytest.raises(SourceError, match=r"fastdata\.json: .*remove it"):
        find_source(tmp_path / "out")


FORGED = {
    "image": {"name": "image", "kind": "image", "channels": 3, "mask": False},
    "array": {"name": "label", "kind": "array", "dtype": "float64", "shape": [None, None]},
    "text": {"name": "label", "kind": "string"},
    "bytes": {"name": "label", "kind": "bytes"},
    "bool": {"name": "label", "kind": "scalar", "dtype": "bool", "classes": None},
    "mask": {"name": "label", "kind": "image", "channels": 1, "mask": True},
}


@pytest.mark.parametrize("kind", [kind for kind in FORGED if kind != "image"])
@every_format
def test_fields_that_the_values_are_not_of_are_refused(
    tmp_path: Path, format: str, kind: str
) -> None:
    schema = Schema({"image": ImageField(), "label": ScalarField("int64")})
    records = [Record(str(n), (encode(photo(8, 8), "png"), n + 5)) for n in range(6)]
    write_shard(tmp_path / "p.lmdb", records, schema)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    change(tmp_path / "out", fields=[FORGED["image"], FORGED[kind]])
    if format == "webdataset" and kind in ("text", "bytes"):  # which a label in a tar is too
        assert len(pack(tmp_path / "out", tmp_path / "a.lmdb")) == 6
        return
    with pytest.raises(SourceError, match=r"all 6 samples were rejected|fastdata\.json: "):
        pack(tmp_path / "out", tmp_path / "a.lmdb")


@every_format
def test_shapes_that_do_not_fit_are_rejects(tmp_path: Path, format: str) -> None:
    schema = Schema({"image": ImageField(), "a": ArrayField("int16", (None, None))})
    image = encode(photo(8, 8), "png")
    records = [Record(str(n), (image, np.ones((2, 3), np.int16))) for n in range(2)]
    write_shard(tmp_path / "a.lmdb", records, schema)
    export(tmp_path / "a.lmdb", tmp_path / "out", format=format, progress=False)
    document = json.loads((tmp_path / "out/fastdata.json").read_text())
    document["fields"][1]["shape"] = [None, 4]
    change(tmp_path / "out", fields=document["fields"])
    with pytest.raises(SourceError, match=r"2 samples were rejected.*shape"):
        pack(tmp_path / "out", tmp_path / "b.lmdb")


@every_format
def test_shards_of_two_exports_are_not_mixed(tmp_path: Path, format: str) -> None:
    for name, schema in (("a", PLAIN), ("b", EVERY_KIND)):
        made(tmp_path / f"{name}.lmdb", schema, 2)
        export(tmp_path / f"{name}.lmdb", tmp_path / "out" / name, format=format, progress=False)
    suffix = NAMES[format].rpartition(".")[2]
    with pytest.raises(SourceError, match="not shards of one dataset"):
        find_source(f"{tmp_path}/out/*/*.{suffix}")
    (tmp_path / "out/b/fastdata.json").unlink()
    with pytest.raises(SourceError, match="not shards of one dataset"):
        find_source(f"{tmp_path}/out/*/*.{suffix}")


@every_format
def test_the_users_word_counts_more(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    after = pack(
        tmp_path / "out",
        tmp_path / "again.lmdb",
        channels=1,
        fields={"label": "int"},
        source_options={"classes": str(tmp_path / "names.txt")},
    )
    assert after.schema["image"] == ImageField(channels=1)
    assert after.schema["label"] == ScalarField("int64", classes=("one", "two"))
    with pytest.raises(OptionError, match="not in the source"):
        find_source(tmp_path / "out", fields={"nothing": "int"})


@every_format
def test_resuming_would_notice_another_side_file(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    before = find_source(tmp_path / "out").fingerprints()
    change(tmp_path / "out", packed_with={"codec": "another"})
    assert np.count_nonzero(before != find_source(tmp_path / "out").fingerprints()) == 1
