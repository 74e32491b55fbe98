"""A tree of cgroups, and what ``/proc`` says of it, made up of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fastdata.processes import cgroups

__all__ = ["in_cgroups"]

_MOUNTS = {
    2: ["30 24 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"],
    1: [
        "31 24 0:27 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
        "32 24 0:28 {root} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory",
        "33 24 0:29 {root} /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd",
    ],
}
_LINES = {
    2: ["0::{own}"],
    1: ["5:cpu,cpuacct:{own}", "4:memory:{own}", "1:name=systemd:/elsewhere", "0::/"],
}


def in_cgroups(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Mapping[str, str],
    *,
    version: int = 2,
    own: str = "/",
    root: str = "/",
) -> None:
    """Have fastdata take this process for one of a group.

    `files` are below ``/sys/fs/cgroup``; `own` is the process's group, `root` what is mounted.
    """
    proc = folder / "proc" / "self"
    proc.mkdir(parents=True, exist_ok=True)
    (proc / "cgroup").write_text("".join(f"{line.format(own=own)}\n" for line in _LINES[version]))
    mounts = ["24 1 8:1 / / rw,relatime - ext4 /dev/root rw", *_MOUNTS[version]]
    (proc / "mountinfo").write_text("".join(f"{line.format(root=root)}\n" for line in mounts))
    for name, text in files.items():
        path = folder / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(cgroups, "ROOT", folder)
