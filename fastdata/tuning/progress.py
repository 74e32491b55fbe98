"""How much of the time is over, and what is being measured, on standard error."""

from __future__ import annotations

from tqdm import tqdm

from fastdata.tuning.budget import Budget

__all__ = ["Progress"]


class Progress:
    """A bar of seconds; a context.

    Parameters
    ----------
    budget : Budget
        The time that there is, the run with the step included.
    shown : bool or None
        None: only where standard error is a terminal.
    """

    def __init__(self, budget: Budget, shown: bool | None) -> None:
        self._budget = budget
        self._bar = tqdm(
            total=round(budget.total),
            desc="tuning",
            disable=None if shown is None else not shown,
            leave=False,
            bar_format="{desc} |{bar}| {n:.0f} of at most {total} s{postfix}",
        )

    def say(self, text: str) -> None:
        """Say what is being done now."""
        self._bar.set_postfix_str(text, refresh=False)
        budget = self._budget
        self._bar.total = round(budget.total)  # which grows where a step is too slow for it
        self._bar.n = min(budget.used, budget.total)
        self._bar.set_description_str(f"tuning, {budget.left:.0f} s left", refresh=False)
        self._bar.refresh()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
