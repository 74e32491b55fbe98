"""Objects that every worker has: given to it once, not with every sample."""

from __future__ import annotations

import abc
import itertools
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ..base import Deferred, IndexedSource

__all__ = ["SharedSource"]

_LOADERS: dict[str, Callable[[int], tuple[Any, ...]]] = {}
_tokens = itertools.count()


class SharedSource(IndexedSource):
    """Samples that each worker loads by a callable of its own."""

    @abc.abstractmethod
    def loader(self) -> Callable[[int], tuple[Any, ...]]:
        """Return the callable, which loads a sample by its number; it is pickled for workers."""

    @cached_property
    def _token(self) -> str:
        token = f"{os.getpid()}.{next(_tokens)}"
        weakref.finalize(self, _LOADERS.pop, token, None)
        return token

    def item(self, index: int) -> Deferred:
        """Return the values of a sample, which a worker loads."""
        if index >= self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples}")
        return _SharedItem(self._token, index)

    @property
    def worker_setup(self) -> Callable[[], None]:
        return partial(_register, self._token, self.loader())


def _register(token: str, load: Callable[[int], tuple[Any, ...]]) -> None:
    _LOADERS[token] = load


@dataclass
class _SharedItem(Deferred):
    token: str
    index: int

    def load(self) -> tuple[Any, ...]:
        return _LOADERS[self.token](self.index)
