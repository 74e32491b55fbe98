"""Whether the ranks divide the same epochs: each compares its loader with that of another rank.

Ranks that open other files, or draw by another seed, lose samples, or wait for each other without
end.  So each rank puts what its loader divides into the store of the process group when the first
batch is asked for.  The first rank to do so is what the others compare with.  No rank waits for
another one: a loader may be there on one rank only.

Two loaders belong together if they were made by the same call of the program: the same lines of
the same functions, and the same number of times.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import sys
import weakref
from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import distributed

from fastdata.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from fastdata.engine.epoch import Position
    from fastdata.engine.loader import Loader

__all__ = ["RankCheck"]

SPREAD_KEYS = 256
"""Keys by which files that are not packed are compared: their digest would look at each file."""

log = logging.getLogger("fastdata")


class RankCheck:
    """The comparison of one loader, made with it; once for each process group."""

    def __init__(self, loader: Loader) -> None:
        self._loader = weakref.ref(loader)
        self._call = _call_of_program()
        self._number = next(_numbers[self._call])
        self._same_call = _made[self._call]
        self._same_call.add(loader)
        self._compared_before = _compared[self._call]
        self._done = 0
        """The number of the process group in which the comparison was made."""

    def run(self, share: tuple[int, int], first: Callable[[], Position]) -> None:
        """Compare, if the loader has the rank and world size of the process group.

        `first` returns the position of the first batch.  `OptionError` if another rank divides
        other samples, or in another way.
        """
        if share[1] == 1 or not (distributed.is_available() and distributed.is_initialized()):
            return
        if share != (distributed.get_rank(), distributed.get_world_size()):
            return  # ranks that were given may be those of a part of the process group
        loader = self._loader()
        try:
            group, store = _groups.present()
        except Exception as error:
            _say_failure(error)
            return
        if self._done == group or loader is None:
            return
        position = first()
        # Loaders that are gone count too: an epoch may make its own.
        self._compared_before |= {str(_division(one)) for one in list(self._same_call)}
        mine = json.dumps(
            {
                "rank": share[0],
                "position": (position.epoch, position.batch),
                "dataset": _description(loader.dataset),
                "division": _division(loader),
                "others": sorted(self._compared_before),
            }
        )
        run = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        key = f"fastdata/loader/{run}/{group}/{self._call}/{self._number}"
        try:
            theirs = store.compare_set(key, "", mine)  # that of the first rank
        except Exception as error:  # the store is gone, or lacks this: training can do without
            _say_failure(error)
        else:
            _compare(json.loads(mine), json.loads(theirs))
        self._done = group


_numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
_made: defaultdict[str, weakref.WeakSet[Loader]] = defaultdict(weakref.WeakSet)
_compared: defaultdict[str, set[str]] = defaultdict(set)


class _Groups:
    """Counts the default process groups of this process: a store may outlive several."""

    def __init__(self) -> None:
        self._number = 0
        self._latest: weakref.ref[Any] | None = None

    def present(self) -> tuple[int, Any]:
        """Return the number of the present one, from 1, and its store."""
        c10d = distributed.distributed_c10d
        group = c10d._get_default_group()
        if self._latest is None or self._latest() is not group:
            self._latest = weakref.ref(group)
            self._number += 1
        return self._number, c10d._get_default_store()


_groups = _Groups()


def _call_of_program() -> str:
    """Return a hash of the calls that led here, the same on every rank that made them."""
    calls = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        # Folders may be others on another machine.
        calls.append((os.path.basename(code.co_filename), code.co_name, frame.f_lineno))
        if code.co_name == "<module>":
            break  # what runs the script, a debugger perhaps, is not part of it
        frame = frame.f_back
    return hashlib.blake2b(repr(calls).encode(), digest_size=8).hexdigest()


def _division(loader: Loader) -> dict[str, Any]:
    """Return what decides which samples each rank gets, as plain JSON values."""
    options, order = loader.options, dict(loader.batches.identity)
    seed, in_parts = order.pop("seed", None), options.cache_scope == "rank"
    for name in ("samples", "global_batch_size", "drop_last", "even"):
        order.pop(name, None)
    return {
        "dataset": _content(loader.dataset),
        "shuffle": str(options.shuffle),
        "seed": loader.seed if in_parts else seed,
        "batch_size": options.batch_size,
        "drop_last": options.drop_last,
        "even": options.even,
        "cache_scope": options.cache_scope,
        "order": None if in_parts else str(order),  # the parts of ranks may differ by a sample
    }


def _content(dataset: Any) -> str:
    """Return a fingerprint of the samples of a dataset, wherever its files are."""
    if not hasattr(dataset, "listing"):
        return str(dataset.digest)
    places = np.linspace(0, max(0, len(dataset) - 1), min(SPREAD_KEYS, len(dataset)))
    names = [PurePath(dataset.keys[int(place)]).name for place in places]
    return hashlib.blake2b(repr((len(dataset), names)).encode(), digest_size=16).hexdigest()


def _description(dataset: Any) -> str:
    """Return the files of a dataset, and its fingerprint, for a message."""
    paths = [path.name for path in list(getattr(dataset, "paths", ()))]
    files = ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")
    return f"{files or 'data'} ({len(dataset)} samples, digest {_content(dataset)})"


def _say_failure(error: Exception) -> None:
    """Log, once, that ranks cannot be compared."""
    if not _failures:
        text = "ranks cannot compare what their loaders divide: %s: %s"
        log.warning(text, type(error).__name__, error)
    _failures[:] = [type(error).__name__]


_failures: list[str] = []


def _compare(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Raise `OptionError` if two ranks divide other samples, or in another way."""
    one, other = sorted((mine, theirs), key=lambda said: said["rank"])
    first, second = one["division"], other["division"]
    if first == second:
        if one["position"] != other["position"]:
            log.warning(
                "rank %d began a loader at batch %d of epoch %d, and rank %d at batch %d of epoch "
                "%d: samples are lost, unless set_epoch follows. Load a state, or skip batches, on "
                "every rank",
                one["rank"],
                *reversed(one["position"]),
                other["rank"],
                *reversed(other["position"]),
            )
        return
    if str(first) in other["others"] or str(second) in one["others"]:
        return  # the ranks made these loaders in another order
    names = [name for name in first if first[name] != second[name]]
    # It follows from the other options, as a seed does that only one has.
    names = [n for n in names if n != "order" and None not in (first[n], second[n])] or ["order"]
    found = [
        f"{name} is {(one if name == 'dataset' else first)[name]} on rank {one['rank']} and "
        f"{(other if name == 'dataset' else second)[name]} on rank {other['rank']}"
        for name in names
    ]
    files = (
        ", and the same part of the same files in the same order (sort what glob returns), of the "
        "same version (fastdata info shows the digest)"
    )
    raise OptionError(
        f"the ranks do not divide the same epoch: {'; '.join(found)}. Samples would be lost, and "
        "ranks might wait for each other without end. Give every rank the same options"
        f"{files if 'dataset' in names else ''}. A loader for one rank only takes rank=0, "
        "world_size=1"
    )
