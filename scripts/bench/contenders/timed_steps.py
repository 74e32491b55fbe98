"""Times the steps of a training loop from inside the loop, on request.

`timed(loader)` repeats the first four batches of a loader, and times the loop's work with each.
The first line on standard output tells that the loop is warm.  A line with a number N on standard
input then asks for N steps.  Each answer is a line of JSON: the mean seconds of a step by wall
time and by processor time.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

WARM_UP, UNTIMED = 7, 2
"""Untimed steps at the start, and after each pause."""


def few(loader: Iterable[Any]) -> list[Any]:
    """Return the first four batches: an epoch that is not timed."""
    return list(itertools.islice(loader, 4))


def timed(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; the process ends at the end of standard input."""
    batches = itertools.cycle(few(loader))
    answers = os.dup(1)
    os.dup2(2, 1)  # output of the script itself must not look like an answer
    yield from _run(batches, WARM_UP, 3, answers)
    for line in sys.stdin:
        yield from _run(batches, UNTIMED, int(line), answers)
    os._exit(0)


def _run(batches: Iterator[Any], untimed: int, steps: int, answers: int) -> Iterator[Any]:
    """Yield the batches of some steps, and write how long the timed ones took."""
    walls, cpus = [], []
    for number, batch in enumerate(itertools.islice(batches, untimed + steps)):
        wall, cpu = time.perf_counter(), time.process_time()
        yield batch
        if number >= untimed:
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    answer = {"wall": statistics.fmean(walls), "cpu": statistics.fmean(cpus)}
    os.write(answers, (json.dumps(answer) + "\n").encode())
