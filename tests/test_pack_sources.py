"""What sources yield: one contract for all, then what is peculiar to each."""

from __future__ import annotations

import collections
import dataclasses
import io
import itertools
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pack_helpers import image_folder, pil_file, pixels, png
from PIL import Image
from samples import photo
from torch.utils.data import ConcatDataset, IterableDataset, Subset

import fastdata
from fastdata.converters.base import (
    IndexedSource,
    Reject,
    Sample,
    Source,
    hash_fields,
)
from fastdata.converters.finding import find_source
from fastdata.converters.folder import FolderSource
from fastdata.converters.packing.chunk import encode_chunk
from fastdata.converters.packing.options import EncodeOptions
from fastdata.converters.python import DatasetSource, ImageFolderSource, IterableSource
from fastdata.converters.reading import shared as shared_objects
from fastdata.converters.reading.locations import printable
from fastdata.errors import OptionError, SourceError
from fastdata.formats.writer import Record
from fastdata.schema import (
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)


class Pictures(torch.utils.data.Dataset[Any]):
    """A map-style Dataset, and where it has been called."""

    def __init__(self, count: int = 20) -> None:
        self.count = count
        self.home = os.getpid()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {
            "image": np.full((70, 71, 3), index, np.uint8),
            "label": index % 3,
            "elsewhere": os.getpid() != self.home,
        }


def a_manifest(folder: Path) -> Path:
    image_folder(folder / "images", 5)
    rows = [f"images/{p.relative_to(folder / 'images')},{p.parent.name}" for p in jpegs(folder)]
    (folder / "list.csv").write_text("\n".join(["path,label", *rows, "gone.jpg,ant"]))
    return folder / "list.csv"


def jpegs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def like_image_folder(folder: Path) -> Any:
    """Return what has the attributes of a ``torchvision.datasets.ImageFolder``."""
    image_folder(folder, 7)
    return SimpleNamespace(
        root=str(folder),
        classes=["ant", "bee"],
        samples=[(str(p), ["ant", "bee"].index(p.parent.name)) for p in jpegs(folder)],
        transform=None,
        target_transform=None,
    )


