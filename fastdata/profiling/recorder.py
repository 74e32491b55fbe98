"""Records how long one thread spends on each kind of work; each moment is counted once.

Time inside a nested activity belongs to the inner one: a file that is opened inside a transform
counts as reading.  One thread's work is recorded, in whichever process that is.

`hooks_installed` records ``builtins.open`` and ``os.read``, `LIBRARY_FUNCTIONS`, and the transforms
of a dataset and of those inside of ``Subset``, ``ConcatDataset`` and their like: it puts a recorded
function in the place of each.  Only libraries that are imported already are patched.  Names that
other modules have imported by ``from cv2 import imread`` stay as they were.  Other threads go
through the same functions, unrecorded.
"""

from __future__ import annotations

import builtins
import functools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fastdata.profiling.model import Cost
from fastdata.profiling.report import StageName

__all__ = [
    "Kind",
    "Recorder",
    "TimedCall",
    "Times",
    "hooks_installed",
    "recording",
    "stage_costs",
]

Kind: TypeAlias = Literal["read", "load", "decode", "sample", "augment", "collate"]
"""What is being done.

read       files are opened or read: all of its time is reading
load       a library opens and decodes a file: where the thread waits, it reads
decode     from bytes that are in memory
sample     the rest of what makes a sample: as "load"
augment    a transform
collate    samples are put together
"""

KINDS: tuple[Kind, ...] = ("read", "load", "decode", "sample", "augment", "collate")

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of Linux: nanoseconds on a core, nanoseconds waiting for one, and how often."""


@dataclass(slots=True)
class Times:
    """What making one batch took.

    `wall` and `cpu` are seconds by kind: by the clock, and of the thread on a core.  `begun` and
    `ended` are ``time.perf_counter``, which all processes of a Linux machine share.  `queued` are
    seconds in which the thread was ready, but others had the cores; `hooks` counts readings.
    """

    wall: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    cpu: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    begun: float = 0.0
    ended: float = 0.0
    queued: float = 0.0
    hooks: int = 0
    all_reading_recorded: bool = False
    """If not, waiting while a sample is made counts as reading."""

    def stages(self) -> dict[StageName, tuple[float, float]]:
        """Return seconds by the clock and on a core, of reading, decoding, augmenting, collating.

        Where not all reading is recorded, waiting while a sample is made is reading, except
        waiting for a core, which is left out.  The rest of making a sample is decoding.
        """
        wall, cpu = self.wall, self.cpu
        sample, waited = wall["sample"] + wall["load"], 0.0
        computed = cpu["sample"] + cpu["load"]
        if not self.all_reading_recorded:
            total = sum(wall.values())
            queued = self.queued * sample / total if total else 0.0
            waited = max(sample - computed - queued, 0.0)
            # Clocks of threads tick coarsely on some systems, and a page fault is no disk.
            waited = waited if waited > 0.02 * sample else 0.0
            sample = min(computed, sample - waited)
        return {
            "read": (wall["read"] + waited, cpu["read"]),
            "decode": (wall["decode"] + sample, cpu["decode"] + computed),
            "augment": (wall["augment"], cpu["augment"]),
            "collate": (wall["collate"], cpu["collate"]),
        }

    def recording_share(self) -> float:
        """Return the share of the time that recording itself took."""
        total = sum(self.wall.values())
        return min(self.hooks * hook_seconds() / total, 0.9) if total else 0.0

    def __add__(self, other: Times) -> Times:
        """Return the seconds and readings of both; `begun`, `ended` and `queued` of this one."""
        wall = {kind: self.wall[kind] + other.wall[kind] for kind in KINDS}
        cpu = {kind: self.cpu[kind] + other.cpu[kind] for kind in KINDS}
        return replace(self, wall=wall, cpu=cpu, hooks=self.hooks + other.hooks)


def stage_costs(batches: Sequence[Times], *, parallel: bool) -> tuple[list[Cost], float]:
    """Return the mean cost of each stage without that of recording, and recording's mean share."""
    seconds: dict[StageName, list[float]] = {}
    cpu_seconds: dict[StageName, list[float]] = {}
    shares = [times.recording_share() for times in batches]
    for times, share in zip(batches, shares, strict=True):
        for name, (wall, cpu) in times.stages().items():
            # Clocks are read at both ends of a stretch, so at worst in proportion to its time.
            seconds.setdefault(name, []).append(wall * (1 - share))
            cpu_seconds.setdefault(name, []).append(cpu * (1 - share))
    costs = [
        Cost(name, took, parallel, min(statistics.fmean(cpu_seconds[name]), took))
        for name, took in ((name, statistics.fmean(values)) for name, values in seconds.items())
        if took > 0
    ]
    return costs, statistics.fmean(shares)


