"""`tune_workers`: which settings keep a training step busy on this machine.

    data, step --> WorkloadSpec --> trial process --> Session --> TuningResult --> stored

The module has another name than the function: importing it would put a module where the package
has the function.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from tqdm import tqdm

from fastdata.bounds import check_float, check_int
from fastdata.errors import MissingExtraError, OptionError, WorkerError
from fastdata.installing import install_line
from fastdata.measuring.loaders import dali_is_installed
from fastdata.measuring.windows import Rate
from fastdata.measuring.workload import WorkloadSpec, step_name
from fastdata.printable import printable
from fastdata.processes.resources import available_bytes, cores_of_rank
from fastdata.steps import SleepStep, is_script_target
from fastdata.steps.models import MODELS
from fastdata.tuned_settings import store
from fastdata.tuned_settings.settings import Settings
from fastdata.tuned_settings.store import Key, Point, TunedSettings
from fastdata.tuning.budget import TimeBudget
from fastdata.tuning.choice import best, curve
from fastdata.tuning.fetching import TunedWorkload
from fastdata.tuning.report import StoreResult, Trial, TuningResult, advice_for, verdict_of
from fastdata.tuning.runner import LocalRunner, TrialFailedError, open_runner
from fastdata.tuning.session import Session
from fastdata.tuning.streams import notes_on_store, store_result
from fastdata.tuning.trials import StepRuns, Trials

__all__ = ["MORE_THAN_CORES", "ProgressBar", "cores_of_rank", "tune_workers"]

log = logging.getLogger("fastdata")

MORE_THAN_CORES = 4
"""So many workers a core are tried where each more gives more: they wait for disks then."""


def tune_workers(
    data: Any,
    *,
    batch_size: int | None = None,
    step: Callable[[Any], Any] | str | None = None,
    step_ms: float | None = None,
    device: torch.device | str | None = None,
    seconds: float = 60.0,
    max_workers: int | None = None,
    trial_seconds: float = 20.0,
    keep: bool = True,
    dali: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> TuningResult:
    """Find the loader settings that keep a training step busy, by measurement.

    It measures the demand of the step, with batches on its device; then the supply of one
    `Settings` after another, each in another process.  It chooses the cheapest (fewest workers,
    then least predicted memory) with a supply of at least 1.1 times the demand at the lower end of
    its 95% interval; if there is none, the cheapest that does not differ measurably from the best.
    In the end the step runs with these settings.  ``docs/tune.md`` describes the measurement.

    Parameters
    ----------
    data : path, Dataset, Loader, torch Dataset, DataLoader, CUDAPrefetcher or str
        The data to load; or ``"train.py:build"``, a function that returns such data, or a pair of
        data and step.
    batch_size : int, optional
        For a dataset; by default 256, or its length.  A loader has its own.
    step : callable or {"resnet18", "resnet50", "vit_s"}, optional
        Called with each batch, in this process; or the name of a model to train.  Without a step,
        it tunes for maximum throughput.
    step_ms : float, optional
        The step's length in milliseconds, instead of `step`.
    device : torch.device or str, optional
        Device of the batches, as in `fastdata.loader`; with the name of a model by default the
        GPU, if there is one.
    seconds : float
        Time of the measurement, at least 1, with the run of the step; starting takes additional
        time.  A longer time gives narrower intervals.  If a step is too slow for it, a warning
        before the trials says how much more time it takes.
    max_workers : int, optional
        By default the cores that this process may use (affinity, cgroup quota), divided by
        ``LOCAL_WORLD_SIZE``; up to four times as many while the rate still grows.
    trial_seconds : float
        Timeout of a single turn.
    keep : bool
        Whether to store a complete result, so that ``loader(num_workers="auto")`` uses it from now
        on, in any process (``docs/tuned_settings.md``).
    dali : bool
        Whether to measure NVIDIA DALI (the extra ``dali``) too, with the chosen number of workers.
        It is a row of the result and never the choice, as its pixels differ a little: only
        ``backend="dali"`` uses it.
    progress : bool, optional
        Whether to show a bar on standard error; by default if that is a terminal.
    **options
        Options of `fastdata.loader`, for a dataset: ``transform``, ``collate_fn``...  By default
        the order is shuffled and an incomplete batch dropped.

    Returns
    -------
    TuningResult
        After Ctrl-C, the measurements so far, with `complete` False.

    Raises
    ------
    OptionError
        If an argument cannot be used.
    MissingExtraError
        If `dali` is true and DALI is not installed.
    WorkerError
        If no settings have a rate, or the step fails; `__cause__` is the exception, if there is
        one.
    KeyboardInterrupt
        If nothing has been measured yet.

    Notes
    -----
    Data and transforms are sent to a measuring process, which is started by spawn: a script needs
    its ``if __name__ == "__main__":``.  Data that cannot be pickled are measured in this process,
    where a trial that dies or hangs ends everything; `notes` has the reason.

    For one thread at a time; not for forked processes.

    Examples
    --------
    >>> result = fastdata.tune_workers("train.lmdb", batch_size=256, step_ms=42)  # doctest: +SKIP
    >>> print(result.settings, result.verdict)                                    # doctest: +SKIP
    """
    _check(step, step_ms, seconds, max_workers, trial_seconds)
    if dali and not dali_is_installed():
        raise MissingExtraError(f"dali=True needs NVIDIA DALI: {install_line('dali')}")
    # Raises where the script is missing, before anything is started.
    is_script = is_script_target(data)
    if step_ms is not None:
        step = SleepStep(step_ms / 1e3)
    portable = step is None or isinstance(step, (str, SleepStep))
    if device is None and isinstance(step, str) and torch.cuda.is_available():
        device = "cuda"
    place = None if device is None else str(device)
    options |= {"batch_size": batch_size, "device": place}
    spec = WorkloadSpec(data, options, step if portable else None, place)
    budget = TimeBudget(seconds)

    @functools.cache
    def local() -> LocalRunner:
        return LocalRunner(TunedWorkload, replace(spec, step=step))

    with ProgressBar(budget, progress) as bar:
        bar.show("starting")
        runner, info, why = open_runner(
            TunedWorkload, spec, local, must_be_sent=is_script, seconds=trial_seconds
        )
        bar.write(info.notes)
        notes: list[str] = []
        if why:
            notes.append(
                f"measured in this process, as the data cannot be sent to another ({why}): a "
                "trial that dies or hangs ends this one"
            )
        with closing(runner):
            common = info, budget, trial_seconds, bar.show
            session = Session(
                Trials(runner, *common), StepRuns(runner if portable else local(), *common)
            )
            result = _tune(
                session,
                budget,
                what=info.step if portable else step_name(step, "the step "),
                max_workers=max_workers,
                dali=dali,
                notes=notes,
            )
    if not keep:
        return result
    return _keep(result, info.key, complete=not session.trials.cut_short)


def _check(
    step: Any, step_ms: float | None, seconds: float, max_workers: int | None, trial_seconds: float
) -> None:
    if step is not None and step_ms is not None:
        raise OptionError("step and step_ms: give the step, or its length")
    if isinstance(step, str) and step not in MODELS:
        raise OptionError(f"step is a callable or one of {', '.join(MODELS)}, not {step!r}")
    if step is not None and not isinstance(step, str) and not callable(step):
        raise OptionError(f"step is called with each batch, but {step!r} is no callable")
    check_float("tune.seconds", seconds)
    check_float("trial_seconds", trial_seconds)
    if step_ms is not None:
        check_float("step_ms", step_ms)
    if max_workers is not None:
        check_int("max_workers", max_workers)


# -- measuring ------------------------------------------------------------------------------


def _tune(
    session: Session,
    budget: TimeBudget,
    *,
    what: str,
    max_workers: int | None,
    dali: bool,
    notes: list[str],
) -> TuningResult:
    """Measure, and choose."""
    cores = cores_of_rank()
    most = max_workers or cores
    budget.begin()  # an interpreter and torch take seconds to start
    cache_state = session.trials.warm(most)
    from_cache = session.stay_in_cache()
    complete, settings, store = True, None, None
    try:
        if what:
            _measure_demand(session, what, most)
        limit = max_workers or MORE_THAN_CORES * cores
        session.sweep(most, limit, ["thread", "process"])
        if dali:
            session.compare_dali()
        settings = session.confirm_choice()
        session.train_curve(settings)
        store = store_result(session.trials, session.rate, from_cache=from_cache)
    except KeyboardInterrupt:
        complete = False
        if not session.rates:
            raise
    if settings is None or settings not in dict(session.rates):
        settings = session.choice()
    if settings is None:
        raise WorkerError(
            "no settings could be measured: "
            + "; ".join(f"{row.settings}: {row.failure}" for row in session.trials.rows())
        )
    return _result_of(
        session,
        settings,
        cores=cores,
        complete=complete,
        cache_state=cache_state,
        notes=notes,
        store=store,
    )


def _measure_demand(session: Session, what: str, most: int) -> None:
    try:
        session.runs.measure_demand(what, most)
    except TrialFailedError as error:
        if error.refused is not None:
            raise error.refused from None
        raise WorkerError(f"{what} cannot be measured: {error}") from error.__cause__


class ProgressBar:
    """A bar of seconds on standard error, with the current measurement; a context.

    With `shown` None, only if standard error is a terminal.
    """

    def __init__(self, budget: TimeBudget, shown: bool | None) -> None:
        self._budget = budget
        self._bar = tqdm(
            total=round(budget.total),
            desc="tuning",
            disable=None if shown is None else not shown,
            leave=False,
            bar_format="{desc} |{bar}| {n:.0f} of at most {total} s{postfix}",
        )

    def show(self, text: str) -> None:
        """Show the current measurement."""
        self._bar.set_postfix_str(text, refresh=False)
        budget = self._budget
        self._bar.total = round(budget.total)  # which grows if a step is too slow for it
        self._bar.n = min(budget.used, budget.total)
        self._bar.set_description_str(f"tuning, {budget.left:.0f} s left", refresh=False)
        self._bar.refresh()

    def write(self, notes: Iterable[str]) -> None:
        """Write early notes, if the bar is shown."""
        for note in notes:
            if not self._bar.disable:
                self._bar.write(f"fastdata: {printable(note)}", file=sys.stderr)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()


# -- the result -----------------------------------------------------------------------------


def _result_of(
    session: Session,
    settings: Settings,
    *,
    cores: int,
    complete: bool,
    cache_state: str,
    notes: list[str],
    store: StoreResult | None,
) -> TuningResult:
    """Return the result of a session that has chosen `settings`: with verdict and advice."""
    info, trials, runs = session.info, session.trials, session.runs.trained
    rates = dict(session.rates)
    rows = tuple(replace(row, trained=runs.get(row.settings)) for row in trials.rows())
    demand, trained = session.rate, runs.get(settings)
    # What is read for the first time only now was not in memory when measuring began.
    cache_state = cache_state or ("cold" if trials.reads_storage else "warm")
    top, highest = best(session.rates)
    saturates, verdict = verdict_of(
        settings,
        rates[settings],
        demand=demand,
        trained=trained,
        best=highest,
        batch_size=info.batch_size,
        more=_of_more_workers(rows, settings),
        epoch=info.batches if info.base.backend == "torch" else None,
    )
    if store is not None and info.store is not None:
        notes += notes_on_store(store, info.store, demand, info.batch_size)
        verdict += _of_store(store, demand)
    advice: tuple[str, ...] = ()
    if demand is not None and not saturates:
        advice = advice_for(
            info,
            cores=cores,
            cache_state=cache_state,
            available_bytes=available_bytes(),
            factor=demand / highest.median,
            grew=_grew(rates, top),
            workers=top.num_workers,
        )
    return TuningResult(
        settings,
        verdict,
        saturates,
        info.batch_size,
        session.runs.demand,
        trained,
        rows,
        advice,
        complete,
        cache_state,
        notes=(*notes, *info.notes, *session.notes),
        transforms=info.transforms,
        store=store,
    )


def _of_store(store: StoreResult, demand: float | None) -> str:
    """Return the end of a verdict where less comes out of the store than the step takes."""
    comes = store.batches_per_second
    if demand is None or comes is None or comes >= demand:
        return ""
    return f"; out of the store come {comes:.4g} batches/s, with {store.streams} streams"


def _of_more_workers(rows: tuple[Trial, ...], settings: Settings) -> str:
    """Return what became of more workers than the chosen ones."""
    more = [row for row in rows if row.settings.num_workers > settings.num_workers]
    if any(row.supply is not None for row in more):
        return "bring no more"
    return "failed" if more else "were not tried"


def _grew(rates: dict[Settings, Rate], top: Settings) -> bool:
    """Return whether fewer workers than those of the best gave clearly less."""
    fewer = [rate.high for one, rate in rates.items() if one.num_workers < top.num_workers]
    return bool(fewer) and max(fewer) < rates[top].low


def _keep(result: TuningResult, key: Key | None, *, complete: bool) -> TuningResult:
    """Store a result, and return it with the properties of its data, or why it is not stored."""
    if key is None:
        note = (
            'not kept: loader(num_workers="auto") would not know when it fits; give these settings '
            "to the loader, or the dataset an attribute `digest` (docs/tuned_settings.md)"
        )
        return replace(result, notes=(*result.notes, note))
    result = replace(result, machine=key.machine)
    if not result.complete:
        note = "not kept: it was stopped before its end"
    elif result.store is not None and result.store.read_from == "network":
        note = "not kept: settings were measured while images were downloaded"
    elif _only_failed_with_workers(result):
        note = (
            "not kept: every setting with workers failed (the reasons are above), which may be "
            "different another time"
        )
    elif not complete:
        note = "not kept: the time was up before all numbers of workers had a turn: more seconds"
    elif (path := store.save(key, _tuned_settings(result, key))) is None:
        note = f"not kept: {store.directory()} cannot be written"
    else:
        log.info("kept as %s", path)
        return result
    return replace(result, notes=(*result.notes, note))


def _only_failed_with_workers(result: TuningResult) -> bool:
    """Return whether all that is known of workers is that they failed."""
    tried = [trial for trial in result.trials if trial.settings.num_workers]
    return bool(tried) and all(trial.supply is None for trial in tried)


def _tuned_settings(result: TuningResult, key: Key) -> TunedSettings:
    """Return the stored part of a result; earlier measurements of streams stay."""
    streams = None if result.store is None else result.store.streams
    if streams is None and (before := store.find(key)) is not None:
        streams = before.tuned.streams
    rates = {one.settings: one.supply for one in result.trials if one.supply is not None}
    chosen = rates.get(result.settings)
    return TunedSettings(
        result.settings,
        result.batch_size,
        result.verdict,
        result.saturates,
        None if chosen is None else chosen.median,
        None if result.demand is None else result.demand.rate.median,
        tuple(
            Point(one.num_workers, rate.median)
            for one, rate in curve(rates.items(), result.settings)
        ),
        streams,
    )
