"""What all formats share: names of fields, options that choose, classes, words of errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import make_pictures

import fastdata
from fastdata.converters.finding import find_source, format_class, options_of
from fastdata.converters.folder import FolderSource
from fastdata.converters.python import IterableSource
from fastdata.converters.reading.field_names import (
    LABELS,
    first_called,
    is_mask_name,
    safe_name,
    unique_name,
)
from fastdata.converters.reading.options import Option
from fastdata.converters.reading.selection import (
    ARRAYS,
    COLUMNS,
    FEATURES,
    MEMBERS,
    Selection,
    left_out,
)
from fastdata.errors import FastdataError, OptionError
from fastdata.schema import Schema, StringField


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("image", "image"),
        ("a b", "a_b"),
        (" image/class/label ", "image_class_label"),
        ("0", "column_"),
        ("", "column_"),
        ("_12x", "x"),
        ("class", "class_"),
        ("index", "index_"),
        ("größe", "gr__e"),
        ("x" * 200, "x" * 90),
    ],
)
def test_any_name_becomes_one_that_a_field_can_have(name: str, wanted: str) -> None:
    assert safe_name(name) == wanted
    Schema({unique_name(safe_name(name), {wanted}): StringField()})


def test_names_are_told_apart_by_underscores() -> None:
    assert unique_name("a", ()) == "a"
    assert unique_name("a", {"a", "a_"}) == "a__"


@pytest.mark.parametrize("selection", [ARRAYS, COLUMNS, FEATURES, MEMBERS])
def test_every_option_that_chooses_has_one_syntax(selection: Selection) -> None:
    chosen = selection.parse(["image=a b", " label = y ", "some name"])
    assert chosen == {"image": "a b", "label": "y", "some_name": "some name"}
    for entry in ("=x", "image=", "="):
        with pytest.raises(OptionError, match=rf"^{selection.option}=.*neither FIELD=[A-Z]+ nor"):
            selection.parse([entry])
    with pytest.raises(OptionError, match="the field 'image' stands twice"):
        selection.parse(["image=a", "image=b"])
    error = str(selection.missing("here", "image", "x", ["a", "b"]))
    assert error.startswith(f"here: no {selection.part} 'x' for the field 'image'; there are a, b.")
    assert f"--option {selection.option}=image={selection.example}" in error


def test_what_is_left_out_is_said_once_and_not_endlessly() -> None:
    assert left_out("columns", []) == []
    assert left_out("columns", ["a", "b"], "see c") == ["columns left out: a, b (see c)"]
    (note,) = left_out("columns", map(str, range(99)))
    assert note.endswith("10, 11 ...")


def test_the_most_usual_name_is_taken_whatever_its_case() -> None:
    assert first_called(["Y", "Target", "x"], LABELS) == "Target"
    assert first_called(["x", "z"], LABELS) is None
    assert is_mask_name("Left_Mask")
    assert is_mask_name("x.seg")
    assert not is_mask_name("segway")


def write_parquet(path: Path, labels: list[str]) -> Any:
    images = [picture.data for picture in make_pictures(len(labels))]
    pq.write_table(pa.table({"image": images, "label": labels}), path)
    return path, {}


def write_hdf5(path: Path, labels: list[str]) -> Any:
    with h5py.File(path, "w") as file:
        file["image"] = np.stack([picture.pixels for picture in make_pictures(len(labels))])
        file["label"] = labels
    return path, {}


@pytest.mark.parametrize(("write", "suffix"), [(write_parquet, "parquet"), (write_hdf5, "h5")])
def test_classes_give_labels_of_text_their_numbers(tmp_path: Path, write: Any, suffix: str) -> None:
    labels = ["ant", "bee", "cat", "dog"]
    location, options = write(tmp_path / f"a.{suffix}", labels)
    source = find_source(location, options=options)
    assert source.schema["label"].classes == ("ant", "bee", "cat", "dog")

    (tmp_path / "names.txt").write_text("dog\ncat\nant\n")
    options = {**options, "classes": str(tmp_path / "names.txt")}
    report = fastdata.pack(
        location, tmp_path / "b.lmdb", num_workers=0, progress=False, source_options=options
    )
    packed = fastdata.open(tmp_path / "b.lmdb")
    assert packed.schema.classes == ("dog", "cat", "ant")
    assert [int(sample.label) for sample in packed] == [2, 1, 0]
    assert len(report.rejects) == 1  # the bee


def test_formats_with_fields_of_their_own_say_so_alike(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OptionError, match="format 'folder' has fields of its own"):
        find_source(tmp_path, format="folder", fields={"label": "int"})


def test_a_picture_called_as_masks_are_is_a_mask() -> None:
    grey = np.zeros((4, 4), np.uint8)
    source = IterableSource([{"image": grey, "segmentation": grey}])
    assert source.schema["segmentation"].mask
    assert not source.schema["image"].mask


def test_options_are_declared_by_the_constructor() -> None:
    class Own(FolderSource):
        def __init__(
            self,
            location: Any,
            *,
            channels: int = 3,
            fields: Any = None,
            side: Annotated[str | None, Option("which side", ("left", "right"))] = None,
            names: tuple[str, ...] = (),
        ) -> None:
            raise AssertionError

    side, names = options_of(Own)
    assert side == ("side", str, None, "which side", ("left", "right"))
    assert names == ("names", tuple, (), "", ())


@pytest.mark.parametrize("value", ["ups", "", None])
def test_a_value_that_is_no_choice_is_refused_before_anything_is_read(
    tmp_path: Path, value: str | None
) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(FastdataError) as refused:
        find_source(tmp_path, format="yolo", options={"masks": value})
    assert ("masks=ups: expected classes or instances" in str(refused.value)) == (value == "ups")


@pytest.mark.parametrize("name", ["coco", "folder", "manifest", "masks", "voc", "webdataset"])
def test_options_say_what_they_are_in_a_line(name: str) -> None:
    for option in options_of(format_class(name)):
        assert 0 < len(option.help) < 120
        assert "\n" not in option.help