class Recorder:
    """Records what the thread that made it does; other threads are not recorded.

    `active` are the kinds that are under way, the innermost last.  With
    `all_reading_recorded`, nothing is read but inside "read".
    """

    def __init__(self, *, all_reading_recorded: bool = False) -> None:
        self._new_times = functools.partial(Times, all_reading_recorded=all_reading_recorded)
        self.thread = threading.get_ident()
        self.active: list[Kind] = []
        self._times = self._new_times()
        self._wall = self._cpu = 0.0
        self._queued = 0.0

    def enter(self, kind: Kind) -> None:
        """Begin an activity, inside the one that is under way."""
        if not self._times.hooks:
            self._queued = _queued_seconds()
            self._times.begun = time.perf_counter()
        self._read_clocks()
        self.active.append(kind)

    def leave(self) -> None:
        """End the activity that was begun last."""
        self._read_clocks()
        self.active.pop()
        self._times.ended = self._wall

    def call(self, kind: Kind, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function and record it."""
        self.enter(kind)
        try:
            return function(*args, **kwargs)
        finally:
            self.leave()

    def records_here(self) -> bool:
        """Return whether a hook that is called now belongs to what is recorded."""
        return bool(self.active) and threading.get_ident() == self.thread

    def take(self) -> Times:
        """Return what was recorded since the last call, and begin anew."""
        times, self._times = self._times, self._new_times()
        if times.hooks:
            times.queued = max(_queued_seconds() - self._queued, 0.0)
        return times

    def _read_clocks(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        times = self._times
        if self.active:
            times.wall[self.active[-1]] += wall - self._wall
            times.cpu[self.active[-1]] += cpu - self._cpu
        times.hooks += 1
        self._wall, self._cpu = wall, cpu


class recording:  # noqa: N801 - a context manager, entered at every stage of every batch
    """Records a kind of work inside a block."""

    def __init__(self, recorder: Recorder, kind: Kind) -> None:
        self._recorder = recorder
        self._kind = kind

    def __enter__(self) -> None:
        self._recorder.enter(self._kind)

    def __exit__(self, *exception: object) -> None:
        self._recorder.leave()


@functools.cache
def hook_seconds() -> float:
    """Return what one reading of the clocks costs, measured once a process."""
    recorder = Recorder()
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(200):
            recorder.enter("sample")
            recorder.leave()
        best = min(best, time.perf_counter() - began)
    return best / 400


def _queued_seconds() -> float:
    """Return how long this thread has waited for a core so far; 0 where the system has no count."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


# -- recording code of others ----------------------------------------------------------------

LIBRARY_FUNCTIONS: tuple[tuple[str, str, str, Kind], ...] = (
    ("PIL.Image", "", "open", "load"),
    ("PIL.ImageFile", "ImageFile", "load", "load"),
    ("PIL.Image", "Image", "convert", "decode"),
    ("cv2", "", "imread", "load"),
    ("cv2", "", "imdecode", "decode"),
    ("torchvision.io", "", "read_file", "read"),
    ("torchvision.io", "", "read_image", "load"),
    ("torchvision.io", "", "decode_image", "load"),
    ("torchvision.io", "", "decode_jpeg", "decode"),
    ("torchvision.io", "", "decode_png", "decode"),
    ("torchvision.io", "", "decode_webp", "decode"),
    ("torchvision.io", "", "decode_gif", "decode"),
    ("simplejpeg", "", "decode_jpeg", "decode"),
    ("fastdata.transforms.pipeline", "Pipeline", "run", "augment"),
)
"""Module, class in it, name, and kind of work."""

TRANSFORM_ATTRIBUTES = "transform", "target_transform", "transforms"
INNER_DATASET_ATTRIBUTES = "dataset", "datasets"

_MISSING = object()


class TimedCall:
    """A callable of the user's that is recorded; its attributes are those of the original."""

    def __init__(self, function: Callable[..., Any], kind: Kind, recorder: Recorder) -> None:
        self._function = function
        self._kind = kind
        self._recorder = recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.records_here():
            return self._function(*args, **kwargs)
        return recorder.call(self._kind, self._function, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._function, name)


@contextmanager
def hooks_installed(recorder: Recorder, dataset: Any) -> Iterator[None]:
    """Record what libraries and the transforms of `dataset` do, inside of the block.

    At its end everything is put back, in the opposite order.  Only one such block may be active
    in a process.
    """
    with ExitStack() as undo:
        _patch(builtins, "open", "read", recorder, undo)
        _patch(os, "read", "read", recorder, undo)
        for module, owner, name, kind in LIBRARY_FUNCTIONS:
            holder: Any = sys.modules.get(module)
            if holder is not None and owner:
                holder = getattr(holder, owner, None)
            if holder is not None and hasattr(holder, name):
                _patch(holder, name, kind, recorder, undo)
        _wrap_transforms(dataset, recorder, undo, set())
        yield


def _patch(holder: Any, name: str, kind: Kind, recorder: Recorder, undo: ExitStack) -> None:
    function = getattr(holder, name)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if not recorder.records_here() or (kind == "decode" and recorder.active[-1] != "sample"):
            # A conversion inside of a transform is part of the transform.
            return function(*args, **kwargs)
        return recorder.call(kind, function, *args, **kwargs)

    setattr(holder, name, timed)
    undo.callback(setattr, holder, name, function)


def _wrap_transforms(dataset: Any, recorder: Recorder, undo: ExitStack, seen: set[int]) -> None:
    """Record the transforms of a dataset and of those inside it."""
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    own = getattr(dataset, "__dict__", {})
    for name in TRANSFORM_ATTRIBUTES:
        function = getattr(dataset, name, None)
        if not callable(function) or isinstance(function, TimedCall):
            continue
        if isinstance(getattr(type(dataset), name, None), property):
            continue  # as of packed data, whose pipeline is recorded instead
        before = own.get(name, _MISSING)
        try:
            setattr(dataset, name, TimedCall(function, "augment", recorder))
        except (AttributeError, TypeError):  # slots: it stays a part of the sample
            continue
        undo.callback(_put_back, dataset, name, before)
    for name in INNER_DATASET_ATTRIBUTES:
        inner = own.get(name)
        several = inner if isinstance(inner, (list, tuple)) else [inner]
        if isinstance(inner, dict):
            several = list(inner.values())
        for one in several:
            if hasattr(one, "__dict__") and not isinstance(one, type):
                _wrap_transforms(one, recorder, undo, seen)


def _put_back(dataset: Any, name: str, before: Any) -> None:
    if before is _MISSING:
        delattr(dataset, name)
    else:
        setattr(dataset, name, before)
