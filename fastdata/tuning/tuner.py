"""`tune_workers`: which settings keep a training step busy on this machine.

    data, step --> Recipe --> ProcessRunner --> Session --> TuningResult

The module has another name than the function: importing it would put a module where the package
has the function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from fastdata.engine.cores import available_cores, local_processes
from fastdata.errors import OptionError, WorkerError
from fastdata.steps import SleepStep
from fastdata.steps.models import MODELS
from fastdata.tuning.budget import Budget
from fastdata.tuning.outcome import kept, result_of
from fastdata.tuning.progress import Progress
from fastdata.tuning.results import TuningResult
from fastdata.tuning.runner import (
    Runner,
    TrialFailedError,
)
from fastdata.tuning.runners import Runners
from fastdata.tuning.scripts import names_function
from fastdata.tuning.session import Session
from fastdata.tuning.subject import Facts, Recipe, called

__all__ = ["MORE_THAN_CORES", "cores_of_rank", "tune_workers"]


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
    progress: bool | None = None,
    **options: Any,
) -> TuningResult:
    """Find the loader settings that keep a training step busy, by measurement.

    First how fast the step consumes batches that are on its device already; then how fast
    batches come with one `Settings` after another, each in a process that is not this one.
    Chosen is the cheapest (fewest workers, then least memory, as predicted) whose supply is
    at least 1.1 times the demand at the lower end of its 95% interval; where none is, the
    cheapest of those that cannot be told from the best.  In the end the step is run with them.
    ``docs/tune.md`` tells how it is measured.

    Parameters
    ----------
    data : path, Dataset, Loader, torch Dataset, DataLoader, CUDAPrefetcher or str
        What to load; or ``"train.py:build"``, a function that returns one of these, or a pair
        of that and a step.
    batch_size : int, optional
        For a dataset; by default 256, or its length.  A loader has its own.
    step : callable or {"resnet18", "resnet50", "vit_s"}, optional
        Called with each batch, in this process; or the name of a model that is trained.
        Without any the goal is the most that there is.
    step_ms : float, optional
        The step's length in milliseconds, in place of `step`.
    device : torch.device or str, optional
        Where batches arrive, as of `fastdata.loader`; with the name of a model by default the
        GPU, if there is one.
    seconds : float
        How long to measure, from 1 up, the run with the step included; starting takes some
        more.  The longer, the narrower are the intervals.  Where a step is too slow for it,
        how much more it takes is a warning before settings are tried.
    max_workers : int, optional
        By default the cores that this process may use (affinity, cgroup quota), divided by
        ``LOCAL_WORLD_SIZE``; up to four times as many where the rate still grows.
    trial_seconds : float
        After which a single turn is given up.
    keep : bool
        Whether a complete result is kept, so that ``loader(num_workers="auto")`` uses it from
        now on, in any process (``docs/tuned_settings.md``).
    progress : bool, optional
        Whether to show a bar on standard error; by default where that is a terminal.
    **options
        Of `fastdata.loader`, for a dataset: ``transform``, ``collate_fn``...  Order is
        shuffled and an incomplete batch left out unless they say otherwise.

    Returns
    -------
    TuningResult
        After a Ctrl-C what was measured so far, with `complete` False.

    Raises
    ------
    OptionError
        If an argument cannot be used.
    WorkerError
        If no settings have a rate, or the step fails; `__cause__` is the reason, where it is
        an exception.
    KeyboardInterrupt
        If nothing has been measured yet.

    Notes
    -----
    Data and transforms are sent to the process that measures, which is started by spawn: a
    script needs its ``if __name__ == "__main__":``.  What cannot be pickled is measured in this
    process, where a trial that dies or hangs does so for all; `notes` says it.

    For one thread at a time; not for forked processes.

    Examples
    --------
    >>> result = fastdata.tune_workers("train.lmdb", batch_size=256, step_ms=42)  # doctest: +SKIP
    >>> print(result.settings, result.verdict)                                    # doctest: +SKIP
    """
    _check(step, step_ms, seconds, max_workers, trial_seconds)
    names_function(data)  # one that is missing is said before anything is started
    if step_ms is not None:
        step = SleepStep(step_ms / 1e3)
    portable = step is None or isinstance(step, (str, SleepStep))
    if device is None and isinstance(step, str) and torch.cuda.is_available():
        device = "cuda"
    place = None if device is None else str(device)
    given = {"batch_size": batch_size, "device": place, **options}
    recipe = Recipe(data, given, step if portable else None, place)
    budget = Budget(seconds)
    notes: list[str] = []
    here = replace(recipe, step=step)
    with (
        Progress(budget, progress) as bar,
        closing(Runners(recipe, here, trial_seconds, notes, bar.say)) as runners,
    ):
        result, whole = _tuned(
            runners.loaders,
            runners.steps if portable else runners.local(),
            runners.facts,
            budget,
            what="" if portable else called(step),
            max_workers=max_workers,
            trial_seconds=trial_seconds,
            notes=notes,
            say=bar.say,
        )
    return kept(result, runners.facts.key, whole) if keep else result


def cores_of_rank() -> int:
    """Return the cores for workers of this process: those it may use, shared out over ranks."""
    return max(1, available_cores() // local_processes())


def _tuned(
    runner: Runner,
    steps: Runner,
    facts: Facts,
    budget: Budget,
    *,
    what: str,
    max_workers: int | None,
    trial_seconds: float,
    notes: list[str],
    say: Callable[[str], None],
) -> tuple[TuningResult, bool]:
    """Measure, and choose; return also whether all numbers of workers had a turn."""
    cores = cores_of_rank()
    most = max_workers or cores
    what = what or facts.step
    budget.begin()  # an interpreter and torch take seconds to start, and say nothing
    session = Session(runner, steps, facts, budget, trial_seconds=trial_seconds, say=say)
    cache = session.warm(most)
    complete, settings = True, None
    try:
        if what:
            _demanded(session, what, most)
        session.sweep(
            most,
            max_workers or MORE_THAN_CORES * cores,
            ["thread", "process"],
        )
        settings = session.settle()
    except KeyboardInterrupt:
        complete = False
        if not session.rates:
            raise
    if settings is None or settings not in dict(session.rates):
        settings = session.choice()
    if settings is None:
        raise WorkerError(
            "no settings could be measured: "
            + "; ".join(f"{trial.settings}: {trial.failure}" for trial in session.turns.trials())
        )
    result = result_of(session, settings, cores=cores, complete=complete, cache=cache, notes=notes)
    return result, not session.turns.cut_short


def _demanded(session: Session, what: str, most: int) -> None:
    try:
        session.measure_demand(what, most)
    except TrialFailedError as error:
        if error.refused is not None:
            raise error.refused from None
        raise WorkerError(f"{what} cannot be measured: {error}") from error.__cause__


def _check(
    step: Any, step_ms: float | None, seconds: float, max_workers: int | None, trial_seconds: float
) -> None:
    if step is not None and step_ms is not None:
        raise OptionError("step and step_ms: give the step, or its length")
    if isinstance(step, str) and step not in MODELS:
        raise OptionError(f"step is a callable or one of {', '.join(MODELS)}, not {step!r}")
    if step is not None and not isinstance(step, str) and not callable(step):
        raise OptionError(f"step is called with each batch, but {step!r} is no callable")
    if not 1 <= seconds < math.inf:
        raise OptionError(f"seconds is the time to measure in, 1 or more, not {seconds!r}")
    if not trial_seconds > 0:
        raise OptionError(f"trial_seconds is a number above 0, not {trial_seconds!r}")
    if max_workers is not None and max_workers < 1:
        raise OptionError(f"max_workers is an int from 1 up, not {max_workers!r}")
