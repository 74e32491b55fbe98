"""The verdict in one line: whether the settings keep the step busy, with the figures."""

from __future__ import annotations

from fastdata.tuning.choice import CEILING, HEADROOM, suffices
from fastdata.tuning.results import Rate
from fastdata.tuned_settings.settings import Settings

__all__ = ["verdict_of"]


def verdict_of(
    settings: Settings,
    supply: Rate,
    *,
    demand: float | None,
    trained: Rate | None,
    best: Rate,
    batch_size: int,
    more: str = "bring no more",
    epoch: int | None = None,
) -> tuple[bool, str]:
    """Return whether the step is kept busy, and say it.

    Parameters
    ----------
    settings : Settings
        The chosen ones.
    supply : Rate
        Of these.
    demand : float or None
        Batches a second; None without a step.
    trained : Rate or None
        Of the step with these settings, where that was measured.
    best : Rate
        The highest supply of all settings.
    batch_size : int
    more : str
        What is to be said of more workers.
    epoch : int, optional
        Batches of an epoch, where no worker makes those of the next one before it is begun.
    """
    if demand is None:
        return False, (f"{settings}: {_rate(supply.median, batch_size)}; more workers {more}")
    enough = suffices(settings, supply, demand)
    if trained is None:
        if enough:
            return True, (
                f"{settings}: supply {_rate(supply.median, batch_size)} for a demand of "
                f"{demand:.4g}; not tried with the step"
            )
        return False, _cannot(settings, "", demand, best, batch_size, more)
    share = trained.median / demand
    reached = f"{trained.median:.4g} of {demand:.4g} steps/s ({share:.1%} of the ceiling)"
    if share >= CEILING:
        thin = "" if enough else f", though supply is less than {HEADROOM:g} times the demand"
        return True, f"{settings}: keeps the step busy{thin}: {reached}"
    if enough:
        lost = 1 / trained.median - 1 / demand
        why = (
            f"taking a batch costs the loop {1e3 * lost:.2g} ms, or step and workers are in each "
            "other's way"
        )
        # A worker's first batch of an epoch is waited for as a whole.
        if epoch and settings.num_workers / supply.median / epoch > lost / 2:
            why = (
                f"an epoch has {epoch:,} batch{'es' * (epoch != 1)}, and while it lasts nobody "
                "makes the first one of the next"
            )
        return False, (
            f"{settings}: falls short with the step, {reached}, though supply alone is "
            f"{_rate(supply.median, batch_size)}: {why}"
        )
    return False, _cannot(settings, reached, demand, best, batch_size, more)


def _cannot(
    settings: Settings, reached: str, demand: float, best: Rate, batch_size: int, more: str
) -> str:
    """Say that no supply is enough; or what else it is, where one is above the demand."""
    wanted, most = _rate(demand, batch_size), _rate(best.median, batch_size)
    if best.median < demand:
        reached = f"; {settings}: {reached}" if reached else ""
        return f"cannot saturate: demand {wanted}, best supply {most}{reached}"
    why = f"no supply is surely {HEADROOM:g} times the demand, the best is {most}"
    if not settings.num_workers:
        why = f"they make batches between steps, and more {more}"
    reached = f" with the step, {reached}" if reached else f" of a demand of {wanted}"
    return f"{settings}: falls short{reached}: {why}"


def _rate(batches: float, batch_size: int) -> str:
    return f"{batches:.4g} batches/s ({batches * batch_size:,.0f} samples/s)"
