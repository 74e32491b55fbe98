"""System calls of a contained process that would change files: they succeed without an effect.

The kernel refuses writes (`fastdata.processes.protection`), and many programs end then.  So seccomp
hands calls that write to a process outside, which uses `Answers`.  A file that is opened for
writing is another one, in a scratch folder.  Calls that make, rename or remove a file, or change
its mode, owner, times or attributes, return without an error.  Calls in folders that may be written
to go on.  The path of a call is looked at twice, here and by the kernel, so that this is no
protection.

Sources: seccomp_unotify(2), and the tables of system calls of Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import platform
import shutil
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "LIBC",
    "NO_NEW_PRIVILEGES",
    "Answers",
    "checked",
    "filter_calls",
    "is_known_machine",
    "kept_writes",
]

LIBC = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES = 38  # of prctl

_MACHINES = {"x86_64": (0xC000003E, 317, 16), "aarch64": (0xC00000B7, 277, 29)}
"""Of a machine: its number for the kernel, and its numbers of the calls seccomp and ioctl."""
_MACHINE = platform.machine()

_METADATA = """
chmod p 90 -, fchmod f 91 52, fchmodat a 268 53, fchmodat2 a 452 452, chown p 92 -, fchown f 93 55,
lchown p 94 -, fchownat a 260 54, utime p 132 -, utimes p 235 -, futimesat a 261 -,
utimensat a 280 88, setxattr p 188 5, lsetxattr p 189 6, fsetxattr f 190 7, setxattrat a 463 463,
removexattr p 197 14, lremovexattr p 198 15, fremovexattr f 199 16, removexattrat a 466 466,
file_setattr a 469 469"""
_NAMES = """
mkdir p 83 -, mkdirat a 258 34, mknod p 133 -, mknodat a 259 33, symlink s 88 -, symlinkat t 266 36,
link pq 86 -, linkat ab 265 37, rename pq 82 -, renameat ab 264 38, renameat2 ab 316 276,
rmdir p 84 -, unlink p 87 -, unlinkat a 263 35, truncate p 76 45"""
_OPENS = "open p 2 -, creat p 85 -, openat a 257 56"
"""Calls: name, places of paths, and numbers on x86-64 and AArch64."""

_PLACES = {"p": (-1, 0), "q": (-1, 1), "s": (-1, 1), "f": (0, -1)}
_PLACES |= {"a": (0, 1), "b": (2, 3), "t": (1, 2)}
"""Of a letter: which argument is the descriptor of a folder or file, and which the path; or -1."""

_MAKING = "mkdir", "mkdirat", "mknod", "mknodat", "symlink", "symlinkat", "link", "linkat"
_FOLLOWING = "truncate", "chmod", "fchmodat", "chown", "utime", "utimes", "setxattr", "removexattr"

_MOUNTING = {"x86_64": (155, 165, 166, 308), "aarch64": (39, 40, 41, 268)}
"""mount, umount2, pivot_root, setns; those below are open_tree, move_mount, fsmount and
mount_setattr.  Without them no read-only mount becomes writable."""
_MOUNTING_SINCE = 428, 429, 432, 442
_IO_URING_SETUP = 425  # its calls pass by the filter
_SET_FLAGS = 0x40086602, 0x40046602, 0x401C5820, 0x40087602
"""Requests of ioctl that change attributes of files, as chattr does."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF instructions
_ALLOW, _ANSWER, _ASK = 0x7FFF0000, 0x00050000, 0x7FC00000
_NOT_KNOWN, _NOT_PERMITTED = 38, 1  # ENOSYS, EPERM
_X32 = 0x40000000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_RECEIVE, _SEND, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103  # requests of ioctl
_GO_ON = 1
_HERE = -100  # AT_FDCWD

MOST_COPIED = 1 << 30
"""Bytes of a file that a program changes in place; a larger one is refused."""

_LIST = "kept_writes.txt"


