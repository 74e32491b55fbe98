"""Which part of a divided dataset each sample goes to.

Everything here depends on its arguments alone: the same seed gives the same parts on every machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError

__all__ = ["assign_groups", "assign_samples", "part_sizes"]

Numbers = NDArray[np.int64]

_NAME = re.compile(r"(?!lock$)\w[\w-]*")
"""Names of parts become names of files; `lock` is a file of `dividing`."""
_ROUNDING = 1e-9


def part_sizes(divide: Mapping[str, float], count: int, *, grouped: bool) -> NDArray[np.float64]:
    """Return how many of `count` samples each part is to have, not rounded.

    A single part is followed by the rest.  `OptionError` unless the parts have shares that add up
    to 1, or whole numbers of samples that add up to `count`.
    """
    given: Mapping[Any, Any] = divide
    for name, size in given.items():
        if not _NAME.fullmatch(str(name)):
            raise OptionError(
                f"divide= names a part {name!r}, but it becomes the name of a file, which may have "
                "letters, digits, '_' and '-', and not be 'lock'"
            )
        if not isinstance(size, (int, float)) or not 0 < size < math.inf:
            raise OptionError(
                f"divide= gives {name!r} the size {size!r}, which is not a number above 0"
            )
    sizes = list(divide.values())
    counts = all(isinstance(size, int) for size in sizes)
    every = count if counts else 1
    if len(sizes) == 1 and sizes[0] < every:
        sizes.append(every - sizes[0])
    total = math.fsum(sizes)
    if counts:
        if grouped:
            raise OptionError(
                "divide= with group= takes shares, such as 0.8: groups stay whole, so the size "
                "of a part cannot be chosen exactly"
            )
        if total != count:
            raise OptionError(
                f"the parts of divide= add up to {int(total):,} samples, and there are "
                f"{count:,}. Give numbers that add up to this, or shares that add up to 1"
            )
        return np.array(sizes, np.float64)
    if abs(total - 1) > 1e-6:
        raise OptionError(f"the shares of divide= add up to {total:g}, not to 1")
    return np.array(sizes, np.float64) / total * count


def assign_samples(sizes: NDArray[np.float64], strata: Numbers, seed: int) -> Numbers:
    """Return the part of each sample, drawn at random within each stratum.

    The sizes of parts are rounded by largest remainder.  Each part has its share of each stratum,
    rounded up or down so that the sizes stay.
    """
    of_stratum = np.bincount(strata)
    table = _rounded(of_stratum[:, None] * (sizes / sizes.sum()))
    _mend(table, of_stratum, sizes)
    drawn = np.random.Generator(np.random.PCG64(seed)).permutation(len(strata))
    in_order = drawn[np.argsort(strata[drawn], kind="stable")]
    parts = np.empty(len(strata), np.int64)
    # Each stratum in turn gives its samples to the first part, then to the next ones.
    parts[in_order] = np.repeat(np.tile(np.arange(len(sizes)), len(table)), table.ravel())
    return parts


def _rounded(quotas: NDArray[np.float64]) -> Numbers:
    """Round each row by largest remainder; what rounding owes a part counts in the next row."""
    table: Numbers = np.floor(quotas + _ROUNDING).astype(np.int64)
    owed = [0.0] * quotas.shape[1]
    for row, rests in zip(table, np.clip(quotas - table, 0, 1).tolist(), strict=True):
        owed = [one + rest for one, rest in zip(owed, rests, strict=True)]
        open_parts = [part for part, rest in enumerate(rests) if rest > _ROUNDING]
        open_parts.sort(key=lambda part: -round(owed[part], 9))
        for part in open_parts[: round(math.fsum(rests))]:
            row[part] += 1
            owed[part] -= 1
    return table


def _mend(table: Numbers, of_stratum: Numbers, sizes: NDArray[np.float64]) -> None:
    """Move samples between parts until all parts have their rounded sizes.

    A part gives a sample of a stratum that was rounded up in it, and takes one of a stratum that
    was rounded down.  Other parts may pass them on, one of each stratum.
    """
    wanted = _rounded(sizes[None])[0]
    surplus = table - of_stratum[:, None] * (sizes / sizes.sum())
    while (beyond := table.sum(axis=0) - wanted).any():
        much = int(beyond.argmax())
        paths: dict[int, list[tuple[int, int, int]]] = {much: []}
        for part in (queue := [much]):
            for other in (other for other in range(len(sizes)) if other not in paths):
                gain = np.minimum(surplus[:, part], -surplus[:, other])
                if gain.max() > _ROUNDING:
                    paths[other] = [*paths[part], (int(gain.argmax()), part, other)]
                    queue.append(other)
        little = min(paths, key=lambda part: beyond[part])
        if beyond[little] >= 0:
            return  # these sizes would round a stratum by more than one sample
        for row, part, other in paths[little]:
            for moved in (table, surplus):
                moved[row, part] -= 1
                moved[row, other] += 1


def assign_groups(
    sizes: NDArray[np.float64], strata: Numbers, groups: Numbers, seed: int
) -> Numbers:
    """Return the part of each sample, so that no group is in two parts.

    Greedy, as scikit-learn's ``StratifiedGroupKFold``: groups come in random order, the largest
    first.  Each goes to the part in which it adds least to the sum of (found - wanted)^2 / wanted
    over the samples of each stratum and over all samples.
    """
    shares = (sizes / sizes.sum()).tolist()
    generator = np.random.Generator(np.random.PCG64(seed))
    of_group = np.bincount(groups)
    order = generator.permutation(len(of_group))
    order = order[np.argsort(-of_group[order], kind="stable")]
    every = int(strata.max(initial=0)) + 1  # the number of strata, and the column of all samples
    columns, starts = _columns_of(groups, strata, every)
    wanted = [[share * n for n in (*np.bincount(strata).tolist(), len(strata))] for share in shares]
    found = [[0] * (every + 1) for _ in shares]
    part_of = np.empty(len(of_group), np.int64)
    for done, group in enumerate(order.tolist()):
        adds = [*columns[starts[group] : starts[group + 1]], (every, int(of_group[group]))]
        empty = [part for part, counts in enumerate(found) if not counts[every]]
        # The last groups go to the parts that have none yet.
        choice = empty if len(of_group) - done <= len(empty) else range(len(shares))
        best = min(choice, key=lambda part: _added(adds, found[part], wanted[part]))
        for column, number in adds:
            found[best][column] += number
        part_of[group] = best
    return part_of[groups]


def _columns_of(
    groups: Numbers, strata: Numbers, every: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return (stratum, samples) of all groups, one after another, and where each group begins."""
    pairs, counts = np.unique(groups * every + strata, return_counts=True)
    columns = list(zip((pairs % every).tolist(), counts.tolist(), strict=True))
    starts = np.searchsorted(pairs, np.arange(int(groups.max(initial=-1)) + 2) * every)
    return columns, starts.tolist()


def _added(adds: list[tuple[int, int]], found: list[int], wanted: list[float]) -> float:
    """Return the growth of a part's sum of (found - wanted)^2 / wanted by a group."""
    return sum(n * (2 * (found[c] - wanted[c]) + n) / wanted[c] for c, n in adds)
