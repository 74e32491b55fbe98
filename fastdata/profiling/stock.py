"""Stage by stage, of a stock DataLoader: what its samples, its collate and its queues take.

The loader is made anew, over the same dataset and sampler, with one worker that is given the
next batch when the one before has arrived: so nothing waits for anything but itself.

    period of a batch in the loop
    - what the worker took, by its own clock     read, decode, augment, collate
    - the sampler, where that is most of it      load: in the loop, whoever makes batches
    = hand over                                  of which the loop itself is busy with a part

Each batch brings its times along.  A second, unmeasured pass looks for the lines.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

from torch.utils.data import DataLoader

from fastdata.profiling.costs import Cost
from fastdata.profiling.lines import heaviest
from fastdata.profiling.parts import Parts, handing_over
from fastdata.profiling.recorder import Times, hook_seconds
from fastdata.profiling.remade import Remade, Timed
from fastdata.profiling.source import length_of

__all__ = ["measure_stock"]

LEAST_BATCHES = 3
MOST_BATCHES = 200
SAMPLER_SHARE = 0.5
"""Of a batch's time that is no worker's: a sampler which takes more is a stage."""

SLOW_SAMPLER_SECONDS = 0.001
"""A batch: what is quicker is not worth a stage."""

LINES_SHARE = 0.3
"""Of the time, for the pass that looks for lines."""


def measure_stock(loader: DataLoader[Any], seconds: float) -> Parts:
    """Return what the stages of a stock DataLoader take.

    Parameters
    ----------
    loader : DataLoader
        Is not iterated over itself, but its dataset and sampler are.
    seconds : float
        To take, about; some batches are measured however long they take.

    Raises
    ------
    Exception
        Whatever the dataset, the sampler or the collate function raises, as the loader would.

    Notes
    -----
    With worker processes everything is patched in theirs alone; without, in this one, and put
    back.
    """
    found, periods, loop, sampled = _run(loader, seconds * (1 - LINES_SHARE), sample=False)
    if not found:
        note = "the loader gives no batches when it is made anew: its stages are not known"
        return Parts(notes=(note,))
    times = [timed.times for timed in found]
    costs, overhead = _costs(times)
    notes = []
    gaps = [
        max(period - (one.ended - one.begun), 0.0)
        for period, one in zip(periods, times, strict=True)
    ]
    gap, busy, drawing = map(statistics.median, (gaps, loop, sampled))
    if drawing > max(SAMPLER_SHARE * gap, SLOW_SAMPLER_SECONDS):
        costs.append(Cost("load", drawing, False))
        notes.append(
            f'the sampler takes {drawing * 1e3:.3g} ms a batch, in the loop: this is called "load"'
        )
        gap, busy = max(gap - drawing, 0.0), max(busy - drawing, 0.0)
    if loader.num_workers:
        costs += handing_over(gap, busy)
    lines, *_ = _run(loader, seconds * LINES_SHARE, sample=True)
    # Those that a worker saw until then: where passes are short, of the one that lived longest.
    seen = max((one.lines for one in lines), key=lambda some: sum(some.values()), default={})
    where = heaviest(seen)
    if not any(one.wall["load"] or one.wall["decode"] for one in times):
        notes.append(
            "nothing that decodes images was recognised in __getitem__: what it computes "
            "outside of transforms is called decoding"
        )
    return Parts(tuple(costs), where, overhead, tuple(notes))


def _costs(times: list[Times]) -> tuple[list[Cost], float]:
    """Return costs of what makes batches, without that of the hooks, and the share of these."""
    per_hook = hook_seconds()
    stages = {name: 0.0 for name in times[0].stages()}
    overheads = []
    for one in times:
        total = sum(one.wall.values())
        hooks = min(one.hooks * per_hook, 0.9 * total)
        overheads.append(hooks / total if total else 0.0)
        for name, value in one.stages().items():
            # A note is taken at both ends of a stretch, so by share of time at worst.
            stages[name] += value * (1 - overheads[-1]) / len(times)
    computed = statistics.fmean(sum(one.cpu.values()) for one in times)
    # Reading waits; what is computed belongs to the others, by their share.
    others = sum(stages.values()) - stages["read"]
    costs = []
    for name, value in stages.items():
        if value > 0:
            cpu = 0.0 if name == "read" or not others else min(value, computed * value / others)
            costs.append(Cost(name, value, True, cpu))  # type: ignore[arg-type]
    return costs, statistics.fmean(overheads)


def _run(
    loader: DataLoader[Any], seconds: float, *, sample: bool
) -> tuple[list[Timed], list[float], list[float], list[float]]:
    """Return what came with some batches, the time from one to the next, the loop's own of it,
    and the sampler's.
    """
    make = Remade(loader, sample=sample)
    found: list[Timed] = []
    periods: list[float] = []
    loop: list[float] = []
    sampled: list[float] = []
    held: list[Any] = [None]
    deadline = time.perf_counter() + seconds
    with ExitStack() as stack:
        if not loader.num_workers:
            stack.enter_context(make.here())
        rebuilt = make.loader()
        while True:
            before = len(found)
            iterator = iter(rebuilt)
            first = True
            while len(found) < MOST_BATCHES:
                began, busy = time.perf_counter(), time.thread_time()
                drawn = make.sampled_seconds
                timed = next(iterator, None)
                if timed is None:
                    break
                # The memory of the one before is given back now, as in any loop.
                held[0], timed.batch = timed.batch, None
                now, core = time.perf_counter(), time.thread_time() - busy
                # The first brings the start of workers with it; a pass of one has no other.
                if not first or length_of(loader) < 2:
                    found.append(timed)
                    periods.append(now - began)
                    loop.append(core)
                    sampled.append(make.sampled_seconds - drawn)
                first = False
                if now > deadline and len(found) >= LEAST_BATCHES:
                    break
            held[0] = None
            del iterator
            enough = len(found) >= LEAST_BATCHES
            ended = len(found) >= MOST_BATCHES or time.perf_counter() > deadline
            if len(found) == before or (enough and ended):
                break
    return found, periods, loop, sampled
