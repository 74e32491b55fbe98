"""Hugging Face's datasets, packed as they are in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from fastdata.schema import ArrayField, ImageField, ScalarField

datasets = pytest.importorskip("datasets")

CLASSES = ("cat", "dog", "newt")


@pytest.fixture
def given() -> Any:
    """Six labelled images, two of them without a label, and the kinds of things they show."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=list(CLASSES)),
            "kinds": datasets.Sequence(datasets.ClassLabel(names=["indoor", "outdoor"])),
            "weight": datasets.Value("int64"),
        }
    )
    random = np.random.default_rng(0)
    rows = {
        "image": [random.integers(0, 256, (20, 30, 3), np.uint8) for _ in range(6)],
        "label": [2, 0, 1, 2, -1, -1],
        "kinds": [[1, 0]] * 6,
        "weight": list(range(6)),
    }
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given,
        lambda given: given.with_format("torch"),
        lambda given: given.with_format("numpy"),
        lambda given: given.select(range(6)),
        lambda given: given.to_iterable_dataset(),
    ],
    ids=["PIL", "torch", "numpy", "selected", "streamed"],
)
def test_class_labels_keep_their_names(given: Any, tmp_path: Path, change: Any) -> None:
    fastdata.pack(change(given), tmp_path / "all.h5", codec="png", num_workers=0, progress=False)
    dataset = fastdata.open(tmp_path / "all.h5")
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=CLASSES),
        "kinds": ArrayField("int64", (2,), classes=("indoor", "outdoor")),
        "weight": ScalarField(),
    }
    assert dataset.class_to_idx == {"cat": 0, "dog": 1, "newt": 2}
    assert list(dataset.targets) == given["label"][:]
    for sample, row in zip(dataset, given, strict=True):
        np.testing.assert_array_equal(sample.image.permute(1, 2, 0), np.asarray(row["image"]))


def test_names_that_the_user_gives_come_first(given: Any, tmp_path: Path) -> None:
    fields = {"label": ScalarField(classes=("a", "b", "c"))}
    fastdata.pack(given, tmp_path / "all.h5", fields=fields, num_workers=0, progress=False)
    assert fastdata.open(tmp_path / "all.h5").classes == ["a", "b", "c"]