SOURCES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "folder": (lambda folder: image_folder(folder, 7), "folder"),
    "manifest": (a_manifest, "manifest"),
    "dataset": (lambda folder: Pictures(), "dataset"),
    "list": (lambda folder: [(png(k), k) for k in range(20)], "dataset"),
    "array": (lambda folder: np.zeros((5, 70, 71, 3), np.uint8), "dataset"),
    "subset": (lambda folder: Subset(Pictures(), [3, 1, 2]), "dataset"),
    "generator": (lambda folder: ((png(k), k) for k in range(20)), "iterable"),
    "image folder": (like_image_folder, "imagefolder"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_keeps_the_contract(tmp_path: Path, name: str) -> None:
    make, expected = SOURCES[name]
    location = make(tmp_path / "source") if name != "manifest" else make(tmp_path)
    check_source(location, expected)


def check_source(location: Any, name: str) -> None:
    """Check what `Source` promises."""
    source = find_source(location)
    assert type(source).name == name
    assert isinstance(source, Source)
    assert isinstance(source.schema, Schema)
    assert source.schema.images
    assert all(isinstance(note, str) for note in source.notes)
    assert Schema.from_json(source.schema.to_json()) == source.schema

    if source.worker_setup is not None:
        pickle.dumps(source.worker_setup)
        source.worker_setup()
    samples = list(source)
    for sample in samples:
        assert isinstance(sample, (Sample, Reject))
        sample.key.encode()
        pickle.dumps(sample)
    assert len({sample.key for sample in samples}) == len(samples)
    assert source.num_samples in (None, len(samples))

    prints = source.fingerprints()
    assert prints.dtype == np.uint64
    assert len(prints) in (0, 1, len(samples))
    if isinstance(source, IndexedSource):
        assert [source[index] for index in range(len(samples))] == samples
        assert [source.key_at(index) for index in (0, len(samples) - 1)]
        again = find_source(location)
        np.testing.assert_array_equal(again.fingerprints(), prints)
        np.testing.assert_array_equal(source.fingerprints(2), prints[:2])
        assert again.schema == source.schema
        with pytest.raises(IndexError, match=r"\d|out of range"):
            source[len(samples)]

    grey = find_source(location, channels=1) if isinstance(source, IndexedSource) else source
    for asked in (source, grey):
        result = encode_chunk(samples, asked.schema, EncodeOptions(size=(16, 16)))
        assert len(result.records) == len(samples)
        assert sum(isinstance(record, Record) for record in result.records) >= 3
    if isinstance(source, IndexedSource):
        assert {field.channels for field in grey.schema.images.values()} == {1}


def test_a_source_is_chosen_by_name_or_refused(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images")
    assert isinstance(find_source(folder, format="folder"), FolderSource)
    assert isinstance(find_source(str(folder)), FolderSource)
    with pytest.raises(OptionError, match=r"format 'tar' is not one of .*dataset, .*folder"):
        find_source(folder, format="tar")
    with pytest.raises(SourceError, match="nowhere: no such file or directory"):
        find_source(tmp_path / "nowhere")
    for pattern in ("nowhere-*.tar", "nowhere-{0..3}.tar"):
        with pytest.raises(SourceError, match=r"nowhere-.*tar: no file is called so"):
            find_source(tmp_path / pattern)


@pytest.mark.parametrize(
    "location", [{"a": 1}, b"bytes", bytearray(3), 7, None, object(), torch.nn.Identity()]
)
def test_what_is_no_source_is_refused(location: Any) -> None:
    with pytest.raises(SourceError, match="not recognised as any of the formats"):
        find_source(location)


def test_files_that_are_no_source_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(png())
    for location in (tmp_path, tmp_path / "a.jpg"):
        with pytest.raises(SourceError, match="not recognised as any of the formats"):
            find_source(location)


# -- class folders ----------------------------------------------------------------------

EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")


def as_torchvision_lists(root: str) -> tuple[list[str], list[tuple[str, int]]]:
    """Do what ``torchvision.datasets.DatasetFolder`` is documented to do."""
    classes = []
    for name in os.listdir(root):
        if os.path.isdir(os.path.join(root, name)):
            classes.append(name)
    classes.sort()
    samples = []
    for number, name in enumerate(classes):
        folders = []
        for folder, _, files in os.walk(os.path.join(root, name), followlinks=True):
            folders.append((folder, files))
        folders.sort(key=lambda pair: pair[0])
        for folder, files in folders:
            for file in sorted(files):
                if file.rsplit(".", 1)[-1].lower() in EXTENSIONS and "." in file:
                    samples.append((os.path.join(folder, file), number))
    return classes, samples


TREES: dict[str, list[str]] = {
    "plain": ["b/1.jpg", "b/0.png", "a/x.JPG", "a/y.jpeg", "c/z.webp"],
    "nested": ["a/n/2.jpg", "a/n-1/1.jpg", "a/n/m/0.jpg", "a/n.jpg", "a/o.jpg", "b/q/0.jpg"],
    "capitals and digits": ["Z/1.jpg", "a/10.jpg", "a/9.jpg", "10/0.jpg", "9/0.jpg", "_/0.jpg"],
    "hidden": [".hidden/0.jpg", "a/.secret.jpg", "a/1.jpg", "a/.deep/2.jpg"],
    "spaces and accents": ["un chat/0.jpg", "été/1.jpg", "été/à.jpg", "日本/2.jpg"],
    "every suffix": [f"a/{k}.{suffix}" for k, suffix in enumerate(EXTENSIONS)],
    "dots": ["a/b.c.jpg", "a/jpg.jpg", "a.jpg/0.jpg"],
}


@pytest.mark.parametrize("name", TREES)
def test_class_folders_are_read_as_torchvision_reads_them(tmp_path: Path, name: str) -> None:
    for file in TREES[name]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"x")
    first = (tmp_path / TREES[name][0]).parent
    for other in ("notes.txt", "x.gif", "jpg", "0.jpg.bak"):
        (first / other).write_bytes(b"y")
    (tmp_path / "in-the-root.jpg").write_bytes(b"z")
    classes, samples = as_torchvision_lists(str(tmp_path))
    source = FolderSource(tmp_path)
    assert source.schema["label"] == ScalarField(classes=tuple(classes))
    assert [tuple(map(str, sample.values)) for sample in source] == [
        (path, str(number)) for path, number in samples
    ]
    assert [sample.key for sample in source] == [
        os.path.relpath(path, tmp_path) for path, _ in samples
    ]
    assert source.notes == [
        "1 images in no class folder left out: in-the-root.jpg",
        "4 files without an image suffix left out: 1 .bak, 1 jpg, 1 .txt, 1 .gif",
    ]


def test_links_are_followed(tmp_path: Path) -> None:
    elsewhere = image_folder(tmp_path / "elsewhere", 4)
    root = tmp_path / "root"
    (root / "own").mkdir(parents=True)
    (root / "own" / "0.jpg").symlink_to(elsewhere / "ant" / "00000.jpg")
    (root / "own" / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (root / "own" / "sub").symlink_to(elsewhere / "ant")
    (root / "linked").symlink_to(elsewhere / "bee")
    (root / "file").symlink_to(elsewhere / "bee" / "00001.jpg")
    classes, samples = as_torchvision_lists(str(root))
    source = FolderSource(root)
    assert classes == ["linked", "own"]
    assert [str(sample.values[0]) for sample in source] == [path for path, _ in samples]
    report = fastdata.pack(root, tmp_path / "x.lmdb", num_workers=0)
    assert report.num_samples == len(samples) - 1
    assert [reject.key for reject in report.rejects] == ["own/broken.jpg"]


def test_names_that_are_no_unicode_are_packed(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path / "root")
    for name in (b"caf\xe9", b"ok"):
        os.makedirs(os.path.join(root, name))
        with open(os.path.join(root, name, b"\xff\xfe.jpg"), "wb") as file:
            file.write(pil_file(photo(40, 40), "JPEG"))
    with open(os.path.join(root, b"ok", b"\xff\xfd.jpg"), "wb") as file:
        file.write(b"broken")
    report = fastdata.pack(os.fsdecode(root), tmp_path / "x.lmdb", num_workers=1)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dataset.classes == ["caf\ufffd", "ok"]
    assert list(dataset.keys) == ["caf\ufffd/\ufffd\ufffd.jpg", "ok/\ufffd\ufffd.jpg"]
    assert [reject.key for reject in report.rejects] == ["ok/\ufffd\ufffd.jpg"]
    assert printable(os.fsdecode(b"caf\xe9")) == "caf\ufffd"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/0.jpg", "b/readme.txt"], "no image in the class folder b"),
        (["a/0.jpg", "b/", "c/"], "no image in the class folders b, c"),
        (["0.jpg"], "no class folders in it"),
        ([], "no class folders in it"),
    ],
)
def test_folders_that_torchvision_refuses_are_refused(
    tmp_path: Path, files: list[str], message: str
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            (tmp_path / file).mkdir(exist_ok=True)
        else:
            (tmp_path / file).write_bytes(b"x")
    with pytest.raises(SourceError, match=message):
        FolderSource(tmp_path)


def test_class_folders_have_no_other_fields(tmp_path: Path) -> None:
    image_folder(tmp_path)
    with pytest.raises(OptionError, match="format 'folder' has fields of its own"):
        FolderSource(tmp_path, fields={"label": "int"})


def test_fingerprints_see_what_a_sample_is_made_from(tmp_path: Path) -> None:
    files = jpegs(image_folder(tmp_path, 6))
    before = FolderSource(tmp_path).fingerprints()
    assert len(set(before.tolist())) == 6
    os.utime(files[1], (1, 1))
    files[4].write_bytes(files[4].read_bytes() + b"\0")
    changed = np.flatnonzero(FolderSource(tmp_path).fingerprints() != before)
    assert list(changed) == [1, 4]


def test_hash_fields_tells_parts_apart() -> None:
    parts = [("a", "bc"), ("ab", "c"), ("ab", "c", ""), ("ab", 1), ("ab", "1"), ("\udcff",)]
    assert len({hash_fields(*part) for part in parts}) == len(parts)


# -- manifests ----------------------------------------------------------------------


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
            ("invalid literal for int",),
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
        (b"path,label\n1.jpg,caf\xe9\n", "codec can't decode byte"),
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


# -- Python ----------------------------------------------------------------------


class Named(NamedTuple):
    image: Any
    label: int


@dataclasses.dataclass
class Described:
    image: Any
    label: int


Ordinary = collections.namedtuple("Ordinary", ["image", "label"])

SHAPES: dict[str, Callable[[Any, int], Any]] = {
    "tuple": lambda image, label: (image, label),
    "list": lambda image, label: [image, label],
    "dict": lambda image, label: {"image": image, "label": label},
    "NamedTuple": Named,
    "namedtuple": Ordinary,
    "dataclass": Described,
}
ONE = photo(50, 60)
IMAGES: dict[str, Callable[[Path], Any]] = {
    "array": lambda folder: ONE,
    "tensor": lambda folder: torch.from_numpy(ONE.transpose(2, 0, 1).copy()),
    "PIL": lambda folder: Image.fromarray(ONE),
    "bytes": lambda folder: pil_file(ONE, "PNG"),
    "bytearray": lambda folder: bytearray(pil_file(ONE, "PNG")),
    "memoryview": lambda folder: memoryview(pil_file(ONE, "PNG")),
    "path": lambda folder: folder / "one.png",
}


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_samples_in_any_shape_are_taken(tmp_path: Path, shape: str, indexed: bool) -> None:
    samples = [SHAPES[shape](ONE, label) for label in range(3)]
    fastdata.pack(
        samples if indexed else iter(samples), tmp_path / "x.lmdb", codec="png", num_workers=0
    )
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dict(dataset.schema) == {"image": IMAGE, "label": INT}
    assert [sample.label for sample in dataset] == [0, 1, 2]
    assert list(dataset.keys) == ["00000000", "00000001", "00000002"]
    np.testing.assert_array_equal(pixels(dataset[2].image), ONE)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("kind", IMAGES)
def test_images_of_any_kind_are_taken(tmp_path: Path, kind: str, indexed: bool) -> None:
    """Through a worker, so that they are sent there too."""
    (tmp_path / "one.png").write_bytes(pil_file(ONE, "PNG"))
    samples = [IMAGES[kind](tmp_path)]
    fastdata.pack(
        samples if indexed else iter(samples), tmp_path / "x.lmdb", codec="png", num_workers=1
    )
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dict(dataset.schema) == {"image": IMAGE}
    np.testing.assert_array_equal(pixels(dataset[0].image), ONE)


@pytest.mark.parametrize(
    ("values", "field", "found"),
    [
        ([1, -(2**63), 2**63 - 1], INT, [1, -(2**63), 2**63 - 1]),
        ([1, 2.5], FLOAT, [1.0, 2.5]),
        ([True, False], ScalarField("bool"), [True, False]),
        ([np.uint8(3), np.uint8(255)], ScalarField("uint8"), [3, 255]),
        ([np.float32(0.5)], ScalarField("float32"), [0.5]),
        ([np.bool_(True)], ScalarField("bool"), [True]),
        ([torch.tensor(4), torch.tensor(5)], INT, [4, 5]),
        ([torch.tensor(0.5, requires_grad=True)], ScalarField("float32"), [0.5]),
        (["a", "", "é\n"], StringField(), ["a", "", "é\n"]),
        ([b"a", b""], BytesField(), [b"a", b""]),
        ([bytearray(b"ab"), memoryview(b"c")], BytesField(), [b"ab", b"c"]),
        ([[1, 2], [3, 4]], ArrayField("int64", (2,)), [[1, 2], [3, 4]]),
        ([[1, 2], [3.5, 4]], ArrayField("float64", (2,)), [[1.0, 2.0], [3.5, 4.0]]),
        ([[1.5], [], [1.0, 2.0]], ArrayField("float64", (None,)), [[1.5], [], [1.0, 2.0]]),
        (
            [np.zeros((2, 4), np.float32), np.zeros((0, 4), np.float32)],
            ArrayField("float32", (None, 4)),
            [[[0.0] * 4] * 2, []],
        ),
        ([torch.ones(2, dtype=torch.float16)], ArrayField("float16", (2,)), [[1.0, 1.0]]),
    ],
)
def test_every_kind_of_field_is_inferred_and_kept(
    tmp_path: Path, values: list[Any], field: Field, found: list[Any]
) -> None:
    samples = [{"image": ONE, "value": value} for value in values]
    for source in (samples, iter(samples)):
        fastdata.pack(source, tmp_path / "x.lmdb", size=16, num_workers=0, overwrite=True)
        dataset = fastdata.open(tmp_path / "x.lmdb")
        assert dataset.schema["value"] == field
        values = [s.value.tolist() if hasattr(s.value, "tolist") else s.value for s in dataset]
        assert values == found


@pytest.mark.parametrize(
    ("field", "good", "bad", "reason"),
    [
        ("int", 1, 2**70, f"'value': {2**70} does not fit int64"),
        ("int", 1, 2**63, "does not fit int64"),
        ("int", 1, 1.5, "'value': 1.5 does not fit int64"),
        ("int", 1, float("nan"), "'value': nan does not fit int64"),
        ("int", 1, "1", "'value': '1' does not fit int64"),
        ("int", 1, None, "'value': None does not fit int64"),
        ("int", 1, [1, 2], r"'value' has shape (2,), not one number"),
        (ScalarField("uint8"), 255, 256, "'value': 256 does not fit uint8"),
        (ScalarField("uint8"), 255, -1, "'value': -1 does not fit uint8"),
        (ScalarField("float16"), 1.0, 1e9, "'value': 1000000000.0 does not fit float16"),
        ("bool", True, 2, "'value': 2 does not fit bool"),
        ("string", "a", 7, "'value' is a int, not text"),
        ("string", "a", "\ud800", "surrogates not allowed"),
        ("bytes", b"a", 7, "'value' is a int, not bytes"),
        ("bytes", b"a", "a", "'value' is a str, not bytes"),
        (ArrayField("float32", (2,)), [1, 2], [1, 2, 3], r"has shape (3,), not (2,)"),
        ("array", [1.0], [[1.0], [2.0, 3.0]], "'value' is a list, not numbers"),
        ("array", [1.0], ["a"], "'value': ['a'] does not fit float32"),
        ("array", [1.0], [1e300], "'value': [1e+300] does not fit float32"),
        ("image", ONE, 7, "pixels are int64, not uint8"),
        ("image", ONE, object(), "'value' is a object, not an image"),
        ("image", ONE, "no/such/file.png", "No such file or directory"),
        ("image", ONE, ONE.astype(np.float32), "pixels are float32, not uint8"),
    ],
)
@pytest.mark.parametrize("indexed", [True, False])
def test_a_value_that_does_not_fit_is_rejected_and_the_rest_packed(
    tmp_path: Path, field: Any, good: Any, bad: Any, reason: str, indexed: bool
) -> None:
    samples = [{"image": ONE, "value": value} for value in (good, bad, good)]
    report = fastdata.pack(
        samples if indexed else iter(samples),
        tmp_path / "x.lmdb",
        size=16,
        num_workers=0,
        fields={"value": field},
    )
    assert list(fastdata.open(tmp_path / "x.lmdb").keys) == ["00000000", "00000002"]
    (reject,) = report.rejects
    assert reject.key == "00000001"
    assert reason in reject.reason


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"image": ONE}, "the sample has the fields ['image'], not ['image', 'label']"),
        ({"image": ONE, "label": 1, "more": 2}, "['image', 'label', 'more'], not"),
        ((ONE, 1, 2), "the sample has the fields ['image', 'label', 'field2'], not"),
        (ONE, "the sample has the fields ['image'], not"),
        ({}, "the sample has the fields [], not"),
    ],
)
def test_a_sample_with_other_fields_is_rejected(
    tmp_path: Path, bad: Any, reason: str, indexed: bool
) -> None:
    samples = [(ONE, 0), *[(ONE, 1)] * 20, bad, (ONE, 2)]
    report = fastdata.pack(
        samples if indexed else iter(samples), tmp_path / "x.lmdb", size=16, num_workers=0
    )
    (reject,) = report.rejects
    assert (report.num_samples, reject.key) == (22, "00000021")
    assert reason in reject.reason


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("indexed", [True, False])
def test_an_image_opened_but_not_read_is_rejected_where_it_is_broken(
    tmp_path: Path, indexed: bool, num_workers: int
) -> None:
    whole = pil_file(photo(80, 90), "JPEG")
    files = [whole, whole[: len(whole) // 2], whole]
    opened = [Image.open(io.BytesIO(data)) for data in files]
    source = opened if indexed else iter(opened)
    report = fastdata.pack(source, tmp_path / "x.lmdb", num_workers=num_workers)
    assert report.num_samples == 2
    assert [reject.key for reject in report.rejects] == ["00000001"]
    assert "truncated" in report.rejects[0].reason


@pytest.mark.parametrize(
    ("source", "fields", "message"),
    [
        (iter([]), None, "the iterable is empty"),
        ([], None, "the iterable is empty"),
        ([(ONE, None)], None, "field 'label': a NoneType of dtype object cannot be stored"),
        ([(ONE, 1j)], None, "field 'label': a complex of dtype complex128 cannot be stored"),
        ([(ONE, [1]), (ONE, [[1]])], None, "arrays have different numbers of dimensions"),
        ([(ONE, 1)], {"lable": "int"}, r"fields \['lable'\] are not in the source"),
        ([{"image": ONE, "class": 1}], None, "field name 'class'"),
    ],
)
def test_samples_that_cannot_be_stored_are_refused(source: Any, fields: Any, message: str) -> None:
    with pytest.raises((SourceError, OptionError), match=message):
        find_source(source, fields=fields)


def test_fields_are_named_by_the_user_where_samples_are_tuples(tmp_path: Path) -> None:
    fields = {"photo": "image", "depth": ImageField(channels=1), "score": "float"}
    fastdata.pack([(ONE, ONE[:, :, 0], 1)] * 2, tmp_path / "x.lmdb", fields=fields, num_workers=0)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dict(dataset.schema) == {"photo": IMAGE, "depth": ImageField(1), "score": FLOAT}
    assert dataset[1].score == 1.0


def test_a_field_called_mask_is_one() -> None:
    source = find_source([{"image": ONE, "mask": ONE[:, :, 0], "mask_of_two": ONE[:, :, 0]}])
    assert dict(source.schema) == {
        "image": IMAGE,
        "mask": ImageField(1, mask=True),
        "mask_of_two": ImageField(1, mask=True),
    }


def test_a_dataset_with_classes_gives_them_to_its_labels() -> None:
    data = Pictures()
    data.classes = ["a", "b", "c"]
    assert find_source(data).schema["label"] == ScalarField(classes=("a", "b", "c"))


class Stream(IterableDataset[Any]):
    """Has a ``__getitem__`` that only raises, as all of torch's do."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[Any]:
        return ((ONE, k) for k in range(5))


def test_an_iterable_dataset_is_iterated_not_indexed(tmp_path: Path) -> None:
    assert isinstance(find_source(Stream()), IterableSource)
    assert fastdata.pack(Stream(), tmp_path / "x.lmdb", num_workers=0).num_samples == 5


class Faulty(Pictures):
    """Fails in every way at some of its samples."""

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            raise RuntimeError("the first of all")
        if index == 5:
            raise FileNotFoundError(2, "No such file or directory", "there.jpg")
        if index == 6:
            raise KeyError("k")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_dataset_raises_becomes_the_reason(tmp_path: Path, num_workers: int) -> None:
    report = fastdata.pack(Faulty(), tmp_path / "x.lmdb", num_workers=num_workers)
    assert report.rejects == [
        Reject("00000000", "RuntimeError: the first of all"),
        Reject("00000005", "No such file or directory: there.jpg"),
        Reject("00000006", "KeyError: 'k'"),
    ]
    assert report.num_samples == 17


def test_a_dataset_none_of_whose_samples_can_be_read_says_why() -> None:
    class Broken(Pictures):
        def __getitem__(self, index: int) -> Any:
            raise RuntimeError("no disk in the drive")

    with pytest.raises(SourceError, match=r"none of the dataset's first 16 .*no disk in the drive"):
        find_source(Broken())


class OpensLate(Pictures):
    """Opens its file at its first sample, as HDF5 and LMDB Datasets must."""

    handle: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = os.getpid()
        assert self.handle == os.getpid(), "the handle has come through a fork"
        return ONE, index


def test_looking_at_a_dataset_opens_nothing_that_workers_inherit(tmp_path: Path) -> None:
    data = OpensLate()
    report = fastdata.pack(data, tmp_path / "x.lmdb", num_workers=1)
    assert (report.num_samples, report.num_rejected) == (20, 0)
    assert data.handle is None


@pytest.fixture
def start_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make one start method the default."""
    method: str = request.param
    context = multiprocessing.get_context(method)
    monkeypatch.setattr(multiprocessing, "get_context", lambda: context)
    return method


METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.parametrize("start_method", METHODS, indirect=True)
def test_a_dataset_is_called_in_the_workers(tmp_path: Path, start_method: str) -> None:
    report = fastdata.pack(Pictures(), tmp_path / "x.lmdb", num_workers=1)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert (len(dataset), report.rejects, report.notes) == (20, [], ())
    assert all(sample.elsewhere for sample in dataset)
    assert [sample.label for sample in dataset] == [k % 3 for k in range(20)]


class Unsendable(Pictures):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __copy__(self) -> Unsendable:
        return self


@pytest.mark.parametrize("start_method", ["fork", "spawn"], indirect=True)
def test_a_dataset_that_cannot_be_sent_is_called_here(tmp_path: Path, start_method: str) -> None:
    report = fastdata.pack(Unsendable(), tmp_path / "x.lmdb", num_workers=1)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert (len(dataset), report.rejects) == (20, [])
    assert {sample.elsewhere for sample in dataset} == {start_method == "fork"}
    if start_method == "spawn":
        (note,) = report.notes
        assert "cannot be sent to worker processes (TypeError: cannot pickle" in note
    else:
        assert report.notes == ()


def test_nothing_keeps_a_dataset_after_its_pack(tmp_path: Path) -> None:
    import gc

    fastdata.pack(Pictures(), tmp_path / "x.lmdb", num_workers=0)
    gc.collect()
    assert not shared_objects._OBJECTS


def test_datasets_that_are_packed_at_once_are_told_apart() -> None:
    one, other = DatasetSource([(ONE, 1)]), DatasetSource([(ONE, 2)])
    for source in (one, other):
        source.worker_setup()
    values = [source[0].values.load()[1] for source in (one, other)]
    assert values == [1, 2]


@pytest.mark.parametrize("make", [lambda d: Subset(d, [4, 2]), lambda d: ConcatDataset([d, d])])
def test_wrapped_datasets_are_packed(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    data = make(Pictures(6))
    fastdata.pack(data, tmp_path / "x.lmdb", num_workers=0)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert [s.label for s in dataset] == [data[k]["label"] for k in range(len(data))]


def test_an_image_folder_without_transforms_is_packed_from_its_files(tmp_path: Path) -> None:
    data = like_image_folder(tmp_path / "images")
    assert isinstance(find_source(data), ImageFolderSource)
    one = fastdata.pack(data, tmp_path / "a.lmdb", num_workers=0)
    other = fastdata.pack(tmp_path / "images", tmp_path / "b.lmdb", num_workers=0)
    assert one.digest == other.digest
    assert one.source_bytes == sum(path.stat().st_size for path in jpegs(tmp_path / "images"))


@pytest.mark.parametrize("name", ["transform", "target_transform", "transforms"])
def test_an_image_folder_with_a_transform_is_called(tmp_path: Path, name: str) -> None:
    data = like_image_folder(tmp_path / "images")
    setattr(data, name, lambda image: image)

    class Transformed(Pictures):
        def __init__(self) -> None:
            super().__init__()
            self.__dict__.update(vars(data))

    assert isinstance(find_source(Transformed()), DatasetSource)


def test_a_folder_dataset_of_other_files_is_called() -> None:
    data = Pictures()
    data.samples = [("a.npy", 0)]
    data.classes = ["a"]
    data.transform = None
    assert isinstance(find_source(data), DatasetSource)


def test_odd_characters_survive(tmp_path: Path) -> None:
    odd = ['"', "\\", "\t", "\u2028", "\U0001f600", "'", "\x7f", "\r"]
    (tmp_path / "1.jpg").write_bytes(png())
    rows = "".join(f'1.jpg,"{cell.replace(chr(34), chr(34) * 2)}"\n' for cell in odd)
    (tmp_path / "list.csv").write_bytes(("path,text\n" + rows).encode())
    fastdata.pack(tmp_path / "list.csv", tmp_path / "x.lmdb", num_workers=0, size=16)
    assert [sample.text for sample in fastdata.open(tmp_path / "x.lmdb")] == odd


def test_an_iterable_is_read_no_further_than_the_limit(tmp_path: Path) -> None:
    drawn = itertools.count()

    def endless() -> Iterator[Any]:
        while True:
            yield ONE, next(drawn)

    report = fastdata.pack(endless(), tmp_path / "x.lmdb", limit=20, num_workers=0)
    assert report.num_samples == 20
    assert next(drawn) <= 21
