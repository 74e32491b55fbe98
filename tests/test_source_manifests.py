"""Manifests: every dialect, and what is wrong said by line."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from pack_helpers import pil_file, pixels

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    ArrayField,
    Field,
    ImageField,
    ScalarField,
    StringField,
)


class Table(NamedTuple):
    text: str
    fields: dict[str, Field]
    rows: list[tuple[Any, ...]]
    """Of the samples, or the reason why there is none."""
    options: Mapping[str, Any] = MappingProxyType({})
    name: str = "list.csv"


IMAGE = ImageField()
INT, FLOAT = ScalarField("int64"), ScalarField("float64")
FOLDED = "a\nb"

TABLES: dict[str, Table] = {
    "header": Table(
        "path,label\n1.jpg,0\n2.jpg,5\n", {"image": IMAGE, "label": INT}, [(1, 0), (2, 5)]
    ),
    "no header": Table("1.jpg,0\n2.jpg,5", {"image": IMAGE, "label": INT}, [(1, 0), (2, 5)]),
    "names for labels": Table(
        "path,label\n1.jpg,dog\n2.jpg,cat\n3.jpg,dog\n",
        {"image": IMAGE, "label": ScalarField(classes=("cat", "dog"))},
        [(1, 1), (2, 0), (3, 1)],
    ),
    "no header, names": Table(
        "1.jpg,dog\n2.jpg,cat",
        {"image": IMAGE, "label": ScalarField(classes=("cat", "dog"))},
        [(1, 1), (2, 0)],
    ),
    "only paths": Table("1.jpg\n2.jpg\n", {"image": IMAGE}, [(1,), (2,)]),
    "class": Table(
        "path,class\n1.jpg,x\n2.jpg,y",
        {"image": IMAGE, "label": ScalarField(classes=("x", "y"))},
        [(1, 0), (2, 1)],
    ),
    "class beside label": Table(
        "path,label,class\n1.jpg,0,x\n2.jpg,1,y",
        {"image": IMAGE, "label": INT, "class_": StringField()},
        [(1, 0, "x"), (2, 1, "y")],
    ),
    "tabs": Table(
        "path\tlabel\n1.jpg\t7\n", {"image": IMAGE, "label": INT}, [(1, 7)], {}, "list.tsv"
    ),
    "tabs in a .csv": Table("1.jpg\t7\n", {"image": IMAGE, "label": INT}, [(1, 7)]),
    "CRLF and BOM": Table(
        "\ufeffpath,label\r\n1.jpg,0\r\n2.jpg,1\r\n",
        {"image": IMAGE, "label": INT},
        [(1, 0), (2, 1)],
    ),
    "quotes": Table(
        'path,caption\n"1.jpg","a, ""b"""\n2.jpg,"a\nb"\n',
        {"image": IMAGE, "caption": StringField()},
        [(1, 'a, "b"'), (2, FOLDED)],
    ),
    "blank lines": Table(
        "path,label\n\n1.jpg,0\n\n\n2.jpg,1\n\n", {"image": IMAGE, "label": INT}, [(1, 0), (2, 1)]
    ),
    "every kind": Table(
        "label,path,weight,note,flag,big\n"
        "1,1.jpg,0.5,x,true,12345678901234567890\n"
        "2,2.jpg,2,1_000,false,1\n"
        "3,3.jpg,-1e-3,nan,True,2\n",
        {
            "image": IMAGE,
            "label": INT,
            "weight": FLOAT,
            "note": StringField(),
            "flag": StringField(),
            "big": StringField(),
        },
        [
            (1, 1, 0.5, "x", "true", "12345678901234567890"),
            (2, 2, 2.0, "1_000", "false", "1"),
            (3, 3, -0.001, "nan", "True", "2"),
        ],
    ),
    "bounds of integers": Table(
        f"path,n\n1.jpg,{2**63 - 1}\n2.jpg,{-(2**63)}\n",
        {"image": IMAGE, "n": INT},
        [(1, 2**63 - 1), (2, -(2**63))],
    ),
    "ints then a float": Table(
        "path,n\n1.jpg,1\n2.jpg,2.5\n3.jpg,3\n",
        {"image": IMAGE, "n": FLOAT},
        [(1, 1.0), (2, 2.5), (3, 3.0)],
    ),
    "missing labels": Table(
        "path,label\n1.jpg,0\n2.jpg,\n3.jpg, \n",
        {"image": IMAGE, "label": INT},
        [(1, 0), ("the column 'label' is empty",), ("the column 'label' is empty",)],
    ),
    "missing names": Table(
        "path,label\n1.jpg,a\n2.jpg,\n",
        {"image": IMAGE, "label": ScalarField(classes=("a",))},
        [(1, 0), ("the column 'label' is empty",)],
    ),
    "no labels at all": Table(
        "path,label\n1.jpg,\n2.jpg,\n", {"image": IMAGE, "label": StringField()}, [(1, ""), (2, "")]
    ),
    "missing files": Table(
        "path,label\n1.jpg,0\n77.jpg,1\n,2\n",
        {"image": IMAGE, "label": INT},
        [(1, 0), ("No such file",), ("the column 'image' is empty in this row",)],
    ),
    "the same file twice": Table(
        "1.jpg,0\n1.jpg,1\n", {"image": IMAGE, "label": INT}, [(1, 0), (1, 1)]
    ),
    "odd names": Table(
        "path,index,2nd try,été,\n1.jpg,4,a,b,c\n",
        {
            "image": IMAGE,
            "index_": INT,
            "nd_try": StringField(),
            "t_": StringField(),
            "column_": StringField(),
        },
        [(1, 4, "a", "b", "c")],
    ),
    "no image suffix": Table(
        "1.data,0\n1.data,1\n", {"image": IMAGE, "label": INT}, [(1, 0), (1, 1)]
    ),
    "path in the middle": Table(
        "label,filename\n4,1.jpg\n", {"image": IMAGE, "label": INT}, [(1, 4)]
    ),
    "masks": Table(
        "path,mask\n1.jpg,1.mask.png\n", {"image": IMAGE, "mask": ImageField(1, True)}, [(1, None)]
    ),
    "fields by word": Table(
        "path,a,b,c,d,e,f\n1.jpg,1,0,yes,7,true,[1.5]\n",
        {
            "image": IMAGE,
            "a": FLOAT,
            "b": ScalarField("bool"),
            "c": ScalarField(classes=("yes",)),
            "d": StringField(),
            "e": ScalarField("bool"),
            "f": ArrayField("float32", (None,)),
        },
        [(1, 1.0, False, 0, "7", True, [1.5])],
        {
            "fields": {
                "a": "float",
                "b": "bool",
                "c": "label",
                "d": "string",
                "e": "bool",
                "f": "array",
            }
        },
    ),
    "cells that do not fit their field": Table(
        "path,n,t\n1.jpg,1,true\n2.jpg,300,true\n3.jpg,1,perhaps\n3.jpg,x,1\n",
        {"image": IMAGE, "n": ScalarField("uint8"), "t": ScalarField("bool")},
        [
            (1, 1, True),
            ("'n': 300 does not fit uint8",),
            ("'t' is 'perhaps', not true or false",),
            ("'n' is 'x', not a whole number",),
        ],
        {"fields": {"n": ScalarField("uint8"), "t": "bool"}},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_manifests(tmp_path: Path, name: str) -> None:
    table = TABLES[name]
    for number in range(1, 5):
        picture = np.full((30, 40, 3), 10 * number, np.uint8)
        (tmp_path / f"{number}.jpg").write_bytes(pil_file(picture, "PNG"))
    (tmp_path / "1.data").write_bytes((tmp_path / "1.jpg").read_bytes())
    (tmp_path / "1.mask.png").write_bytes(pil_file(np.full((30, 40), 3, np.uint8), "PNG"))
    manifest = tmp_path / table.name
    manifest.write_bytes(table.text.encode())
    report = fastdata.pack(
        manifest, tmp_path / "x.lmdb", codec="png", num_workers=0, **table.options
    )
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dict(dataset.schema) == table.fields
    good = [row for row in table.rows if not isinstance(row[0], str)]
    assert len(dataset) == len(good)
    for sample, row in zip(dataset, good, strict=True):
        assert (pixels(sample.image) == 10 * row[0]).all()
        for value, expected in zip(sample[1:], row[1:], strict=True):
            if expected is not None:
                assert (value.tolist() if hasattr(value, "tolist") else value) == expected
    reasons = [row[0] for row in table.rows if isinstance(row[0], str)]
    assert len(report.rejects) == len(reasons)
    for reject, reason in zip(report.rejects, reasons, strict=True):
        assert reason in reject.reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the manifest is empty"),
        (b"\n\n", "the manifest is empty"),
        (b"path,label\n", "has a header but no rows"),
        (b"path,label\n1.jpg,0\n2.jpg\n", r"row 2 has 1 columns, not 2: \['2.jpg'\]. Quote"),
        (b"path,label\n1.jpg,a,b\n", "row 1 has 3 columns, not 2"),
        (b"path,label,label\n1.jpg,0,1\n", "a column stands twice"),
        (b"path,label\n1.jpg,caf\x81\n", "codec can't decode byte"),
        (b'path,label\n1.jpg,"open', "unexpected end of data"),
    ],
)
def test_manifests_that_cannot_be_read_say_where(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "list.csv").write_bytes(text)
    with pytest.raises(SourceError, match=rf"list\.csv.*{message}"):
        find_source(tmp_path / "list.csv")


