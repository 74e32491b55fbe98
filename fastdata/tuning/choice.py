"""Which settings are chosen: the cheapest that keep the step busy, else the cheapest of the best.

Pure functions of rates, so that each rule can be seen to hold.  Rates come in the order of what
settings cost (`fastdata.tuning.budget.cost_of`), the cheapest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastdata.measuring.windows import Rate
from fastdata.tuned_settings.settings import Settings

__all__ = [
    "CEILING",
    "HEADROOM",
    "Measured",
    "best",
    "curve",
    "fed",
    "plateau",
    "ruled_out",
    "suffices",
    "sufficient",
]

HEADROOM = 1.1
"""Supply over demand, at the lower end of its interval: uneven batches would use up less."""

CEILING = 0.97
"""Of the rate without any waiting: within 3% a step counts as busy."""

SAME = 0.97
"""Rates closer than this are the same to a user, however sure it is that they differ."""

FAR = 0.75
"""What one turn shows to be so far off is not near after three."""

ALIKE = 0.9
"""Rates further apart than this differ, however wide their intervals are."""

Measured = tuple[Settings, Rate]


def fed(settings: Settings, supply: float, demand: float) -> float:
    """Return the steps a second that come of a supply and a demand in batches a second.

    Without workers nothing is done at the same time: 1 / (1 / demand + 1 / supply).
    """
    if settings.num_workers:
        return min(supply, demand)
    return 1 / (1 / demand + 1 / supply)


def suffices(settings: Settings, supply: Rate, demand: float) -> bool:
    """Return whether settings keep a step busy that takes `demand` batches a second."""
    if not settings.num_workers:
        return fed(settings, supply.low, demand) >= CEILING * demand
    return supply.low >= HEADROOM * demand


def sufficient(rates: Sequence[Measured], demand: float) -> list[Settings]:
    """Return the settings that keep a step busy, the cheapest first."""
    return [settings for settings, rate in rates if suffices(settings, rate, demand)]


def ruled_out(rates: Sequence[Measured], demand: float | None) -> set[Settings]:
    """Return the settings that no further turn would have chosen, for time is short.

    Those far below what is needed, or the best where nothing gives that; and those that cost
    more than some that give it with much to spare.
    """
    if not rates:
        return set()
    top = best(rates, demand)
    if demand is None:
        return {one for one, rate in rates if rate.median < FAR * top[1].median and one != top[0]}
    goal = min(demand, fed(top[0], top[1].median, demand))
    plenty = [place for place, one in enumerate(rates) if suffices(*one, demand / FAR)]
    last = plenty[0] if plenty else len(rates)
    return {
        one
        for place, (one, rate) in enumerate(rates)
        if place > last or fed(one, rate.median, demand) < FAR * goal
    }


def same(rate: Rate, other: Rate) -> bool:
    """Return whether a rate is no worse than another, as far as that can be told or matters."""
    if rate.median >= SAME * other.median:
        return True
    return rate.high >= other.low and rate.median >= ALIKE * other.median


def best(rates: Sequence[Measured], demand: float | None = None) -> Measured:
    """Return the settings with the highest rate, of supply or of the steps it feeds.

    Without a step those without workers do not count, unless there are no others: nothing
    of theirs would be done at the same time as a step.

    Raises
    ------
    ValueError
        If there are none.
    """
    if demand is None:
        rates = [one for one in rates if one[0].num_workers] or rates
        return max(rates, key=lambda one: one[1].median)
    # Where several feed it fully, the one with the most to spare.
    return max(rates, key=lambda one: (fed(one[0], one[1].median, demand), one[1].median))


def curve(rates: Iterable[Measured], like: Settings) -> list[Measured]:
    """Return the best rate of each number of workers of the same kind, the fewest first."""
    found: dict[int, Measured] = {}
    for settings, rate in sorted(rates, key=lambda one: one[1].median):
        if (settings.worker_method, settings.backend) == (like.worker_method, like.backend):
            found[settings.num_workers] = settings, rate
    return [found[count] for count in sorted(found)]


def plateau(rates: Sequence[Measured], demand: float | None = None) -> Settings:
    """Return the cheapest settings whose rate cannot be told from the best.

    Raises
    ------
    ValueError
        If there are none.
    """
    top, highest = best(rates, demand)
    for settings, rate in rates:
        if not settings.num_workers and top.num_workers:
            if demand is None:
                continue
            rate = _fed(settings, rate, demand)
        if same(rate, highest):
            return settings
    return top


def _fed(settings: Settings, rate: Rate, demand: float) -> Rate:
    low, median, high = (fed(settings, one, demand) for one in (rate.low, rate.median, rate.high))
    return Rate(median, low, high)
