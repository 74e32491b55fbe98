"""The result of a tuning, as JSON and back; its verdict in a line, advice, a table of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fastdata.installing import install_line
from fastdata.measuring.factories import WorkloadInfo
from fastdata.measuring.loaders import dali_is_installed
from fastdata.measuring.windows import Rate
from fastdata.processes.resources import format_bytes
from fastdata.tuned_settings.settings import Settings, from_plain, plain_json
from fastdata.tuning.choice import CEILING, HEADROOM, suffices
from fastdata.tuning.fetching import Fetched

__all__ = [
    "Demand",
    "StoreResult",
    "Trial",
    "TuningResult",
    "advice_for",
    "text_lines",
    "text_table",
    "verdict_of",
]

MUCH_LARGER = 1.5
"""Stored images this many times as large as those in batches cost decoding for nothing."""


@dataclass(frozen=True, slots=True)
class Demand:
    """How fast a training step consumes batches that are on its device already.

    Attributes
    ----------
    rate : Rate
    step : str
        What was measured, in words: "a simulated step of 42 ms".
    """

    rate: Rate
    step: str


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that were tried.

    Attributes
    ----------
    settings : Settings
    supply : Rate or None
        Batches a second with nothing done to them; None where it failed.
    trained : Rate or None
        Steps a second with the step; None where that was not run.
    failure : str
        Why it has no rate: it died, took too long, or would not fit.
    start_seconds : float
        From the making of the loader to its first batch, in the median.
    memory_bytes, shm_bytes : int
        Predicted for batches in the making, host memory and of it ``/dev/shm``.
    """

    settings: Settings
    supply: Rate | None = None
    failure: str = ""
    start_seconds: float = 0.0
    memory_bytes: int = 0
    shm_bytes: int = 0
    trained: Rate | None = None


@dataclass(frozen=True, slots=True)
class StoreResult:
    """How a dataset in a store was measured, and what comes out of the store.

    Attributes
    ----------
    read_from : {"cache", "network"}
        Where settings were measured: on samples that were in the cache, or waiting for downloads.
    in_cache : float
        Share of the samples, 0 to 1, that were in the cache before anything was measured.
    total_bytes, cache_bytes : int
        Of the whole dataset, and what the cache may take.
    sample_bytes : float
        Stored bytes of the images of a sample.
    trials : tuple of Fetched
        Numbers of streams that were tried, on blocks that were not in the cache.
    streams : int or None
        The smallest of them that feeds the step, or is as good as the best; None where none was
        measured.
    batches_per_second : float or None
        That so many streams give, while nothing is in the cache.
    """

    read_from: Literal["cache", "network"]
    in_cache: float
    total_bytes: int
    cache_bytes: int
    sample_bytes: float
    trials: tuple[Fetched, ...] = ()
    streams: int | None = None
    batches_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The chosen settings, every trial, the verdict.

    Attributes
    ----------
    settings : Settings
        The chosen ones.
    verdict : str
        One line: whether they keep the step busy.
    saturates : bool
        Whether the step gets batches as fast as it can take them; without a step False.
    batch_size : int
    demand : Demand or None
        None where no step was given: then the goal was the most there is.
    trained : Rate or None
        Steps a second with the chosen settings and the real step; None without one.
    trials : tuple of Trial
        In the order of their cost.
    advice : tuple of str
        What would change a verdict that they do not.
    complete : bool
        False where it was stopped before its end.
    cache_state : {"warm", "cold"}
        Whether the data was in the page cache when measuring began.
    machine : dict
        What it was measured on: see `fastdata.tuned_settings.key`.
    notes : tuple of str
        What a reader has to know of how it was measured.
    transforms : str
        What the command has chosen for a dataset that it was given by its path; else "".
    store : StoreResult or None
        Of a dataset in a store; else None.
    """

    settings: Settings
    verdict: str
    saturates: bool
    batch_size: int
    demand: Demand | None = None
    trained: Rate | None = None
    trials: tuple[Trial, ...] = ()
    advice: tuple[str, ...] = ()
    complete: bool = True
    cache_state: str = "warm"
    machine: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    transforms: str = ""
    store: StoreResult | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types; `from_json` builds the same from them."""
        plain: dict[str, Any] = plain_json(asdict(self))
        return plain

    @classmethod
    def from_json(cls, entry: Any) -> TuningResult:
        """Build a result from `to_json`'s.

        Raises
        ------
        ValueError
            If it is not the JSON of a result.
        """
        result = from_plain(cls, entry)
        if result.batch_size < 1:
            raise ValueError(f"batch_size is {result.batch_size}")
        return result


