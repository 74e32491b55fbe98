"""Crops that shrink: near PIL's pixels whichever way they are made, and decoded reduced alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from samples import decoded, psnr, write_shard
from worker_helpers import PICTURES, WindowByIndex, kept, pictures

from fastdata import transforms as T  # noqa: N812 - as users write it
from fastdata.codecs.blobs import decode_window
from fastdata.formats.writer import Record
from fastdata.loading import loader

HEIGHT, WIDTH = 250, 301
FACTORS = {120: 1, 62: 1, 39: 2, 19: 4, 9: 8}
"""Sizes, and by how much what is decoded is reduced for them: from 6 on, 12 on and 24 on."""


def window_of(index: int, height: int, width: int) -> tuple[int, int, int, int]:
    return index, index + 1, height - 2 * index, width - 2 * index - 2


def target_of(size: int) -> tuple[int, int]:
    return size, size * WIDTH // HEIGHT


def transform_of(kind: str, size: int) -> Any:
    if kind == "crop":
        return WindowByIndex(window_of, target_of(size))
    return [T.Resize(size), T.CenterCrop(size - 1)]


def expected_of(whole: np.ndarray[Any, Any], index: int, kind: str, size: int) -> Any:
    """Return what torchvision makes of a PIL image."""
    image, (height, width) = Image.fromarray(whole), target_of(size)
    if kind == "crop":
        top, left, rows, columns = window_of(index, *whole.shape[:2])
        image = image.crop((left, top, left + columns, top + rows))
    resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    if kind == "crop":
        return resized
    top, left = round((height - size + 1) / 2), round((width - size + 1) / 2)
    return resized[top : top + size - 1, left : left + size - 1]


@pytest.fixture(scope="module", params=["jpeg", "raw", "kept"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A shard of each codec, and its pixels; kept JPEGs have no restart intervals."""
    records = pictures(4, "raw" if request.param == "raw" else "jpeg", (HEIGHT, WIDTH))
    if request.param == "kept":
        records = [Record(r.key, (kept(decoded(r.values[0], 3)), r.values[1])) for r in records]
    path = write_shard(tmp_path_factory.mktemp("shrinking") / "shard.lmdb", records, PICTURES)
    return path, [decoded(record.values[0], 3) for record in records]


def batch_of(path: Path, kind: str, size: int, **options: Any) -> np.ndarray[Any, Any]:
    [batch] = loader(
        path, batch_size=4, transform=transform_of(kind, size), num_workers=0, **options
    )
    return batch.image.permute(0, 2, 3, 1).numpy()


def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("engine.rendering", "transforms.render", "codecs.resize"):
        monkeypatch.setattr(f"fastdata.{module}.compiled", lambda: False)


@pytest.mark.parametrize("kind", ["crop", "centre"])
@pytest.mark.parametrize("size", FACTORS)
def test_crops_that_shrink_are_near_pils_with_and_without_the_compiled_library(
    shard: Any, monkeypatch: pytest.MonkeyPatch, kind: str, size: int
) -> None:
    path, pixels = shard
    made = batch_of(path, kind, size)
    assert made.shape[1:3] == (target_of(size) if kind == "crop" else (size - 1, size - 1))
    without_library(monkeypatch)
    portable = batch_of(path, kind, size, decoder="simplejpeg")
    assert abs(made.astype(int) - portable).max() <= 1
    for index, whole in enumerate(pixels):
        expected = expected_of(whole, index, kind, size)
        assert psnr(made[index], expected) > 46
        assert psnr(portable[index], expected) > 46


@pytest.mark.parametrize("kind", ["crop", "centre"])
@pytest.mark.parametrize("size", FACTORS)
def test_both_kinds_of_crop_are_decoded_at_the_same_scale(
    shard: Any, monkeypatch: pytest.MonkeyPatch, kind: str, size: int
) -> None:
    path, _ = shard
    asked = []

    def decode(*arguments: Any, factor: int, **others: Any) -> Any:
        asked.append(factor)
        return decode_window(*arguments, factor=factor, **others)

    without_library(monkeypatch)
    monkeypatch.setattr("fastdata.batch_images.decode_window", decode)
    batch_of(path, kind, size, decoder="simplejpeg")
    assert set(asked) == {FACTORS[size]}
