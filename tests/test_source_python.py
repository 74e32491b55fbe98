"""Samples from Python: iterables, torch Datasets, torchvision's."""

from __future__ import annotations

import collections
import dataclasses
import gc
import io
import itertools
import multiprocessing
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pack_helpers import Pictures, image_folder, like_image_folder, pil_file, pixels, png
from PIL import Image
from samples import photo
from torch.utils.data import ConcatDataset, IterableDataset, Subset

import fastdata
from fastdata.converters.base import (
    Reject,
)
from fastdata.converters.finding import find_source
from fastdata.converters.python import DatasetSource, IterableSource, RowsSource
from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    StringField,
)

IMAGE = ImageField()
INT, FLOAT = ScalarField("int64"), ScalarField("float64")


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
        ("image", ONE, 7, "an array of shape () is not an image"),
        ("image", ONE, object(), "a object is not an image"),
        ("image", ONE, "no/such/file.png", "No such file or directory"),
        ("image", ONE, ONE.astype(np.int32), "pixels are int32, not uint8"),
        ("image", ONE, ONE.astype(np.float32), "are not whole numbers from 0 to 255 divided by"),
        ("image", ONE, np.full((9, 9, 3), np.nan, np.float32), "pixels from nan to nan are not"),
        ("image", ONE, np.zeros((2, 9, 9, 3), np.uint8), "shape (2, 9, 9, 3) is not an image"),
        ("image", ONE, np.zeros((9, 9, 5), np.uint8), "shape (9, 9, 5) has not 1, 3 or 4 channels"),
        ("mask", ONE[:, :, 0], np.full((50, 60), 256), "from 256 to 256 has numbers that are not"),
        ("mask", ONE[:, :, 0], np.full((50, 60), 0.5), "from 0.5 to 0.5 has numbers that are not"),
        ("mask", ONE[:, :, 0], np.full((50, 60), -1), "from -1 to -1 has numbers that are not"),
    ],
)
def test_a_value_that_does_not_fit_is_rejected_and_the_rest_packed(
    tmp_path: Path, field: Any, good: Any, bad: Any, reason: str
) -> None:
    samples = [{"image": ONE, "value": value} for value in (good, bad, good)]
    for source in (samples, iter(samples)):
        report = fastdata.pack(
            source,
            tmp_path / "x.lmdb",
            size=16,
            num_workers=0,
            fields={"value": field},
            overwrite=True,
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
        ([(ONE, [{"bbox": [1, 2, 3, 4]}])], None, "Yield a dict of such fields"),
        ([(ONE, {"annotation": {"object": []}})], None, "Yield a dict of such fields"),
    ],
)
def test_samples_that_cannot_be_stored_are_refused(source: Any, fields: Any, message: str) -> None:
    with pytest.raises((SourceError, OptionError), match=message):
        find_source(source, fields=fields)


@pytest.mark.parametrize(
    ("shape", "kind", "num_workers"),
    [
        *((shape, "array", 0) for shape in SHAPES),
        *(("dict", kind, 0) for kind in ("tensor", "PIL", "bytearray")),
        *(("dict", kind, 1) for kind in ("array", "PIL")),
    ],
)
def test_a_generator_may_fill_one_buffer_for_all_its_samples(
    tmp_path: Path, shape: str, kind: str, num_workers: int
) -> None:
    canvas = np.zeros((8, 8, 3), np.uint8)
    given: dict[str, Any] = {"array": canvas, "tensor": torch.from_numpy(canvas)}
    given["PIL"] = Image.new("RGB", (8, 8))
    given["bytearray"] = bytearray(pil_file(canvas, "BMP"))

    def samples() -> Iterator[Any]:
        for number in range(40):
            canvas[:] = number
            given["PIL"].paste((number,) * 3, (0, 0, 8, 8))
            given["bytearray"][:] = pil_file(canvas, "BMP")
            yield SHAPES[shape](given[kind], number)

    fastdata.pack(samples(), tmp_path / "a.lmdb", num_workers=num_workers, progress=False)
    packed = fastdata.open(tmp_path / "a.lmdb")
    assert [int(sample.image.max()) for sample in packed] == list(range(40))


def test_a_dataset_that_is_called_here_may_fill_one_buffer(tmp_path: Path) -> None:
    class Refilled:
        pixels = np.zeros((8, 8, 3), np.uint8)

        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            self.pixels[:] = index
            return self.pixels, index

    class Here(Executor):
        def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(work(*given, **named))
            return done

    fastdata.pack(Refilled(), tmp_path / "a.lmdb", executor=Here(), progress=False)
    packed = fastdata.open(tmp_path / "a.lmdb")
    assert [int(sample.image.max()) for sample in packed] == list(range(40))


