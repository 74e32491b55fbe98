"""Masks of batches: uint8 [N, 1, H, W], and a note on those of 0 and 255, which are no classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from samples import photo
from worker_helpers import unchanged

import fastdata
from fastdata import transforms as T  # noqa: N812

SIZE = 70, 80
FIELDS = {"image": "image", "mask": "mask"}
WAYS: dict[str, dict[str, Any]] = {
    "folders": {"format": "masks"},
    "list": {},
    "keep": {"codec": "keep"},
    "crop": {"size": 32, "resize": "crop", "format": "masks"},
    "rows": {"fields": FIELDS},
    "parts": {"fields": FIELDS, "shard_size": 1},
}


def write_pairs(root: Path, masks: list[np.ndarray[Any, Any]]) -> Path:
    """Write images and masks as folders of two parallel trees."""
    for number, mask in enumerate(masks):
        for name, pixels in (("images", photo(*mask.shape, seed=number)), ("masks", mask)):
            path = root / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            assert cv2.imwrite(str(path), pixels)
    rows = [f"images/{n}.png,masks/{n}.png" for n in range(len(masks))]
    (root / "pairs.csv").write_text("\n".join(["image,mask", *rows]))
    return root


def mask_of(*values: int) -> np.ndarray[Any, Any]:
    """Return a mask of stripes with these values."""
    stripes = np.resize(np.array(values, np.uint8), SIZE[1])
    return np.broadcast_to(stripes, SIZE).copy()


def rows_of(masks: list[np.ndarray[Any, Any]]) -> list[dict[str, Any]]:
    return [{"image": photo(*mask.shape, seed=n), "mask": mask} for n, mask in enumerate(masks)]


@pytest.mark.parametrize(
    ("masks", "noted"),
    [
        ([mask_of(0, 255), mask_of(255), mask_of(0)], True),
        ([mask_of(0), mask_of(0), mask_of(0, 255)], True),
        ([mask_of(0, 255), mask_of(0, 1)], False),
        ([mask_of(0, 7, 255), mask_of(0, 255)], False),
        ([mask_of(0, 254), mask_of(0, 255)], False),
        ([mask_of(0, 1), mask_of(1)], False),
        ([mask_of(0), mask_of(0)], False),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_note_on_masks_of_0_and_255(tmp_path: Path, masks: Any, noted: bool, way: str) -> None:
    source: Any = write_pairs(tmp_path / "pairs", masks)
    if way in ("list", "keep"):
        source = source / "pairs.csv"
    elif way in ("rows", "parts"):
        source = rows_of(masks)
    options = {**WAYS[way], "num_workers": 0, "progress": False}
    report = fastdata.pack(source, tmp_path / "packed", **options)
    notes = [note for note in report.notes if "255" in note]
    assert bool(notes) is noted, report.notes
    if noted:
        (note,) = notes
        assert note.startswith("masks hold 0 and 255 alone, and losses take class numbers 0 and 1")
        assert "(mask > 0).squeeze(1).long()" in note
        count = sum(bool(mask.any()) for mask in masks)
        assert f": {count} image" in note
    assert not [note for note in report.notes if note.startswith("not: ")]


@pytest.mark.parametrize("way", ["packed", "raw", "keep", "files", "device", "callables"])
def test_masks_are_uint8_of_one_channel(tmp_path: Path, way: str) -> None:
    masks = [mask_of(0, 3, 9), mask_of(1, 255), mask_of(7)]
    source = write_pairs(tmp_path / "pairs", masks) / "pairs.csv"
    path: Any = source
    if way != "files":
        codec: Any = {"raw": "raw", "keep": "keep"}.get(way, "auto")
        path = tmp_path / "a.lmdb"
        fastdata.pack(source, path, codec=codec, num_workers=0, progress=False)
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 0}
    if way == "device":
        options |= {"cache": "device", "device": "cpu"}
    if way == "callables":
        options["transform"] = [T.ImageOnly(unchanged)]
    with fastdata.loader(path, **options) as loader:
        (batch,) = loader
    assert batch.mask.shape == (3, 1, *SIZE)
    assert batch.mask.dtype == torch.uint8
    target = batch.mask.squeeze(1).long()
    assert target.dtype == torch.int64
    np.testing.assert_array_equal(target.numpy(), np.stack(masks))
