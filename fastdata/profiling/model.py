"""A small model of a loading pipeline, fitted to measurements: how fast it would be if changed.

    seconds a batch = the longest of
        what workers share / workers + contention     they work side by side, and wait for
                                                      each other: locks, memory, the disk
        all that needs a core / the share of cores    other processes take theirs
        what the loop does itself + the step          one after the other
        what has a thread or stream of its own        a copy that is sent ahead

Without workers everything is one after the other.  Stages are measured one by one, in one
worker with nothing beside it.  Together they are slower, because of what they do to each other,
or faster, where the system reads ahead.  So one number is fitted, such that the model gives the
rate that was measured: what several workers lose to each other is contention, which more of
them do not shorten (Amdahl's law); one worker, none, or faster ones are scaled.  Where workers
are far from being the limit, what the loop does itself is scaled; and where that is too little to
be the reason, the rest is a stage of its own, "load", so that no other stage is blamed.

A system shares its cores out evenly among the threads that want one.  So k threads of this process
beside others, who keep m cores busy, get k / (k + m) of all cores, where there are too few.  Where
a tuning was kept, what it measured of some numbers of workers takes the place of their term.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fastdata.profiling.report import StageName

__all__ = [
    "ENOUGH",
    "LEAST_GAIN_OF_WORKERS",
    "OF_WINDOWS",
    "Cost",
    "LoaderCosts",
    "Model",
    "hand_over_costs",
]

MAX_WORKERS, MAX_WORKERS_A_CORE = 64, 4
"""More are not considered: what they wait for beside each other (a disk, cores that others use)
was measured of far fewer.  ``tune-workers`` tries four a core, too."""

LEAST_GAIN_OF_WORKERS = 1.1
"""The model predicts no better than this how workers slow each other down."""

ENOUGH = 0.03
"""Share of its time that a step may wait and still count as fed."""

FAR = 1.5
"""Workers that would be ready in two thirds of the time are not what is waited for."""

EXPLAINS, EXPLAINS_ALL = 2.0, 4.0
"""The loop's own work takes up to so many times as long beside workers, and without any, on cores
that others use too; a longer time has another reason (a sampler, a lock), unless it is a small part
of all."""

OF_WINDOWS = "copy", "download"
"""Stages whose waiting in the loop is measured as such."""

SMALL = 0.05
"""Share of a batch's time that is not worth a stage of its own."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stage takes: seconds a batch, and how many of them on a core.

    Workers share a `parallel` cost; an `overlapped` one has a thread or stream of its own; the
    loop itself pays all others.
    """

    name: StageName
    seconds: float
    parallel: bool
    cpu_seconds: float = 0.0
    overlapped: bool = False

    def times(self, factor: float) -> Cost:
        """Return the cost of a stage that takes so many times as long."""
        return replace(self, seconds=factor * self.seconds, cpu_seconds=factor * self.cpu_seconds)


@dataclass(frozen=True, slots=True)
class LoaderCosts:
    """What measuring a loader's stages one by one gives.

    `lines` are the user's lines that take most of a stage, by its name; `overhead` is the share of
    the times that was taken off because recording them cost it.
    """

    costs: tuple[Cost, ...] = ()
    lines: dict[str, str] = field(default_factory=dict)
    overhead: float = 0.0
    notes: tuple[str, ...] = ()


def hand_over_costs(seconds: float, busy: float) -> list[Cost]:
    """Return the costs of a batch's way from a worker to the loop, which is `busy` for a part.

    The rest passes while workers make the next one.
    """
    busy = min(busy, seconds)
    return [
        Cost("hand over", busy, False, busy),
        Cost("hand over", seconds - busy, False, overlapped=True),
    ]


def _shared_seconds(costs: Iterable[Cost]) -> float:
    """Return what workers share."""
    return sum(cost.seconds for cost in costs if cost.parallel)


def _loop_costs(costs: Iterable[Cost]) -> list[Cost]:
    return [cost for cost in costs if not (cost.parallel or cost.overlapped)]


def _own_seconds(costs: Iterable[Cost]) -> float:
    """Return what the loop does itself, apart from the step and what the windows measure."""
    return sum(cost.seconds for cost in _loop_costs(costs) if cost.name not in OF_WINDOWS)


def _windows_seconds(costs: Iterable[Cost]) -> float:
    """Return what the loop waits for copies and downloads.

    It is measured by the windows themselves, and needs no scale.
    """
    return sum(cost.seconds for cost in _loop_costs(costs) if cost.name in OF_WINDOWS)


@dataclass(frozen=True, slots=True)
class Model:
    """A pipeline of stages and a step."""

    costs: tuple[Cost, ...]
    """All but the step."""
    step: float
    """Seconds a step, on batches that are there already."""
    workers: int
    cores: int
    step_cpu: float = 0.0
    """Seconds on cores, of all its threads, a step."""
    scale: float = 1.0
    """Of what workers do."""
    contention: float = 0.0
    """Seconds a batch that workers lose to each other."""
    loop_scale: float = 1.0
    """Of what the loop does itself apart from copying, where there are workers."""
    core_scale: float = 1.0
    """Of what needs a core: it may be slow memory that two of them share."""
    others: float = 0.0
    """Cores that other processes keep busy."""
    supplied: Mapping[int, float] = field(default_factory=dict)
    """Seconds a batch that some numbers of workers were measured to take, with no step beside."""

    def fitted(self, seconds: float, loop: float = 0.0) -> Model:
        """Return the model that gives the measured seconds a batch, with real loader and step.

        `loop` is what the loop does itself of these, where there are workers: seconds on a core
        in its thread while it took a batch from the loader.
        """
        if self.workers:
            busy = self._with_busy_loop(loop, seconds) if loop > _own_seconds(self.costs) else self
            return busy._with_workers_fitted(seconds)
        inline = _shared_seconds(self.costs) + _own_seconds(self.costs)
        if not inline:
            return self
        loading = max(seconds - self.step - _windows_seconds(self.costs), 0.0)
        if loading - EXPLAINS_ALL * inline > SMALL * seconds:
            return self._with_load(loading - inline)
        return replace(self, scale=loading / inline)

    def _with_busy_loop(self, busy: float, seconds: float) -> Model:
        """Return the model whose loop is itself busy for so long, of so many seconds a batch."""
        own = _own_seconds(self.costs)
        if busy - EXPLAINS * own > SMALL * seconds:
            return replace(self, loop_scale=1.0)._with_load(busy - own)
        return replace(self, loop_scale=busy / own) if own else self

    def _with_load(self, seconds: float) -> Model:
        """Return the model with a stage of the loop that was not measured by itself."""
        return replace(self, costs=(*self.costs, Cost("load", seconds, False)))

    def _with_workers_fitted(self, seconds: float) -> Model:
        loading, own = _shared_seconds(self.costs), _own_seconds(self.costs)
        if not loading:
            return self
        needed = seconds * self.workers / loading
        if needed <= 1:
            return replace(self, scale=needed)
        others = self._loop_seconds(self.costs) + self.step
        waited_for = max(others, loading / self.workers)
        # Where workers are not what is waited for, it is only known that they keep up.
        if seconds <= 1.05 * waited_for:
            return self
        # The same where something with a thread or stream of its own is waited for.
        alone = max((cost.seconds for cost in self.costs if cost.overlapped), default=0.0)
        if seconds <= FAR * alone and alone > waited_for:
            return self
        if FAR * loading / self.workers < others:
            busy = seconds - self.step - (self._loop_seconds(self.costs) - self.loop_scale * own)
            return self._with_busy_loop(max(busy, 0.0), seconds)
        if self.workers == 1:
            return replace(self, scale=needed)
        model = replace(self, contention=seconds - loading / self.workers)
        computed = sum(cost.cpu_seconds for cost in self.costs if cost.parallel)
        if self.workers >= self.cores and computed > loading / 2:
            # Each core has a worker that computes: more of them find no core.
            return replace(model, core_scale=max(seconds / model._terms()["cores"], 1.0))
        return model

    def period(
        self, workers: int | None = None, *, factors: Mapping[str, float] | None = None
    ) -> float:
        """Return seconds a batch, perhaps with another number of workers.

        Stages in `factors`, "step" among them, take so many times as long.
        """
        return max(self._terms(workers, factors).values())

    def binding(self) -> tuple[Cost, ...]:
        """Return the costs that the loop waits for: those of the longest term, without the step."""
        if not self.workers:
            return self.costs
        terms = self._terms()
        longest = max(terms, key=lambda name: terms[name])
        if longest in ("workers", "cores"):
            return tuple(cost for cost in self.costs if cost.parallel)
        if longest == "loop":
            return tuple(_loop_costs(self.costs))
        return tuple(cost for cost in self.costs if cost.name == longest)

    def waiting(self, workers: int | None = None) -> float:
        """Return the share of the time, 0 to 1, that the step waits."""
        period = self.period(workers)
        return max(0.0, 1 - self.step / period) if period else 0.0

    @property
    def most_workers(self) -> int:
        """The most that are considered: four a core, or as many as there are."""
        return max(self.workers, min(MAX_WORKERS, MAX_WORKERS_A_CORE * max(self.cores, 1)))

    def workers_to_saturate(self) -> int | None:
        """Return how many workers feed the step; None if no number does, up to the most."""
        return next((n for n in self._counts() if self.waiting(n) <= ENOUGH), None)

    def best_workers(self) -> int:
        """Return the smallest number of workers that is as good as the best, as far as is known."""
        enough = LEAST_GAIN_OF_WORKERS * min(map(self.period, self._counts()))
        return next(n for n in self._counts() if self.period(n) <= enough)

    def wanted_workers(self) -> int | None:
        """Return how many workers are worth trying; None where no more than there are."""
        if not any(cost.parallel for cost in self.costs):
            return None
        wanted = self.workers_to_saturate() or self.best_workers()
        gain = self.period() / self.period(wanted) if self.period(wanted) else 1.0
        return wanted if wanted > self.workers and gain >= LEAST_GAIN_OF_WORKERS else None

    def _counts(self) -> list[int]:
        """Return the numbers of workers that are considered: those that were measured, or all."""
        measured = sorted(n for n in self.supplied if n)
        return measured or list(range(1, self.most_workers + 1))

    def cores_to_saturate(self) -> float | None:
        """Return how many cores loading needs at the step's own rate.

        None where that is not known: without a step, or where loading is known as a whole only,
        by how long the loop waits for it.
        """
        measured = [cost for cost in self.costs if cost.name not in ("load", "pin", *OF_WINDOWS)]
        if not (self.step and measured):
            return None
        return min(self.scale, 1.0) * sum(cost.cpu_seconds for cost in measured) / self.step

    def _terms(
        self, workers: int | None = None, factors: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return the terms of which the longest is the period."""
        workers = self.workers if workers is None else workers
        factors = factors or {}
        costs = [cost.times(factors.get(cost.name, 1.0)) for cost in self.costs]
        step, step_cpu = (factors.get("step", 1.0) * s for s in (self.step, self.step_cpu))
        alone: dict[str, float] = {cost.name: cost.seconds for cost in costs if cost.overlapped}
        if not workers:
            inline = self.scale * (_shared_seconds(costs) + _own_seconds(costs))
            return {"loop": inline + _windows_seconds(costs) + step, **alone}
        loading, loading_now = _shared_seconds(costs), _shared_seconds(self.costs)
        by_workers = self.scale * loading / workers
        # Workers that have less to do are less in each other's way.
        if workers > 1 and loading_now:
            by_workers += self.contention * loading / loading_now
        if workers in self.supplied and loading_now:
            by_workers = self.supplied[workers] * loading / loading_now
        computed = min(self.scale, 1.0) * sum(cost.cpu_seconds for cost in costs) + step_cpu
        return {
            "workers": by_workers,
            "cores": self.core_scale * computed / self._cores_for(workers),
            "loop": self._loop_seconds(costs) + step,
            **alone,
        }

    def _cores_for(self, workers: int) -> float:
        """Return the cores that so many workers and the step have, beside other processes."""
        threads = max(workers + (self.step_cpu / self.step if self.step else 0.0), self.cores)
        return max(self.cores, 1) * threads / max(threads + self.others, self.cores, 1)

    def _loop_seconds(self, costs: Collection[Cost]) -> float:
        """Return what the loop does itself, apart from the step."""
        return self.loop_scale * _own_seconds(costs) + _windows_seconds(costs)
