"""Host to device, GB/s: pageable, pinned, and through the prefetcher; within the device besides.

The bare loops copy the same tensors of the same batches to memory that is there already:
``copy_`` is one ``cudaMemcpyAsync`` each.  The prefetcher also allocates, waits and keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from typing import Any

import torch

import fastdata
from budget import Budget
from fastdata.steps.meter import Meter
from report import Bar, Report
from rounds import Measurement, UnavailableError, excused, in_turns, put_ratio
from settings import Settings

__all__ = ["PREFETCHER_BAR", "PinnedLoop", "host_batches", "measure_copies", "prefetched"]

PART = "copies"
PREFETCHER_BAR = Bar(
    "pinned copy through the prefetcher over a bare pinned cudaMemcpyAsync loop", 0.95
)

Batch = tuple[torch.Tensor, torch.Tensor]


def host_batches(settings: Settings, *, pinned: bool) -> list[Batch]:
    """Return batches of the host: uint8 images, channels-last, and int64 labels.

    They are of random numbers.  Without a GPU there is no page-locked memory to have them in.
    """
    shape = (settings.batch_size, settings.side, settings.side, 3)
    pins = pinned and settings.device.type == "cuda"
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 1000, shape[:1], generator=generator)
    batches = []
    for _ in range(settings.host_batches):
        copies = [torch.empty_like(tensor, pin_memory=pins) for tensor in (images, labels)]
        for copy, tensor in zip(copies, (images, labels), strict=True):
            copy.copy_(tensor)
        batches.append((copies[0].permute(0, 3, 1, 2), copies[1]))
    return batches


def prefetched(batches: Iterable[Any], device: torch.device, **options: Any) -> Iterator[Any]:
    """Return one pass of a `fastdata.CUDAPrefetcher`.

    Raises
    ------
    UnavailableError
        If this fastdata has none.
    """
    try:
        prefetcher = fastdata.CUDAPrefetcher
    except (AttributeError, ImportError) as error:
        raise UnavailableError("this fastdata has no CUDAPrefetcher") from error
    return iter(prefetcher(batches, device, **options))


class PinnedLoop:
    """Copies batches into memory of the device that is there already, in turn.

    Parameters
    ----------
    batches : list of Batch
    device : torch.device
    non_blocking : bool
    """

    def __init__(
        self, batches: list[Batch], device: torch.device, *, non_blocking: bool = True
    ) -> None:
        self._batches = batches
        self._targets = [
            tuple(torch.empty_like(tensor, device=device) for tensor in batch) for batch in batches
        ]
        self._non_blocking = non_blocking

    def __call__(self, count: int) -> None:
        """Copy so many batches."""
        pairs = zip(cycle(self._batches), cycle(self._targets), strict=False)
        for batch, target in islice(pairs, count):
            for source, tensor in zip(batch, target, strict=True):
                tensor.copy_(source, non_blocking=self._non_blocking)


def batch_bytes(batch: Batch) -> int:
    """Return the size of a batch."""
    return sum(tensor.nbytes for tensor in batch)


def drain(batches: list[Batch], device: torch.device, **options: Any) -> Callable[[int], None]:
    """Return a function that takes so many batches from a prefetcher over `batches`.

    One prefetcher for all calls, as in training: its stream, and torch's memory for that, are
    made once.
    """
    made: list[Iterator[Any]] = []

    def run(count: int) -> None:
        if not made:
            made.append(prefetched(cycle(batches), device, **options))
        for _ in islice(made[0], count):
            pass

    return run


def measure_copies(settings: Settings, report: Report, budget: Budget) -> None:
    """Put the rows of this part."""
    meter = Meter(settings.device)
    device = settings.device
    pageable = host_batches(settings, pinned=False)
    pinned = host_batches(settings, pinned=True)
    size = batch_bytes(pinned[0])

    def rate(name: str, work: Callable[[int], None], bar: Bar | None = None) -> Measurement:
        counts: list[int] = []

        def window() -> float:
            if not counts:  # in the warm-up round
                counts.append(meter.repeats(work, settings.window_seconds))
            return size * counts[0] / meter.seconds(lambda: work(counts[0])) / 1e9

        return Measurement(name, window, "GB/s", bar=bar)

    bare = rate("pinned, bare loop", PinnedLoop(pinned, device))
    through = rate("pinned, through the prefetcher", drain(pinned, device))
    contenders = [
        rate("pageable, bare loop", PinnedLoop(pageable, device, non_blocking=False)),
        bare,
        through,
        rate("pinned, prefetcher with static=True", drain(pinned, device, static=True)),
        rate("pageable, through the prefetcher", drain(pageable, device)),
    ]
    try:
        in_turns(report, PART, contenders, settings.rounds, budget)
    finally:  # also of what was measured until Ctrl-C
        put_ratio(
            report,
            PART,
            "prefetcher over bare loop, pinned",
            through,
            bare,
            bar=PREFETCHER_BAR,
            details={"batch_bytes": size},
        )


def run(settings: Settings, report: Report, budget: Budget) -> None:
    """Measure, and report what cannot be."""
    with excused(report, PART, "prefetcher over bare loop, pinned", PREFETCHER_BAR):
        measure_copies(settings, report, budget)