# -- the verdict ----------------------------------------------------------------------------


def verdict_of(
    settings: Settings,
    supply: Rate,
    *,
    demand: float | None,
    trained: Rate | None,
    best: Rate,
    batch_size: int,
    more: str = "bring no more",
    epoch: int | None = None,
) -> tuple[bool, str]:
    """Return whether the chosen settings keep the step busy, and a verdict: one line with figures.

    `supply` is theirs and `best` the highest of all settings; `demand` is in batches a second,
    and None without a step.  `more` is what became of more workers.  `epoch` is the number of
    batches in an epoch, where no worker makes those of the next one before it is begun.
    """
    if demand is None:
        return False, f"{settings}: {_rate(supply.median, batch_size)}; more workers {more}"
    enough = suffices(settings, supply, demand)
    if trained is None:
        if enough:
            return True, (
                f"{settings}: supply {_rate(supply.median, batch_size)} for a demand of "
                f"{demand:.4g}; not tried with the step"
            )
        return False, _cannot(settings, "", demand, best, batch_size, more)
    share = trained.median / demand
    reached = f"{trained.median:.4g} of {demand:.4g} steps/s ({share:.1%} of the ceiling)"
    if share >= CEILING:
        thin = "" if enough else f", though supply is less than {HEADROOM:g} times the demand"
        return True, f"{settings}: keeps the step busy{thin}: {reached}"
    if enough:
        lost = 1 / trained.median - 1 / demand
        why = (
            f"taking a batch costs the loop {1e3 * lost:.2g} ms, or step and workers are in each "
            "other's way"
        )
        # A worker's first batch of an epoch is waited for as a whole.
        if epoch and settings.num_workers / supply.median / epoch > lost / 2:
            why = (
                f"an epoch has {epoch:,} batch{'es' * (epoch != 1)}, and while it lasts nobody "
                "makes the first one of the next"
            )
        return False, (
            f"{settings}: falls short with the step, {reached}, though supply alone is "
            f"{_rate(supply.median, batch_size)}: {why}"
        )
    return False, _cannot(settings, reached, demand, best, batch_size, more)


def _cannot(
    settings: Settings, reached: str, demand: float, best: Rate, batch_size: int, more: str
) -> str:
    """Say that no supply is enough; or what else it is, where one is above the demand."""
    wanted, most = _rate(demand, batch_size), _rate(best.median, batch_size)
    if best.median < demand:
        reached = f"; {settings}: {reached}" if reached else ""
        return f"cannot saturate: demand {wanted}, best supply {most}{reached}"
    why = f"no supply is surely {HEADROOM:g} times the demand, the best is {most}"
    if not settings.num_workers:
        why = f"they make batches between steps, and more {more}"
    reached = f" with the step, {reached}" if reached else f" of a demand of {wanted}"
    return f"{settings}: falls short{reached}: {why}"


def _rate(batches: float, batch_size: int) -> str:
    return f"{batches:.4g} batches/s ({batches * batch_size:,.0f} samples/s)"


# -- advice ---------------------------------------------------------------------------------


def advice_for(
    info: WorkloadInfo,
    *,
    cores: int,
    cache_state: str,
    available_bytes: int,
    factor: float,
    grew: bool,
    workers: int = 1,
) -> tuple[str, ...]:
    """Return what would help where no settings keep the step busy, the most promising first.

    `factor` is demand over supply; `grew` is whether the rate still grew with the last
    workers that were added, and `workers` how many the settings with the highest rate have.
    """
    advice = []
    images = info.images
    packed = info.base.backend != "torch"
    if not packed:
        advice.append(
            "pack the dataset (fastdata pack): batches are then made whole, without one Python "
            "call a sample"
        )
    if factor <= 1:  # batches are there in time: what is left is the loop's own work
        return tuple(advice)
    if packed and info.cuda and 0 < images.decoded_bytes < 0.8 * info.device_free_bytes:
        advice.append(
            f'cache="device": all images decoded take {format_bytes(images.decoded_bytes)}, which '
            "the GPU has room for; workers then have nothing to do"
        )
    if packed and "jpeg" in images.codecs:
        advice.append(
            'pack with codec="raw": nothing is left to decode; images then take '
            f"{format_bytes(images.decoded_bytes)}"
        )
    if packed and len(images.sides) == 2:
        stored, wanted = images.sides
        if stored > MUCH_LARGER * wanted:
            advice.append(
                f"pack at a smaller size: images have a short side of {stored}, batches of {wanted}"
            )
    if packed and cache_state == "cold" and images.decoded_bytes < 10 * available_bytes:
        advice.append('cache="ram": the data is not in the page cache, and disks are slow')
    elif not packed and cache_state == "cold":
        advice.append("a faster disk, or data that fits into memory: it was read from disk")
    if info.cuda and info.allows_dali and info.base.backend == "cpu":
        install = "" if dali_is_installed() else f" ({install_line('dali')})"
        advice.append(
            f'backend="dali": NVIDIA DALI{install} decodes on the GPU; its pixels differ a '
            "little, and dali=True (--dali) measures it"
        )
    if grew and workers > cores:  # workers that compute have no core beyond these
        advice.append(
            f"more workers: {workers} on {cores} {'core' if cores == 1 else 'cores'} still gave "
            "more than fewer did, so they wait for something else; --max-workers (max_workers) "
            "and more seconds give more of them a turn"
        )
    elif grew and cache_state == "warm":
        advice.append(
            f"more cores: {cores} are to be used, about {factor:.1f} times as many needed"
        )
    return tuple(advice)


