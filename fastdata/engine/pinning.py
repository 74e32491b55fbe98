"""Page-locking memory that is there already, so that a GPU can copy from it by itself."""

from __future__ import annotations

import contextlib
import logging
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["register_pinned"]

log = logging.getLogger("fastdata")


def register_pinned(memory: NDArray[np.uint8]) -> bool:
    """Page-lock an array's memory, until the array dies; return whether that worked.

    torch then takes tensors over this memory for pinned ones (``Tensor.is_pinned``).  A
    failure is logged: CUDA may refuse, or the limit of locked memory may be reached
    (``ulimit -l``).

    Parameters
    ----------
    memory : ndarray of uint8, shape [n]
        The one object that keeps the memory mapped; views keep it alive.

    Notes
    -----
    Thread-safe.  For this process alone: another one that maps the same memory does not
    see it as pinned.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # 1 is cudaHostRegisterPortable: pinned for every device, not only the current one.
    status = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 1)
    if int(status) != 0:
        log.warning(
            "CUDA cannot page-lock %.0f MB of shared memory (cudaHostRegister: error %d); batches "
            'are copied once more on their way to the GPU. worker_method="thread" needs no '
            "shared memory; or raise the limit of locked memory (ulimit -l)",
            memory.nbytes / 1e6,
            int(status),
        )
        # CUDA also keeps the error for whoever asks next, which would be an innocent kernel.
        with contextlib.suppress(RuntimeError, AssertionError):
            torch.zeros(1, device="cuda")
        return False
    # The callback comes before the memory is unmapped: the array is what keeps it.
    weakref.finalize(memory, _unregister, runtime, memory.ctypes.data).atexit = False
    return True


def _unregister(runtime: Any, address: int) -> None:
    runtime.cudaHostUnregister(address)
