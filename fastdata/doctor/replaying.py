"""The batches of a script that is only tried: as they come, or a few of them again and again.

While a script is watched, its loaders are its own, but for epochs that end early.  While its step
is measured, the first batches are kept and given in turn without end: so loading takes no part of
the time, and the epoch never ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.doctor.messages import Request
from fastdata.doctor.seen import Epoch
from fastdata.doctor.watching import Watch
from fastdata.engine.loader import Loader

__all__ = ["KEPT_BATCHES", "Replay"]

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
"""Length of a loader that repeats batches: at its end, a script would stop or change."""

_END = object()


class Replay:
    """Takes the place of loaders' iterators; `watch` knows which epochs train."""

    def __init__(self, request: Request, watch: Watch) -> None:
        self._request, self._watch = request, watch
        self.convert: Callable[[Any], Any] | None = None
        """What becomes of each tensor of a batch."""
        self.waits: list[tuple[float, float]] = []
        """For each batch that was trained with: seconds that the loop waited for it, and until
        it wanted the next one."""
        self.repeats = False  # whether batches are being given again
        self.next_batch = 0  # the number of the batch that is given again next
        self.trained: list[Epoch] = []  # in which something was trained
        self.has_cut = False  # whether an epoch has ended early
        self.loaders: Any = WeakIdKeyDictionary()
        """By tensor of a batch that they made, while the script is watched."""
        self._replaced: set[Any] = set()

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
            if self._is_measured(trains=True):
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
        count, asked = 0, time.perf_counter()
        while (batch := next(batches, _END)) is not _END:
            taken = time.perf_counter()
            self._watch.on_event("batch")
            if self._request.watch_only:
                self.loaders.update(dict.fromkeys(_tensors(batch), epoch.loader))
            elif count < KEPT_BATCHES:
                kept.append(tree_map(_copied, batch))
            yield self._converted(batch)
            count += 1
            if epoch.trains:
                if epoch not in self.trained:
                    self.trained.append(epoch)
                self.waits.append((taken - asked, time.perf_counter() - taken))
            made = self._watch.seen.steps_seen - steps
            if self._ends(count, made, began, trains=epoch.trains):
                self.has_cut = True
                break
            asked = time.perf_counter()
        close = getattr(batches, "close", None)
        if callable(close):
            close()
        del batches
        if kept and self._is_measured(trains=epoch.trains):
            self.repeats = True
            yield from self._again(kept)

    def _again(self, kept: list[Any]) -> Iterator[Any]:
        """Yield batches in turn, or copies if the script changes batches in place."""
        given = [tree_map(_copied, batch) for batch in kept]
        versions = [_versions(batch) for batch in given]
        while True:
            number = self.next_batch % len(given)
            self.next_batch += 1
            batch = given[number]
            if versions[number] != _versions(batch):
                batch = tree_map(_copied, kept[number])
            yield self._converted(batch)

    def _converted(self, batch: Any) -> Any:
        return batch if self.convert is None else tree_map(self.convert, batch)

    def _ends(self, count: int, steps: int, began: float, *, trains: bool) -> bool:
        seconds = time.monotonic() - began
        if trains and self._request.watch_only:
            return steps >= EPOCH_STEPS and (count >= WATCHED_BATCHES or seconds > EPOCH_SECONDS)
        if trains or self._is_measured(trains=False):
            return count >= KEPT_BATCHES
        return count >= UNTRAINED_BATCHES if self.trained else seconds > UNTRAINED_SECONDS

    def _is_measured(self, *, trains: bool) -> bool:
        """Return whether batches of an epoch are given again, to measure it."""
        phase = "" if self._request.watch_only else self._request.phase
        return phase == "train" if trains else phase == "evaluate" and bool(self.trained)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def _versions(batch: Any) -> list[int]:
    return [tensor._version for tensor in _tensors(batch) if not tensor.is_inference()]
