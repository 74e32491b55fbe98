"""How much of the time is over, and what is being measured, on standard error."""

from __future__ import annotations

from collections.abc import Callable

from tqdm import tqdm

__all__ = ["Progress"]


class Progress:
    """A bar of seconds; a context.

    Parameters
    ----------
    seconds : float
        That there are.
    used : callable
        Returns how many are over.
    shown : bool or None
        None: only where standard error is a terminal.
    """

    def __init__(self, seconds: float, used: Callable[[], float], shown: bool | None) -> None:
        self._used = used
        self._bar = tqdm(
            total=round(seconds),
            desc="tuning",
            disable=None if shown is None else not shown,
            leave=False,
            bar_format="{desc} |{bar}| {n:.0f} of at most {total} s{postfix}",
        )

    def say(self, text: str) -> None:
        """Say what is being done now."""
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.n = min(self._used(), self._bar.total)
        left = max(0, round(self._bar.total - self._bar.n))
        self._bar.set_description_str(f"tuning, {left} s left", refresh=False)
        self._bar.refresh()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