def test_fields_are_named_by_the_user_where_samples_are_tuples(tmp_path: Path) -> None:
    fields = {"photo": "image", "depth": ImageField(channels=1), "score": "float"}
    fastdata.pack([(ONE, ONE[:, :, 0], 1)] * 2, tmp_path / "x.lmdb", fields=fields, num_workers=0)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dict(dataset.schema) == {"photo": IMAGE, "depth": ImageField(1), "score": FLOAT}
    assert dataset[1].score == 1.0


def test_paths_as_text_are_images_where_the_field_says_so(tmp_path: Path) -> None:
    paths = sorted(map(str, image_folder(tmp_path / "images", 4).rglob("*.jpg")))
    for rows in ([{"image": path, "file": path} for path in paths], list(paths)):
        path = tmp_path / "a.lmdb"
        fastdata.pack(rows, path, codec="keep", num_workers=0, progress=False, overwrite=True)
        dataset = fastdata.open(path)
        assert dataset.schema["image"] == ImageField()
        stored = dataset._images("image", range(4)).lengths
        assert stored.tolist() == [os.path.getsize(file) for file in paths]
        assert len(dataset.schema) == 1 or dataset.schema["file"] == StringField()
    captions = find_source([{"image": "of a jay"}])
    assert captions.schema["image"] == StringField()


# -- class names, and rows whose images are files -----------------------------------------


CAT, DOG, EEL = "cat", "dog", "eel"


def rows_of_files(root: Path, count: int = 6) -> list[dict[str, Any]]:
    """Write images in a folder for each class, and return a row for each."""
    files = sorted(image_folder(root, count, classes=(CAT, DOG)).rglob("*.jpg"))
    return [{"image": path, "label": path.parent.name} for path in files]


class Labelled(Pictures):
    """A Dataset whose labels are the names of classes."""

    def __init__(self, classes: list[str] | None = None) -> None:
        super().__init__(4)
        if classes is not None:
            self.classes = classes

    def __getitem__(self, index: int) -> Any:
        return ONE, (CAT, DOG)[index % 2]


@pytest.mark.parametrize("field", ["label", "target", "Class_ID"])
def test_text_labels_of_a_list_are_classes(field: str) -> None:
    names = [DOG] * 20 + [f" {CAT} "]  # the other class comes behind the samples that are peeked at
    source = find_source([{"image": ONE, field: name} for name in names])
    assert source.schema[field] == ScalarField(classes=(CAT, DOG))
    assert source.notes == []


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda: [{"image": ONE, "label": name} for name in (DOG, CAT, EEL)], [1, 0, 2]),
        (lambda: Labelled([DOG, EEL, CAT]), [2, 0, 2, 0]),
        (lambda: Labelled(), [CAT, DOG, CAT, DOG]),
        (lambda: ((ONE, name) for name in (CAT, DOG)), [CAT, DOG]),
    ],
)
def test_text_labels_become_numbers_where_all_names_are_known(
    tmp_path: Path, make: Callable[[], Any], kept: list[Any]
) -> None:
    report = fastdata.pack(make(), tmp_path / "x.lmdb", num_workers=0, progress=False)
    assert [sample.label for sample in fastdata.open(tmp_path / "x.lmdb")] == kept
    if isinstance(kept[0], str):
        assert report.notes[0].startswith("field 'label' stays text: its classes are known only")
        assert "source_options=" in report.notes[0]


