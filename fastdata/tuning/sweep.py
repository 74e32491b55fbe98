"""Which settings are tried: numbers of workers first, then what else there is at the knee.

Pure functions, which a session (`fastdata.tuning.session`) calls for what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from fastdata.measuring.windows import Rate
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.choice import Measured, plateau, suffices

__all__ = ["GROWTH", "MOST_BETWEEN", "between", "first_counts", "grows", "variants"]

GROWTH = 1.1
"""Twice the workers have to give so much more, or there is no use in still more."""

MOST_BETWEEN = 3
"""Numbers between two that are all tried; of more, the middle one."""


def first_counts(most: int) -> list[int]:
    """Return 0, 1, 2, 4, ... up to `most`, which is one of them."""
    counts = [0, *takewhile(lambda count: count < most, (1 << power for power in range(31)))]
    return counts if most in counts else [*counts, most]


def grows(rates: Sequence[Measured]) -> bool:
    """Return whether the largest number of workers gave more than the next, beyond noise."""
    ordered = sorted(rates, key=lambda one: one[0].num_workers)
    if len(ordered) < 2:
        return False
    (_, before), (_, last) = ordered[-2:]
    return last.median >= GROWTH * before.median and last.low > before.high


def between(rates: Sequence[Measured], demand: float | None) -> list[int]:
    """Return the numbers of workers to try around the knee; none where it is known.

    `rates` are of settings that differ only in their numbers of workers; `demand` is the batches
    a second that are wanted, None for the most there is.
    """
    if not rates:
        return []
    by_count: dict[int, Rate] = {settings.num_workers: rate for settings, rate in rates}
    settings_of = {settings.num_workers: settings for settings, _ in rates}
    counts = sorted(by_count)
    enough = next(
        (
            count
            for count in counts
            if demand is not None and suffices(settings_of[count], by_count[count], demand)
        ),
        None,
    )
    knee = plateau(rates).num_workers if enough is None else enough
    below = max((count for count in counts if count < knee), default=knee)
    missing = list(range(below + 1, knee))
    if len(missing) <= MOST_BETWEEN:
        return missing
    return [missing[len(missing) // 2]]


def variants(
    base: Settings,
    *,
    saving: bool,
    cost: Callable[[Settings], tuple[int, ...]],
    methods: Sequence[str] = ("thread",),
    cuda: bool = False,
    persistent: bool = False,
) -> list[Settings]:
    """Return settings that differ from `base` in one thing, or in that and one worker less.

    With `saving`, `base` is enough, and only what costs less is returned; otherwise what may give
    more, or as much for less memory.  Workers are of `methods`; memory is pinned where there is
    `cuda`, and with `persistent` it is found out what starting workers anew costs.
    """
    if not base.num_workers:
        return []
    found: list[Settings] = []
    fewer = base.num_workers - 1
    others = [method for method in methods if method != base.worker_method]
    for method in others:
        other = replace(base, worker_method=method)  # type: ignore[arg-type]
        found.append(other)
        if saving and fewer:
            found.append(replace(other, num_workers=fewer))
    more = replace(base, prefetch_factor=2 * base.prefetch_factor)
    if base.prefetch_factor > 1:
        found.append(replace(base, prefetch_factor=base.prefetch_factor // 2))
    if not saving:
        found.append(more)
    elif fewer:
        found += [replace(base, num_workers=fewer), replace(more, num_workers=fewer)]
    if cuda:
        found.append(replace(base, pin_memory=not base.pin_memory))
    if persistent and base.persistent_workers:
        found.append(replace(base, persistent_workers=False))
    if saving:
        found = [settings for settings in found if cost(settings) < cost(base)]
    return list(dict.fromkeys(found))
