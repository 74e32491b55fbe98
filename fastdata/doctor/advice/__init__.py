"""The advice: a module for each group, a decorated function for each piece.

=================  =============================================================
``model.py``       precision, order of memory, kernels, layers, activations
``loop.py``        optimisers, gradients, schedules, waits, copies, metrics
``left_on.py``     debugging, and gradients in a validation
``processor.py``   threads, memory allocators, variables of the environment
``ranks.py``       DataParallel, and options of DDP
``mistakes.py``    mistakes, whether or not they are slow
=================  =============================================================
"""

from __future__ import annotations

from fastdata.doctor.advice import left_on, loop, mistakes, model, processor, ranks
from fastdata.doctor.contract import Advice
from fastdata.errors import OptionError

__all__ = ["ADVICE", "advice_by_id"]

_GROUPS = left_on, loop, mistakes, model, processor, ranks

ADVICE: tuple[Advice, ...] = tuple(
    sorted(
        (one for group in _GROUPS for one in vars(group).values() if isinstance(one, Advice)),
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
