"""What the process of a script that is only tried, and its parent, tell each other: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastdata.doctor.contract import Phase
from fastdata.doctor.script import Script

__all__ = ["Dump", "Ended", "Plain", "Ran", "Request", "Run", "Watched"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a process is to run: a script, with some of the advice followed."""

    script: Script
    scratch: str
    follow: tuple[str, ...] = ()
    """IDs of advice."""
    phase: Phase = "train"
    watch_only: bool = False
    """Whether nothing is measured: epochs end early, so that validation is seen."""
    in_float64: bool = False
    batch_factor: float = 1.0
    seed: int = 0
    sources: tuple[tuple[str, bytes], ...] = ()
    """Files, and the texts that Python reads in their place."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run so many steps."""

    steps: int


@dataclass(frozen=True, slots=True)
class Dump:
    """Write gradients and updates of parameters of the next step to a file."""

    path: str


@dataclass(frozen=True, slots=True)
class Ran:
    """How long steps took, and the most memory that the process has had since it is measured.

    `samples` are those of a batch, where batches are given again; else 0.
    """

    seconds: float
    peak_bytes: int
    samples: int = 0


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
    calls: tuple[tuple[str, str], ...] = ()
    """Lines in which its model is called, and what the model is called there."""
    partly: bool = False
    """Whether the line also makes, or does, something to which the advice does not apply."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen, as plain data."""

    findings: tuple[Plain, ...] = ()
    steps: int = 0
    waited: float = 0.0
    """Share of the time that the loop waited for batches."""
    step_seconds: float = 0.0
    device: str = "cpu"
    models: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    parameters: int = 0
    validates: bool = False
    blocked: dict[str, int] = field(default_factory=dict)
    failed: str = ""
    """How the script failed, once an epoch had ended early, which may be why."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Why there will be nothing more: the script ended, or failed, which is its traceback."""

    why: str
    failed: bool = False
    watched: Watched | None = None
