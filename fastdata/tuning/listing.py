"""Stored results, of all data or some: listing and removing them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdata.engine.contracts import is_packed
from fastdata.engine.loader import Loader
from fastdata.errors import FastdataError
from fastdata.measuring.loaders import dataset_of
from fastdata.steps import is_script_target, run_script
from fastdata.tuned_settings import store
from fastdata.tuned_settings.key import dataset_identity, machine
from fastdata.tuned_settings.store import Entry

__all__ = ["forget", "show"]


def show(data: Any = None) -> list[dict[str, Any]]:
    """Return stored results, the newest first, as plain JSON types.

    Parameters
    ----------
    data : optional
        As of `forget`.

    Returns
    -------
    list of dict
        "dataset" (its path, or a class), "batch_size", "settings" (text), "supply" and "demand"
        (batches a second, or None), "saturates", "complete", "verdict", "measured_at" (ISO 8601),
        "host", "here" (whether it was measured on this machine as it is now) and "file".
    """
    here, rows = machine(), []
    for entry in _entries_of(data):
        tuned = entry.tuned
        rows.append(
            {
                "dataset": entry.key.name,
                "batch_size": tuned.batch_size,
                "settings": str(tuned),
                "supply": tuned.supply,
                "demand": tuned.demand,
                "saturates": tuned.saturates,
                "complete": True,  # nothing else is stored
                "verdict": tuned.verdict,
                "measured_at": entry.measured_at.isoformat(),
                "host": entry.key.machine.get("host", ""),
                "here": entry.key.machine == here,
                "file": str(entry.path),
            }
        )
    return rows


def forget(data: Any = None) -> int:
    """Remove stored results, and return how many.

    Parameters
    ----------
    data : path, Dataset, Loader, torch Dataset, DataLoader, CUDAPrefetcher or str, optional
        Those of this dataset, wherever it was when it was measured, or which had this path, if
        there is none any more; of ``"train.py:build"``, those of the dataset that this function
        returns, which is called for that.  By default all.

    Raises
    ------
    OptionError
        If there is no such script or function.
    OSError
        If a file cannot be removed.
    """
    return store.forget(*_entries_of(data))


def _entries_of(data: Any) -> list[Entry]:
    """Return the results for some data, or all."""
    entries = store.entries()
    if data is None:
        return entries
    if is_script_target(data):
        with _built(data) as made:
            return _matching(entries, made)
    return _matching(entries, data)


@contextlib.contextmanager
def _built(target: str) -> Iterator[Any]:
    """Give what a script's function builds; its output goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        made, _ = run_script(target)
    try:
        yield made
    finally:
        if isinstance(made, Loader):
            made.close()


def _matching(entries: list[Entry], data: Any) -> list[Entry]:
    names: tuple[str, ...] = ()
    if isinstance(data, (str, os.PathLike)):
        names = str(Path(data).absolute()), str(data)
    try:
        dataset = dataset_of(data)
        # Of packed data the digest alone: the same wherever it lies.
        wanted = {"digest": dataset.digest} if is_packed(dataset) else dataset_identity(dataset)
    except (FastdataError, OSError):  # no such dataset any more, or one of which nothing is stored
        wanted = {}
    return [entry for entry in entries if entry.key.name in names or _is_of(entry, wanted)]


def _is_of(entry: Entry, wanted: dict[str, Any]) -> bool:
    identity = entry.key.work.get("dataset")
    if not wanted or not isinstance(identity, dict):
        return False
    return all(identity.get(name) == value for name, value in wanted.items())
