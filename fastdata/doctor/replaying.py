"""The batches of a script that is only tried: as they come, or a few of them again and again.

While a script is watched, its loaders are its own, but for epochs that end early.  While its step
is measured, the first batches are kept and given in turn without end: so loading takes no part of
the time, and the epoch never ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.doctor.numerics import digest
from fastdata.doctor.seen import Epoch
from fastdata.doctor.watching import Watch
from fastdata.engine.loader import Loader

__all__ = ["KEPT_BATCHES", "Mode", "Replay", "Trained"]

KEPT_BATCHES = 4
"""Of an epoch whose batches are given again and again."""

UNTRAINED_BATCHES = 3
"""Of an epoch in which nothing is trained, once something was: of validation."""

UNTRAINED_SECONDS = 5.0
"""Of an epoch before anything was trained: statistics of the data, batches put into a list."""

WATCHED_BATCHES = 12
"""Of an epoch of training, while the script is watched."""

EPOCH_SECONDS = 10.0
"""Of such an epoch of fewer batches, whose steps take long."""

EPOCH_STEPS = 5
"""That such an epoch has in any case, however many batches they take."""

REPEATED_LENGTH = 100_000
"""Of loaders whose batches are given again: scripts stop, or change what they do, at the end."""

Mode: TypeAlias = Literal["watch", "train", "evaluate"]
"""Nothing is repeated; training is; validation is."""


@dataclass(slots=True)
class Trained:
    """The loader of the first epoch that was trained with, and its first batches."""

    loader: Any
    samples: int
    """Of the first batch."""
    digests: list[str]


class Replay:
    """Takes the place of loaders' iterators; `watch` knows which epochs train.

    Batches that are given again have `factor` times as many samples.  If this is one of several
    ranks that are `compared`, epochs end after a number of batches, never after a time.
    """

    def __init__(
        self, mode: Mode, watch: Watch, factor: float = 1.0, *, compared: bool = False
    ) -> None:
        self.mode, self._watch, self._factor, self._compared = mode, watch, factor, compared
        self.convert: Callable[[Any], Any] | None = None
        """What becomes of each tensor of a batch."""
        self.waits: list[tuple[float, float]] = []
        """For each batch that was trained with: seconds that the loop waited for it, and until
        it wanted the next one."""
        self.samples = 0
        """Of a batch that is given again: the length of its first tensor."""
        self._next = 0
        """Place of the batch that is given next, while batches are given again."""
        self.repeats = False
        """Whether batches are being given again."""
        self.epochs = 0
        """In which something was trained, and that have begun."""
        self.has_cut = False
        """Whether an epoch has ended early."""
        self.trained_with: Trained | None = None
        self._replaced: set[Any] = set()
        self._loaders: Any = WeakIdKeyDictionary()
        """By tensor of a batch, while nothing is given again."""

    def loader_of(self, tensor: torch.Tensor) -> Any:
        """Return the loader that made a tensor, while the script is watched; else None."""
        return self._loaders.get(tensor)

    def install(self) -> None:
        """Take the place of the iterators of all loaders in this process."""
        for loader_class in (DataLoader, Loader):
            original = loader_class.__iter__

            def iterate(loader: Any, original: Any = original) -> Iterator[Any]:
                if sys._getframe(1).f_code.co_name == "__init__":
                    self._replace_epochs(type(loader))
                    return original(loader)  # type: ignore[no-any-return]
                return self._epoch(original(loader), loader)

            loader_class.__iter__ = iterate  # type: ignore[method-assign]
            if self.mode == "train":
                length: Callable[[Any], int] = loader_class.__len__

                def repeated(loader: Any, length: Callable[[Any], int] = length) -> int:
                    return max(length(loader), REPEATED_LENGTH)

                loader_class.__len__ = repeated  # type: ignore[method-assign]

    def _replace_epochs(self, loader_class: Any) -> None:
        """Take the place of a class's own epochs, which are parts of one long iteration.

        That is begun once, as a loader is made (timm's `MultiEpochsDataLoader`), and must not end.
        """
        original = vars(loader_class).get("__iter__")
        if original is None or loader_class in self._replaced:
            return
        self._replaced.add(loader_class)
        loader_class.__iter__ = lambda loader: self._epoch(iter(original(loader)), loader)

    def _epoch(self, batches: Iterator[Any], loader: Any) -> Iterator[Any]:
        epoch = Epoch(loader)
        self._watch.epochs.append(epoch)
        try:
            yield from self._batches(batches, epoch)
            epoch.is_whole = True
        finally:
            self._watch.epochs.remove(epoch)

    def _batches(self, batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        steps, began = self._watch.seen.steps_seen, time.monotonic()
        kept: list[Any] = []
        first = Trained(epoch.loader, 0, [])
        count, counted = 0, False
        while True:
            asked = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                break
            taken = time.perf_counter()
            self._watch.on_event("batch")
            if self.mode == "watch":
                self._loaders.update(dict.fromkeys(_tensors(batch), epoch.loader))
            elif len(kept) < KEPT_BATCHES:
                kept.append(tree_map(_copied, batch))
            if self._compared and count < KEPT_BATCHES:
                first.samples = first.samples or _samples(batch)
                first.digests.append(digest(batch))
            yield self._converted(batch)
            count += 1
            if epoch.trains:
                self.trained_with = self.trained_with or first
                if not counted:
                    self.epochs, counted = self.epochs + 1, True
                self.waits.append((taken - asked, time.perf_counter() - taken))
            made = self._watch.seen.steps_seen - steps
            if self._ends(count, made, began, trains=epoch.trains):
                self.has_cut = True
                break
        close = getattr(batches, "close", None)
        if callable(close):
            close()
        del batches
        trains = epoch.trains
        if kept and self._is_measured(trains=trains):
            self.repeats = True
            kept = _regrouped(kept, self._factor)
            self.samples = _samples(kept[0])
            yield from map(self._converted, self._again(kept))

    def rewind(self) -> None:
        """Give the first batch again next."""
        self._next = 0

    def _again(self, kept: list[Any]) -> Iterator[Any]:
        """Yield batches in turn; copies of them, where the script changes batches in place."""
        given = [tree_map(_copied, batch) for batch in kept]
        versions = [_versions(batch) for batch in given]
        while True:
            number = self._next % len(given)
            self._next += 1
            batch = given[number]
            if versions[number] != _versions(batch):
                batch = tree_map(_copied, kept[number])
            yield batch

    def _converted(self, batch: Any) -> Any:
        return batch if self.convert is None else tree_map(self.convert, batch)

    def _ends(self, count: int, steps: int, began: float, *, trains: bool) -> bool:
        if trains and self.mode == "watch":
            is_long = count >= WATCHED_BATCHES or self._is_over(began, EPOCH_SECONDS)
            return is_long and steps >= EPOCH_STEPS
        if trains or self._is_measured(trains=False):
            return count >= KEPT_BATCHES
        if not self.epochs:
            return self._is_over(began, UNTRAINED_SECONDS)
        return count >= UNTRAINED_BATCHES

    def _is_over(self, began: float, seconds: float) -> bool:
        return not self._compared and time.monotonic() - began > seconds

    def _is_measured(self, *, trains: bool) -> bool:
        """Return whether batches of an epoch are given again, to measure it."""
        return self.mode == "train" if trains else self.mode == "evaluate" and self.epochs > 0


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _samples(batch: Any) -> int:
    return next((len(leaf) for leaf in tree_leaves(batch) if _has_samples(leaf)), 0)


def _has_samples(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0


def _regrouped(batches: list[Any], factor: float) -> list[Any]:
    """Return batches of more samples, or fewer: put together, or cut."""
    count, times = len(batches), max(1, int(factor))

    def joined(*leaves: Any) -> Any:
        if not _has_samples(leaves[0]):
            return leaves[0]
        most = max(1, int(len(leaves[0]) * factor)) if factor < 1 else None
        return torch.cat(leaves)[:most]

    return [
        tree_map(joined, *(batches[(first + n) % count] for n in range(times)))
        for first in range(count)
    ]


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def _versions(batch: Any) -> list[int]:
    return [tensor._version for tensor in _tensors(batch) if not tensor.is_inference()]
