"""timm: our ``create_loader`` beside its own, and its own over packed data."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import COUNT, SIZE, image_of, run_ranks, samples_of

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError

pytestmark = [
    pytest.mark.skipif(find_spec("timm") is None, reason="needs timm"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
CPU = {"device": torch.device("cpu"), "mean": MEAN, "std": STD}


class Unpacked(torch.utils.data.Dataset):
    """The same samples as PIL images, as timm's datasets give them."""

    def __init__(self) -> None:
        self.transform: Any = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return self.transform(Image.fromarray(image_of(index))), index % 10


def both(path: str, *size_and_batch: int, **options: Any) -> tuple[Any, Any]:
    """Return our loader and timm's, by the same arguments."""
    from timm.data import create_loader

    from fastdata.integrations.timm import create_loader as ours

    given = {**CPU, "num_workers": 0, **options}
    return (
        ours(path, *size_and_batch, **given, seed=0),
        create_loader(Unpacked(), *size_and_batch, **given),
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interpolation": "bicubic", "crop_pct": 1.0},
        {"crop_mode": "border", "crop_pct": 0.9},
        {"crop_mode": "squash"},
        {"use_prefetcher": False},
        {"img_dtype": torch.float16},
        {"no_aug": True},
    ],
    ids=str,
)
def test_evaluation_gives_the_batches_of_timm(packed: str, options: dict[str, Any]) -> None:
    ours, theirs = both(packed, 24, 10, **options)
    with ours.loader:
        assert len(ours) == len(theirs)
        for (images, targets), (wanted, classes) in zip(ours, theirs, strict=True):
            assert images.dtype == wanted.dtype
            # Two steps of 255 are what their antialiased filters may differ by.
            torch.testing.assert_close(images, wanted, atol=2.1 / 255 / min(STD), rtol=0)
            assert targets.tolist() == classes.tolist()


