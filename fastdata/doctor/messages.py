"""What the process of a script that is only tried, and its parent, tell each other: plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fastdata.doctor.contract import Phase
from fastdata.doctor.memory import Held
from fastdata.doctor.script import Script
from fastdata.doctor.seen import EventKind
from fastdata.measuring.noise import Clock
from fastdata.processes.protection import Way

__all__ = ["OWN", "Ended", "Plain", "Ran", "Request", "Run", "Watched"]


OWN = "doctor"
"""The key of doctor's own folder among those that a script may write to."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a process is to run."""

    script: Script
    scratch: str
    phase: Phase = "train"
    watch_only: bool = False  # nothing is measured; epochs end early, so that validation is seen
    seconds: float = math.inf  # after which a script is watched no more, if it has made a step
    in_float64: bool = False
    unprotected: bool = False  # the user asks for no protection by the kernel
    protection: Way = "none"  # as below, the launcher of the process sets it
    writable: dict[str, str] = field(default_factory=dict)
    """Folders that the script may write to: doctor's own, and caches by their variables."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run steps, and follow this advice, and no other, from the first one on."""

    steps: int
    follow: tuple[str, ...] = ()
    forget_peak: bool = False  # the peak of memory is measured from these steps on
    dump: str = ""
    """A file for the gradients and updates of one step from the first state."""
    seed: int = 0  # of that step


@dataclass(frozen=True, slots=True)
class Ran:
    """How long steps took, and the most memory that the process has had since it is measured."""

    seconds: float
    peak_bytes: int
    steps: int = 1
    part_seconds: dict[EventKind, float] = field(default_factory=dict)
    """The time of parts of the steps on the host."""
    reserved_bytes: int = 0
    """On a GPU: the most that torch took of its memory, in blocks, for `peak_bytes`."""
    cpu_seconds: float = 0.0  # of all threads of the process

    def step_seconds(self, clock: Clock) -> float:
        """Return the time of a step by a clock."""
        return (self.seconds if clock == "wall" else self.cpu_seconds) / self.steps


@dataclass(frozen=True, slots=True)
class Plain:
    """A finding, without what follows it."""

    id: str
    where: str
    what: str
    environment: tuple[tuple[str, str], ...]
    is_tried: bool
    why_not: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen, as plain data."""

    findings: tuple[Plain, ...] = ()
    steps: int = 0
    waited: float = 0.0  # share of the time that the loop waited for batches
    step_seconds: float = 0.0
    device: str = "cpu"
    threads: int = 1  # that torch computes on
    models: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    parameters: int = 0
    validates: bool = False
    blocked: dict[str, int] = field(default_factory=dict)
    protection: Way = "landlock"
    writable: dict[str, str] = field(default_factory=dict)  # without doctor's own folder
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the script sets before it imports torch, which reads them then."""
    failed: str = ""  # the error of a script whose epoch had ended early
    held: tuple[Held, ...] = ()  # tensors at the peak of a step, the largest first
    held_bytes: int = 0
    """All of that: of tensors on the device, without what operations take while they run."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Why there will be nothing more: the script ended, or failed, which is its traceback."""

    why: str
    failed: bool = False
    watched: Watched | None = None