# -- text -----------------------------------------------------------------------------------


def text_lines(result: TuningResult) -> list[str]:
    """Return a result as text: a table of trials, notes, advice, and the verdict last."""
    transforms = f": {result.transforms}" if result.transforms else ""
    lines = [f"batches of {result.batch_size:,} samples{transforms}"]
    if result.demand is not None:
        lines.append(f"demand: {_interval(result.demand.rate)} batches/s, by {result.demand.step}")
    rows: list[tuple[str, ...]] = [
        (" ", "settings", "batches/s", "95% interval", "samples/s", "with step", "start", "memory")
    ]
    for trial in result.trials:
        mark = "*" if trial.settings == result.settings else " "
        if trial.supply is None:
            rows.append((mark, str(trial.settings), trial.failure))
            continue
        rows.append(
            (
                mark,
                str(trial.settings),
                f"{trial.supply.median:.4g}",
                f"{trial.supply.low:.4g} - {trial.supply.high:.4g}",
                f"{trial.supply.median * result.batch_size:,.0f}",
                "-" if trial.trained is None else f"{trial.trained.median:.4g}",
                f"{trial.start_seconds:.2f} s",
                f"{trial.memory_bytes / 1e6:,.0f} MB",
            )
        )
    lines += text_table(rows, left=2)
    lines.append(f"page cache: {result.cache_state}")
    if result.store is not None:
        lines += _store_lines(result.store, result.batch_size)
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"would help: {advice}" for advice in result.advice]
    if not result.complete:
        lines.append("stopped before its end: of what was measured until then")
    lines.append(result.verdict)
    return lines


def _store_lines(store: StoreResult, batch_size: int) -> list[str]:
    """Return from where was read, and a table of the numbers of streams."""
    where = {
        "cache": "settings were measured on samples that were in the cache by then",
        "network": "settings were measured while images were downloaded",
    }
    here = f"{store.in_cache:.0%} of the samples were in the cache before"
    lines = [f"store: {where[store.read_from]}; {here}"]
    rows: list[tuple[str, ...]] = [(" ", "streams", "MB/s", "batches/s")]
    for one in store.trials:
        mark = "*" if one.streams == store.streams else " "
        if one.bytes_per_second is None:
            rows.append((mark, str(one.streams), one.failure))
            continue
        batches = one.bytes_per_second / (store.sample_bytes * batch_size)
        megabytes = f"{one.bytes_per_second / 1e6:.4g}"
        rows.append((mark, str(one.streams), megabytes, f"{batches:.4g}"))
    return lines + text_table(rows, left=2) * bool(store.trials)


def _interval(rate: Rate) -> str:
    return f"{rate.median:.4g} ({rate.low:.4g} - {rate.high:.4g})"


def text_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return rows as lines of a table, with two spaces between columns.

    The first `left` columns are aligned to the left, the others to the right.  A row that is
    shorter than the first one ends with text of any width.
    """
    count = len(rows[0])
    tabular = [row if len(row) == count else row[:-1] for row in rows]
    widths = [
        max((len(row[c]) for row in tabular if c < len(row)), default=0) for c in range(count)
    ]
    lines = []
    for row, cells in zip(rows, tabular, strict=True):
        aligned = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        lines.append("  ".join([*aligned, *row[len(cells) :]]).rstrip())
    return lines
