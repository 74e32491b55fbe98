"""Some batches of a loader, kept: what training would be fed without one.

    host    before they travel, as they were made        --copy, arrive-->    device

A loader that brings its batches to a device itself may hand out something else than what it
sends there: uint8 images travel, and arrive as float32.  So where they are made is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from fastdata.engine.cpu import CpuBackend
from fastdata.engine.delivery import arrive
from fastdata.engine.job import Request, request_of
from fastdata.engine.packed import Loader
from fastdata.prefetch import CUDAPrefetcher
from fastdata.prefetch.tree import leaves, map_leaves
from fastdata.profiling.source import Ended, Source
from fastdata.profiling.subject import standing

__all__ = ["Batches", "move", "nbytes_of", "requests_of", "size_of"]

CACHED = 4
"""Batches that are kept."""

Arrive = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Batches:
    """Some batches of a loader, as copies that are ours.

    Attributes
    ----------
    host : list of batch
        On the CPU, as they travel; page-locked where they are.
    device : list of batch
        On the device, as the step gets them, or would if it were given them there.
    arrive : callable or None
        What the loader does on the device to the first of `host`, once it is copied there;
        None where it does nothing.
    arrives : bool
        Whether it is the loader that copies, and not the step.
    known : bool
        Whether `host` is what travels.  Where it could not be asked for, it is copies of what
        arrived.
    size : int
        Samples a batch.
    nbytes : int
        Of tensors and arrays, a batch that travels.
    """

    host: list[Any]
    device: list[Any]
    arrive: Arrive | None
    arrives: bool
    known: bool
    size: int
    nbytes: int

    @classmethod
    def of(cls, source: Source, device: torch.device) -> Batches:
        """Take some from a source; the first of all have been made before they were asked for.

        Parameters
        ----------
        source : Source
            Of a loader whose batches of later epochs, or of a pass more, may be made too.
        device : torch.device
        """
        taken = [source.next()]
        with suppress(Ended):
            for _ in range(CACHED - 1):
                taken.append(source.next())
        tensors = [leaf for leaf in leaves(taken[0]) if isinstance(leaf, torch.Tensor)]
        arrives = device.type != "cpu" and any(t.device.type == device.type for t in tensors)
        if not arrives:
            host = [map_leaves(_own, batch) for batch in taken]
            there = [move(batch, device) for batch in host] if device.type != "cpu" else host
            return cls(host, there, None, False, True, size_of(host[0]), _nbytes(host[0]))
        there = [map_leaves(_kept, batch) for batch in taken]
        host, then = _before_they_travel(source.loader)
        known = bool(host)
        if not known:
            host = [map_leaves(_back, batch) for batch in there]
        return cls(host, there, then, True, known, size_of(there[0]), _nbytes(host[0]))

    def sent(self, batch: Any, device: torch.device) -> Any:
        """Return a host batch as the loader would hand it out: copied, and changed there."""
        there = move(batch, device)
        return there if self.arrive is None else self.arrive(there)


def _before_they_travel(loader: Any) -> tuple[list[Any], Arrive | None]:
    """Return batches that are made anew and stay on the host, and what becomes of the first."""
    if isinstance(loader, CUDAPrefetcher):
        if isinstance(loader.iterable, Iterator):  # it has one pass, and is in the midst of it
            return [], None
        with standing(loader.iterable), closing(Source(loader.iterable)) as source:
            found = []
            with suppress(Ended):
                for _ in range(CACHED):
                    found.append(map_leaves(_locked, source.next()))
        return found, loader._transform
    backend = getattr(loader, "backend", None)
    if not (isinstance(loader, Loader) and isinstance(backend, CpuBackend)):
        return [], None
    requests = list(islice(requests_of(loader), CACHED))
    found = [map_leaves(_own, _made(backend, request)) for request in requests]
    return found, partial(arrive, backend.pipeline, backend.seed, requests[0])


def _made(backend: CpuBackend, request: Request) -> Any:
    """Return a batch that is made here and now."""
    job = backend.maker.prepare(request)
    memory = job.slot.memory if job.slot is not None else None
    return job.finish([backend.work(task, memory) for task in job.tasks()])


def requests_of(loader: Loader) -> Iterator[Request]:
    """Yield batches of an epoch to come, spread over it, again and again."""
    epoch = loader.state_dict()["epoch"] + 1
    while True:
        batches = loader.batches.of(epoch)
        order = np.random.default_rng(epoch).permutation(len(batches))
        for number in order.tolist():
            yield request_of(batches, epoch, number)
        if not len(batches):
            return
        epoch += 1


def move(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors and arrays on a device."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            if leaf.dtype.kind not in "biuf":
                return leaf
            leaf = torch.from_numpy(np.ascontiguousarray(leaf))
        return leaf.to(device, non_blocking=True)

    return map_leaves(one, batch)


def size_of(batch: Any) -> int:
    """Return the samples of a batch: the length of the first thing in it that has one."""
    for leaf in leaves(batch):
        if leaf.ndim:
            return int(leaf.shape[0])
    try:
        return len(batch)
    except TypeError:
        return 1


def nbytes_of(leaf: Any) -> int:
    """Return the bytes of a tensor or array; 0 of a sparse one, which does not say."""
    try:
        return int(leaf.nbytes)
    except RuntimeError:
        return 0


def _own(leaf: Any) -> Any:
    """Return a copy of what is on the host, page-locked where that is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf.copy()
    copied = leaf.detach().cpu() if leaf.device.type != "cpu" else leaf.detach().clone()
    return copied.pin_memory() if torch.cuda.is_available() and leaf.is_pinned() else copied


def _kept(leaf: Any) -> Any:
    """Return a copy where it is: a prefetcher may put the next batch into the same memory."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf.copy()


def _locked(leaf: Any) -> Any:
    """Return a copy on the host, page-locked: a prefetcher copies from no other memory."""
    if not isinstance(leaf, torch.Tensor):
        if leaf.dtype.kind not in "biuf":
            return leaf.copy()
        leaf = torch.from_numpy(leaf)
    copied = leaf.detach().cpu().clone()
    return copied.pin_memory() if torch.cuda.is_available() else copied


def _back(leaf: Any) -> Any:
    """Return a copy on the host of what arrived; meta tensors, which have no content, as zeros."""
    if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta":
        return torch.zeros_like(leaf, device="cpu")
    return _locked(leaf)


def _nbytes(batch: Any) -> int:
    return sum(map(nbytes_of, leaves(batch)))
