"""Results of following advice: plain data, for the report and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from fastdata.doctor.contract import Numerics
from fastdata.measuring import statistics
from fastdata.measuring.statistics import Estimate

__all__ = ["BatchSize", "EndedBy", "Environment", "Follow", "Trial", "Verdict"]

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


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Speed and peak memory of the script with batches of `samples`.

    Memory is resident memory of the process.  On a GPU, it is the memory that torch allocated.
    """

    samples: int
    samples_per_second: float = 0.0
    peak_bytes: int = 0
    reserved_bytes: int = 0  # by torch on a GPU; memory above the peak is fragmented
    retries: int = 0  # how often torch returned its unused memory of a GPU to allocate more
    why: str = ""  # the reason for no figures, such as a lack of memory
