"""How much of the copy from host to device is hidden behind steps of given length.

Three windows of the same number of batches, in turns:

    S   steps, with a batch that is on the device
    C   copies alone, from pinned memory
    T   steps, each with the next batch of a prefetcher over the same pinned memory

A step is a number of matrix products that last, together, as long as so many copies.  The
share of the copy that is hidden is ``1 - (T - S) / C``: 1 where T is as short as S, 0 where
copies and steps add up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch

from budget import Budget
from copies import PinnedLoop, host_batches, prefetched
from fastdata.steps.meter import Meter
from report import Bar, Report, Row
from rounds import Measurement, excused, in_turns
from settings import Settings

__all__ = ["hidden_share", "measure_overlap"]

PART = "overlap"
LEAST_BATCHES = 20
LEAD_STEPS, LEAD_SECONDS = 4, 0.1
"""At least so many steps right before a window, and for so long: it begins in the midst of copies
and steps, and the GPU has the clock that they leave it."""


def hidden_share(step: float, copy: float, both: float) -> float:
    """Return the hidden share of a copy, from the seconds of steps, of copies, and of both.

    Not cut off at 0 or 1: what is beyond is noise of the measurement, and should be seen.
    """
    if copy <= 0:
        raise ValueError(f"a copy takes time, not {copy} s")
    return 1 - (both - step) / copy


class Products:
    """Matrix products, as many as it takes for a given time.

    Parameters
    ----------
    meter : Meter
    copy_seconds : float
        Products are so small that some twenty are done in this time.
    """

    def __init__(self, meter: Meter, copy_seconds: float) -> None:
        dtype = torch.bfloat16 if meter.on_gpu else torch.float32
        # Below 1024 a GPU is faster than the host can ask for products.
        sides = (4096, 2048, 1024) if meter.on_gpu else (256, 64, 16)
        for side in sides:
            # Random: products of zeros take less power, and so less time.
            self._factors = [
                torch.randn(side, side, device=meter.device, dtype=dtype) for _ in range(2)
            ]
            self._result = torch.empty_like(self._factors[0])
            count = meter.repeats(self.run, 0.05 if meter.on_gpu else 0.005)
            self.seconds = meter.seconds(partial(self.run, count)) / count
            if self.seconds <= copy_seconds / 20:
                break

    def run(self, count: int) -> None:
        """Submit so many products."""
        for _ in range(count):
            torch.mm(*self._factors, out=self._result)

    def lasting(self, seconds: float) -> int:
        """Return how many last so long, one at least."""
        return max(1, round(seconds / self.seconds))


def bar_of(length: float) -> Bar | None:
    """Return what is asked of steps of so many copies; nothing where they are no longer."""
    if length <= 1:
        return None
    return Bar(f"host-to-device time hidden, steps of {length:g} copies", 0.95)


def name_of(length: float) -> str:
    """Return the name of a row."""
    return f"hidden, steps of {length:g} copies"


def measure_overlap(settings: Settings, report: Report, budget: Budget) -> None:
    """Put the rows of this part."""
    meter = Meter(settings.device)
    pinned = host_batches(settings, pinned=True)
    copy = PinnedLoop(pinned, settings.device)
    count = meter.repeats(copy, settings.window_seconds)
    copy_seconds = meter.seconds(lambda: copy(count)) / count
    products = Products(meter, copy_seconds)

    copies = Measurement(
        "copy", lambda: 1e3 * meter.seconds(lambda: copy(count)) / count, "ms", shown=False
    )
    contenders = [copies]
    pairs: dict[float, tuple[Measurement, Measurement]] = {}
    for length in settings.lengths:
        number = products.lasting(length * copy_seconds)
        step_seconds = number * products.seconds
        # At a step's length each, as many as the other windows are long, and more for the long.
        batches = max(LEAST_BATCHES, round(settings.window_seconds / step_seconds))
        lead = LEAD_STEPS + (round(LEAD_SECONDS / step_seconds) if meter.on_gpu else 0)
        alone = Measurement(
            f"step of {length:g}",
            steps_alone(meter, products, number, batches, lead),
            "ms",
            shown=False,
        )
        together = Measurement(
            f"both, {length:g}",
            steps_with_copies(settings, meter, products, number, batches, lead, pinned),
            "ms",
            shown=False,
        )
        pairs[length] = alone, together
        contenders += [alone, together]
    try:
        in_turns(report, PART, contenders, settings.rounds, budget)
    finally:
        for length, (alone, together) in pairs.items():
            put_share(report, length, alone, copies, together)


def steps_alone(
    meter: Meter, products: Products, number: int, batches: int, lead: int
) -> Callable[[], float]:
    """Return a function that measures a step without copies, in ms."""

    def steps(count: int) -> None:
        for _ in range(count):
            products.run(number)

    return lambda: 1e3 * meter.seconds(lambda: steps(batches), lead=lambda: steps(lead)) / batches


def steps_with_copies(
    settings: Settings,
    meter: Meter,
    products: Products,
    number: int,
    batches: int,
    lead: int,
    pinned: list[tuple[torch.Tensor, torch.Tensor]],
) -> Callable[[], float]:
    """Return a function that measures a step with the copy of a batch, in ms."""

    def window() -> float:
        pass_ = prefetched(cycle(pinned), settings.device)
        try:

            def steps(count: int) -> None:
                for _ in range(count):
                    next(pass_)
                    products.run(number)

            # The lead also takes the first batch, which nothing is there to hide behind.
            return 1e3 * meter.seconds(lambda: steps(batches), lead=lambda: steps(lead)) / batches
        finally:
            if hasattr(pass_, "close"):
                pass_.close()

    return window


def put_share(
    report: Report, length: float, alone: Measurement, copies: Measurement, together: Measurement
) -> None:
    """Report the hidden share, round by round."""
    rounds = list(zip(alone.values, copies.values, together.values, strict=False))
    if not rounds:
        why = together.why or alone.why or copies.why or "no round was measured"
        report.put(Row(PART, name_of(length), status="not available", why=why, bar=bar_of(length)))
        return
    details = {
        "step_ms": [step for step, _, _ in rounds],
        "copy_ms": [copy for _, copy, _ in rounds],
        "both_ms": [both for _, _, both in rounds],
    }
    step, copy, both = rounds[-1]
    report.put(
        Row(
            PART,
            name_of(length),
            "of the copy",
            tuple(hidden_share(*round_) for round_ in rounds),
            bar=bar_of(length),
            note=f"last round: step {step:.3g} ms, copy {copy:.3g} ms, both {both:.3g} ms",
            details=details,
        )
    )


def run(settings: Settings, report: Report, budget: Budget) -> None:
    """Measure, and report what cannot be."""
    with excused(report, PART, "hidden", Bar("host-to-device time hidden", 0.95)):
        measure_overlap(settings, report, budget)
