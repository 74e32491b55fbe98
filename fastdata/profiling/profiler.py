"""`fastdata.profile`: what a training loop waits for, measured.

1  rates      the real loader, a cached host batch, cached device batches: in turns
2  timeline   a few steps more, in which workers tell what they are at
3  stages     the loader's own parts, one by one
4  stalls     one step under torch's modes
5  report     a model fitted to 1 and 3: what would be if; the verdict, and fixes
"""

from __future__ import annotations

import math
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from fastdata.engine.packed import Loader
from fastdata.errors import OptionError
from fastdata.profiling.batches import Batches
from fastdata.profiling.conclusion import Findings, conclude
from fastdata.profiling.copying import measure_copying, measure_transform
from fastdata.profiling.packed import measure_packed
from fastdata.profiling.parts import Parts
from fastdata.profiling.rates import measure_rates
from fastdata.profiling.report import Event, ProfileReport, Stall
from fastdata.profiling.source import Source
from fastdata.profiling.stalls import find_stalls
from fastdata.profiling.stock import measure_stock
from fastdata.profiling.subject import Subject, loader_of, random_state_kept, standing, told
from fastdata.profiling.tracing import trace
from fastdata.steps import Step

__all__ = ["profile"]

RATES_SHARE, TRACE_SHARE = 0.6, 0.08
"""Of the time, for windows, and for the timeline; the rest is for stages."""


def profile(
    loader: Any,
    step: Step | None = None,
    *,
    steps: int | None = None,
    seconds: float = 30.0,
    device: torch.device | str | None = None,
    batch_size: int = 32,
    progress: bool | None = None,
) -> ProfileReport:
    """Measure where the time of a training loop goes, and what would be gained by mending it.

    Parameters
    ----------
    loader : Loader, DataLoader, CUDAPrefetcher, dataset or any iterable of batches
        A dataset, packed or torch's, is loaded by `fastdata.loader`, shuffled.  Of a loader the
        next batches are used up; a `fastdata.Loader` afterwards begins where it would have.
    step : callable, optional
        Called with each batch, as the loader makes it, in the thread that calls this.  **It is
        really run**, as often as fits: give it a model that may be trained on.  Without one,
        what loading takes is measured, with nothing to compare it with.
    steps : int, optional
        With the real loader, in place of as many as fit in `seconds`.
    seconds : float
        For all of it, about; some batches are measured however long they take.
    device : torch.device or str, optional
        Where the step computes; by default where batches arrive, or ``step.device``, or the
        current GPU where CUDA is in use, else the CPU.
    batch_size : int
        For a dataset.
    progress : bool, optional
        A progress bar on standard error; by default where that is a terminal.

    Returns
    -------
    ProfileReport

    Raises
    ------
    OptionError
        If the loader has no batches, or is nothing to iterate over.
    Exception
        Whatever the loader or the step raises, as it is.

    Notes
    -----
    For one thread at a time: while stages of a `DataLoader` without workers are measured,
    functions of image libraries and ``open`` are replaced by ones that take the time (put back
    afterwards, whatever happens), and they are everybody's.  ``docs/profile.md`` describes
    measuring and model.

    Examples
    --------
    >>> report = fastdata.profile(loader, train_step)          # doctest: +SKIP
    >>> report.verdict                                         # doctest: +SKIP
    'input-bound: the step waits 38% of the time; decoding is the bottleneck; ...'
    """
    _check(steps, seconds, step)
    with (
        random_state_kept(),
        loader_of(loader, batch_size) as (given, notes),
        _bar(progress) as bar,
    ):
        subject, said = Subject.of(given, step, device)
        return _Profile(subject, bar, notes + said).run(steps, seconds)


class _Profile:
    """One run of `profile`."""

    def __init__(self, subject: Subject, bar: Any, notes: list[str]) -> None:
        self._subject = subject
        self._bar = bar
        self._notes = notes

    def run(self, steps: int | None, seconds: float) -> ProfileReport:
        """Measure everything."""
        subject, device = self._subject, self._subject.device
        step = _nothing if subject.step is None else subject.step  # it may be an empty container
        self._say("first batches")
        with standing(subject.inner), closing(Source(subject.loader)) as source:
            batches = Batches.of(source, device)
            rates = measure_rates(
                source,
                step,
                batches,
                device,
                seconds=RATES_SHARE * seconds,
                steps=steps,
                progress=self._say,
            )
        self._say("timeline")
        timeline = self._timeline(source, step, TRACE_SHARE * seconds) or tuple(rates.timeline)
        self._say("stages")
        parts = self._parts((1 - RATES_SHARE - TRACE_SHARE) * seconds)
        copying = measure_copying(subject, batches)
        if parts.costs:
            copying = copying.and_also(measure_transform(subject))
        self._say("stalls of the step")
        stalls = self._stalls(batches)
        return conclude(
            Findings(subject, source, batches, rates, parts, copying, stalls, timeline),
            self._notes,
        )

    def _timeline(self, source: Source, step: Step, seconds: float) -> tuple[Event, ...]:
        with standing(self._subject.inner):
            return trace(self._subject.loader, step, primed=source.primed, seconds=seconds)

    def _parts(self, seconds: float) -> Parts:
        inner = self._subject.inner
        if isinstance(inner, Loader):
            return measure_packed(inner, seconds)
        if isinstance(inner, DataLoader):
            if type(inner) is not DataLoader:
                self._notes.append(
                    f"stages are those of a DataLoader with the dataset, sampler and collate_fn of "
                    f"this {type(inner).__name__}"
                )
            return measure_stock(inner, seconds)
        note = f"of {type(inner).__name__} only waiting, copying and the step are known"
        return Parts(notes=(note,))

    def _stalls(self, batches: Batches) -> tuple[Stall, ...]:
        subject = self._subject
        if subject.step is None:
            return ()
        # As the step gets it: where it brings batches to the device itself, those are no
        # surprise, as they are the batch's.
        batch = batches.device[0] if batches.arrives else batches.host[0]
        try:
            return find_stalls(subject.step, batch, subject.device)
        except Exception as error:
            # It has run many times; under torch's modes some compiled steps do not.
            self._notes.append(
                "the step cannot be looked into for what makes the device wait: "
                f"{type(error).__name__}: {told(error, str)}"
            )
            return ()

    def _say(self, what: str) -> None:
        self._bar.set_description_str(what)
        self._bar.update()


def _check(steps: Any, seconds: Any, step: Any) -> None:
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise OptionError(f"steps is an int from 1 up, not {steps!r}")
    if not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise OptionError(f"seconds is a number above 0, not {seconds!r}")
    if step is not None and not callable(step):
        raise OptionError(f"step is called with a batch, but {told(step)} is no callable")


def _nothing(batch: Any) -> None:
    """The step of who has none."""


@contextmanager
def _bar(progress: bool | None) -> Any:
    disable = None if progress is None else not progress
    with tqdm(disable=disable, bar_format="{desc} [{elapsed}]", leave=False) as bar:
        yield bar
