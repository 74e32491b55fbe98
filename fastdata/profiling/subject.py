"""What is profiled: a loader, of whatever was given; a step; where it computes; on what machine."""

from __future__ import annotations

import functools
import platform
import random
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastdata.engine.cores import available_cores
from fastdata.engine.packed import Loader
from fastdata.errors import OptionError
from fastdata.prefetch import CUDAPrefetcher
from fastdata.profiling.source import inner_loader
from fastdata.steps import Step

__all__ = [
    "Subject",
    "called",
    "described",
    "device_of",
    "loader_of",
    "machine_of",
    "random_state_kept",
    "standing",
    "told",
]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled.

    Attributes
    ----------
    loader : iterable of batches
        As the training loop iterates over it.
    inner : iterable of batches
        What makes them: the loader, or what a prefetcher takes them from.
    step : callable or None
    device : torch.device
        Where the step computes.
    """

    loader: Any
    inner: Any
    step: Step | None
    device: torch.device

    @classmethod
    def of(
        cls, loader: Any, step: Step | None, device: torch.device | str | None
    ) -> tuple[Subject, list[str]]:
        """Return what is profiled, and what to say of how that was found out."""
        place, notes = device_of(loader, step, device)
        return cls(loader, inner_loader(loader), step, place), notes


@contextmanager
def loader_of(data: Any, batch_size: int) -> Any:
    """Give what to iterate over, and what to say of it; what was made here is closed."""
    notes: list[str] = []
    from fastdata.loading import is_dataset
    from fastdata.loading import loader as make_loader

    if isinstance(data, (Loader, DataLoader, CUDAPrefetcher)) or not is_dataset(data):
        if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
            raise OptionError(
                "profile takes a loader, a dataset or an iterable of batches, not "
                f"{type(data).__name__}"
            )
        yield data, notes
        return
    shuffle = not isinstance(data, torch.utils.data.IterableDataset)
    made: Any = make_loader(data, batch_size=batch_size, shuffle=shuffle)
    notes.append(
        f"a loader was made: batch_size={batch_size}, shuffle={shuffle}, "
        f"num_workers={made.num_workers}"
    )
    try:
        yield made, notes
    finally:
        if isinstance(made, Loader):
            made.close()


@contextmanager
def random_state_kept() -> Any:
    """Leave the random generators that everybody shares as they were."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    before_cuda = torch.cuda.get_rng_state_all() if cuda else []
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if cuda:
            torch.cuda.set_rng_state_all(before_cuda)


@contextmanager
def standing(loader: Any) -> Any:
    """Leave a `Loader` where it stood."""
    if not isinstance(loader, Loader):
        yield
        return
    # Not by `state_dict`: an epoch that is under way keeps its place, and the next is the next.
    with loader.place_restored():
        yield


def device_of(
    loader: Any, step: Step | None, device: torch.device | str | None
) -> tuple[torch.device, list[str]]:
    """Return where the step computes, and what to say of that."""
    if device is None and isinstance(loader, CUDAPrefetcher):
        device = loader.device
    if device is None and isinstance(loader, Loader):
        device = getattr(loader.backend, "device", None)
    if device is None:
        device = getattr(step, "device", None)
    if isinstance(device, (torch.device, str)):
        return torch.device(device), []
    if step is not None and torch.cuda.is_available() and _in_use():
        found = torch.device("cuda", torch.cuda.current_device())
        return found, [f"device: the step is taken to compute on {found}, as CUDA is in use"]
    return torch.device("cpu"), []


def _in_use() -> bool:
    """Return whether this process has used CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def called(step: Any) -> str:
    """Return what a step is, for people."""
    if isinstance(step, functools.partial):
        return called(step.func)
    return told(step, _name_of)


def described(loader: Any) -> str:
    """Return what a loader is, in one line, for people."""
    if isinstance(loader, DataLoader):
        dataset = type(loader.dataset).__name__
        workers = loader.num_workers
        plural = "es" * (workers != 1)
        return f"{type(loader).__name__} of {dataset}, {workers} worker process{plural}"
    return told(loader).partition("\n")[0][:200]


def told(thing: Any, how: Callable[[Any], str] = repr) -> str:
    """Return what something says of itself; its type where it raises over that.

    A name for people is worth no report: what `how` calls is the user's, and may raise anything.
    """
    try:
        return how(thing)
    except Exception:
        return f"a {type(thing).__name__}"


def _name_of(step: Any) -> str:
    if hasattr(step, "__qualname__"):
        return str(step.__qualname__)
    described = "__str__" in vars(type(step))
    return str(step) if described else type(step).__name__


def machine_of(device: torch.device) -> dict[str, Any]:
    found = {
        "system": platform.platform(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found
