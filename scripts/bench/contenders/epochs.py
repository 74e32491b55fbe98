"""How every loader is timed: whole epochs, by a consumer that only takes batches.

Standard library only, as it runs in the peers' interpreters.

An epoch's rate is that from its first batch to its last, without the images of
the first: what a loader does in the steady state, whatever it does at the ends of epochs.
The consumer never pauses, so nothing is made ahead while the clock stands still.
The report has the best epoch (compilers and warm caches come after the first),
every epoch, and the rate of whole epochs from the call of ``iter`` on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

USUAL = {"transform": "crop 224", "batch_size": 256, "shuffle": True}


def time_epochs(
    epoch: Callable[[], Iterable[Any]],
    images: Callable[[Any], Any],
    *,
    epochs: int,
) -> dict[str, Any]:
    """Return the report of `epochs` epochs.

    Parameters
    ----------
    epoch : callable
        Returns an iterable over the batches of one epoch.
    images : callable
        Returns the images of a batch as a NumPy array whose first axis counts
        them, without a copy; called behind the clock on the last batch only.
    epochs : int

    Raises
    ------
    ValueError
        If an epoch has fewer than two batches, or the last is of another size.
    """
    steady, whole = [], []
    for _ in range(epochs):
        times, batch = [], None
        called = time.perf_counter()
        for batch in epoch():  # noqa: B007 - the last one is looked at below
            times.append(time.perf_counter())
        if len(times) < 2:
            raise ValueError(f"{len(times)} batches an epoch are too few to time: more --samples")
        last = images(batch)
        del batch
        steady.append(len(last) * (len(times) - 1) / (times[-1] - times[0]))
        whole.append(len(last) * len(times) / (times[-1] - called))
    return {
        "value": max(steady),
        "unit": "images/s",
        "images": len(last) * len(times),
        "epochs": [round(rate, 1) for rate in steady],
        "whole_epochs": [round(rate, 1) for rate in whole],
        "batch": describe(last),
    }


def describe(images: Any) -> dict[str, Any]:
    """Return what kind of array the images are; the mean tells that there is a picture in it."""
    return {
        "dtype": str(images.dtype),
        "shape": list(images.shape),
        "strides": list(images.strides),
        "mean": round(float(images.mean()), 2),
    }


def options() -> dict[str, Any]:
    """Return the contender's options: the JSON of the first argument over what is usual."""
    return {**USUAL, **json.loads(sys.argv[1])}


def print_report(report: dict[str, Any], *packages: str) -> None:
    """Print the report with the versions of `packages` as the last line."""
    versions = {"python": sys.version.split()[0]}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    print(json.dumps({**report, "versions": versions}), flush=True)
