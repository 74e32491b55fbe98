"""What would be if: a small model of a pipeline, fitted to what was measured.

    seconds a batch = the longest of
        what workers share / workers + contention     they work side by side, and wait for
                                                      each other: locks, memory, the disk
        all that needs a core / cores
        what the loop does itself + the step          one after the other
        what has a thread or stream of its own        a copy that is sent ahead

Without workers everything is one after the other.  Stages are measured one by one, in one
worker with nothing beside it.  Together they are slower, by what they do to each other, or
faster, where the system reads ahead.  So one number is fitted, such that the model gives the
rate that was measured: what several workers lose to each other is contention, which more of
them do not shorten (Amdahl's law); one worker, none, or faster ones are scaled.  Where workers
are far from being the limit, it is what the loop does itself that is scaled; and where that is
too little to be the reason, the rest is a stage of its own, "load": it is nobody else's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fastdata.profiling.costs import (
    Cost,
    copies,
    copying_seconds,
    own_seconds,
    shared_seconds,
)

__all__ = ["MAX_WORKERS", "Model"]

MAX_WORKERS, MAX_WORKERS_A_CORE = 64, 4
"""More are not considered: what they wait for beside each other (a disk, cores that others use)
was measured of far fewer.  Four a core is what ``tune-workers`` tries, too."""

ENOUGH = 0.03
"""Share of its time that a step may wait and still count as fed."""

FAR = 1.5
"""Workers that would be ready in two thirds of the time are not what is waited for."""

EXPLAINS, EXPLAINS_ALL = 2.0, 4.0
"""What the loop does takes up to so many times as long beside workers, and what it does without
any, on cores that others use too; a longer time has another reason (a sampler, a lock), unless it
is a small part of all."""

SMALL = 0.05
"""Of the time a batch takes: what is not worth a stage of its own."""


@dataclass(frozen=True, slots=True)
class Model:
    """A pipeline of stages and a step.

    Attributes
    ----------
    costs : tuple of Cost
        All but the step.
    step : float
        Seconds a step, on batches that are there already.
    step_cpu : float
        Seconds on cores, of all its threads, a step.
    workers, cores : int
    scale : float
        Of what workers do.
    contention : float
        Seconds a batch that workers lose to each other.
    loop_scale : float
        Of what the loop does itself but for copying, where there are workers.
    core_scale : float
        Of what needs a core: others may have some of the cores, or two of them share one.
    """

    costs: tuple[Cost, ...]
    step: float
    workers: int
    cores: int
    step_cpu: float = 0.0
    scale: float = 1.0
    contention: float = 0.0
    loop_scale: float = 1.0
    core_scale: float = 1.0

    def fitted(self, seconds: float, loop: float = 0.0) -> Model:
        """Return the model that gives the time that was measured.

        Parameters
        ----------
        seconds : float
            A batch, with the real loader and the step.
        loop : float
            Of these, on a core in the loop's thread while it took a batch from the loader: what
            it does itself, where there are workers.
        """
        loading = shared_seconds(self.costs)
        if not self.workers:
            inline = loading + own_seconds(self.costs)
            if not inline:
                return self
            taken = max(seconds - self.step - copying_seconds(self.costs), 0.0)
            if _beyond(taken, EXPLAINS_ALL * inline, seconds):
                return self._with_load(taken - inline)
            return replace(self, scale=taken / inline)
        made = self
        if loop > own_seconds(self.costs):
            made = self._with_busy_loop(loop, seconds)
        return made._with_workers_fitted(seconds)

    def _with_busy_loop(self, busy: float, seconds: float) -> Model:
        """Return the model whose loop itself takes so long, of so many seconds a batch."""
        own = own_seconds(self.costs)
        if _beyond(busy, EXPLAINS * own, seconds):
            return replace(self, loop_scale=1.0)._with_load(busy - own)
        return replace(self, loop_scale=busy / own) if own else self

    def _with_load(self, seconds: float) -> Model:
        """Return the model with a stage of the loop that was not measured by itself."""
        return replace(self, costs=(*self.costs, Cost("load", seconds, False)))

    def _with_workers_fitted(self, seconds: float) -> Model:
        loading, own = shared_seconds(self.costs), own_seconds(self.costs)
        if not loading:
            return self
        needed = seconds * self.workers / loading
        others = self._loop(self.costs) + self.step
        # Where workers are not what is waited for, all that is known is that they keep up.
        if needed > 1 and seconds <= 1.05 * max(others, loading / self.workers):
            return self
        # Nor where it is something with a thread or stream of its own.
        alone = max((cost.seconds for cost in self.costs if cost.overlapped), default=0.0)
        if needed > 1 and seconds <= FAR * alone and alone > max(others, loading / self.workers):
            return self
        if needed > 1 and FAR * loading / self.workers < others:
            busy = seconds - self.step - (self._loop(self.costs) - self.loop_scale * own)
            return self._with_busy_loop(max(busy, 0.0), seconds)
        if needed > 1 and self.workers > 1:
            fitted = replace(self, contention=seconds - loading / self.workers)
            computed = sum(cost.cpu_seconds for cost in self.costs if cost.parallel)
            if self.workers >= self.cores and computed > loading / 2:
                # Each core has a worker that computes: more of them find no core.
                cores = fitted._terms(None, (), {})["cores"]
                return replace(fitted, core_scale=max(seconds / cores, 1.0))
            return fitted
        return replace(self, scale=needed)

    def period(
        self,
        workers: int | None = None,
        *,
        free: Collection[str] = (),
        factors: Mapping[str, float] | None = None,
    ) -> float:
        """Return seconds a batch.

        Parameters
        ----------
        workers : int, optional
            In place of those there are.
        free : collection of str
            Stages, "step" among them, that take no time.
        factors : mapping of str to float, optional
            By how much stages are longer.
        """
        return max(self._terms(workers, free, factors or {}).values())

    def binding(self) -> tuple[Cost, ...]:
        """Return the stages that the loop waits for: those of the longest term, the step aside."""
        terms = self._terms(None, (), {})
        if not self.workers:
            return self.costs
        longest = max(terms, key=lambda name: terms[name])
        if longest in ("workers", "cores"):
            return tuple(cost for cost in self.costs if cost.parallel)
        if longest == "loop":
            return tuple(c for c in self.costs if not (c.parallel or c.overlapped))
        return tuple(cost for cost in self.costs if cost.name == longest)

    def waiting(self, workers: int | None = None) -> float:
        """Return the share of the time, 0 to 1, that the step waits."""
        period = self.period(workers)
        return max(0.0, 1 - self.step / period) if period else 0.0

    @property
    def most_workers(self) -> int:
        """The most that anything is said of: four a core, or as many as there are."""
        return max(self.workers, min(MAX_WORKERS, MAX_WORKERS_A_CORE * max(self.cores, 1)))

    def workers_to_saturate(self) -> int | None:
        """Return how many workers feed the step; None where no number does, up to the most."""
        for workers in range(1, self.most_workers + 1):
            if self.waiting(workers) <= ENOUGH:
                return workers
        return None

    def best_workers(self) -> int:
        """Return the smallest number of workers that is within 1% of the best."""
        most = self.most_workers
        best = self.period(most)
        return next(n for n in range(1, most + 1) if self.period(n) <= 1.01 * best)

    def cores_to_saturate(self) -> float | None:
        """Return how many cores loading needs at the step's own rate.

        None where that is not known: without a step, or where loading is known as a whole only,
        by how long the loop waits for it.
        """
        measured = [cost for cost in self.costs if cost.name not in ("load", "pin", "copy")]
        if not (self.step and measured):
            return None
        return min(self.scale, 1.0) * sum(cost.cpu_seconds for cost in measured) / self.step

    def _terms(
        self, workers: int | None, free: Collection[str], factors: Mapping[str, float]
    ) -> dict[str, float]:
        workers = self.workers if workers is None else workers
        costs = [
            replace(
                cost,
                seconds=cost.seconds * factors.get(cost.name, 1.0),
                cpu_seconds=cost.cpu_seconds * factors.get(cost.name, 1.0),
            )
            for cost in self.costs
            if cost.name not in free
        ]
        step = 0.0 if "step" in free else self.step
        own: dict[str, float] = {cost.name: cost.seconds for cost in costs if cost.overlapped}
        if not workers:
            inline = sum(c.seconds for c in costs if not (c.overlapped or copies(c)))
            copying = copying_seconds(costs)
            return {"loop": self.scale * inline + copying + step, **own}
        step_cpu = 0.0 if "step" in free else self.step_cpu
        loading, all_loading = shared_seconds(costs), shared_seconds(self.costs)
        # Who has less to do is in others' way less.
        lost = self.contention * loading / all_loading if all_loading and workers > 1 else 0.0
        return {
            "workers": self.scale * loading / workers + lost,
            "cores": self.core_scale
            * (min(self.scale, 1.0) * sum(cost.cpu_seconds for cost in costs) + step_cpu)
            / max(self.cores, 1),
            "loop": self._loop(costs) + step,
            **own,
        }

    def _loop(self, costs: Collection[Cost]) -> float:
        """Return what the loop does itself, the step aside."""
        copying = copying_seconds(costs)
        return self.loop_scale * own_seconds(costs) + copying


def _beyond(taken: float, explained: float, seconds: float) -> bool:
    """Return whether the loop takes longer than can be explained, of so many seconds a batch."""
    return taken - explained > SMALL * seconds
