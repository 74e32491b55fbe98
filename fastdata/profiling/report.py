"""What profiling found: rates, stages, stalls of the step, fixes, the verdict."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

__all__ = ["Event", "Fix", "ProfileReport", "Stage", "StageName", "Stall"]

StageName: TypeAlias = Literal[
    "read", "decode", "augment", "collate", "load", "hand over", "pin", "copy", "step"
]
"""In the order in which a batch passes them.

read       bytes from the disk or the page cache
decode     from a file's bytes to pixels (of packed data: cut and resized in one)
augment    transforms, of samples and of batches
collate    samples put together to a batch
load       all of these, of a loader that does not let them be told apart; and what the loop
           waits for beyond what its stages explain
hand over  from workers to the loop
pin        a copy to page-locked memory
copy       from the host to the device
step       the training step
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage takes.

    Attributes
    ----------
    name : StageName
    seconds : float
        A batch, of one worker's time, in the mean (of the loop's for ``step``; of the
        device's for ``copy``).
    parallel : bool
        Whether workers share it.
    stall_seconds : float
        A batch, that the loop waits because of this stage.
    speedup_if_free : float
        Steps a second if this stage took no time, over those there are; 1 or more.
    where : str
        The user's code that it is spent in, ``FILE:LINE function``, where that is known.
    """

    name: StageName
    seconds: float
    parallel: bool
    stall_seconds: float = 0.0
    speedup_if_free: float = 1.0
    where: str = ""


@dataclass(frozen=True, slots=True)
class Stall:
    """A place in the step where the device has to wait for the host.

    Attributes
    ----------
    kind : {"synchronisation", "host tensor"}
        The host waits for all work of the device; or a large tensor is made on the host
        and then copied.
    operation : str
        ``.item()``, ``nonzero``, ``torch.randperm``...
    where : str
        ``FILE:LINE function`` of the user's code.
    count : int
        A step, in the mean, rounded up.
    nbytes : int
        Copied, a step; 0 for a synchronisation of a few bytes.
    """

    kind: Literal["synchronisation", "host tensor"]
    operation: str
    where: str
    count: int = 1
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Fix:
    """Something to do, and what it is predicted to gain.

    Attributes
    ----------
    text : str
        One sentence: what to do, with the option or line to change.
    speedup : float
        Steps a second after it, over those there are; 1 where that cannot be said.
    """

    text: str
    speedup: float = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """A stretch of the timeline.

    Attributes
    ----------
    row : str
        "loop: wait", "loop: step", "worker 0"...
    start, seconds : float
        Since the beginning of the window.
    label : str
        What it was: "batch 12", say.
    stage : str
        A `StageName`, of what a worker did; "" where the row says it all.
    """

    row: str
    start: float
    seconds: float
    label: str = ""
    stage: str = ""


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Where the time goes.

    Attributes
    ----------
    verdict : str
        One line.
    bottleneck : StageName or None
        What would have to be faster; "step" where the step itself is the limit and has stalls
        that can be mended, None where there is nothing to gain.
    input_bound : bool
        Whether training waits for data.
    steps_per_second : float
        With the real loader.
    steps_per_second_host : float
        With one cached batch on the host: nothing is loaded, everything is copied.
    steps_per_second_device : float
        With cached batches on the device: the ceiling.
    batch_size : int
    waiting : float
        Share of the time, 0 to 1, that the step waits for data.
    stages : tuple of Stage
        Those that there are, in the order of `StageName`.
    stalls : tuple of Stall
        Of the step.
    fixes : tuple of Fix
        The one that gains most first.
    batch_seconds_p50, batch_seconds_p99 : float
        Of the time from one batch to the next, with the real loader.
    ready_batches : float
        Batches that were made and waiting when the loop asked, in the mean; nan where the
        loader does not say.
    wait_seconds : float
        That the loop waited for a batch, in the mean.
    copy_bytes_per_second : float
        From host to device; 0 without one.
    workers : int
    workers_to_saturate : int or None
        So many would be enough, where more workers help; None where they do not.
    cores : int
        That this process may use.
    cores_to_saturate : float or None
        That loading would need at the step's own rate; None where it is not known: without a
        step, or of an iterable of which nothing but waiting is known.
    overhead : float
        What profiling itself took, as a share of the measured time; what was measured is
        corrected for it where it is over 0.05.
    steps : int
        That were measured.
    timeline : tuple of Event
        A few steps: what the loop did and, where it could be seen, each worker.
    step : str
        What the step was, for people.
    loader : str
        What the loader was, for people.
    machine : dict
        What it was measured on.
    notes : tuple of str
        What to know when reading this: what could not be measured, and why.
    """

    verdict: str
    bottleneck: StageName | None
    input_bound: bool
    steps_per_second: float
    steps_per_second_host: float
    steps_per_second_device: float
    batch_size: int
    waiting: float
    stages: tuple[Stage, ...]
    stalls: tuple[Stall, ...] = ()
    fixes: tuple[Fix, ...] = ()
    batch_seconds_p50: float = 0.0
    batch_seconds_p99: float = 0.0
    ready_batches: float = float("nan")
    wait_seconds: float = 0.0
    copy_bytes_per_second: float = 0.0
    workers: int = 0
    workers_to_saturate: int | None = None
    cores: int = 1
    cores_to_saturate: float | None = None
    overhead: float = 0.0
    steps: int = 0
    timeline: tuple[Event, ...] = ()
    step: str = ""
    loader: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types; numbers that are nan or infinite, as None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def __str__(self) -> str:
        from fastdata.profiling.text import render_text

        return render_text(self)


def _plain(value: Any) -> Any:
    """Return what JSON can say of a value."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):  # NumPy's too
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)
