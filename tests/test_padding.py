"""Pad and padded crops through the loader, against `numpy.pad` and slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import encode, mask, photo, write_shard

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.engine import rendering
from fastdata.errors import OptionError
from fastdata.formats.writer import Record
from fastdata.random import Draws
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema
from fastdata.transforms.fill import Fill, fill_value
from fastdata.transforms.geometry import Geometry

SCHEMA = Schema(
    {
        "image": ImageField(),
        "mask": ImageField(channels=1, mask=True),
        "boxes": ArrayField("float64", (None, 4), boxes=True),
        "number": ScalarField(),
    }
)
BOX = [[3.0, 4.0, 20.0, 15.0]]


@pytest.fixture(scope="module", params=["raw 32", "raw 120", "jpeg 120", "png 50"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    codec, side = request.param.split()
    records = []
    for k in range(10):
        image, own = photo(int(side), int(side) + 8, seed=k), mask(int(side), int(side) + 8, seed=k)
        values = (
            encode(image, codec),
            encode(own, "raw" if codec == "jpeg" else codec),
            np.array(BOX),
            k,
        )
        records.append(Record(str(k), values))
    return write_shard(tmp_path_factory.mktemp("padded") / "a.lmdb", records, SCHEMA)


@pytest.fixture(params=["compiled", "python", "cached", "callables"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    if request.param == "python":
        monkeypatch.setattr(rendering, "compiled", lambda: False)
    ways: dict[str, Any] = {"cached": {"cache": "device"}, "callables": {"call": True}}
    return ways.get(request.param, {})


def unchanged(sample: Any) -> Any:
    return sample


def batches(path: Path, transform: Any, *, call: bool = False, **options: Any) -> Any:
    if call:
        transform = [*(transform if isinstance(transform, list) else [transform])]
        transform.append(T.PerSample(unchanged))
    defaults: dict[str, Any] = {"batch_size": 5, "num_workers": 0, "seed": 2}
    with fastdata.loader(path, transform=transform, **{**defaults, **options}) as loader:
        return list(loader)


def as_rows(images: torch.Tensor) -> Any:
    return images.permute(0, 2, 3, 1).numpy()


def padded(images: Any, sides: Any, mode: str, fill: Any) -> Any:
    """Pad with `numpy.pad`, channel by channel."""
    left, top, right, bottom = sides
    width = [(0, 0), (top, bottom), (left, right)]
    fills = np.broadcast_to(fill, images.shape[3])
    return np.stack(
        [
            np.pad(images[..., channel], width, mode, **options)
            for channel in range(images.shape[3])
            for options in [{"constant_values": fills[channel]} if mode == "constant" else {}]
        ],
        -1,
    )


PADS = [
    (T.Pad(4), (4, 4, 4, 4), "constant", 0, 0),
    (T.Pad((3, 1), 200), (3, 1, 3, 1), "constant", 200, 200),
    (
        T.Pad((1, 2, 3, 4), {"image": [5, 6, 7], "mask": 255}),
        (1, 2, 3, 4),
        "constant",
        [5, 6, 7],
        255,
    ),
    (T.Pad(9, padding_mode="edge"), (9, 9, 9, 9), "edge", None, None),
    (T.Pad((9, 8, 7, 6), padding_mode="reflect"), (9, 8, 7, 6), "reflect", None, None),
    (T.Pad((40, 50), fill=3, padding_mode="symmetric"), (40, 50, 40, 50), "symmetric", None, None),
    (T.Pad((0, 70, 0, 0), padding_mode="reflect"), (0, 70, 0, 0), "reflect", None, None),
]


@pytest.mark.parametrize(("pad", "sides", "mode", "fill", "mask_fill"), PADS, ids=str)
def test_images_masks_and_boxes_are_padded(
    shard: Path, way: dict[str, Any], pad: Any, sides: Any, mode: str, fill: Any, mask_fill: Any
) -> None:
    plain = batches(shard, None)
    for one, batch in zip(
        plain, batches(shard, [pad, T.RandomHorizontalFlip(0)], **way), strict=True
    ):
        expected = padded(as_rows(one.image), sides, mode, fill)
        np.testing.assert_array_equal(as_rows(batch.image), expected)
        expected = padded(as_rows(one.mask), sides, mode, mask_fill)
        np.testing.assert_array_equal(as_rows(batch.mask), expected)
        moved = np.array(BOX) + [sides[0], sides[1]] * 2
        assert all(boxes.tolist() == moved.tolist() for boxes in batch.boxes)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("flip", [T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0)])
def test_a_padded_crop_is_a_slice_of_the_padded_image(
    shard: Path, way: dict[str, Any], mode: Any, flip: Any
) -> None:
    crop = T.RandomCrop(28, (5, 3, 9, 6), fill={"image": (9, 8, 7), "others": 4}, padding_mode=mode)
    seen = []
    for one, batch in zip(batches(shard, None), batches(shard, [flip, crop], **way), strict=True):
        rows, columns = one.image.shape[2:]
        draws = Draws(2, 0, T_OPERATION, one.number.numpy())
        room = np.array([rows + 9 - 28, columns + 14 - 28])
        places = draws.integers(room + 1, 2)
        for name, fill in (("image", (9, 8, 7)), ("mask", (4,))):
            images = getattr(one, name).flip(-1 if "Horizontal" in str(flip) else -2)
            whole = padded(as_rows(images), (5, 3, 9, 6), mode, fill)
            for at, (top, left) in enumerate(places.tolist()):
                made = as_rows(getattr(batch, name))[at]
                np.testing.assert_array_equal(made, whole[at, top : top + 28, left : left + 28])
        seen += places.tolist()
    assert len({tuple(place) for place in seen}) > 5


T_OPERATION = fastdata.random.operation_id(1, "RandomCrop")


def torchvisions_crop(
    image: Any, size: tuple[int, int], padding: Any, draws: Draws, mode: str
) -> Any:
    """torchvision's RandomCrop(pad_if_needed=True), step by step, on our draws."""
    left, top, right, bottom = padding
    rows, columns = image.shape[0] + top + bottom, image.shape[1] + left + right
    if rows < size[0]:
        missing = size[0] - rows
        top, bottom, rows = top + missing, bottom + missing, rows + 2 * missing
    if columns < size[1]:
        missing = size[1] - columns
        left, right, columns = left + missing, right + missing, columns + 2 * missing
    y, x = draws.integers(np.array([rows - size[0] + 1, columns - size[1] + 1]), 2)[0]
    whole = padded(image[None], (left, top, right, bottom), mode, 6)[0]
    return whole[y : y + size[0], x : x + size[1]]


