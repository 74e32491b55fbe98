"""What a tuned result is of: descriptions of data and transforms."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tune_helpers import Squares

from fastdata import transforms as T  # noqa: N812
from fastdata.formats.layout import canonical_json
from fastdata.tuning.describing import UndescribableError, describe, describer


def function(source: str, **names: Any) -> Any:
    """Return what `f` is in a module of this source."""
    names.setdefault("__name__", "users")
    exec(source, names)
    return names["f"]


HELPER = "def g(x):\n    return x + {}\ndef f(x):\n    return g(x)\n"
METHOD = "class C:\n    def go(self):\n        return {}\nf = C()\n"
NESTED = "def f(x):\n    return [y + {} for y in x if (lambda: y)()]\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        (0.1, 0.2),
        ([1], (1,)),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, frozenset((1, 2))),
        (b"a", b"b"),
        (list(range(1000)), [*range(999), 0]),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
        (torch.tensor([1.0]), torch.tensor([2.0])),
        (torch.float16, torch.float32),
        (len, sum),
        (functools.partial(int, base=2), functools.partial(int, base=3)),
        (T.Normalize((0.5,), (0.1,)), T.Normalize((0.5,), (0.2,))),
        (T.PerSample(lambda s: s), T.PerSample(lambda s: s._replace(label=1))),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
        (function("def f(x):\n    return x"), function("def f(x):\n    return -x")),
        (function("def f(x, a=1): return x"), function("def f(x, a=2): return x")),
        (function("def f(x, *, a=1): return x"), function("def f(x, *, a=2): return x")),
        (function("def f(x): return K", K=1), function("def f(x): return K", K=2)),
        (function(HELPER.format(1)), function(HELPER.format(2))),
        (function(METHOD.format(1)), function(METHOD.format(2))),
        (function(METHOD.format(1)).go, function(METHOD.format(2)).go),
        (function(NESTED.format(1)), function(NESTED.format(2))),
    ],
)
def test_different_things_are_described_differently(one: Any, other: Any) -> None:
    assert canonical_json(describe(one)) != canonical_json(describe(other))
    for each in (one, other):
        assert canonical_json(describe(each)) == canonical_json(describe(each))


def in_a_closure(number: int) -> Callable[[int], int]:
    return lambda value: value + number


def test_closures_and_modules_of_the_users_are_looked_into() -> None:
    assert describe(in_a_closure(1)) == describe(in_a_closure(1)) != describe(in_a_closure(2))
    described = []
    for number in (1, 2, 2):
        module = types.ModuleType("utilities")
        exec(f"def g(x): return x + {number}", vars(module))
        described.append(describe(function("def f(x): return m.g(x)", m=module)))
    assert described[0] != described[1] == described[2]


def test_where_code_stands_does_not_matter() -> None:
    source = "def f(x):\n    return x"
    moved = function("\n\n" + source, __name__="elsewhere")
    assert describe(function(source)) == describe(moved)


def test_a_cycle_ends() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert describe(ring) == describe(ring)


def test_generators_of_random_numbers_are_all_the_same() -> None:
    assert describe(np.random.default_rng(1)) == describe(np.random.default_rng(2))


def test_a_mapped_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "images.npy"
    np.save(path, np.zeros((4, 4)))
    first = describe(np.load(path, mmap_mode="r")[:2])
    assert first == describe(np.load(path, mmap_mode="r")[:2])
    np.save(path, np.zeros((5, 4)))
    assert first != describe(np.load(path, mmap_mode="r")[:2])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (iter([1]), "list_iterator, of which nothing can be seen"),
        ({"a": [iter([1])]}, r"dict\['a'\]\[0\] is a builtins.list_iterator"),
        (torch.zeros(2, 2).to_sparse(), "a sparse one"),
        ([Squares() for _ in range(10_000)], "more than 20,000 objects"),
        (functools.reduce(lambda inner, _: [inner], range(5000), None), "nested too deep"),
    ],
)
def test_what_cannot_be_told_for_sure_is_refused(value: Any, why: str) -> None:
    with pytest.raises(UndescribableError, match=why):
        describe(value)


def test_more_bytes_than_are_worth_hashing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describer, "MAX_BYTES", 100)
    with pytest.raises(UndescribableError, match="would have to be hashed"):
        describe([np.zeros(10), np.zeros(10)])


def test_globals_without_a_description_count_by_their_type() -> None:
    source = "def f(x):\n    with lock: return x"
    first, second = (function(source, lock=threading.Lock()) for _ in range(2))
    assert describe(first) == describe(second) != describe(function(source, lock=Squares()))
