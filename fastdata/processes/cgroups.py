"""Limits of this process's cgroups for cores and memory, version 1, 2 or both.

The limits of a group and of all its parents hold: a Slurm job's, a systemd unit's, a container's.
``/proc/self/cgroup`` names the group, and ``/proc/self/mountinfo`` the mounts.  Unreadable files
mean no limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "MemoryLimit", "QuotaLimit", "memory_limits", "tightest_quota"]

ROOT = Path("/")
"""The root of ``proc`` and of the mounts; tests replace it."""

_ESCAPED = re.compile(r"\\([0-7]{3})")


class QuotaLimit(NamedTuple):
    """The mean number of cores that the processes of a group may use together."""

    cores: float
    group: Path

    def seconds_used(self) -> float | None:
        """Return the CPU seconds of the group; None if unknown."""
        with suppress(OSError, ValueError, IndexError):
            words = (self.group / "cpu.stat").read_text().split()
            return int(words[words.index("usage_usec") + 1]) / 1e6
        for group in (self.group, *(found for found, _ in _groups("cpuacct"))):
            with suppress(OSError, ValueError):
                return int((group / "cpuacct.usage").read_text()) / 1e9
        return None


class MemoryLimit(NamedTuple):
    """Bytes that the processes of a group may use together, and the rest that is free."""

    most: int
    left: int


def tightest_quota() -> QuotaLimit | None:
    """Return the lowest limit of cores, or None."""
    found = [limit for limit in map(_quota_of, _groups("cpu")) if limit is not None]
    return min(found, default=None)


def memory_limits() -> Iterator[MemoryLimit]:
    """Yield the limits of all groups."""
    for group, version in _groups("memory"):
        limit = _memory_of(group, version)
        if limit is not None:
            yield limit


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield this process's group and its parents, each with the version of cgroups."""
    lines = _lines(ROOT / "proc/self/cgroup")
    paths = dict(line.partition(":")[2].split(":", 1) for line in lines if line.count(":") >= 2)
    for version, root, place in _mounts(controller):
        names = (names for names in paths if controller in names.split(","))
        name = "" if version == 2 else next(names, None)
        if name not in paths:
            continue
        path = Path(paths[name])
        if path.is_relative_to(root) and ".." not in path.parts:
            group = place / path.relative_to(root)
        elif ".." in path.parts or ".." in Path(root).parts:
            group = place  # in a container that sees only its own group, at the mount itself
        else:
            continue  # the mount of another group
        while group != place:
            yield group, version
            group = group.parent
        yield place, version


def _mounts(controller: str) -> Iterator[tuple[int, str, Path]]:
    """Yield version, root and mount point of each mount with a controller."""
    for line in _lines(ROOT / "proc/self/mountinfo"):
        # ID PARENT DEVICE ROOT PLACE OPTIONS [TAGS] - TYPE SOURCE OPTIONS; proc_pid_mountinfo(5)
        mount, _, system = line.partition(" - ")
        fields, words = mount.split(" "), system.split(" ")
        if len(fields) < 6 or len(words) < 3:
            continue
        root, place = map(_unescaped, fields[3:5])
        if words[0] == "cgroup2":
            yield 2, root, ROOT / place.lstrip("/")
        elif words[0] == "cgroup" and controller in words[2].split(","):
            yield 1, root, ROOT / place.lstrip("/")


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _quota_of(found: tuple[Path, int]) -> QuotaLimit | None:
    group, version = found
    try:
        if version == 2:
            limit, period = (group / "cpu.max").read_text().split()
        else:
            limit = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        cores = int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return QuotaLimit(cores, group) if cores > 0 else None


def _memory_of(group: Path, version: int) -> MemoryLimit | None:
    """Return the limit of a group; files in the page cache count as free memory.

    ``memory.high`` counts: beyond it, a process is not killed but slowed down to a crawl.
    """
    if version == 2:
        limits = [_number(group / "memory.max"), _number(group / "memory.high")]
        used = _number(group / "memory.current")
    else:
        limits = [_number(group / "memory.limit_in_bytes")]
        used = _number(group / "memory.usage_in_bytes")
    statistics = _statistics(group / "memory.stat")
    if version == 1:
        # Includes parents that a container does not see.
        limits.append(statistics.get("hierarchical_memory_limit"))
    most = min((limit for limit in limits if limit is not None), default=None)
    if most is None or used is None:
        return None
    cached = statistics.get("inactive_file" if version == 2 else "total_inactive_file", 0)
    return MemoryLimit(most, max(0, most - used + cached))


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; names may have any encoding."""
    try:
        return path.read_text("utf-8", "surrogateescape").split("\n")
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max": no limit
        return None


def _statistics(path: Path) -> dict[str, int]:
    words = [line.split(" ") for line in _lines(path)]
    return {word[0]: int(word[1]) for word in words if len(word) == 2 and word[1].isdigit()}
