"""Grayscale, and what follows from another number of channels than the dataset's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData
from PIL import Image
from samples import photo

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.schema import ImageField, ScalarField

CROP = T.RandomResizedCrop(16)
WITH_MASK = {
    "image": ImageField(),
    "mask": ImageField(channels=1, mask=True),
    "label": ScalarField(),
}


def batches(*transforms: Any, data: Any = None, **options: Any) -> list[Any]:
    with fastdata.loader(
        MemoryData(20) if data is None else data, batch_size=8, transform=[*transforms], **options
    ) as it:
        return list(it)


def grey_of(images: torch.Tensor) -> torch.Tensor:
    """Return the grey of uint8 images [n, 3, H, W], [n, 1, H, W], by BT.601 and cut off."""
    red, green, blue = images.double().unbind(1)
    return torch.floor(0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_packed_folder_comes_grey_as_pillow_makes_it(tmp_path: Path, channels: int) -> None:
    pictures = [photo(20, 24, seed=seed) for seed in range(4)]
    for number, picture in enumerate(pictures):
        folder = tmp_path / "images" / ("cat" if number < 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number}.png")
    fastdata.pack(tmp_path / "images", tmp_path / "grey.lmdb", shuffle=False)
    (batch,) = batches(T.Grayscale(channels), data=tmp_path / "grey.lmdb")
    assert batch.image.dtype == torch.uint8
    assert batch.image.shape == (4, channels, 20, 24)
    for made, picture in zip(batch.image.numpy(), pictures, strict=True):
        expected = np.asarray(Image.fromarray(picture).convert("L")).astype(int)
        assert np.abs(made - expected).max() <= 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_become_grey_and_labels_stay(
    channels: int, memory_format: torch.memory_format, workers: int
) -> None:
    options: dict[str, Any] = {"memory_format": memory_format, "num_workers": workers}
    made = batches(CROP, T.Grayscale(num_output_channels=channels), **options)
    for before, after in zip(batches(CROP, **options), made, strict=True):
        assert after.image.is_contiguous(memory_format=memory_format)
        assert after.image.shape == (len(before.image), channels, 16, 16)
        assert (after.image - grey_of(before.image)).abs().max() <= 1
        assert (after.image == after.image[:, :1]).all()
        assert torch.equal(after.label, before.label)


def test_floating_images_keep_their_dtype_and_range() -> None:
    floats = T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    made = batches(CROP, floats, T.Grayscale(), dtype=torch.float64)
    for before, after in zip(batches(CROP, floats, dtype=torch.float64), made, strict=True):
        red, green, blue = before.image.unbind(1)
        expected = 0.2989 * red + 0.587 * green + 0.114 * blue
        torch.testing.assert_close(after.image, expected[:, None], rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_images_are_taken(channels: int) -> None:
    fields = {"image": ImageField(channels=1), "label": ScalarField()}
    plain = batches(CROP, data=MemoryData(20, fields=fields))
    made = batches(CROP, T.Grayscale(channels), data=MemoryData(20, fields=fields))
    for before, after in zip(plain, made, strict=True):
        assert torch.equal(after.image, before.image.expand(-1, channels, -1, -1))


def test_transforms_behind_meet_the_new_number_of_channels() -> None:
    grey = [CROP, T.Grayscale()]
    rest = [
        T.ColorJitter(0.3, hue=0.1),
        T.RandAugment(fill=3),
        T.CenterCrop(10),
        T.Pad(1, fill=(7,)),
        T.Normalize((0.5,), (0.2,)),
        T.RandomErasing(1.0, value=(7.5,)),
    ]
    for batch in batches(*grey, *rest):
        assert batch.image.shape[1:] == (1, 12, 12)
        assert batch.image.dtype == torch.float32
        assert (batch.image == 7.5).any()
    three = [CROP, T.Grayscale(3), T.Normalize((0.5,) * 3, (0.2,) * 3)]
    assert batches(*three)[0].image.shape[1:] == (3, 16, 16)
    again = batches(*grey, T.Grayscale(3), T.Normalize((0.5,) * 3, (0.2,) * 3))
    assert torch.equal(again[0].image, batches(*three)[0].image)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (T.Normalize((0.5,) * 3, (0.2,) * 3), "'image': Normalize has 3 means, .* 1 channel"),
        (T.RandomErasing(value=(1, 2, 3)), "'image': .*1 channel"),
        (T.RandAugment(fill=(1, 2, 3)), "'image': fill .* 1 channel"),
        (T.Pad(2, fill=(1, 2, 3)), "fill has 3 numbers, but 'image' has 1"),
    ],
)
def test_transforms_behind_that_want_three_channels_are_refused(
    transform: Any, message: str
) -> None:
    batches(CROP, transform, T.Grayscale())
    with pytest.raises(OptionError, match=message):
        batches(CROP, T.Grayscale(), transform)


def test_masks_stay_and_follow_geometry_behind() -> None:
    data = MemoryData(8, fields=WITH_MASK)
    moves = [T.RandomResizedCrop(20), T.CenterCrop(12)]
    plain = batches(moves[0], T.ColorJitter(), moves[1], data=data)[0]
    made = batches(moves[0], T.Grayscale(), moves[1], data=data)[0]
    assert torch.equal(made.mask, plain.mask)
    assert made.image.shape[1:] == (1, 12, 12)
    assert (made.image - grey_of(plain.image)).abs().max() <= 1


def test_views_may_differ_in_channels() -> None:
    views = T.Views((1, [CROP, T.Grayscale()]), (2, [CROP]))
    (grey, first, second), _ = batches(views)[0]
    assert grey.shape[1:] == (1, 16, 16)
    assert first.shape == second.shape == (8, 3, 16, 16)
    wrong = [views, T.Normalize((0.5,) * 3, (0.2,) * 3)]
    with pytest.raises(OptionError, match=r"Normalize has 3 means, .* 1 channel"):
        batches(*wrong)
    for view in batches(T.Views(2, [CROP]), T.Grayscale())[0].image:
        assert view.shape[1:] == (1, 16, 16)


def darker(image: torch.Tensor) -> torch.Tensor:
    return image // 2


def two_channels(image: torch.Tensor) -> torch.Tensor:
    return image[:2]


def test_callables_come_before_or_behind() -> None:
    made = batches(CROP, darker, T.Grayscale())
    for before, after in zip(batches(CROP, darker), made, strict=True):
        assert (after.image - grey_of(before.image)).abs().max() <= 1
    for before, after in zip(made, batches(CROP, T.Grayscale(), darker), strict=True):
        assert (after.image.int() - before.image.int()).abs().max() <= 1
        assert after.image.shape == before.image.shape
        assert after.image.is_contiguous()
    with pytest.raises(OptionError, match="Grayscale takes images of 3 channels or 1, not of 2"):
        batches(CROP, two_channels, T.Grayscale())


@pytest.mark.parametrize("transform", [T.Grayscale(), T.Grayscale(3)])
def test_images_in_memory_of_the_device_become_grey(transform: T.Grayscale) -> None:
    moves = [T.CenterCrop(16), transform, T.Normalize((0.5,), (0.2,))]
    for wanted, found in zip(batches(*moves), batches(*moves, cache="device"), strict=True):
        assert torch.equal(found.image, wanted.image)


def test_other_channels_are_refused() -> None:
    for wrong in (0, 2, 4):
        with pytest.raises(OptionError, match=r"num_output_channels.*(1|3)"):
            T.Grayscale(wrong)
