"""Whatever a script writes with, the kernel keeps the user's files as they are."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from doctor_helpers import script_with
from doctor_ways import WAYS, facts, precious, run_way, victim

from fastdata.processes import protection
from fastdata.processes.protection import Way, best_way, contain

pytestmark = pytest.mark.doctor

SOME = (
    *("open w", "os.fchmod of a descriptor for reading", "os.utime by a link in scratch"),
    *("os.link into scratch, then write", "rmtree, then makedirs", "sqlite3", "chattr by ioctl"),
    *(
        "libc open truncates",
        "libc unlink",
        "libc rename",
        "libc renameat2 exchanges",
        "sh",
        "touch",
    ),
    *("libc chmod of /dev/fd", "links in place of all files of scratch", "io_uring unlinks"),
    *("chmod as a 32-bit system call", "/proc/PARENT/fd", "a bind mount", "a daemon of a shell"),
)
"""One or two of each kind."""

LATE = 0.3


def outcomes(
    names: Iterable[str], folder: Path, way: Way | None
) -> dict[str, tuple[str, list[str]]]:
    """Run ways of writing in one protected process; return how each ended, and what it changed."""
    folders = {name: folder / "project" / f"{number}" for number, name in enumerate(names)}
    for one in folders.values():
        precious(one)
    outside = folder / "outside"
    precious(outside)
    scratch = folder / "scratch"
    scratch.mkdir()
    before = {name: facts(one) for name, one in folders.items()}
    before_outside = facts(outside)
    ours, theirs = socket.socketpair()
    answers, given = os.pipe()
    with victim(outside) as pid, open(answers, "rb") as stream:
        master, terminal = os.openpty()
        values = {"late": LATE, "victim": pid, "terminal": os.ttyname(terminal)}
        child = os.fork()
        if not child:
            try:
                os.setsid()
                os.close(ours.fileno())
                os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)  # as doctor has it
                if way is not None:
                    contain(theirs.fileno(), str(scratch), [str(scratch)], way)
                for number, (name, place) in enumerate(folders.items()):
                    ended = run_way(WAYS[name], place, scratch / f"{number}", values)
                    os.write(given, json.dumps([name, ended]).encode() + b"\n")
            except BaseException as error:
                os.write(given, json.dumps(["", repr(error)]).encode() + b"\n")
            finally:
                os._exit(0)
        theirs.close()
        os.close(given)
        found = dict(map(json.loads, stream))
        os.waitpid(child, 0)
        ours.close()
        os.close(master)
        os.close(terminal)
    time.sleep(2 * LATE)  # for daemons
    assert "" not in found, found[""]
    after = {name: facts(one) if one.exists() else {} for name, one in folders.items()}
    result = {}
    for name in folders:
        changed = [
            f"{path}: {before[name].get(path)} -> {after[name].get(path)}"
            for path in {**before[name], **after[name]}
            if before[name].get(path) != after[name].get(path)
        ]
        if found[name].startswith("Escaped"):
            changed.append(found[name])
        result[name] = found[name], changed
    if way is not None:
        assert facts(outside) == before_outside
        assert {path.name for path in (folder / "project").iterdir()} == {
            path.name for path in folders.values()
        }
    return result


def changes(found: dict[str, tuple[str, list[str]]]) -> dict[str, Any]:
    return {name: (ended, changed) for name, (ended, changed) in found.items() if changed}


def needs(wanted: Way) -> None:
    version = protection._landlock_version() if wanted == "landlock" else 0
    with mock.patch.object(protection, "_landlock_version", return_value=version):
        if best_way() != wanted:
            pytest.skip(f"the system has no {wanted}")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder that is not in /dev/shm, where `tmp_path` may be: processes share memory there."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.smoke
def test_some_ways_of_writing_change_nothing(disk: Path) -> None:
    needs("landlock")
    assert changes(outcomes(SOME, disk, "landlock")) == {}


@pytest.mark.parametrize("way", ["landlock", "namespace"])
def test_no_way_of_writing_changes_a_file(way: Way, disk: Path) -> None:
    needs(way)
    assert changes(outcomes(WAYS, disk, way)) == {}


@pytest.mark.smoke
@pytest.mark.parametrize("way", ["landlock", "namespace"])
def test_files_in_the_scratch_folder_are_as_ever(way: Way, disk: Path) -> None:
    needs(way)
    program = """if True:
        import os, subprocess, sys
        from pathlib import Path
        from fastdata.processes.protection import contain
        connection, scratch, way = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
        contain(connection, str(scratch), [str(scratch)], way)
        Path(scratch / "new").touch()
        subprocess.run(["touch", scratch / "newer"], check=True)
        program = scratch / "program"
        program.write_text("#!/bin/sh\\ncp -p $0 $0.copy && rm $0")
        program.chmod(0o700)
        subprocess.run([program], check=True)
        (scratch / "folder").mkdir()
        os.rename(scratch / "program.copy", scratch / "folder" / "moved")
        os.link(scratch / "new", scratch / "folder" / "linked")
        try:
            (scratch / "missing").chmod(0o700)
        except FileNotFoundError:
            print(sorted(str(path.relative_to(scratch)) for path in scratch.rglob("*")))
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", program, str(theirs.fileno()), str(disk), way]
        result = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60
        )
    names = ["folder", "folder/linked", "folder/moved", "kept_writes.txt", "new", "newer"]
    assert result.stdout == f"{names}\n", result.stderr


def test_without_protection_these_ways_do_change_files(disk: Path) -> None:
    """Else the other tests could not fail."""
    found = outcomes([name for name in WAYS if "mount" not in name], disk, None)
    harmless = {name: ended for name, (ended, changed) in found.items() if not changed}
    assert len(harmless) < 0.1 * len(found), harmless


def test_what_a_script_leaves_behind_changes_no_file(disk: Path) -> None:
    """Processes of doctor that are not protected import, open and read nothing of it."""
    project = disk / "project"
    precious(project)
    old = str(project / "old.txt")
    start = f"""
        import os, tempfile
        folder = tempfile.gettempdir()
        with open(f"{{folder}}/psutil.py", "w") as file:
            file.write("import os; os.truncate({old!r}, 0)")
        for number in range(2, 9):
            later = f"{{os.path.dirname(folder)}}/run-{{number}}"
            if not os.path.lexists(later):
                os.mkdir(later)
                for name in ("output.txt", "script.pyc"):
                    os.symlink({old!r}, f"{{later}}/{{name}}")
        torch.autograd.set_detect_anomaly(True)
    """
    (project / "train.py").write_text(script_with(start=start))
    before = facts(project)
    command = [sys.executable, "-m", "fastdata", "doctor", "--seconds", "20", "--only", "D09"]
    environment = {**os.environ, "TMPDIR": str(disk)}
    result = subprocess.run(
        [*command, "train.py"], cwd=project, env=environment, capture_output=True, text=True
    )
    after = facts(project)
    assert after == before, result.stdout + result.stderr
