"""What a loader has done so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoaderStats"]


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was made.

    Attributes
    ----------
    batches, samples : int
        Handed out.
    seconds : float
        From the start of each iteration to its last batch, the time of the
        training loop included.
    wait_seconds : float
        Of these, how long the loop waited for batches.
    ready_batches : float
        Batches that were made and waiting when the loop asked for one, in the
        mean.  Near `prefetch_factor`, loading is ahead of training; near 0,
        training waits for it.
    buffers_in_use : int
        Slots of memory that batches lie in now: made ahead, or kept by
        somebody.
    skipped_samples : int
        Corrupt samples that others took the place of (``on_corrupt="skip"``).
    bytes_read : int
        Stored bytes of the images that were decoded for batches handed out.
    cache_bytes : int
        Memory that ``cache=`` takes when it is full.
    """

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    ready_batches: float = 0.0
    buffers_in_use: int = 0
    skipped_samples: int = 0
    bytes_read: int = 0
    cache_bytes: int = 0

    @property
    def images_per_second(self) -> float:
        """Samples handed out over seconds; 0 before the first batch."""
        return self.samples / self.seconds if self.seconds else 0.0
