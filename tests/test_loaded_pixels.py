"""Pixels of batches, against PIL and NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from samples import decoded, encode, photo, psnr, write_shard
from worker_helpers import (
    PICTURES,
    SCENES,
    WindowByIndex,
    kept,
    pictures,
    scenes,
)

from fastdata import transforms as T  # noqa: N812
from fastdata.engine import rendering
from fastdata.formats.writer import Record
from fastdata.loading import loader
from fastdata.schema import ImageField, Schema

DECODERS = ("simplejpeg", "opencv", "pil")
"""Of JPEGs; other images have one decoder."""

# -- pixels against an independent reference ----------------------------------------------


def _odd_window(index: int, height: int, width: int) -> tuple[int, int, int, int]:
    """Return another rectangle for each sample: at each edge in turn, and with none of them."""
    rows, columns = 17 + 5 * (index % 13), 23 + 7 * (index % 9)
    top = [0, height - rows, (height - rows) // 3, 1][index % 4]
    left = [0, (width - columns) // 2, width - columns, 3][index // 4 % 4]
    return top, left, rows, columns


def _fixed_window(index: int, height: int, width: int) -> tuple[int, int, int, int]:
    top, left, _, _ = _odd_window(index, height, width)
    return min(top, height - 40), min(left, width - 56), 40, 56


def _large_window(index: int, height: int, width: int) -> tuple[int, int, int, int]:
    return index % 5, 3 * (index % 7), height - 9 - index % 3, width - 21


@pytest.mark.parametrize(
    ("codec", "decoder"),
    [
        *((codec, decoder) for codec in ("jpeg", "kept") for decoder in DECODERS),
        *((codec, "simplejpeg") for codec in ("png", "raw", "file")),
    ],
)
def test_a_crop_is_that_of_the_whole_image(tmp_path: Path, decoder: Any, codec: str) -> None:
    records = scenes(16, ("jpeg" if codec == "kept" else codec,))
    if codec == "kept":
        records = [Record(r.key, (kept(decoded(r.values[0], 3)), *r.values[1:])) for r in records]
    path = write_shard(tmp_path / "shard.lmdb", records, SCENES)
    transform = WindowByIndex(_fixed_window, (40, 56), resize=False)
    [batch] = loader(path, batch_size=16, transform=transform, decoder=decoder, num_workers=2)
    for index, record in enumerate(records):
        for images, field, channels in ((batch.image, 0, 3), (batch.mask, 1, 1)):
            whole = decoded(record.values[field], channels)
            top, left, height, width = _fixed_window(index, *whole.shape[:2])
            expected = whole[top : top + height, left : left + width]
            np.testing.assert_array_equal(images[index].permute(1, 2, 0).numpy(), expected)


def pil_crop(whole: np.ndarray[Any, Any], window: tuple[int, ...], size: tuple[int, int]) -> Any:
    """Crop and resize as torchvision does to PIL images."""
    top, left, height, width = window
    image = Image.fromarray(whole).crop((left, top, left + width, top + height))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _pictures_and_reference(
    folder: Path, records: list[Record], transform: WindowByIndex, size: tuple[int, int]
) -> Iterator[tuple[Any, Any]]:
    path = write_shard(folder / "shard.lmdb", records, PICTURES)
    [batch] = loader(path, batch_size=len(records), transform=transform, num_workers=0)
    for index, record in enumerate(records):
        whole = decoded(record.values[0], 3)
        window = transform.window_of(index, *whole.shape[:2])
        yield batch.image[index].permute(1, 2, 0).numpy(), pil_crop(whole, window, size)


@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_antialias_gives_torchvisions_pixels(tmp_path: Path, codec: str) -> None:
    """To one step of 255: both round to 8 bits between their two passes, not quite alike."""
    records = pictures(16, codec, (150, 170))
    transform = WindowByIndex(_odd_window, (31, 29), antialias=True)
    for made, expected in _pictures_and_reference(tmp_path, records, transform, (31, 29)):
        difference = np.abs(made.astype(int) - expected)
        assert difference.max() <= 1
        assert psnr(made, expected) > 54


@pytest.mark.parametrize(
    ("size", "least_db"), [((39, 44), 50), ((19, 22), 49), ((9, 11), 46)], ids=str
)
def test_a_reduced_decode_is_close_to_the_whole_one(
    tmp_path: Path, size: tuple[int, int], least_db: float
) -> None:
    """Crops 6, 12 and 24 times their target: decoded at 1/2, 1/4 and 1/8."""
    records = pictures(4, "jpeg", (250, 300))
    transform = WindowByIndex(_large_window, size)
    found = _pictures_and_reference(tmp_path, records, transform, size)
    assert min(psnr(made, expected) for made, expected in found) > least_db


SIZES = (350, 400), (150, 150), (320, 320), (100, 450), (500, 400), (64, 64), (450, 320)


@pytest.mark.parametrize(
    "transforms",
    [
        [T.RandomPerspective(p=0.5), T.Resize((40, 40))],
        [T.RandomCrop(300, pad_if_needed=True, padding_mode="reflect"), T.Resize((40, 40))],
        [T.CenterCrop(320), T.Resize((40, 40), "bicubic")],
        [T.RandomApply([T.RandomRotation(9)]), T.CenterCrop(320), T.Resize((40, 40))],
        [T.RandomZoomOut(), T.Resize((40, 40))],
        [T.CenterCrop(320), T.RandomApply([T.Resize(310)]), T.CenterCrop(300), T.Resize((40, 40))],
    ],
    ids=lambda transforms: type(transforms[0]).__name__,
)
@pytest.mark.parametrize("native", [True, False])
def test_a_reduced_picture_is_the_same_in_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transforms: Any, native: bool
) -> None:
    if not native:
        monkeypatch.setattr(rendering, "compiled", lambda: False)
    records = [
        Record(str(at), (encode(photo(*size, seed=at), "jpeg"),)) for at, size in enumerate(SIZES)
    ]
    path = write_shard(tmp_path / "a.lmdb", records, Schema({"image": ImageField()}))
    alone, together = (
        [
            image
            for batch in loader(path, batch_size=size, transform=transforms, num_workers=0)
            for image in batch.image.numpy()
        ]
        for size in (1, len(SIZES))
    )
    np.testing.assert_array_equal(alone, together)