def checked(result: int) -> int:
    """Return the result of a system call; raise its `OSError`."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def is_known_machine() -> bool:
    """Tell whether the numbers of calls on this machine are known."""
    return _MACHINE in _MACHINES


def kept_writes(scratch: Path) -> list[str]:
    """Return what was not written to files: a call and a path each."""
    try:
        return (scratch / _LIST).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _table(text: str) -> dict[int, tuple[str, list[tuple[int, int]]]]:
    """Return calls of this machine by their numbers: name and places of paths."""
    column = 2 + list(_MACHINES).index(_MACHINE)
    calls = [call.split() for call in text.split(",")]
    return {
        int(call[column]): (call[0], [_PLACES[letter] for letter in call[1]])
        for call in calls
        if call[column] != "-"
    }


def filter_calls() -> list[int]:
    """Filter the calls of this process and all that it starts; return the listener for `Answers`.

    Without one, which a container may forbid, calls that change metadata do nothing, and others go
    on.
    """
    release = os.uname().release.split(".")
    if (int(release[0]), int(release[1])) >= (5, 9):  # the first with all that answers need
        with contextlib.suppress(OSError):
            return [_install_filter(listens=True)]
    _install_filter(listens=False)
    return []


def _install_filter(*, listens: bool) -> int:
    architecture, seccomp, ioctl = _MACHINES[_MACHINE]
    program = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ANSWER | _NOT_KNOWN),  # programs for other machines
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ANSWER | _NOT_KNOWN),
    ]

    def answer(calls: Sequence[int], result: int, *tests: tuple[int, int, int, int]) -> None:
        for call in calls:
            program.extend([(_LOAD, 0, 0, 0), (_EQUAL, 0, len(tests) + 1, call), *tests])
            program.append((_RETURN, 0, 0, result))

    answer([*_table(_METADATA)], _ASK if listens else _ANSWER)
    if listens:
        answer([*_table(_NAMES)], _ASK)
        for call, (name, (place,)) in _table(_OPENS).items():
            flags = (_LOAD, 0, 0, 16 + 8 * (place[1] + 1)), (_ANY_BIT, 0, 1, _WRITING)
            answer([call], _ASK, *(flags if name != "creat" else ()))
    answer([*_MOUNTING[_MACHINE], *_MOUNTING_SINCE], _ANSWER | _NOT_PERMITTED)
    answer([_IO_URING_SETUP], _ANSWER | _NOT_KNOWN)
    for request in _SET_FLAGS:
        answer([ioctl], _ANSWER, (_LOAD, 0, 0, 24), (_EQUAL, 0, 1, request))
    program.append((_RETURN, 0, 0, _ALLOW))
    instructions = b"".join(itertools.starmap(struct.Struct("HBBI").pack, program))
    code = ctypes.create_string_buffer(instructions)
    filter_ = struct.pack("HP", len(program), ctypes.addressof(code))
    checked(LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    # 4: without a mitigation that older kernels add, by which the script would be slower.
    return checked(LIBC.syscall(seccomp, 1, 12 if listens else 4, filter_))


class Answers:
    """Answers calls of a contained process; a descriptor for `select.poll` says when.

    `sent` is a socket that gives the descriptor of `filter_calls`, or ends without one.
    """

    def __init__(self, sent: socket.socket, scratch: str, writable: Sequence[str]) -> None:
        self._sent, self._scratch = sent, scratch
        self._listener = -1
        self._writable = (*(f"{folder}/" for folder in writable), "/dev/shm/")
        self._numbers = itertools.count()
        self._moved: dict[str, str] = {}
        """Files in the scratch folder, by the paths that programs have opened."""
        self._noted: set[str] = set()

    def fileno(self) -> int:
        """Return what can be read when there is something to do."""
        if self._listener < 0:
            _, received, _, _ = socket.recv_fds(self._sent, 16, 1)
            self._listener = received[0] if received else self._sent.detach()
        return self._listener

    def give(self) -> bool:
        """Answer a call; return whether there may be more."""
        notice = bytearray(80)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
        except OSError:
            return False
        id, pid, _, number = struct.unpack_from("QIIi", notice)
        try:
            result = self._result(id, pid, number, struct.unpack_from("6Q", notice, 32))
        except OSError:
            # The kernel decides, but it does not protect metadata in all cases.
            result = 0 if number in _CALLS_OF_METADATA else None
        answer = struct.pack("QqiI", id, result or 0, 0, _GO_ON if result is None else 0)
        with contextlib.suppress(FileNotFoundError):  # the caller has ended
            fcntl.ioctl(self._listener, _SEND, bytearray(answer))
        return True

    def _result(self, id: int, pid: int, number: int, arguments: Sequence[int]) -> int | None:
        """Return the result of a call; None if it goes on."""
        if number in _CALLS_OPENING:
            name, places = _CALLS_OPENING[number]
            path = os.path.realpath(_path(pid, places[0], arguments))
            if path.startswith((*self._writable, "/dev/", "/proc/")):
                return None
            at = places[0][1] + 1
            flags = arguments[at] if name != "creat" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            return self._open(id, path, flags)
        name, places = _CALLS_CHANGING[number]
        paths = [_path(pid, place, arguments) for place in places]
        paths = [
            os.path.realpath(one) if name in _FOLLOWING else _parent_real(one) for one in paths
        ]
        source, target = paths[0], paths[-1]
        if target.startswith(self._writable):
            return None
        if (
            (os.path.lexists(target) or target in self._moved)
            if name in _MAKING
            else not (os.path.lexists(source) or source in self._moved)
        ):
            return None  # an error, as ever
        if name.startswith(("rename", "link")) and source in self._moved:
            self._moved[target] = self._moved[source]
        if name.startswith(("rename", "unlink")):
            self._moved.pop(source, None)
        self._note(f"{name}: {' to '.join(paths)}")
        return 0

    def _open(self, id: int, path: str, flags: int) -> int | None:
        """Open a file in the scratch folder for the caller; None if the call goes on."""
        exists = path in self._moved or os.path.lexists(path)
        is_file = path in self._moved or os.path.isfile(path)
        is_error = exists if flags & os.O_EXCL else not (exists or flags & os.O_CREAT)
        if is_error or (exists and not is_file) or flags & (os.O_PATH | os.O_DIRECTORY):
            return None
        if path not in self._moved:
            place = f"{self._scratch}/{next(self._numbers)}~{os.path.basename(path)}"
            if exists and not flags & os.O_TRUNC:
                if os.path.getsize(path) > MOST_COPIED:
                    return None
                shutil.copyfile(path, place)
            self._moved[path] = place
            self._note(f"open: {path}")
        flags = flags & ~(os.O_EXCL | os.O_NOFOLLOW) | os.O_CREAT
        descriptor = os.open(self._moved[path], flags, 0o600)
        try:
            added = struct.pack("QIIII", id, 0, descriptor, 0, flags & os.O_CLOEXEC)
            return int(fcntl.ioctl(self._listener, _ADD_DESCRIPTOR, bytearray(added)))
        finally:
            os.close(descriptor)

    def _note(self, what: str) -> None:
        if what not in self._noted:
            self._noted.add(what)
            with open(f"{self._scratch}/{_LIST}", "a", errors="replace") as file:
                file.write(what.replace("\n", " ") + "\n")


_CALLS_OPENING = _table(_OPENS) if is_known_machine() else {}
_CALLS_OF_METADATA = _table(_METADATA) if is_known_machine() else {}
_CALLS_CHANGING = _table(f"{_METADATA}, {_NAMES}") if is_known_machine() else {}


def _path(pid: int, places: tuple[int, int], arguments: Sequence[int]) -> str:
    """Return a path among the arguments of a call, as this process finds it."""
    folder, at = places
    descriptor = ctypes.c_int(arguments[folder]).value if folder >= 0 else _HERE
    base = f"/proc/{pid}/cwd" if descriptor == _HERE else f"/proc/{pid}/fd/{descriptor}"
    text = _text(pid, arguments[at]) if at >= 0 and arguments[at] else ""
    if text.startswith("/proc/self/"):
        text = f"/proc/{pid}/{text[11:]}"
    return os.path.join(base, text) if text else os.readlink(base)


def _text(pid: int, address: int) -> str:
    """Return a text in the memory of another process."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        # Pages behind it may not be there: no read crosses the end of one.
        data = b""
        while b"\0" not in data and len(data) < 4096:
            data += os.pread(memory, 4096 - (address + len(data)) % 4096, address + len(data))
    finally:
        os.close(memory)
    return os.fsdecode(data.partition(b"\0")[0])


def _parent_real(path: str) -> str:
    """Return a path of which only the last name may be a link."""
    above, name = os.path.split(path.rstrip("/"))
    return os.path.join(os.path.realpath(above or "/"), name)