@pytest.mark.parametrize("make", [list, iter, lambda rows: Labelled()])
def test_the_option_classes_names_the_labels(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    (tmp_path / "names.txt").write_text(f"{DOG}\n{EEL}\n{CAT}\n")
    for given in ([DOG, EEL, CAT], str(tmp_path / "names.txt")):
        rows = [(ONE, name) for name in (CAT, DOG, CAT, DOG)]
        options = {"classes": given}
        path = tmp_path / "x.lmdb"
        fastdata.pack(make(rows), path, source_options=options, num_workers=0, overwrite=True)
        assert fastdata.open(path).classes == [DOG, EEL, CAT]
        assert [sample.label for sample in fastdata.open(path)] == [2, 0, 2, 0]


def test_a_label_beyond_the_class_names_is_rejected(tmp_path: Path) -> None:
    labels = [0, 1, 2, -1, -2, EEL]
    options = {"classes": [CAT, DOG]}
    for indexed in (True, False):
        rows: Any = [(ONE, label) for label in labels]
        report = fastdata.pack(
            rows if indexed else iter(rows), tmp_path / "x.lmdb", source_options=options,
            num_workers=0, overwrite=True,
        )  # fmt: skip
        assert [reject.key for reject in report.rejects] == ["00000002", "00000004", "00000005"]
        assert report.rejects[0].reason == "'label' is 2, and there are 2 classes: 0 to 1"
        assert report.rejects[2].reason == "'label' is 'eel', not one of its 2 classes"


def test_classes_without_a_label_are_refused() -> None:
    with pytest.raises(OptionError, match="classes=: none of the fields image, text is a label"):
        find_source([{"image": ONE, "text": "a"}], options={"classes": [CAT]})


def test_a_dataset_with_classes_gives_them_to_its_targets() -> None:
    class Targets(Pictures):
        classes = (CAT, DOG, EEL)

        def __getitem__(self, index: int) -> Any:
            return {"image": ONE, "target": index % 3, "split": 0}

    assert find_source(Targets()).schema["target"] == ScalarField(classes=(CAT, DOG, EEL))


def test_rows_of_files_are_indexed_and_have_their_paths_for_keys(tmp_path: Path) -> None:
    rows = rows_of_files(tmp_path / "images")
    fastdata.pack(
        rows, tmp_path / "x.lmdb", codec="keep", shuffle=True, seed=3, num_workers=1, progress=False
    )
    dataset = fastdata.open(tmp_path / "x.lmdb")
    keys = [str(row["image"].relative_to(tmp_path / "images")) for row in rows]
    assert sorted(dataset.keys) == sorted(keys) != list(dataset.keys)
    assert dataset.classes == [CAT, DOG]
    assert [dataset.classes[s.label] for s in dataset] == [
        key.split("/")[0] for key in dataset.keys
    ]
    (shard,) = dataset.shards
    assert shard.header.blob_bytes == sum(row["image"].stat().st_size for row in rows)


def test_a_changed_file_changes_what_a_pack_of_rows_is_of(tmp_path: Path) -> None:
    rows = rows_of_files(tmp_path / "images")
    before = find_source(rows).fingerprints()
    rows[2]["image"].write_bytes(png(7))
    after = find_source(rows).fingerprints()
    assert (before != after).tolist() == [False, False, True, False, False, False]
    data = [{"image": png(k)} for k in range(3)]
    before = find_source(data).fingerprints()
    data[1]["image"] = png(9)
    assert (find_source(data).fingerprints() != before).tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["path", "file", "picture", "image"])
def test_the_only_files_of_rows_are_the_image(tmp_path: Path, name: str) -> None:
    rows = [{name: str(row["image"]), "label": 1} for row in rows_of_files(tmp_path / "images")]
    source = find_source(rows)
    assert dict(source.schema) == {
        "image" if name in ("path", "file") else name: IMAGE,
        "label": INT,
    }


def test_a_row_that_is_unlike_the_others_is_rejected(tmp_path: Path) -> None:
    rows = rows_of_files(tmp_path / "images", 24)
    rows[20] = {"image": rows[20]["image"]}
    rows[21]["image"] = tmp_path / "gone.jpg"
    rows[22]["image"] = None
    report = fastdata.pack(rows, tmp_path / "x.lmdb", size=16, num_workers=0)
    assert report.num_samples == 21
    assert [reject.key for reject in report.rejects] == [
        str(rows[20]["image"].relative_to(tmp_path)),
        "gone.jpg",
        "00000022",
    ]
    assert "has the fields ['image'], not ['image', 'label']" in report.rejects[0].reason


# -- images, masks and arrays ------------------------------------------------------------


UNIT = np.float32(ONE.transpose(2, 0, 1)) / np.float32(255)
CLASSES = np.zeros((50, 60), np.uint8)
CLASSES[10:20, 30:50] = 3
MASK = ImageField(1, mask=True)


