"""Who measures: what a runner promises, and the simplest one, this process.

Whatever a trial does (it is killed, crashes, hangs, takes all memory), its caller goes on,
and has the reason in words: of a `ProcessRunner` (`fastdata.tuning.process`) that holds whole.
"""

from __future__ import annotations

from typing import Any, Protocol

from fastdata.errors import FastdataError
from fastdata.tuning.serving import in_a_line
from fastdata.tuning.subject import Recipe, Subject

__all__ = ["LocalRunner", "Runner", "TrialFailedError", "TrialTimeoutError", "UnsentError"]


class TrialFailedError(FastdataError, RuntimeError):
    """A trial has no result; the message is the reason.

    Attributes
    ----------
    refused : FastdataError or None
        What fastdata itself said is wrong with an argument.
    """

    def __init__(self, message: str, refused: FastdataError | None = None) -> None:
        super().__init__(message)
        self.refused = refused


class TrialTimeoutError(TrialFailedError):
    """A trial was ended because it took too long."""


class UnsentError(TrialFailedError):
    """The process that measures cannot have what it is to measure, or does not start with it."""


class Runner(Protocol):
    """Calls methods of a `Subject`."""

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Return what a method returns.

        Raises
        ------
        TrialFailedError
            If it raises, dies, takes more than `seconds` or too much memory.
        """

    def close(self) -> None: ...


class LocalRunner:
    """This process: no limit, no time-out.

    Parameters
    ----------
    recipe : Recipe
    """

    def __init__(self, recipe: Recipe) -> None:
        self._subject = Subject(recipe)

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Call a method; `seconds` is not looked at."""
        try:
            return getattr(self._subject, name)(*arguments)
        except Exception as error:
            refused = error if isinstance(error, FastdataError) else None
            raise TrialFailedError(in_a_line(error), refused) from error

    def close(self) -> None:
        """Nothing stays."""
