"""A process of a user's script that changes no file outside of a few folders, whatever writes.

`contain` is called first in a new process, before a library starts threads.  The kernel then
refuses all writes outside of the folders given, also those of C libraries and other programs that
the process starts.  Reading is not limited.  Below ``/dev`` the process may use devices, as GPUs
need that, and ``/dev/shm`` for shared memory.

Landlock (Linux 5.13) does this where the kernel has it, else read-only mounts in a namespace of the
process.  So that a refused write seldom ends a script, `fastdata.processes.calls` has it succeed,
and the file is written to the scratch folder.

The process that `contain` returns in is a child of the one that called it.  That one stays outside
and ends everything the script has started, daemons included, when the script or the parent ends.

Source: Documentation/userspace-api/landlock.rst of Linux.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from fastdata.processes.calls import (
    LIBC,
    NO_NEW_PRIVILEGES,
    Answers,
    checked,
    filter_calls,
    is_known_machine,
)

__all__ = ["Way", "best_way", "cache_folders", "contain"]

Way = Literal["landlock", "namespace", "none"]
"""How the kernel protects files."""

_CACHES = {"HF_HOME": "", "TORCH_HOME": "", "XDG_CACHE_HOME": "~/.cache"}
"""Variables that name caches of downloads, with the folders that stand for variables not set."""

_CHILD_SUBREAPER = 36  # of prctl


def cache_folders(environment: Mapping[str, str], script: str) -> dict[str, str]:
    """Return the caches that a script may write to, by the variables that name them.

    An empty variable counts as unset.  A folder that contains the script, the working directory or
    the home is left out: it may contain all of the user's files.
    """
    found = {}
    kept = [os.path.realpath(path) for path in (script, os.getcwd(), os.path.expanduser("~"))]
    for name, default in _CACHES.items():
        folder = os.path.realpath(
            os.path.expanduser(environment.get(name) or default or os.devnull)
        )
        is_above = any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for path in kept)
        if os.path.isdir(folder) and not is_above:
            found[name] = folder
    return found


def best_way() -> Way:
    """Return how the kernel can protect files on this machine."""
    if not is_known_machine():
        return "none"
    if _landlock_version() > 0:
        return "landlock"
    code = "import sys; sys.path.insert(0, sys.argv[1])\n"
    code += "from fastdata.processes.protection import _restrict; _restrict([], 'namespace')"
    tried = [sys.executable, "-c", code, str(Path(__file__).parents[2])]
    is_allowed = subprocess.run(tried, capture_output=True).returncode == 0
    return "namespace" if is_allowed else "none"


def contain(connection: int, scratch: str, writable: Sequence[str], way: Way) -> None:
    """Return in a child of this process that may write only to the `writable` folders.

    Files that it would write elsewhere come into the folder `scratch`; `kept_writes` returns their
    names.  `connection` is a socket; the parent has its other end.  This process waits, and
    ends when the child has ended, as the child did, or when the parent has closed its end.  First
    it kills all descendants.
    """
    checked(LIBC.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0))
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child:
        theirs.close()
        _wait_for(child, connection, Answers(ours, scratch, writable))
    ours.close()
    os.setpgid(0, 0)  # a signal to the script's group does not end the process that waits
    _restrict(writable, way)
    listener = [] if way == "none" else filter_calls()
    socket.send_fds(theirs, [b"restricted"], listener)
    for one in listener:  # if the process outside ends, calls fail in place of waiting for it
        os.close(one)
    theirs.close()


def _wait_for(child: int, connection: int, answers: Answers) -> NoReturn:
    """Answer calls until a process or a connection has ended; kill all descendants, and end."""
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.set_wakeup_fd(ends)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(connection, 0)  # its end is always reported
    waiting.register(answers, select.POLLIN)
    status = signal.SIGKILL.value
    try:
        pid, status = os.waitpid(child, os.WNOHANG)
        while not pid:
            happened = dict(waiting.poll())
            if connection in happened:
                break
            if ended in happened:
                os.read(ended, 4096)
                while (reaped := _reap())[0]:  # orphans end, too
                    pid, status = reaped if reaped[0] == child else (pid, status)
            elif happened[answers.fileno()] & select.POLLHUP:
                waiting.unregister(answers)
            else:
                answers.give()
    finally:
        from fastdata.processes.groups import kill_descendants

        kill_descendants()
        if os.WIFSIGNALED(status):
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.WEXITSTATUS(status))


def _reap() -> tuple[int, int]:
    """Return the number and the status of a child that has ended; 0 if there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _restrict(writable: Sequence[str], way: Way) -> None:
    """Let this process, and all that it starts, write only to these folders."""
    if way == "landlock":
        _use_landlock(writable)
    elif way == "namespace":
        _use_namespace(writable)


