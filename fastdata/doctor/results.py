"""Results of following advice: plain data, for the report and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from fastdata.doctor.contract import Numerics
from fastdata.measuring import statistics
from fastdata.measuring.statistics import Estimate

__all__ = ["EndedBy", "Environment", "Follow", "Trial", "Verdict"]

Follow: TypeAlias = tuple[str, ...]
"""IDs of advice that is followed together; empty for the unchanged script."""

Environment: TypeAlias = tuple[tuple[str, str], ...]
Verdict: TypeAlias = Literal[statistics.Verdict, "failed"]
EndedBy: TypeAlias = Literal["nothing", "time", "noise", "failure", "interruption"]


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of following some advice.

    `gain` is the time of a step without the advice over the time with it.
    """

    follow: Follow
    gain: Estimate | None = None
    verdict: Verdict = "failed"
    why: str = ""  # why it failed
    numerics: Numerics | None = None
    numerics_error: float | None = None  # relative error of gradients, against float64
    warm_up_seconds: float = 0.0  # that the first step took longer, mostly for compiling
    peak_bytes: int = 0
    base_peak_bytes: int = 0  # of the unchanged script
    step_seconds: float = 0.0
