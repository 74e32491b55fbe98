"""Lines of the user's code: which one a stack is in, and where a stage spends its time.

A line is written ``FILE:LINE function``.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias, TypeVar

import torch

from fastdata.profiling.recorder import Recorder

__all__ = [
    "LineCounts",
    "LineSampler",
    "boundary",
    "heaviest_lines",
    "short_line",
    "source_of",
    "user_line",
]

LIBRARIES = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in (
        Path(__file__).resolve().parents[1],
        Path(__file__).resolve().parents[2] / "converters",
        Path(torch.__file__).parent,
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
    )
)

INTERACTIVE = "<stdin>", "<ipython-input", "<python-input"
"""Beginnings of the file names of code that is typed into Python and IPython."""

INTERVAL_SECONDS = 0.005
BLOCKED_SHARE = 0.2
"""A thread that was on a core for less of an interval counts as waiting."""

LineCounts: TypeAlias = dict[tuple[str, str], int]
"""How often each (stage, line) was seen."""

_BOUNDARIES: set[CodeType] = set()
_Function = TypeVar("_Function", bound=Callable[..., Any])


def boundary(function: _Function) -> _Function:
    """Mark a function of ours that calls the user's: `user_line` looks no further out."""
    _BOUNDARIES.add(function.__code__)
    return function


def user_line(frame: FrameType | None) -> str:
    """Return the line of the innermost frame of the user's code; "" without one.

    The user's code is what lies neither in torch, fastdata, Python's own library nor any
    ``site-packages``.  Files below the current folder are named relative to it.
    """
    while frame is not None:
        code = frame.f_code
        if code in _BOUNDARIES:
            break
        if _is_users(code.co_filename):
            # `co_qualname` exists from Python 3.11 on.
            name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            return f"{code.co_filename.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno} {name}"
        frame = frame.f_back
    return ""


@lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    if file.startswith("<"):  # "<frozen importlib>", "<string>" are not, but typed code is
        return file.startswith(INTERACTIVE)
    path = str(Path(file).resolve())
    if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
        return False
    return not path.startswith(LIBRARIES)


def short_line(line: str) -> str:
    """Return ``FILE:LINE function`` as ``function, FILE:LINE``, without folders."""
    place, _, name = line.partition(" ")
    place = os.path.basename(place)
    return f"{name}, {place}" if name and name != "<module>" else place


def source_of(line: str) -> str:
    """Return the source text of a ``FILE:LINE function``; "" where it cannot be read."""
    file, _, number = line.partition(" ")[0].rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


class LineSampler(threading.Thread):
    """A thread that looks every 5 ms at which line a recorder's thread is; a context.

    It takes the interpreter's lock each time, so times that are measured meanwhile are wrong.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(name="fastdata profile", daemon=True)
        self._recorder = recorder
        self._counts: Counter[tuple[str, str]] = Counter()
        self._stopped = threading.Event()

    def run(self) -> None:
        thread, kinds = self._recorder.thread, self._recorder.active
        clock = _cpu_clock(thread)
        before, cpu_before = time.perf_counter(), clock()
        while not self._stopped.wait(INTERVAL_SECONDS):
            kind = kinds[-1] if kinds else None
            line = user_line(sys._current_frames().get(thread))
            now, cpu = time.perf_counter(), clock()
            blocked = cpu - cpu_before < BLOCKED_SHARE * (now - before)
            before, cpu_before = now, cpu
            if kind is None or not line:
                continue
            if kind in ("sample", "load"):
                self._counts["read" if blocked else "decode", line] += 1
            else:
                self._counts[kind, line] += 1

    def counts(self) -> LineCounts:
        """Return what was seen so far."""
        return dict(self._counts.copy())

    def __enter__(self) -> LineSampler:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self.join()


def _cpu_clock(thread: int) -> Callable[[], float]:
    """Return a clock of another thread's seconds on a core; wall time where there is none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.perf_counter
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)


def heaviest_lines(counts: LineCounts) -> dict[str, str]:
    """Return the line at which each stage was seen most often."""
    return {stage: line for (stage, line), _ in reversed(Counter(counts).most_common())}