# -- Landlock ----------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on all machines
_WRITE_FILE, _TRUNCATE, _REFER = 1 << 1, 1 << 14, 1 << 13
_CHANGE_FOLDER = 0b1_1111_1111_0000  # to make and to remove entries of all kinds
_MAKE_DEVICES = 1 << 6 | 1 << 11
_MAKE_FILE, _REMOVE_FILE = 1 << 8, 1 << 5
_SCOPE_SIGNAL = 2

_STORAGE = (
    *("bsg/", "cpu/", "kmem", "loop-control", "mapper/", "mem", "mtd", "ng", "nst", "nvme"),
    *("nvram", "port", "raw", "sg", "st", "uinput", "watchdog"),
)
"""Character devices that reach disks, or memory of other processes."""


def _landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 or less without one."""
    return int(LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def _use_landlock(writable: Sequence[str]) -> None:
    version = _landlock_version()
    truncate = _TRUNCATE if version >= 3 else 0
    every = _WRITE_FILE | _CHANGE_FOLDER | truncate | (_REFER if version >= 2 else 0)
    scoped = _SCOPE_SIGNAL if version >= 6 else 0  # it ends no process of others
    rules = struct.pack("QQQ", every, 0, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = checked(LIBC.syscall(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0))
    allowed = [(folder, every & ~_MAKE_DEVICES) for folder in writable]
    # POSIX shared memory and semaphores are files there, which libc links and unlinks.
    allowed.append(("/dev/shm", _WRITE_FILE | _MAKE_FILE | _REMOVE_FILE | truncate))
    allowed += [(device, _WRITE_FILE | truncate) for device in _devices()]
    allowed += [(folder, _WRITE_FILE | truncate) for folder in ("/dev/pts", "/proc/self")]
    for path, rights in allowed:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rule = struct.pack("=Qi", rights, place)
        checked(LIBC.syscall(_ADD_RULE, ruleset, 1, rule, 0))
        os.close(place)
    checked(LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    checked(LIBC.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _devices() -> Iterator[str]:
    """Yield the character devices that a script may write to."""
    for folder, folders, names in os.walk("/dev"):
        folders[:] = [name for name in folders if name not in ("shm", "mqueue", "hugepages")]
        for name in names:
            path = os.path.join(folder, name)
            is_storage = path.removeprefix("/dev/").startswith(_STORAGE)
            if not is_storage and stat.S_ISCHR(os.lstat(path).st_mode):
                yield path


# -- read-only mounts ----------------------------------------------------------------------------

_NEW_NAMESPACE, _NEW_USERS = 0x20000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_KEPT_OPTIONS = {
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
}
"""Options of a mount, which a change must repeat."""


def _use_namespace(writable: Sequence[str]) -> None:
    user, group = os.geteuid(), os.getegid()
    # In a namespace of users, /proc/PID/root of processes outside is out of reach, also for root.
    if LIBC.unshare(_NEW_NAMESPACE | _NEW_USERS) < 0:
        checked(LIBC.unshare(_NEW_NAMESPACE))
    else:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(None, "/", _RECURSIVE | _PRIVATE)
    for folder in writable:
        _mount(folder, folder, _BIND | _RECURSIVE)
    left = tuple(f"{folder}/" for folder in (*writable, "/dev/shm"))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        place = os.fsdecode(fields[4].encode().decode("unicode_escape").encode("latin-1"))
        if not f"{place}/".startswith(left):
            kept = sum(_KEPT_OPTIONS.get(option, 0) for option in fields[5].split(","))
            _mount(None, place, _REMOUNT | _BIND | _READ_ONLY | kept)
    os.chdir(os.getcwd())  # the mount below it is another one now


def _mount(source: str | None, target: str, flags: int) -> None:
    from_ = None if source is None else os.fsencode(source)
    checked(LIBC.mount(from_, os.fsencode(target), None, ctypes.c_ulong(flags), None))
