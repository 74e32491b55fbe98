"""Which cases of a parametrized test run by default (docs/contributing.md explains the marks)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["mark_except"]


def mark_except(
    by_default: Collection[Any], mark: pytest.MarkDecorator, values: Iterable[Any]
) -> list[Any]:
    """Return `values` for ``parametrize``; only those of `by_default` run without `mark`."""
    return [
        value
        if value in by_default
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
        for value in values
    ]
