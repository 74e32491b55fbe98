"""Page-locking memory that is there already, so that a GPU can copy from it by itself."""

from __future__ import annotations

import logging
import weakref
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["register_pinned"]

log = logging.getLogger("fastdata")


def register_pinned(memory: NDArray[np.uint8], device: torch.device | None = None) -> bool:
    """Page-lock an array's memory, until the array dies; return whether that worked.

    torch then takes tensors over this memory for pinned ones (``Tensor.is_pinned``).  A
    failure is logged.

    Parameters
    ----------
    memory : ndarray of uint8, shape [n]
        The one object that keeps the memory mapped; views keep it alive.
    device : torch.device, optional
        The GPU whose context is used; by default the calling thread's current one, which in
        a new thread is the first of the machine.

    Notes
    -----
    Thread-safe.  For this process alone: another one that maps the same memory does not
    see it as pinned.
    """
    with nullcontext() if device is None else torch.cuda.device(device):
        return _register(memory)


def _register(memory: NDArray[np.uint8]) -> bool:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # 1 is cudaHostRegisterPortable: pinned for every device, not only the current one.
    status = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 1)
    if int(status) != 0:
        log.warning(
            "CUDA cannot page-lock %.0f MB of shared memory (cudaHostRegister: error %d): what is "
            "in it is copied once more on its way to a GPU",
            memory.nbytes / 1e6,
            int(status),
        )
        # CUDA also keeps the error for whoever asks next, which would be an innocent kernel.
        with suppress(RuntimeError, AssertionError):
            torch.zeros(1, device="cuda")
        return False
    # The callback comes before the memory is unmapped: the array is what keeps it.
    weakref.finalize(memory, _unregister, runtime, memory.ctypes.data).atexit = False
    return True


def _unregister(runtime: Any, address: int) -> None:
    runtime.cudaHostUnregister(address)
