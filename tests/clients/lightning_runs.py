"""What tests of Lightning share: loaders, a quiet Trainer, and the plain loop to compare with.

Ranks import it, so Lightning itself is only imported by functions.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ranks import COUNT, fingerprints

import fastdata
from fastdata import transforms as T  # noqa: N812

BATCH = 8
Step = tuple[int, list[Any]]
"""The epoch that Lightning counts, and the fingerprints of a batch."""

needs_lightning = pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")
on_one_and_two = pytest.mark.parametrize("world_size", [1, 2])


def make_loader(path: str, **options: Any) -> Any:
    """Return a shuffled loader with random transforms, so that order and draws can be compared."""
    transform = [T.RandomCrop(16), T.RandomHorizontalFlip()]
    given = {"batch_size": BATCH, "shuffle": True, "transform": transform, "num_workers": 2}
    return fastdata.loader(path, **{**given, **options})


def plain_epochs(
    path: str, epochs: range, rank: int, world_size: int, **options: Any
) -> list[Step]:
    """Return what a plain loop over these epochs is given on a rank."""
    steps = []
    with make_loader(path, rank=rank, world_size=world_size, **options) as loader:
        for epoch in epochs:
            loader.set_epoch(epoch)
            steps += [(epoch, fingerprints(batch[0])) for batch in loader]
    return steps


def of_epoch(steps: list[Step], epoch: int) -> list[Any]:
    """Return the batches of the steps of one epoch."""
    return [batch for at, batch in steps if at == epoch]


def trainer(world_size: int, folder: str, **options: Any) -> Any:
    """Return a quiet Trainer on the CPU, over gloo where there are two ranks."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if "RANK" in os.environ:
        os.environ["TORCHELASTIC_RUN_ID"] = "tests"  # by which Lightning knows torchrun
    given: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": world_size,
        "strategy": "ddp" if world_size > 1 else "auto",
        "logger": False,
        "enable_checkpointing": "callbacks" in options,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "max_epochs": 3,
    }
    return lightning.Trainer(**{**given, **options})


def checkpoints(folder: str, **options: Any) -> Any:
    """Return a callback that keeps every checkpoint, named by epoch and step."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    return ModelCheckpoint(folder, filename="{epoch}-{step}", save_top_k=-1, **options)


def saved(folder: str) -> list[tuple[int, str]]:
    """Return the checkpoints that are kept, each with its step."""
    found = Path(folder).glob("*.ckpt")
    return sorted((int(path.stem.split("step=")[1]), str(path)) for path in found)


def assert_samples(taken: list[int], total: int) -> None:
    """Check that `total` samples were taken: all of them, each once, or as many as that."""
    assert len(taken) == total
    assert len(set(taken)) == min(total, COUNT)