def test_a_tensor_dataset_is_of_images(tmp_path: Path) -> None:
    data = torch.utils.data.TensorDataset(
        torch.from_numpy(np.stack([UNIT, 1 - UNIT])), torch.tensor([1, 0])
    )
    report = fastdata.pack(data, tmp_path / "x.lmdb", codec="png", num_workers=0)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dict(dataset.schema) == {"image": IMAGE, "label": INT}
    np.testing.assert_array_equal(pixels(dataset[0].image), ONE)
    np.testing.assert_array_equal(pixels(dataset[1].image), 255 - ONE)
    assert report.notes == ("field 'image' has floats, which are stored times 255, as uint8",)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((UNIT - 0.5) / 0.2, "pixels from .* are not whole numbers from 0 to 255 divided by 255"),
        (ONE.astype(np.float32), "pixels from 0 to 2.* are not whole numbers"),
        (UNIT.astype(np.float16), "are not whole numbers"),
        (ONE.astype(np.uint16), "pixels are uint16"),
        (np.zeros((8, 50, 60, 3), np.uint8), r"of shape \(8, 50, 60, 3\) is not an image"),
        (np.zeros((2, 3, 50, 60), np.float32), r"of shape \(2, 3, 50, 60\) is not an image"),
    ],
)
def test_arrays_that_seem_to_be_images_and_cannot_be_are_refused(value: Any, reason: str) -> None:
    as_array = re.escape(f"ArrayField('{value.dtype}', {value.shape})")
    for sample in ((value, 1), {"image": value}, {"left_img": value}):
        with pytest.raises(SourceError, match=f"field '.*' .*{reason}.*{as_array}"):
            find_source([sample])
    field = ArrayField(str(value.dtype), value.shape)
    assert find_source([{"image": value}], fields={"image": field}).schema["image"] == field


@pytest.mark.parametrize(
    ("sample", "name", "field"),
    [
        ((np.zeros((10, 7), np.uint8), 1), "image", ArrayField("uint8", (10, 7))),
        ((np.zeros((10, 8), np.uint8), 1), "image", IMAGE),
        ((np.zeros((4, 30, 40), np.uint8), 1), "image", IMAGE),
        ({"vector": np.zeros((10, 9), np.uint8)}, "vector", ArrayField("uint8", (10, 9))),
        ({"image": np.zeros((10, 7), np.uint8)}, "image", IMAGE),
        ({"photo": ONE}, "photo", ArrayField("uint8", (50, 60, 3))),
        ({"vector": np.zeros((9, 9), np.float32)}, "vector", ArrayField("float32", (9, 9))),
        ({"gt": np.zeros((9, 9), bool)}, "gt", ArrayField("bool", (9, 9))),
        ((UNIT[0], 1), "image", IMAGE),
        ((UNIT[0] * np.float32(0.37), 1), "image", ArrayField("float32", (50, 60))),
    ],
)
def test_a_matrix_is_an_image_by_its_name_or_place(sample: Any, name: str, field: Field) -> None:
    source = find_source([sample, sample])
    assert source.schema[name] == field
    if not isinstance(field, ArrayField):
        assert not [note for note in source.notes if "as an array" in note]
        return
    note = (
        f"field {name!r} of shape {field.shape} is stored as an array, which no transform changes"
    )
    remedies = {
        "uint8": f' (fields={{{name!r}: "image"}} makes it an image)',
        "bool": f' (fields={{{name!r}: "mask"}} makes it a mask)',
        "float32": "",
    }
    assert source.notes == [note + remedies[field.dtype]]


@pytest.mark.parametrize(
    "mask",
    [
        CLASSES,
        CLASSES.astype(np.int64),
        torch.from_numpy(CLASSES)[None].long(),
        CLASSES > 0,
        CLASSES.astype(np.float32),
        np.arange(4)[:, None, None] == CLASSES,
        Image.fromarray(CLASSES),
    ],
)
def test_a_mask_is_one_whatever_its_type(tmp_path: Path, mask: Any) -> None:
    fastdata.pack([{"image": ONE, "mask": mask}], tmp_path / "x.lmdb", num_workers=0)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dataset.schema["mask"] == MASK
    np.testing.assert_array_equal(pixels(dataset[0].mask)[:, :, 0] > 0, CLASSES > 0)


@pytest.mark.parametrize(
    "mask",
    [
        Image.fromarray(CLASSES),
        Image.fromarray(CLASSES).convert("P"),
        Image.fromarray(CLASSES > 0),
        torch.from_numpy(CLASSES).long(),
        torch.from_numpy(CLASSES)[None].float(),
        Image.fromarray(CLASSES.astype(np.uint16)),
        CLASSES,
    ],
)
def test_the_second_image_of_a_tuple_is_a_mask(tmp_path: Path, mask: Any) -> None:
    image = Image.fromarray(ONE) if isinstance(mask, Image.Image) else ONE
    report = fastdata.pack([(image, mask)] * 2, tmp_path / "x.lmdb", num_workers=0)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dict(dataset.schema) == {"image": IMAGE, "mask": MASK}
    assert "is the field 'mask'" in report.notes[0]
    np.testing.assert_array_equal(pixels(dataset[1].mask)[:, :, 0] > 0, CLASSES > 0)
    assert dict(find_source([{"image": image, "label": mask}]).schema) == {
        "image": IMAGE,
        "label": MASK,
    }


