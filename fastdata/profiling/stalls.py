"""What a step does that makes a device wait: synchronisations, and large tensors from the host.

A GPU is fed by a host that is ahead of it.  ``loss.item()`` makes the host wait until the GPU has
done everything, and then the GPU wait for the host; so does whatever has a shape that depends on
values (``nonzero``, a boolean mask), and any copy to the host.  And what is made on the host
(``torch.randperm(n)`` without ``device=``) has to be copied.

Two modes of torch see all of it in one step: `TorchFunctionMode`, what the user called, and
`TorchDispatchMode`, what came of it.  On CUDA torch's own ``torch.cuda.set_sync_debug_mode``
is asked as well, for what they do not know.  On the CPU, where nothing waits, the same places
are reported as what would make a GPU wait.
"""

from __future__ import annotations

from typing import Any

import torch

from fastdata.profiling.modes import Calls, Operations
from fastdata.profiling.places import Places
from fastdata.profiling.report import Stall
from fastdata.profiling.warned import synchronisations_warned
from fastdata.profiling.where import boundary
from fastdata.steps import Step

__all__ = ["find_stalls"]


@boundary
def find_stalls(step: Step, batch: Any, device: torch.device | str) -> tuple[Stall, ...]:
    """Run one step, and return where it makes a device wait, the most frequent first.

    The step is really run, once (on CUDA twice): it trains as any other step does.

    Parameters
    ----------
    step : callable
    batch : batch
        As the step gets them.
    device : torch.device or str
        Where the step computes.  "cpu": whatever would make a GPU wait is reported, but for
        copies from and to it, of which there are none.

    Returns
    -------
    tuple of Stall
        Those of no line of the user's are left out.

    Raises
    ------
    Exception
        Whatever the step raises.

    Notes
    -----
    For one thread at a time, as warnings are everybody's.  What a step does in other threads is
    not seen; nor is a backward pass on a GPU, which has a thread of its own.

    Sources: "Extending PyTorch" (modes) and `torch.cuda.set_sync_debug_mode` in torch's
    documentation.
    """
    device = torch.device(device)
    found = Places()
    calls = Calls(found, device)
    with calls, Operations(found, calls, device, batch):
        step(batch)
    if device.type == "cuda":
        with synchronisations_warned(found):
            step(batch)
    stalls = [
        Stall(place.kind, place.operation, place.where, count, nbytes)  # type: ignore[arg-type]
        for place, (count, nbytes) in found.places.items()
    ]
    return tuple(sorted(stalls, key=lambda stall: (-stall.nbytes, -stall.count)))
