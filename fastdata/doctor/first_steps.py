"""What is followed in the first steps of a script, before any advice is.

Outputs are followed in the second and third step.  In the fourth is looked for what makes a GPU
wait, how batches are copied, which loops take tensors apart, and what holds memory.  torch's modes
see each operation of these steps; where a model is compiled, which they would undo, there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from fastdata.doctor.copies import CopiesFollowed
from fastdata.doctor.memory import MemoryFollowed
from fastdata.doctor.outputs import OutputsFollowed, codes_of
from fastdata.doctor.slices import SlicesFollowed
from fastdata.doctor.watching import FOLLOWED_STEPS, Watch
from fastdata.measuring.stalls import StallCounter, stall_modes

__all__ = ["WATCHED_STEPS", "FirstSteps"]

OUTPUTS_STEP, LOOK_STEP, WATCHED_STEPS = 1, 3, FOLLOWED_STEPS
"""After so many steps outputs are followed, no more, and is everything seen."""


class FirstSteps:
    """Follows the first steps; `loader_of` returns the loader that made a tensor of a batch."""

    def __init__(self, watch: Watch, loader_of: Callable[[torch.Tensor], Any]) -> None:
        self._watch, self._loader_of = watch, loader_of
        self._modes = ExitStack()
        self._outputs: OutputsFollowed | None = None
        self._stalls: StallCounter | None = None
        self._memory: MemoryFollowed | None = None

    def end_step(self) -> None:
        """Note that a step of the optimiser has ended; to be called within it."""
        seen = self._watch.seen
        if self._outputs is not None:
            self._outputs.end_step()
        if seen.steps_seen == OUTPUTS_STEP and not seen.is_compiled:
            loop = codes_of(sys._getframe(1))
            self._outputs = OutputsFollowed(loop, lambda: self._watch.in_model)
            self._modes.enter_context(self._outputs)
        elif seen.steps_seen == LOOK_STEP:
            self._modes.close()
            if self._outputs is not None:
                seen.metrics = self._outputs.metrics()
                self._outputs = None
            if not seen.is_compiled:
                self._look()
        elif seen.steps_seen == WATCHED_STEPS:
            self._modes.close()
            if self._stalls is not None:
                seen.stalls = self._stalls.stalls()
            if self._memory is not None:
                seen.held, seen.held_bytes = self._memory.at_peak(), self._memory.peak_bytes
                self._memory = None

    def _look(self) -> None:
        seen = self._watch.seen
        self._stalls = StallCounter(torch.device("cuda" if seen.on_gpu else "cpu"))
        self._modes.enter_context(stall_modes(self._stalls, only_moved=True))
        copies = self._modes.enter_context(CopiesFollowed(self._loader_of))
        slices = self._modes.enter_context(SlicesFollowed())
        seen.copies, seen.loops = copies.copies, slices.found
        self._memory = self._modes.enter_context(MemoryFollowed(seen.models, seen.optimizers))
