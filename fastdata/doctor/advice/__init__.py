"""The advice: a module for each group, a class for each piece.

===================  ===========================================================
``precision.py``     automatic mixed precision, TF32
``layout.py``        channels last, cuDNN's autotuner
``fusion.py``        ``torch.compile``
``optimizers.py``    fused optimisers, gradients that are set to None
``model.py``         biases before normalisation, activations in place
``debugging.py``     anomaly detection and profilers that are left on
``evaluation.py``    validation that records gradients, or has layers to fold
``memory.py``        activations that are computed again, fragmented memory
``metrics.py``       metrics that are computed in each step
``waiting.py``       what makes a GPU wait for the host, or do little at a time
``processor.py``     threads, memory allocators
``parallel.py``      DataParallel, DDP's options
``ranks.py``         what is wrong between several ranks
``mistakes.py``      what is wrong, and not only slow
===================  ===========================================================
"""

from __future__ import annotations

from fastdata.doctor.advice.debugging import ADVICE as DEBUGGING
from fastdata.doctor.advice.evaluation import ADVICE as EVALUATION
from fastdata.doctor.advice.fusion import ADVICE as FUSION
from fastdata.doctor.advice.layout import ADVICE as LAYOUT
from fastdata.doctor.advice.memory import ADVICE as MEMORY
from fastdata.doctor.advice.metrics import ADVICE as METRICS
from fastdata.doctor.advice.mistakes import ADVICE as MISTAKES
from fastdata.doctor.advice.model import ADVICE as MODEL
from fastdata.doctor.advice.optimizers import ADVICE as OPTIMIZERS
from fastdata.doctor.advice.parallel import ADVICE as PARALLEL
from fastdata.doctor.advice.precision import ADVICE as PRECISION
from fastdata.doctor.advice.processor import ADVICE as PROCESSOR
from fastdata.doctor.advice.ranks import ADVICE as RANKS
from fastdata.doctor.advice.waiting import ADVICE as WAITING
from fastdata.doctor.contract import Advice
from fastdata.errors import OptionError

__all__ = ["ADVICE", "advice_by_id"]

ADVICE: tuple[Advice, ...] = tuple(
    sorted(
        (
            *PRECISION,
            *LAYOUT,
            *FUSION,
            *OPTIMIZERS,
            *MODEL,
            *DEBUGGING,
            *EVALUATION,
            *MEMORY,
            *METRICS,
            *WAITING,
            *PROCESSOR,
            *PARALLEL,
            *RANKS,
            *MISTAKES,
        ),
        key=lambda advice: advice.id,
    )
)
"""Every piece of advice, by its ID."""


def advice_by_id(id: str) -> Advice:
    """Return a piece of advice; an unknown ID is an `OptionError`."""
    found = next((advice for advice in ADVICE if advice.id == id), None)
    if found is None:
        raise OptionError(f"unknown advice {id!r}: fastdata doctor --list has all")
    return found
