"""How many requests at once to a store feed the step, while images are not in the cache yet.

What workers make is measured on samples that are in the cache, and here what the network gives, on
blocks that are not: in an epoch out of the store the loop gets the lesser of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastdata.measuring.downloads import StoreInfo
from fastdata.processes.resources import format_bytes
from fastdata.tuning.choice import ALIKE, HEADROOM
from fastdata.tuning.fetching import GIVE_UP, Fetched
from fastdata.tuning.report import StoreResult
from fastdata.tuning.runner import TrialFailedError
from fastdata.tuning.trials import Trials

__all__ = ["choose_streams", "notes_on_store", "store_result"]

COUNTS = 8, 16, 32, 64

GROWTH = 1.1
"""Twice the streams have to give so much more, or there is no use in still more."""

STREAMS_SHARE = 0.1
"""Of the time that was given, for one number of streams; it comes on top of that time."""


def store_result(trials: Trials, demand: float | None, *, from_cache: bool) -> StoreResult | None:
    """Return how a dataset in a store was measured; None of one that is in files.

    Where some of it was not in the cache, numbers of streams are tried, until one gives the
    `demand`, in batches a second, or no more than the one before.
    """
    store = trials.info.store
    if store is None:
        return None
    result = StoreResult(
        "cache" if from_cache else "network",
        store.present,
        store.total_bytes,
        store.cache_bytes,
        store.sample_bytes,
    )
    if not trials.comes_from_store:
        return result
    batch_bytes = store.sample_bytes * trials.info.batch_size
    wanted = None if demand is None else HEADROOM * demand * batch_bytes
    tried = _try_all(trials, wanted)
    chosen = choose_streams(tried, wanted)
    if chosen is None or chosen.bytes_per_second is None:
        return replace(result, trials=tried)
    rate = chosen.bytes_per_second / batch_bytes
    return replace(result, trials=tried, streams=chosen.streams, batches_per_second=rate)


def _try_all(trials: Trials, wanted: float | None) -> tuple[Fetched, ...]:
    tried: list[Fetched] = []
    budget, limit = trials.budget, trials.limit_seconds
    began, seconds = budget.used, STREAMS_SHARE * budget.seconds
    for streams in COUNTS:
        trials.on_status(f"{streams} streams out of the store")
        try:
            tried.append(
                trials.runner.call("fetch", streams, seconds, seconds=GIVE_UP * seconds + limit)
            )
        except TrialFailedError as error:
            tried.append(Fetched(streams, failure=str(error)))
        rates = [one.bytes_per_second for one in tried]
        last, before = rates[-1], rates[-2] if len(rates) > 1 else None
        if last is None or (wanted is not None and last >= wanted):
            break
        if before is not None and last < GROWTH * before:
            break
    trials.runner.call("end_fetching", seconds=limit)
    budget.extend(budget.used - began)
    return tuple(tried)


def choose_streams(tried: Sequence[Fetched], wanted: float | None) -> Fetched | None:
    """Return the smallest number that gives the bytes a second that are wanted.

    Where none does, or None are wanted, the smallest that is about as good as the best; None where
    nothing was measured.
    """
    rates = [one.bytes_per_second for one in tried if one.bytes_per_second is not None]
    if not rates:
        return None
    least = ALIKE * max(rates)
    if wanted is not None and max(rates) >= wanted:
        least = wanted
    return next(
        one for one in tried if one.bytes_per_second is not None and one.bytes_per_second >= least
    )


def notes_on_store(
    result: StoreResult, store: StoreInfo, demand: float | None, batch_size: int
) -> Iterator[str]:
    """Yield what to know of a dataset in a store, and what would help; nothing if it is all here.

    `demand` is in batches a second, and None without a step.
    """
    if result.read_from == "network":
        yield (
            "too few samples were in the cache to measure settings on these: rates are as images "
            "came out of the store, and those of settings that were tried later may be higher for "
            "that alone; measure again when more is in the cache, or with more seconds"
        )
    if result.in_cache == 1:
        return
    if result.streams is None or result.batches_per_second is None:
        yield "what comes out of the store could not be measured: the reason is beside the streams"
        return
    last = result.trials[-1]
    more = f"; {last.streams} could not be measured: {last.failure}" if last.failure else ""
    batch_bytes = result.sample_bytes * batch_size
    comes = f"{result.batches_per_second * batch_bytes / 1e6:.4g} MB/s"
    if result.streams > store.streams:
        yield (
            f"streams={result.streams} (now {store.streams}): used wherever these settings are, "
            "once they are kept; else give it to fastdata.loader or fastdata.open"
        )
    if demand is None or result.batches_per_second >= HEADROOM * demand:
        return
    room = "once all of it is in the cache, which has room for it, nothing is downloaded"
    if not store.fits:
        room = (
            f"a larger cache_bytes ({format_bytes(store.cache_bytes)} of "
            f"{format_bytes(store.total_bytes)} now) makes later epochs read less of it"
        )
    yield (
        f"out of the store come {comes} with {result.streams} streams{more}, and the step takes "
        f"{demand * batch_bytes / 1e6:.4g} MB/s: as long as images are downloaded no number of "
        f"streams that was measured keeps it busy; {room}, and a nearer region or endpoint or "
        f"fewer bytes a sample (now {result.sample_bytes / 1e3:.3g} kB) make it faster"
    )