def test_a_second_image_in_colour_is_an_image() -> None:
    image = Image.fromarray(ONE)
    assert dict(find_source([(image, image)]).schema) == {"image": IMAGE, "label": IMAGE}


@pytest.mark.parametrize("mask", [CLASSES.astype(np.float32) / 255, CLASSES[None].repeat(2, 0)])
def test_a_mask_that_has_no_class_numbers_is_refused(mask: Any) -> None:
    with pytest.raises(SourceError, match=r"field 'mask' of dtype .* is not a mask: .*ArrayField"):
        find_source([{"image": ONE, "mask": mask}])


def test_labels_that_are_whole_floats_are_integers(tmp_path: Path) -> None:
    for values in ([0.0, 1.0], [np.float32(0), np.float32(1)], list(torch.tensor([0.0, 1.0]))):
        assert find_source([(ONE, value) for value in values]).schema["label"] == INT
    assert find_source([(ONE, 0.0), (ONE, 0.5)]).schema["label"] == FLOAT
    report = fastdata.pack([(ONE, 0.0), (ONE, np.nan), (ONE, 1.0)], tmp_path / "x.lmdb")
    assert fastdata.open(tmp_path / "x.lmdb").schema["label"] == INT
    assert [reason for _, reason in report.rejects] == ["'label' is NaN: the label is missing"]
    assert find_source([{"image": ONE, "score": 1.0}]).schema["score"] == FLOAT


def test_an_empty_list_does_not_make_floats_of_others() -> None:
    source = find_source([{"image": ONE, "labels": labels} for labels in ([], [1, 2], [3])])
    assert source.schema["labels"] == ArrayField("int64", (None,))


# -- masks, and Datasets -------------------------------------------------------------------


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


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"], indirect=True)
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
    data = Pictures()
    kept = weakref.ref(data)
    fastdata.pack(data, tmp_path / "x.lmdb", num_workers=0)
    del data
    gc.collect()
    assert kept() is None


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
    assert isinstance(find_source(data), RowsSource)
    one = fastdata.pack(data, tmp_path / "a.lmdb", num_workers=0)
    other = fastdata.pack(tmp_path / "images", tmp_path / "b.lmdb", num_workers=0)
    assert one.digest == other.digest


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


def test_a_sample_that_cannot_be_sent_to_a_worker_is_a_reject(tmp_path: Path) -> None:
    images = [Image.fromarray(np.full((70, 71, 3), k, np.uint8)) for k in range(5)]
    images[2].info["callback"] = lambda: None
    report = fastdata.pack(iter(images), tmp_path / "x.lmdb", num_workers=1, codec="png")
    assert report.num_samples == 4
    ((key, reason),) = report.rejects
    assert key == "00000002"
    assert reason.startswith("cannot be sent to a worker process (")
    assert reason.endswith("num_workers=0 packs it")


def _detections(counts: Sequence[int]) -> list[Any]:
    """Return what detection datasets of torchvision yield: an image, and a dict of the rest."""
    boxes = np.array([[1, 2, 10, 20], [3, 4, 30, 40]], np.float32)
    return [
        (
            Image.fromarray(photo(80, 90)),
            {"boxes": boxes[:n], "labels": np.arange(n), "image_id": k},
        )
        for k, n in enumerate(counts)
    ]


def test_the_dict_of_a_detection_dataset_has_fields(tmp_path: Path) -> None:
    # The samples that tell the fields have one box each; later ones have others.
    counts = [1] * 20 + [0, 2]
    report = fastdata.pack(_detections(counts), tmp_path / "x.lmdb", num_workers=0)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert not report.rejects
    assert list(dataset.schema) == ["image", "boxes", "labels", "image_id"]
    assert [len(sample.boxes) for sample in dataset] == counts
    assert [sample.labels.tolist() for sample in dataset] == [list(range(n)) for n in counts]


def test_masks_of_instances_are_no_mask_of_classes(tmp_path: Path) -> None:
    items = [
        (image, {**rest, "masks": np.zeros((2, 80, 90), np.uint8)})
        for image, rest in _detections([2])
    ]
    with pytest.raises(SourceError, match=r"'masks' .* neither 1 channel nor one for a class"):
        find_source(items)
    one_and_two = [
        (image, {**rest, "masks": np.ones((n, 80, 90), np.uint8)})
        for n, (image, rest) in zip((1, 2), _detections([1, 2]), strict=True)
    ]
    with pytest.raises(SourceError, match=r"'masks' .* neither 1 channel nor one for a class"):
        find_source(one_and_two)
