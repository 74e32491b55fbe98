"""Which cases of a parametrized test run by default (docs/contributing.md explains the marks)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["mark_except"]


def mark_except(
    by_default: int | Collection[Any], mark: pytest.MarkDecorator, values: Iterable[Any]
) -> list[Any]:
    """Return `values` for ``parametrize``; only `by_default` of them run without `mark`.

    `by_default` is a collection of values, or the number of values at the start.
    """
    return [
        value
        if (number < by_default if isinstance(by_default, int) else value in by_default)
        else pytest.param(*value, marks=mark)
        if isinstance(value, tuple)
        else pytest.param(value, marks=mark)
        for number, value in enumerate(values)
    ]
