"""Time on the device: CUDA events between synchronised windows; the host's clock without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

__all__ = ["Meter"]


class Meter:
    """Times what is submitted to a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.clock = time.perf_counter

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(
        self, work: Callable[[], object], lead: Callable[[], object] | None = None
    ) -> float:
        """Return how long the current stream takes over what `work` submits.

        Gaps in which it waits for the host count, as they do for a training loop; what other
        streams still do for later does not.  `lead` is done right before, unmeasured and without a
        wait between: so the window begins in the midst of things.  Without it the device is idle
        at its beginning.
        """
        self.synchronize()
        if not self.on_gpu:
            if lead is not None:
                lead()
            started = self.clock()
            work()
            return self.clock() - started
        first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream(self.device)
        if lead is not None:
            lead()
        first.record(stream)
        work()
        last.record(stream)
        self.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def mark(self) -> Any:
        """Return a point of time of the device: behind what was submitted to the current stream."""
        if not self.on_gpu:
            return self.clock()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, first: Any, last: Any) -> float:
        """Return the seconds between two marks; on a GPU, once it is synchronised."""
        return float(first.elapsed_time(last)) / 1e3 if self.on_gpu else last - first

    def repeats(self, work: Callable[[int], object], seconds: float, least: int = 10) -> int:
        """Return how often `work` has to be done to fill a window of `seconds`.

        `work(n)` does it n times.  It is done some times to find out.
        """
        count = least
        work(count)  # what the first time costs
        while True:
            took = self.seconds(partial(work, count))
            # Short ones say little about long ones: until they fill a good part.
            if took >= seconds / 4 or count >= 1_000_000:
                return max(least, round(count * seconds / max(took, 1e-9)))
            count *= 4
