"""What loaders and people do with kept results: use one, show all, forget some.

``loader(num_workers="auto")`` asks `settle`, which costs microseconds where nothing is kept.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastdata.engine.cores import available_cores
from fastdata.engine.tasks import is_packed
from fastdata.tuning import store
from fastdata.tuning.store import Entry

if TYPE_CHECKING:
    from fastdata.assembly import LoaderOptions

__all__ = ["forget", "settle", "show"]

log = logging.getLogger("fastdata")

MOST_WORKERS = 16
"""Workers a core; no result that was measured has more."""

_said: set[str] = set()

T = TypeVar("T")


def settle(data: Any, options: LoaderOptions) -> LoaderOptions:
    """Return `options` with "auto" replaced as a kept result says, if one fits.

    A result is one of settings that were measured together: it is used only where `num_workers`
    is "auto", and not where `worker_method` or `backend` are given and others than it has.
    `prefetch_factor` and `pin_memory` that are given stay.  What no result decides stays "auto".

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


def show(dataset: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Return what is kept, the newest first, for people: plain JSON types.

    Parameters
    ----------
    dataset : path, optional
        As of `forget`.

    Returns
    -------
    list of dict
        "dataset" (its path, or a class), "batch_size", "settings" (text), "supply" and "demand"
        (batches a second, or None), "saturates", "complete", "verdict", "measured_at" (ISO 8601),
        "host", "here" (whether it was measured on this machine as it is now) and "file".
    """
    from fastdata.tuning.key import machine

    here, rows = machine(), []
    for entry in _entries_of(dataset):
        result = entry.result
        supply = next(
            (trial.supply for trial in result.trials if trial.settings == result.settings), None
        )
        rows.append(
            {
                "dataset": entry.key.name,
                "batch_size": result.batch_size,
                "settings": str(result.settings),
                "supply": None if supply is None else supply.median,
                "demand": None if result.demand is None else result.demand.rate.median,
                "saturates": result.saturates,
                "complete": result.complete,
                "verdict": result.verdict,
                "measured_at": entry.measured_at.isoformat(),
                "host": entry.key.machine.get("host", ""),
                "here": entry.key.machine == here,
                "file": str(entry.path),
            }
        )
    return rows


def forget(dataset: str | os.PathLike[str] | None = None) -> int:
    """Remove kept results, and return how many.

    Parameters
    ----------
    dataset : path, optional
        Those of this dataset, wherever it was when it was measured, or which had this path, if
        there is none any more.  By default all.

    Raises
    ------
    OSError
        If a file cannot be removed.
    """
    return store.forget(*_entries_of(dataset))


def _entries_of(dataset: str | os.PathLike[str] | None) -> list[Entry]:
    """Return the results of a dataset, or all."""
    kept = list(store.entries())
    if dataset is None:
        return kept
    path, digest = str(Path(dataset).absolute()), _digest(dataset)
    return [
        entry
        for entry in kept
        if entry.key.name in (path, str(dataset))
        or (digest is not None and _of_dataset(entry) == digest)
    ]


def _digest(dataset: str | os.PathLike[str]) -> str | None:
    """Return the digest of the dataset at a path; None where none can be opened."""
    from fastdata.dataset import open as open_dataset
    from fastdata.errors import FastdataError

    try:
        return open_dataset(dataset).digest
    except (FastdataError, OSError):
        return None


def _of_dataset(entry: Entry) -> Any:
    dataset = entry.key.work.get("dataset")
    return dataset.get("digest") if isinstance(dataset, dict) else None