TRAINED: dict[str, tuple[dict[str, Any], list[type]]] = {
    "as timm does by default": (
        {},
        [T.RandomResizedCrop, T.RandomHorizontalFlip, T.ColorJitter, T.Normalize],
    ),
    "with random erasing": (
        {"re_prob": 0.25, "re_mode": "pixel", "color_jitter": None, "hflip": 0.0},
        [T.RandomResizedCrop, T.Normalize, T.RandomErasing],
    ),
    "with all that has a counterpart": (
        {"vflip": 0.5, "color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5},
        [
            T.RandomResizedCrop,
            T.RandomHorizontalFlip,
            T.RandomVerticalFlip,
            T.RandomApply,
            T.RandomGrayscale,
            T.RandomApply,
            T.Normalize,
        ],
    ),
}


@pytest.mark.parametrize("case", list(TRAINED))
def test_training_is_by_transforms_of_our_own(packed: str, case: str) -> None:
    from fastdata.integrations.timm import create_loader

    options, kinds = TRAINED[case]
    loader = create_loader(packed, (3, 16, 16), 10, is_training=True, **CPU, **options)
    with loader.loader:
        assert [type(one) for one in loader.options.transform] == kinds
        images, _ = next(iter(loader))
        assert images.shape == (10, 3, 16, 16)
        assert images.dtype == torch.float32
        assert len(loader) == COUNT // 10
        assert images.std() > 0.1


def test_what_only_timm_has_is_done_by_timm(packed: str) -> None:
    from fastdata.integrations.timm import create_loader

    options = {"auto_augment": "rand-m6-inc1", "interpolation": "bilinear"}
    loader = create_loader(packed, 16, 10, is_training=True, num_workers=0, **CPU, **options)
    with loader.loader:
        kinds = [type(one) for one in loader.options.transform]
        assert kinds == [T.RandomResizedCrop, T.RandomHorizontalFlip, T.OnPIL, T.Normalize]
        assert next(iter(loader))[0].shape == (10, 3, 16, 16)
    loader = create_loader(packed, 16, 10, True, interpolation="random", num_workers=0, **CPU)
    with loader.loader:
        assert [type(one) for one in loader.options.transform] == [T.OnPIL, T.Normalize]
        assert next(iter(loader))[0].shape == (10, 3, 16, 16)


def test_mixup_is_turned_on_and_off(packed: str) -> None:
    from timm.data import FastCollateMixup

    from fastdata.integrations.timm import create_loader

    mixup = FastCollateMixup(mixup_alpha=200.0, label_smoothing=0.1, num_classes=10)
    loader = create_loader(packed, SIZE, 10, is_training=True, collate_fn=mixup, **CPU)
    with loader.loader:
        assert loader.mixup_enabled
        images, targets = next(iter(loader))
        assert targets.shape == (10, 10)
        assert (targets > 0.3).sum(1).max() == 2  # two classes have a share in an image
        loader.mixup_enabled = False
        images, targets = next(iter(loader))
        assert images.shape == (10, 3, SIZE, SIZE)
        assert targets.amax(1).tolist() == pytest.approx([0.91] * 10)


@pytest.mark.parametrize(
    "options",
    [
        {"num_aug_repeats": 3},
        {"re_split": True},
        {"input_size_choices": [16, 24]},
        {"batch_size_choices": [8, 4]},
        {"batch_choice_weights": [1.0, 2.0]},
        {"batch_choice_schedule": "progressive"},
        {"batch_schedule_epochs": 3},
        {"num_batches": 5},
        {"collate_fn": torch.utils.data.default_collate},
        {"re_prob": 0.2, "re_mode": "rand"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_not_supported_is_refused(packed: str, options: dict[str, Any]) -> None:
    from fastdata.integrations.timm import create_loader

    with pytest.raises(OptionError, match=next(reversed(options))):
        create_loader(packed, SIZE, 10, is_training=True, **CPU, **options)


def test_every_parameter_of_timms_create_loader_is_taken(packed: str) -> None:
    """Each one of the installed timm, by its default; a new one that is not known is an error."""
    from timm.data import create_loader as theirs

    from fastdata.integrations.timm import create_loader

    parameters = inspect.signature(theirs).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    assert {"input_size_choices", "num_batches", "re_prob", "worker_seeding"} <= set(defaults)
    with create_loader(packed, 16, 8, **defaults | {"device": "cpu"}).loader as loader:
        assert len(loader) == -(-COUNT // 8)
    # As timm's script gives them, whatever its arguments are.
    given = {"batch_choice_seed": 42, "batch_schedule_spread": 0.5, "batch_schedule_random_mix": 0}
    create_loader(packed, 16, 8, is_training=True, **CPU, **given).loader.close()


SCRIPT = """
import os, runpy, sys
import fastdata, timm.data
from fastdata.integrations.timm import create_loader
timm.data.create_loader = create_loader
timm.data.create_dataset = lambda name, root, **_: fastdata.open(root)
sys.path.insert(0, os.path.dirname(sys.argv[1]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ARGUMENTS = (
    "--model test_resnet --num-classes 10 --epochs 2 --batch-size 8 --workers 1 --device cpu"
)
ARGUMENTS += " --input-size 3 32 32 --reprob 0.2 --mixup 0.2 --lr 0.01 --warmup-epochs 0"


@pytest.mark.skipif("FASTDATA_TIMM_TRAIN" not in os.environ, reason="needs a checkout of timm")
def test_timms_own_script_trains(packed: str, tmp_path: Path) -> None:
    """``FASTDATA_TIMM_TRAIN`` is the folder of timm's train.py, of the version installed."""
    script = Path(os.environ["FASTDATA_TIMM_TRAIN"]) / "train.py"
    given = [
        *ARGUMENTS.split(),
        "--data-dir",
        packed,
        "--output",
        str(tmp_path),
        "--experiment",
        "a",
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(script), *given],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = (tmp_path / "a" / "summary.csv").read_text().splitlines()
    assert len(rows) == 1 + 2, rows


def train(path: str, world_size: int) -> Any:
    """Return the samples of two epochs of timm's training loop."""
    from fastdata.integrations.timm import create_loader

    options = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "color_jitter": None, **CPU}
    given = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    torch.manual_seed(5)
    loader = create_loader(
        path, SIZE, 8, is_training=True, distributed=world_size > 1, **{**options, **given}
    )
    epochs = []
    with loader.loader:
        for epoch in range(2):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            epochs.append([one for images, _ in loader for one in samples_of(images)])
    return epochs


@pytest.mark.proves("D5")
@pytest.mark.parametrize("world_size", [1, 2])
def test_timms_loop_has_every_sample_once_an_epoch(packed: str, world_size: int) -> None:
    found = run_ranks(train, world_size, packed, world_size, group=world_size > 1)
    for epoch in range(2):
        taken = [one for epochs in found for one in epochs[epoch]]
        assert len(taken) == len(set(taken)) == COUNT - COUNT % (8 * world_size)
    assert all(epochs[0] != epochs[1] for epochs in found)


@pytest.mark.proves("D7")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_timms_own_loader_trains_on_transformed_images(packed: str, num_workers: int) -> None:
    from timm.data import create_loader

    data = fastdata.open(packed)
    options = {"auto_augment": "rand-m6-inc1", "persistent_workers": False, **CPU}
    loader = create_loader(data, 16, 8, is_training=True, num_workers=num_workers, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(loader)
    assert len(batches) == COUNT // 8
    assert all(images.shape == (8, 3, 16, 16) for images, _ in batches)


@pytest.mark.proves("D7")
def test_timms_own_loader_evaluates_as_on_its_own_dataset(packed: str) -> None:
    from timm.data import create_loader

    ours = create_loader(fastdata.open(packed), 24, 10, num_workers=0, **CPU)
    theirs = create_loader(Unpacked(), 24, 10, num_workers=0, **CPU)
    for (images, targets), (wanted, classes) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(images, wanted, atol=2.1 / 255 / min(STD), rtol=0)
        assert targets.tolist() == classes.tolist()
