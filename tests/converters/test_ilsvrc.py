"""ImageNet, against a plain loop over its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_ilsvrc import SYNSETS, ilsvrc, put
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(12)


def pack(location: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="keep", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    return report, fastdata.open(path)


def by_image(data: Any, field: str = "label") -> dict[bytes, Any]:
    (shard,) = data.shards
    return {bytes(shard.blob("image", k)): getattr(data[k], field) for k in range(len(data))}


@pytest.mark.parametrize("place", ["", "ILSVRC", "ILSVRC/Data/CLS-LOC"])
def test_imagenet_has_sorted_synsets_and_the_labels_of_its_list(
    tmp_path: Path, pictures: list[Picture], place: str
) -> None:
    ilsvrc(tmp_path / "in", pictures)
    report, data = pack(tmp_path / "in" / place, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (12, 0)
    assert dict(data.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=SYNSETS),
        "split": ScalarField(classes=("train", "val")),
    }
    assert by_image(data) == {p.data: p.label for p in pictures}
    assert by_image(data, "split") == {p.data: int(k >= 6) for k, p in enumerate(pictures)}


def test_imagenet_by_split(tmp_path: Path, pictures: list[Picture]) -> None:
    ilsvrc(tmp_path, pictures)
    source = find_source(tmp_path, options={"split": "val"})
    assert source.schema["label"] == ScalarField(classes=SYNSETS)
    assert source.num_samples == 6
    assert "split" not in source.schema
    assert any(note.startswith("test left out") for note in source.notes)
    with pytest.raises(OptionError, match="split=dev: expected train or val"):
        find_source(tmp_path, options={"split": "dev"})


def test_imagenet_images_that_the_list_lacks_are_rejected(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    ilsvrc(tmp_path / "in", pictures)
    put(tmp_path / "in/ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000099.JPEG", pictures[0])
    report, _ = pack(tmp_path / "in", tmp_path / "x.lmdb")
    assert [reject.reason for reject in report.rejects] == ["LOC_val_solution.csv does not list it"]
    (tmp_path / "in/LOC_val_solution.csv").unlink()
    with pytest.raises(SourceError, match=r"val is flat, and there is no LOC_val.*split=train"):
        find_source(tmp_path / "in")
    assert find_source(tmp_path / "in", options={"split": "train"}).num_samples == 6


def test_imagenet_with_validation_in_class_folders_is_class_folders(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    for split in ("train", "val"):
        for synset in SYNSETS:
            put(tmp_path / f"{split}/{synset}/0.JPEG", pictures[0])
    source = find_source(tmp_path)
    assert (source.name, source.schema["label"]) == ("folder", ScalarField(classes=SYNSETS))
