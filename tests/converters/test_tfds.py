"""Folders of TensorFlow Datasets: class names, splits, boxes, and the numbers of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_tfrecord import example, record
from pack_helpers import pil_file

import fastdata
from fastdata.converters.base import Reject
from fastdata.converters.finding import find_source
from fastdata.errors import SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField

PICTURE = pil_file(np.zeros((8, 16, 3), np.uint8), "PNG")
BOXES = {"objects/bbox": [0.25, 0.5, 0.75, 1.0, 0.0, 0.0, 1.0, 0.5], "objects/label": [1, 0]}
MODULE = "tensorflow_datasets.core.features."


def feature(kind: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{MODULE}{kind}", **content}


def features_of(box: dict[str, Any]) -> dict[str, Any]:
    """Return a features.json of an image and its objects."""
    inner = {"bbox": box, "label": feature("ClassLabel", classLabel={"numClasses": "2"})}
    objects = feature("FeaturesDict", featuresDict={"features": inner})
    sequence = feature("Sequence", sequence={"feature": objects, "length": "-1"})
    found = {"image": feature("Image"), "objects": sequence}
    return feature("FeaturesDict", featuresDict={"features": found})


BOX = feature("bounding_boxes.BBoxFeature", boundingBox={"shape": {"dimensions": ["4"]}})


def write(folder: Path, counts: dict[str, list[int]], **more: object) -> Path:
    """Write splits of so many records a file; `label` is the number of the record."""
    folder.mkdir(exist_ok=True)
    splits, number = [], 0
    for split, lengths in counts.items():
        splits.append({"name": split, "shardLengths": [str(length) for length in lengths]})
        for shard, length in enumerate(lengths):
            rows = [
                record(example({"image": PICTURE, "label": k % 3, **more}))
                for k in range(number, number + length)
            ]
            number += length
            name = f"own-{split}.tfrecord-{shard:05}-of-{len(lengths):05}"
            (folder / name).write_bytes(b"".join(rows))
    document = {"name": "own", "fileFormat": "tfrecord", "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(document))
    return folder


def pack(location: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, num_workers=0, progress=False, resize="none", source_options=options
    )
    return fastdata.open(path), report


def test_class_names_and_splits_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", {"test": [2], "train": [3, 2]})
    (folder / "label.labels.txt").write_text("ant\nbee\ncat\n")
    data, report = pack(folder, tmp_path / "a.lmdb")
    assert data.schema["label"] == ScalarField(classes=("ant", "bee", "cat"))
    assert data.schema["split"] == ScalarField(classes=("train", "test"))
    assert [int(sample.label) for sample in data] == [0, 1, 2, 0, 1, 2, 0]
    assert [int(sample.split) for sample in data] == [1, 1, 0, 0, 0, 0, 0]
    assert any("the field 'split'" in note for note in report.notes)
    data, _ = pack(folder, tmp_path / "b.lmdb", split="test")
    assert list(data.schema) == ["image", "label"]
    assert [int(sample.label) for sample in data] == [0, 1]


def test_boxes_are_ymin_first_and_parts_of_the_picture(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", {"train": [2]}, **BOXES)
    (folder / "features.json").write_text(json.dumps(features_of(BOX)))
    (folder / "objects-label.labels.txt").write_text("dog\nox\n")
    data, _ = pack(folder, tmp_path / "a.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "label": ScalarField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=("dog", "ox")),
    }
    assert np.asarray(data[1].boxes).tolist() == [[8, 2, 16, 6], [0, 0, 8, 8]]
    assert np.asarray(data[1].labels).tolist() == [1, 0]


@pytest.mark.parametrize("form", [None, "XYXY"])
def test_boxes_whose_form_is_not_certain_are_refused_unless_it_is_named(
    form: str | None, tmp_path: Path
) -> None:
    folder = write(tmp_path / "own", {"train": [2]}, **BOXES)
    if form is not None:
        box = {**BOX, "boundingBox": {"bboxFormat": form}}
        (folder / "features.json").write_text(json.dumps(features_of(box)))
    with pytest.raises(SourceError, match=r"'bbox': its boxes may be of several forms.*boxes="):
        find_source(folder)
    data, _ = pack(folder, tmp_path / "a.lmdb", boxes="xyxy,normalised")
    assert np.asarray(data[0].bbox).tolist() == [[4, 4, 12, 8], [0, 0, 16, 4]]
    data, _ = pack(folder, tmp_path / "b.lmdb", features="image,label")
    assert list(data.schema) == ["image", "label"]


@pytest.mark.parametrize("said", [1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_more_or_fewer_records_than_the_folder_says_are_refused(
    said: int, shuffle: bool, tmp_path: Path
) -> None:
    folder = write(tmp_path / "own", {"train": [20, 2]})
    text = (folder / "dataset_info.json").read_text()
    (folder / "dataset_info.json").write_text(text.replace('"2"', f'"{said}"'))
    with pytest.raises(SourceError, match=f"00001-of-00002: has 2 records, and .* says {said}"):
        fastdata.pack(folder, tmp_path / "a.lmdb", shuffle=shuffle, num_workers=0, progress=False)
    assert not (tmp_path / "a.lmdb").exists()
    found = find_source(str(folder / "*-of-00002"))  # a pattern takes what is there
    assert not any(isinstance(sample, Reject) for sample in found)


def test_damage_is_a_reject_and_no_wrong_number(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", {"train": [3]})
    path = folder / "own-train.tfrecord-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-5])
    _, report = pack(folder, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (2, 1)


def test_files_of_another_dataset_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", {"train": [3]})
    (folder / "other.tfrecord").write_bytes(record(example({"image": PICTURE, "label": 1})))
    with pytest.raises(SourceError, match=r"dataset_info\.json: does not name other\.tfrecord"):
        find_source(folder)
