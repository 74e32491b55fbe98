"""What loaders do with kept results: use the one that fits.

``loader(num_workers="auto")`` asks `settle`, which costs microseconds where nothing is kept.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any, TypeVar

from fastdata.engine.cores import available_cores
from fastdata.engine.tasks import is_packed
from fastdata.tuning import store
from fastdata.tuning.store import Entry

if TYPE_CHECKING:
    from fastdata.options import LoaderOptions

__all__ = ["settle"]

log = logging.getLogger("fastdata")

MOST_WORKERS = 16
"""Workers a core; no result that was measured has more."""

_said: set[str] = set()

T = TypeVar("T")


def settle(data: Any, options: LoaderOptions) -> LoaderOptions:
    """Return `options` with "auto" replaced as a kept result says, if one fits.

    A result is one of settings that were measured together: it is used only where `num_workers`
    is "auto", and not where `worker_method` or `backend` are given and others than it has.
    `prefetch_factor`, `pin_memory` and `persistent_workers` that are given stay.  What no result
    decides stays "auto".

    Parameters
    ----------
    data : packed data or torch Dataset
    options : LoaderOptions

    Notes
    -----
    Logs at INFO what is used and when it was measured, once a process and key.  Whatever is wrong
    with what is kept, it raises nothing.  ``FASTDATA_TUNED=0`` uses nothing.
    """
    if options.num_workers != "auto" or os.environ.get("FASTDATA_TUNED") == "0":
        return options
    if store.is_empty():
        return options
    try:
        return _settled(data, options)
    except Exception as error:
        # Describing calls code of the user's, and no program is to fail for want of tuning.
        name = f"{type(error).__name__}: {error}"
        if name not in _said:
            _said.add(name)
            log.warning("no tuned result is looked for, as an error came up: %s", name)
        return options


def _settled(data: Any, options: LoaderOptions) -> LoaderOptions:
    from fastdata.tuning.key import key_of

    key = key_of(data, options)
    entry = None if key is None else store.find(key)
    if entry is None or not _fits(entry, data, options):
        return options
    chosen = entry.result.settings
    settled = dataclasses.replace(
        options,
        num_workers=chosen.num_workers,
        prefetch_factor=_given(options.prefetch_factor, chosen.prefetch_factor),
        pin_memory=_given(options.pin_memory, chosen.pin_memory),
        persistent_workers=_given(options.persistent_workers, chosen.persistent_workers),
    )
    if chosen.backend != "torch":
        settled = dataclasses.replace(
            settled,
            worker_method=_given(options.worker_method, chosen.worker_method),
            backend=_given(options.backend, chosen.backend),
        )
    digest = entry.key.digest
    if digest not in _said:
        _said.add(digest)
        log.info(
            "tuned settings for %s: %s (measured %s; FASTDATA_TUNED=0 does without)",
            entry.key.name,
            chosen,
            entry.measured_at.date().isoformat(),
        )
    return settled


def _given(value: Any, otherwise: T) -> T:
    """Return what was asked for, or the other where that is "auto"."""
    chosen: T = otherwise if value == "auto" else value
    return chosen


def _fits(entry: Entry, data: Any, options: LoaderOptions) -> bool:
    """Return whether a result of the right key can be used for what was asked."""
    chosen = entry.result.settings
    if chosen.num_workers > MOST_WORKERS * available_cores():
        log.warning(
            "%s is not used: it has %d workers, but this process may use %d cores",
            entry.path,
            chosen.num_workers,
            available_cores(),
        )
        return False
    if not is_packed(data):
        return chosen.backend == "torch"
    return (
        chosen.backend != "torch"
        and options.worker_method in ("auto", chosen.worker_method)
        and options.backend in ("auto", chosen.backend)
    )
