"""Limits of the process's own cgroup and of those above it, in trees made up of files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from cgroup_helpers import in_cgroups

from fastdata.processes import resources
from fastdata.processes.resources import (
    available_bytes,
    available_cores,
    cpu_quota,
    default_workers,
    limit_bytes,
)

JOB = "slurm/uid_1000/job_7/step_0"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=10**12, total=2 * 10**12)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def memory(group: str, version: int, most: int | str, used: int, cached: int = 0) -> dict[str, str]:
    if version == 2:
        stat = f"anon 5\ninactive_file {cached}\nfile 9\n"
        files = {"memory.max": f"{most}\n", "memory.current": f"{used}\n", "memory.stat": stat}
    else:
        stat = f"inactive_file 1\ntotal_inactive_file {cached}\n"
        files = {
            "memory.limit_in_bytes": f"{most}\n",
            "memory.usage_in_bytes": f"{used}\n",
            "memory.stat": stat,
        }
    return {
        os.path.join("memory" * (version == 1), group, name): text for name, text in files.items()
    }


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("groups", "left", "most"),
    [
        ({"": (1_000_000, 700_000)}, 300_000, 1_000_000),  # a container
        ({"": (1_000_000, 700_000, 200_000)}, 500_000, 1_000_000),
        ({"": (1_000_000, 1_200_000)}, 0, 1_000_000),
        ({JOB: (1_000_000, 700_000)}, 300_000, 1_000_000),  # its own group
        ({"slurm/uid_1000/job_7": (1_000_000, 900_000)}, 100_000, 1_000_000),  # one above
        # Others of the job have taken most of what the job may have.
        ({JOB: (1_000_000, 10_000), "slurm/uid_1000": (3_000_000, 2_950_000)}, 50_000, 1_000_000),
        ({JOB: ("max", 5), "slurm": (9_000_000, 5)}, 8_999_995, 9_000_000),
        ({"slurm/uid_1000/job_8": (1_000, 1_000)}, 10**12, None),  # somebody else's
    ],
)
def test_memory_is_that_of_the_tightest_group_from_its_own_upwards(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    groups: dict[str, tuple[int, ...]],
    left: int,
    most: int | None,
) -> None:
    (tmp_path / "sys/fs/cgroup" / ("memory" * (version == 1)) / JOB).mkdir(parents=True)
    files: dict[str, str] = {}
    for name, numbers in groups.items():
        files |= memory(name, version, *numbers)
    in_cgroups(tmp_path, monkeypatch, files, version=version, own=f"/{JOB}")
    assert (available_bytes(), limit_bytes()) == (left, most)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("version", "files", "left"),
    [
        # Beyond memory.high, a process hardly moves.
        (2, {**memory("", 2, "max", 100), "memory.high": "500\n"}, 400),
        (2, {**memory("", 2, 450, 100), "memory.high": "500\n"}, 350),
        (2, memory("", 2, "?", 100), 10**12),
        (2, {"memory.max": "500\n"}, 10**12),
        (2, {}, 10**12),
        (1, memory("", 1, 9223372036854771712, 100), 10**12),
        # A group that a container does not see.
        (
            1,
            {
                **memory("", 1, 9223372036854771712, 100),
                "memory/memory.stat": "hierarchical_memory_limit 700\n",
            },
            600,
        ),
    ],
)
def test_what_counts_as_a_limit_of_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    files: dict[str, str],
    left: int,
) -> None:
    in_cgroups(tmp_path, monkeypatch, files, version=version)
    assert available_bytes() == left


def cores(group: str, version: int, quota: str, period: str = "100000") -> dict[str, str]:
    if version == 2:
        return {os.path.join(group, "cpu.max"): f"{quota} {period}\n"}
    group = os.path.join("cpu,cpuacct", group)
    quota = "-1" if quota == "max" else quota
    return {f"{group}/cpu.cfs_quota_us": quota, f"{group}/cpu.cfs_period_us": period}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("groups", "expected", "quota"),
    [
        ({}, 8, None),
        ({"": "max"}, 8, None),
        ({"": "250000"}, 3, 2.5),
        ({"": "10000"}, 1, 0.1),
        ({"": "1600000"}, 8, 16.0),
        ({"": "nonsense"}, 8, None),
        ({JOB: "50000"}, 1, 0.5),  # half a core is one, of its own group
        ({"slurm": "200000", JOB: "max"}, 2, 2.0),
        ({"slurm": "200000", "slurm/uid_1000": "150000", JOB: "400000"}, 2, 1.5),
    ],
)
def test_cores_are_those_of_the_tightest_group_from_its_own_upwards(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    groups: dict[str, str],
    expected: int,
    quota: float | None,
) -> None:
    files: dict[str, str] = {}
    for name, limit in groups.items():
        files |= cores(name, version, limit)
    top = tmp_path / "sys/fs/cgroup" / ("cpu,cpuacct" * (version == 1))
    (top / JOB).mkdir(parents=True)
    in_cgroups(tmp_path, monkeypatch, files, version=version, own=f"/{JOB}")
    assert (available_cores(), cpu_quota()) == (expected, quota)
    assert default_workers() == expected


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("own", "root"),
    [
        ("/docker/abc", "/docker/abc"),  # version 1 without a namespace: only its own is mounted
        ("/docker/abc/inner", "/docker/abc"),
        ("/docker/abc", "/"),  # the path of the host, which is not there
        ("/../other", "/"),  # of another namespace
        ("/x", "/../.."),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_sees_only_its_own_group_has_the_limits_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, own: str, root: str
) -> None:
    files = {**memory("", version, 1000, 400), **cores("", version, "150000")}
    in_cgroups(tmp_path, monkeypatch, files, version=version, own=own, root=root)
    assert (available_bytes(), available_cores()) == (600, 2)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", ["cgroup", "mountinfo"])
@pytest.mark.parametrize("text", [None, "", "nonsense\n\n:\n1 2 3 - x\n", "4:memory:/\n"])
def test_without_cgroups_there_is_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None
) -> None:
    in_cgroups(tmp_path, monkeypatch, {**memory("", 2, 5, 4), **cores("", 2, "100000")})
    file = tmp_path / "proc/self" / name
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    assert (available_bytes(), available_cores()) == (10**12, 8)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "mount",
    [
        b"40 24 8:1 / /mnt/caf\xe9 rw - ext4 /dev/sdb1 rw",  # no UTF-8
        "40 24 8:1 / /mnt/a\u2028b\x85c rw - ext4 /dev/sdb1 rw".encode(),
        b"40 24 0:26 /slurm/other /mnt/other rw - cgroup2 cgroup2 rw",  # not this process's
    ],
)
def test_other_mounts_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: bytes
) -> None:
    other = memory("../../../mnt/other", 2, 7, 7)
    files = {**memory(JOB, 2, 1000, 400), **cores(JOB, 2, "150000"), **other}
    in_cgroups(tmp_path, monkeypatch, files, own=f"/{JOB}")
    file = tmp_path / "proc/self/mountinfo"
    file.write_bytes(mount + b"\n" + file.read_bytes())
    assert (available_bytes(), available_cores()) == (600, 2)


@pytest.mark.usefixtures("machine")
def test_limits_above_a_group_that_is_not_to_be_seen_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {**memory(JOB, 2, 1000, 400), **cores(JOB, 2, "150000")}
    in_cgroups(tmp_path, monkeypatch, files, own=f"/{JOB}/task (deleted)")
    assert (available_bytes(), available_cores()) == (600, 2)


def test_half_a_core_of_a_real_group_is_one_core() -> None:
    """A group of cgroups version 1, made below the one that this process is in."""
    own = dict(
        line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
    )
    name = next((name for name in own if "cpu" in name.split(",")), None)
    group = Path(f"/sys/fs/cgroup/{name}{own.get(name or '')}", f"fastdata-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        code = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n{SHOW}"
        output = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=120)
    finally:
        group.rmdir()
    assert output.split()[1:] == ["0.5", "1"]


SHOW = """
from fastdata.processes.resources import *
print(limit_bytes(), cpu_quota(), available_cores())
"""


def test_limits_that_systemd_sets_are_seen() -> None:
    command = ["systemd-run", "--scope", "--quiet", "--collect"]
    command += ["-p", "MemoryMax=500M", "-p", "CPUQuota=50%", sys.executable, "-c", SHOW]
    if shutil.which("systemd-run") is None:
        pytest.skip("there is no systemd-run")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode and "fastdata" not in ended.stderr:
        pytest.skip(f"systemd-run makes no scope here: {ended.stderr.strip()[:100]}")
    assert ended.stdout.split() == [str(500 << 20), "0.5", "1"], ended.stderr