@given(
    sides=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    padding=st.tuples(*[st.integers(0, 6)] * 4),
    mode=st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
    seed=st.integers(0, 2**32),
)
def test_images_are_padded_if_needed(
    sides: tuple[int, int], size: tuple[int, int], padding: Any, mode: Any, seed: int
) -> None:
    image = photo(*sides)
    crop = T.RandomCrop(size, padding, pad_if_needed=True, fill=6, padding_mode=mode)
    draws = Draws(seed, 0, 1, np.arange(1))
    geometry = crop.plan(Geometry.of([sides[0]], [sides[1]]), draws)
    made = T.render_on_device(geometry, torch.from_numpy(image).permute(2, 0, 1)[None])
    expected = torchvisions_crop(image, size, padding, draws, mode)
    np.testing.assert_array_equal(as_rows(made)[0], expected)


def test_small_images_of_a_loader_are_padded_if_needed(shard: Path, way: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="pad_if_needed=True"):
        batches(shard, T.RandomCrop(130), **way)
    for batch in batches(shard, T.RandomCrop(130, pad_if_needed=True, fill=200), **way):
        assert batch.image.shape[2:] == (130, 130)
        assert (batch.image == 200).all(1).any()


# -- what is refused ------------------------------------------------------------------------


class Image:
    """Stands for `torchvision.tv_tensors.Image`, which is told by its name."""


class Mask:
    """Stands for `torchvision.tv_tensors.Mask`."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3, Fill((3,), (3,))),
        (None, Fill((0,), (0,))),
        (255.0, Fill((255,), (255,))),
        ([1, 2, 3], Fill((1, 2, 3), (1, 2, 3))),
        ({"image": 1, "mask": 2}, Fill((1,), (2,))),
        ({Image: (1, 2, 3), Mask: 0}, Fill((1, 2, 3), (0,))),
        ({Mask: 7, "others": 9}, Fill((9,), (7,))),
        ({"others": 9}, Fill((9,), (9,))),
        ({"image": 1}, Fill((1,), None)),
    ],
)
def test_a_fill_is_what_torchvision_takes(given: Any, expected: Fill) -> None:
    assert fill_value("fill", given) == expected
    assert T.Pad(1, given).fill == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0.5, "whole number from 0 to 255"),
        (256, "whole number"),
        (-1, "whole number"),
        ("black", "whole number"),
        ([], "whole number"),
        ([1, float("nan")], "whole number"),
        ({"picture": 1}, "keys of fill"),
        ({"mask": 1}, "nothing about images"),
    ],
)
def test_other_fills_are_refused(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        T.Pad(1, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2, 3], r"'mask' has 1 channel; .*\"mask\": 0"),
        ([1, 2], "'image' has 3 channels; give one number"),
        ({"image": 1}, "nothing about masks, but 'mask' is one"),
    ],
)
def test_a_fill_has_to_suit_the_fields(shard: Path, given: Any, message: str) -> None:
    for transform in (T.Pad(1, given), T.RandomCrop(9, 1, fill=given)):
        with pytest.raises(OptionError, match=message):
            batches(shard, transform)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.Pad(-1), "padding"),
        (lambda: T.Pad(None), "padding"),
        (lambda: T.Pad((1, 2, 3)), "padding"),
        (lambda: T.Pad(1, padding_mode="wrap"), "padding_mode is one of constant, edge"),
        (lambda: T.RandomCrop(9, padding_mode=3), "padding_mode is one of"),
    ],
)
def test_other_parameters_are_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()
