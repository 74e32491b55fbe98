"""Where is measured: in another process, or in the caller's where that cannot have the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdata.errors import WorkerError
from fastdata.tuning.runner import (
    LocalRunner,
    ProcessRunner,
    Runner,
    TrialFailedError,
    UnsentError,
)
from fastdata.tuning.scripts import names_function
from fastdata.tuning.subject import Facts, Recipe

__all__ = ["Runners"]


class Runners:
    """Who measures: another process, or this one where that one cannot have the data.

    Parameters
    ----------
    recipe : Recipe
        What can be sent.
    here : Recipe
        The same, with a step that cannot.
    trial_seconds : float
        After which the first look is given up.
    notes : list of str
        Gets one where this process measures.
    say : callable
        Told in words what is being done.

    Raises
    ------
    FastdataError
        What is wrong with the data or its options.

    Attributes
    ----------
    loaders, steps : Runner
        Who makes loaders, and who has a step that can be sent; the same.
    facts : Facts
    """

    def __init__(
        self,
        recipe: Recipe,
        here: Recipe,
        trial_seconds: float,
        notes: list[str],
        say: Callable[[str], None],
    ) -> None:
        self._here = here
        self._local: LocalRunner | None = None
        self.loaders: Runner
        self.steps: Runner
        self.facts: Facts
        say("starting")
        try:
            self.loaders = ProcessRunner(recipe)
        except Exception as error:  # a user's object may raise anything as it is pickled
            why: Exception = error
        else:
            try:
                self.facts = _asked(self.loaders, "look", seconds=trial_seconds)
                self.steps = self.loaders
                return
            except UnsentError as error:
                self.loaders.close()
                if names_function(recipe.data):
                    raise WorkerError(f"batches cannot be made: {error}") from error.__cause__
                why = error
            except BaseException:
                self.loaders.close()
                raise
        notes.append(
            f"measured in this process, as the data cannot be sent to another ({why}): a trial "
            "that dies or hangs ends this one"
        )
        self.loaders = self.steps = self.local()
        self.facts = _asked(self.loaders, "look", seconds=trial_seconds)

    def local(self) -> LocalRunner:
        """Return this process."""
        if self._local is None:
            self._local = LocalRunner(self._here)
        return self._local

    def close(self) -> None:
        """End the process and all that it has started.  Idempotent."""
        self.loaders.close()


def _asked(runner: Runner, name: str, *, seconds: float) -> Any:
    try:
        return runner.call(name, seconds=seconds)
    except UnsentError:
        raise
    except TrialFailedError as error:
        if error.refused is not None:
            raise error.refused from None
        raise WorkerError(f"batches cannot be made: {error}") from error.__cause__