def test_a_manifest_refuses_fields_it_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label\n1.jpg,0\n")
    with pytest.raises(OptionError, match=r"fields \['lable'\] are not in the source"):
        find_source(tmp_path / "list.csv", fields={"lable": "int"})
    with pytest.raises(OptionError, match="field kind 'number' is not one of image, mask"):
        find_source(tmp_path / "list.csv", fields={"label": "number"})


LONG = "x" * ((1 << 20) + 1)
WIDE = ",".join(["x" * (1 << 20)] * 17)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cell.csv", f"path,text\n1.jpg,{LONG}\n"),
        ("quoted.csv", f'path,text\n1.jpg,"{LONG[:-9]}\n0123456789"\n'),
        ("open.csv", 'path,text\n1.jpg,"' + "a line\n" * 2_500_000),
        ("header.csv", f"path,{LONG}\n1.jpg,a\n"),
        ("row.csv", f"path,text\n1.jpg,{WIDE}\n"),
        ("cell.tsv", f"path\ttext\n1.jpg\t{LONG}\n"),
        ("words.txt", f"1.jpg 1\n2.jpg {LONG}\n"),
        ("lines.jsonl", f'{{"image": "1.jpg", "text": "{LONG}"}}\n'),
        ("nested.jsonl", f'{{"image": "1.jpg", "text": ["{LONG}"]}}\n'),
        ("row.jsonl", f'{{"image": "1.jpg", "text": "{LONG * 17}"}}\n'),
        ("list.json", f'[{{"image": "1.jpg", "text": "{LONG}"}}]'),
        ("row.json", f'[{{"image": "1.jpg", "text": "{LONG * 17}"}}]'),
    ],
)
def test_a_cell_of_more_than_1_mb_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    before = csv.field_size_limit(1 << 30)  # a limit of the process, which the user may have raised
    try:
        with pytest.raises(SourceError, match=rf"{name}.*more than (1,048,576|16,777,216) "):
            find_source(tmp_path / name, format="manifest")
    finally:
        csv.field_size_limit(before)


def test_a_cell_of_1_mb_is_read(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(pil_file(np.zeros((8, 8, 3), np.uint8), "JPEG"))
    (tmp_path / "a.csv").write_text(f"path,text\n1.jpg,{LONG[1:]}\n")
    fastdata.pack(tmp_path / "a.csv", tmp_path / "x.lmdb", num_workers=0, progress=False)
    assert fastdata.open(tmp_path / "x.lmdb")[0].text == LONG[1:]
