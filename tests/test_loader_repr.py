"""``print(loader)``: what it says of a batch is what the first batch is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import boxed_shard
from memory_data import ALL_FIELDS, MemoryData
from samples import EVERY_KIND, make_records, photo, pil_encode, write_shard
from unpacked_helpers import write_class_folders
from worker_helpers import worker_threads

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.schema import ImageField, ScalarField

CROP = T.RandomResizedCrop((24, 30))
NORMALIZE = T.Normalize([0.5] * 3, [0.2] * 3)


def described(loader: Any) -> dict[str, str]:
    """Return the lines of fields of a loader's repr, by name."""
    lines = repr(loader).splitlines()[1:-1]
    return dict(line.strip().split(": ", 1) for line in lines)


def seen(value: Any) -> str:
    """Return what the repr should have said of a value of a batch."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        if value.ndim != 4:
            return text
        # Of one channel, both are true.
        layout = "contiguous" if value.is_contiguous() else "channels last"
        return f"{text}, {layout}"
    assert isinstance(value, list)
    if not isinstance(value[0], torch.Tensor):
        return f"list of {len(value)} {type(value[0]).__name__}"
    if value[0].ndim == 4:
        kinds = [seen(view) for view in value]
        if len(set(kinds)) == 1:
            return f"list of {len(value)} views, {kinds[0]}"
        each = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
        return f"list of {len(value)} views: {'; '.join(each)}"
    shapes = np.array([list(one.shape) for one in value])
    lengths = ["?" if (n == 1 or at == 0) else str(n) for at, n in enumerate(shapes[0])]
    return f"list of {len(value)} tensors, {str(value[0].dtype)[6:]} [{', '.join(lengths)}]"


def check(loader: Any) -> dict[str, str]:
    """Compare the repr of a loader with its first batch; return what it says of fields."""
    said = described(loader)
    with loader:
        batch = next(iter(loader))
    named = batch if isinstance(batch, dict) else batch._asdict()
    assert said == {name: seen(value) for name, value in named.items()}
    return said


KINDS: dict[str, dict[str, Any]] = {
    "uint8": {"transform": CROP},
    "normalised": {"transform": [CROP, NORMALIZE]},
    "half precision": {"transform": [CROP, NORMALIZE], "dtype": torch.float16},
    "dtype alone": {"transform": CROP, "dtype": torch.bfloat16},
    "channels last": {"transform": CROP, "memory_format": torch.channels_last},
    "channels last, float": {
        "transform": [CROP, NORMALIZE],
        "memory_format": torch.channels_last,
    },
    "a batch transform": {"transform": [CROP, T.ColorJitter(0.4), NORMALIZE]},
    "grey": {
        "transform": [CROP, NORMALIZE, T.Grayscale(), T.Normalize([0.5], [0.2])],
        "memory_format": torch.channels_last,
    },
    "a view of grey": {"transform": T.Views((2, [CROP]), (1, [CROP, T.Grayscale()]))},
    "mixed labels": {"transform": [CROP, T.MixUp(num_classes=40)]},
    "a crop of a batch": {"transform": [CROP, T.RandomErasing(), T.CenterCrop(9)]},
    "a resize of a batch": {"transform": [CROP, T.RandomErasing(), T.Resize(12)]},
    "a flip of a batch": {"transform": [CROP, T.RandomErasing(), T.RandomHorizontalFlip()]},
    "views": {"transform": T.Views(2, [CROP, NORMALIZE])},
    "views of two kinds": {
        "transform": T.Views((2, [CROP]), (3, [T.RandomResizedCrop(8), NORMALIZE]))
    },
    "dicts": {"transform": CROP, "batch_format": "dict", "names": {"image": "pixel_values"}},
    "named": {"transform": CROP, "names": {"image": "x", "label": "y"}},
    "dropped": {"transform": CROP, "drop_last": True},
    "a short epoch": {"transform": CROP, "batch_size": 64},
    "a sampler": {"transform": CROP, "batch_size": 5, "sampler": range(3)},
    "a rank": {"transform": CROP, "rank": 1, "world_size": 2},
    "an uneven rank": {"transform": CROP, "rank": 2, "world_size": 3, "even": False},
    "the caller": {"transform": CROP, "num_workers": 0},
    "processes": {"transform": CROP, "num_workers": 1, "worker_method": "process"},
    "one sample": {"transform": CROP, "batch_size": 1},
    "kept on a device": {"transform": [CROP, NORMALIZE], "cache": "device"},
    "kept on a device, channels last": {
        "transform": CROP,
        "cache": "device",
        "memory_format": torch.channels_last,
    },
    "weights": {"transform": CROP, "weights": np.ones(10)},
    "a place": {"transform": CROP, "device": "cpu"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_printed_is_what_comes(kind: str) -> None:
    options = {"batch_size": 4, "num_workers": 1} | KINDS[kind]
    fields = {"image": ImageField(), "label": ScalarField()}
    check(fastdata.loader(MemoryData(10, fields=fields), **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"memory_format": torch.channels_last},
        {"transform": [T.CenterCrop(20), T.ToDtype(torch.float64)]},
    ],
)
def test_every_kind_of_field_is_described(options: dict[str, Any], tmp_path: Path) -> None:
    records = make_records(EVERY_KIND, 6, codec="raw", size=(24, 30))
    path = write_shard(tmp_path / "x.lmdb", records, EVERY_KIND)
    said = check(fastdata.loader(path, batch_size=3, **options))
    assert said["caption"] == "list of 3 str"
    assert said["extra"] == "list of 3 bytes"
    assert said["large"] == "uint32 [3]"
    assert said["matrix"] == "bool [3, 2, 3]"


def test_boxes_are_described(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "x.lmdb")
    drop = T.DropEmptyBoxes("boxes", also="classes")
    said = check(fastdata.loader(path, batch_size=5, transform=[CROP, drop]))
    assert said["boxes"] == "list of 5 tensors, float64 [?, 4]"
    assert said["mask"] == "uint8 [5, 1, 24, 30], contiguous"


def test_packed_and_unpacked_are_described_alike(tmp_path: Path) -> None:
    pixels = pil_encode(photo(40, 50), "PNG")
    write_class_folders(tmp_path / "files", {f"{n}.png": pixels for n in range(4)})
    fastdata.pack(tmp_path / "files", tmp_path / "x.lmdb", progress=False)
    for one in (tmp_path / "files", tmp_path / "x.lmdb"):
        assert check(fastdata.loader(one, batch_size=3, transform=CROP)) == {
            "image": "uint8 [3, 3, 24, 30], contiguous",
            "label": "int64 [3]",
        }


@pytest.mark.parametrize(
    ("transform", "size"),
    [
        (None, "20, 30"),
        (T.Resize(10), "10, 15"),
        ([T.RandomCrop(5, padding=2), T.RandomHorizontalFlip()], "5, 5"),
        (T.RandomHorizontalFlip(), "20, 30"),
    ],
)
def test_sizes_are_those_of_the_images_where_no_transform_says(transform: Any, size: str) -> None:
    said = check(fastdata.loader(MemoryData(6, size=(20, 30)), batch_size=2, transform=transform))
    assert said["image"] == f"uint8 [2, 3, {size}], contiguous"


def test_a_size_that_varies_is_a_letter() -> None:
    loader = fastdata.loader(MemoryData(6))
    assert described(loader)["image"] == "uint8 [1, 3, H, W], contiguous"
    batches = fastdata.loader(MemoryData(6), batch_sampler=[[0], [1, 2]], transform=CROP)
    assert described(batches) == {
        "image": "uint8 [N, 3, 24, 30], contiguous",
        "label": "int64 [N]",
    }


@pytest.mark.parametrize(
    ("transform", "name", "label"),
    [
        (lambda image: image[:, :4, :4].float(), "<lambda>", "int64 [2]"),
        ([CROP, T.OnPIL(lambda image: image)], "OnPIL", "int64 [2]"),
        (T.PerSample(lambda sample: sample), "PerSample", None),
        (T.Views(2, [CROP, lambda image: image]), "<lambda>", "int64 [2]"),
    ],
)
def test_what_a_callable_makes_is_said_to_be_unknown(
    transform: Any, name: str, label: str | None
) -> None:
    said = described(fastdata.loader(MemoryData(6), batch_size=2, transform=transform))
    unknown = "known with the first batch, since "
    assert unknown in said["image"]
    assert said["image"].endswith(f"{name} is a callable")
    assert said["label"] == label or (label is None and said["label"].startswith(unknown))


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, "Loader(5 batches of 2 per epoch, 9 samples, Sequential, 2 worker threads)"),
        (
            {"drop_last": True, "num_workers": 1},
            "Loader(4 batches of 2 per epoch, 8 samples, Sequential, 1 worker thread)",
        ),
        (
            {"shuffle": True, "num_workers": 0, "rank": 0, "world_size": 3},
            "Loader(2 batches of 2 per epoch, 3 samples, Shuffled, no workers, rank 0 of 3)",
        ),
        (
            {"worker_method": "process", "device": "cpu", "batch_format": "dict"},
            "Loader(5 batches of 2 per epoch, 9 samples, Sequential, 2 worker processes, "
            "on cpu, as dicts)",
        ),
        ({"batch_size": 1, "batch_sampler": [[0]]}, "Loader(1 batch, SampledBatches, 2 worker th"),
    ],
)
def test_the_first_line_counts(options: dict[str, Any], first: str) -> None:
    data = MemoryData(9, size=(8, 8))
    defaults: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "worker_method": "thread"}
    loader = fastdata.loader(data, **defaults | options)
    assert repr(loader).startswith(first)
    assert repr(loader).endswith("\n  from MemoryData(9)")


def test_printing_reads_no_pixel_and_starts_no_worker() -> None:
    data = MemoryData(10, fields=ALL_FIELDS)
    loader = fastdata.loader(data, batch_size=2, transform=CROP, num_workers=2)
    repr(loader)
    assert data.reads == []
    assert worker_threads() == []
