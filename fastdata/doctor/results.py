"""What came of following advice: plain data, for the report and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from fastdata.doctor.contract import Numerics
from fastdata.measuring import statistics
from fastdata.measuring.statistics import Estimate

__all__ = ["BatchSize", "EndedBy", "Environment", "Follow", "Trial", "Verdict"]

Follow: TypeAlias = tuple[str, ...]
"""IDs of advice that is followed together; none for the script as it is."""

Environment: TypeAlias = tuple[tuple[str, str], ...]

Verdict: TypeAlias = Literal[statistics.Verdict, "failed"]

EndedBy: TypeAlias = Literal["nothing", "time", "noise", "failure", "interruption"]
"""What ended the trials early."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of following some advice.

    `gain` is the time of a step without the advice over that with it.
    """

    follow: Follow
    gain: Estimate | None = None
    verdict: Verdict = "failed"
    why: str = ""
    """Why it failed."""
    numerics: Numerics | None = None
    numerics_error: float | None = None
    """How far gradients are from those in float64, relative to these."""
    warm_up_seconds: float = 0.0
    """How much longer the first step took than the others: for compiling, mostly."""
    peak_bytes: int = 0
    base_peak_bytes: int = 0
    """Peak memory without the advice."""
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Speed and peak memory of the script with another batch size.

    Memory is resident memory; on a GPU, memory that torch allocated there.
    """

    samples: int
    samples_per_second: float = 0.0
    peak_bytes: int = 0
    reserved_bytes: int = 0
    """GPU memory that torch reserved; much more than the peak is fragmented memory."""
    retries: int = 0
    """How often torch had to give its unused memory of a GPU back to find a piece."""
    why: str = ""
    """Why it has no figures: the batches do not fit into memory, or the script failed."""
