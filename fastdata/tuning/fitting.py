"""What settings take of memory, known before they are tried: the system kills who takes too much.

The figures are upper bounds of what is in the making at one time; what a user's dataset keeps
for itself in each worker is not among them, so memory is watched during a trial too.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.engine.cpu import SPARE_BUFFERS
from fastdata.engine.delivery import DEPTH
from fastdata.engine.memory import in_words
from fastdata.tuned_settings.settings import Settings

__all__ = ["PROCESS_BYTES", "RESERVE_BYTES", "Need", "ahead_of", "cost_of", "need_of", "refusal"]

PROCESS_BYTES = 64 << 20
"""Private memory of a forked worker process: 40 to 60 MB with torch imported."""

RESERVE_BYTES = 256 << 20
"""What has to stay free of host memory, for the training process and the system."""

SHM_RESERVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of host memory, and those of them in ``/dev/shm``."""

    memory_bytes: int
    shm_bytes: int


def ahead_of(settings: Settings) -> int:
    """Return the batches that are made behind the one that is waited for."""
    if not settings.num_workers:
        return 0
    # A stock DataLoader counts for each worker.
    each = settings.num_workers if settings.backend == "torch" else 1
    return settings.prefetch_factor * each


def need_of(settings: Settings, batch_bytes: int, *, to_device: bool = False) -> Need:
    """Return what settings take.

    Parameters
    ----------
    settings : Settings
    batch_bytes : int
        Of one batch on the host.
    to_device : bool
        Whether batches go on to a device.
    """
    batches = ahead_of(settings) + SPARE_BUFFERS + DEPTH * to_device
    stock = settings.backend == "torch"
    by_processes = settings.num_workers > 0 and (stock or settings.worker_method == "process")
    memory = batches * batch_bytes
    # Memory that fastdata shares with its workers is no file of /dev/shm: only stock ones are.
    shm = memory if stock and by_processes else 0
    if stock and settings.pin_memory and by_processes:
        memory += (1 + DEPTH) * batch_bytes
    if by_processes:
        memory += settings.num_workers * PROCESS_BYTES
    return Need(memory, shm)


def cost_of(settings: Settings, batch_bytes: int) -> tuple[int, ...]:
    """Return what settings are compared by: workers first, then memory, then what is unusual.

    Parameters
    ----------
    settings : Settings
    batch_bytes : int
        Of one batch on the host.
    """
    return (
        settings.num_workers,
        need_of(settings, batch_bytes).memory_bytes,
        settings.prefetch_factor,
        settings.worker_method == "process",
        settings.backend == "dali",
        settings.pin_memory,
        settings.persistent_workers,
    )


def refusal(need: Need, *, available_bytes: int, shm_bytes: int) -> str:
    """Return why settings would not fit; "" where they do.

    Parameters
    ----------
    need : Need
    available_bytes, shm_bytes : int
        What may still be taken of host memory and of ``/dev/shm``.
    """
    if need.memory_bytes + RESERVE_BYTES > available_bytes:
        return (
            f"would not fit: takes about {in_words(need.memory_bytes)} of memory, and "
            f"{in_words(RESERVE_BYTES)} are to stay free, but {in_words(available_bytes)} are "
            "available"
        )
    if need.shm_bytes and need.shm_bytes + SHM_RESERVE_BYTES > shm_bytes:
        return (
            f"would not fit: takes about {in_words(need.shm_bytes)} of /dev/shm, which has "
            f"{in_words(shm_bytes)} free (docker run --shm-size makes it larger)"
        )
    return ""
