"""What bringing a batch to the device takes: page-locking, copying, transforms that are done there.

Timed alone, on a kept batch, as it travels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.utils.data import DataLoader

from fastdata.prefetch import CUDAPrefetcher
from fastdata.prefetch.tree import leaves
from fastdata.profiling.batches import Batches, move
from fastdata.profiling.costs import Cost
from fastdata.profiling.source import Ended, Source
from fastdata.profiling.subject import Subject, standing
from fastdata.steps.meter import Meter

__all__ = ["Copying", "measure_copying", "measure_transform"]

REPEATS = 10


@dataclass(frozen=True, slots=True)
class Copying:
    """What copying comes to.

    Attributes
    ----------
    costs : tuple of Cost
    bytes_per_second : float
        Of the copy; 0 without one, or where what travels is not known.
    """

    costs: tuple[Cost, ...] = ()
    bytes_per_second: float = 0.0

    def and_also(self, costs: Iterable[Cost]) -> Copying:
        """Return the same with more costs."""
        return replace(self, costs=(*self.costs, *costs))


def measure_copying(subject: Subject, batches: Batches) -> Copying:
    """Return what page-locking and copying a batch take."""
    device, inner = subject.device, subject.inner
    if device.type == "cpu" or not batches.known:
        return Copying()
    meter, batch = Meter(device), batches.host[0]
    move(batch, device)
    took = statistics.median(meter.seconds(partial(move, batch, device)) for _ in range(REPEATS))
    costs = [Cost("copy", took, False, overlapped=batches.arrives)]
    if device.type == "cuda" and isinstance(inner, DataLoader) and inner.pin_memory:
        costs.append(Cost("pin", _pinning_seconds(batch), False, overlapped=True))
    return Copying(tuple(costs), batches.nbytes / took if took else 0.0)


def _pinning_seconds(batch: object) -> float:
    # Not page-locked; and the memory that is page-locked for the first is used again.
    plain = [leaf.clone() for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
    found = []
    for _ in range(6):
        began = time.perf_counter()
        for leaf in plain:
            leaf.pin_memory()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def measure_transform(subject: Subject) -> list[Cost]:
    """Return what a prefetcher's own transform takes of a batch, beside the step.

    Of an iterable that has one pass only it is not known: that may be over.
    """
    loader, inner = subject.loader, subject.inner
    transform = loader._transform if isinstance(loader, CUDAPrefetcher) else None
    if transform is None or isinstance(inner, Iterator):
        return []
    meter, took = Meter(subject.device), []
    with standing(inner), closing(Source(inner)) as source, suppress(Ended):
        for _ in range(4):
            batch = move(source.next(), subject.device)
            took.append(meter.seconds(partial(transform, batch)))
    if len(took) < 2:
        return []
    return [Cost("augment", statistics.median(took[1:]), False, overlapped=True)]
