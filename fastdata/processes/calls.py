"""System calls of a contained process that would change files: they succeed without an effect.

The kernel refuses writes (`fastdata.processes.protection`), and many programs end then.  So seccomp
hands calls that write to a process outside, which uses `Answers`.  A file that is opened for
writing is another one, in a scratch folder.  Calls that make, rename or remove a file return
without an error.  Calls in folders that may be written to go on, and the kernel decides again.

The kernel's rules do not cover metadata, so no such call goes on.  A change of a mode is made here
if the file is in such a folder; changes of owners, times and attributes are never made.

Sources: seccomp_unotify(2), and the tables of system calls of Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import platform
import re
import shutil
import socket
import stat
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
"""By machine: its number for the kernel, and its numbers of the calls seccomp and ioctl."""
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
"""By letter: the places of a folder's or file's descriptor, and of the path; -1 without one."""

_MAKING = "mkdir", "mknod", "symlink", "link"
_REMOVING = "rename", "rmdir", "unlink"
_CHANGING_MODE = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
"""Calls, with the places of modes among their arguments."""

_MOUNTING = {"x86_64": (155, 165, 166, 308), "aarch64": (39, 40, 41, 268)}
"""mount, umount2, pivot_root, setns; those below are open_tree, move_mount, fsconfig, fsmount,
fspick, mount_setattr and open_tree_attr.  Without them no read-only mount becomes writable."""
_MOUNTING_SINCE = 428, 429, 431, 432, 433, 442, 467
_IO_URING_SETUP = 425  # its calls pass by the filter
_OF_FILES = 0x6600, 0x5800, 0x7600, 0x9400
"""Kinds of requests of ioctl that change attributes or content of files, as chattr does."""
_OF_TERMINALS = 0x5412, 0x541C
"""Requests of ioctl that type keys."""

# BPF instructions
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ANSWER, _ASK = 0x7FFF0000, 0x00050000, 0x7FC00000
_NOT_KNOWN, _NOT_PERMITTED, _NOT_FOR_FILES = errno.ENOSYS, errno.EPERM, errno.ENOTTY
_X32 = 0x40000000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_RECEIVE, _SEND, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103  # requests of ioctl
_GO_ON = 1
_HERE = -100  # AT_FDCWD

MOST_COPIED = 1 << 30
"""Bytes of a file that a program changes in place; a larger one is refused."""

_LIST = "kept_writes.txt"
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = "."  # in the place of a name


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
    """Return the calls that had no effect, with their paths."""
    try:
        return (scratch / _LIST).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _table(text: str) -> dict[int, tuple[str, list[tuple[int, int]]]]:
    """Return calls of this machine by their numbers: name and places of paths."""
    if not is_known_machine():
        return {}
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
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    if (int(major), int(minor)) >= (5, 9):  # the first with all that answers need
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

    answer([*_CHANGING_METADATA], _ASK if listens else _ANSWER)
    if listens:
        answer([*_CHANGING_NAMES], _ASK)
        for call, (name, (place,)) in _OPENING.items():
            flags = (_LOAD, 0, 0, 16 + 8 * (place[1] + 1)), (_ANY_BIT, 0, 1, _WRITING)
            answer([call], _ASK, *(flags if name != "creat" else ()))
    answer([*_MOUNTING[_MACHINE], *_MOUNTING_SINCE], _ANSWER | _NOT_PERMITTED)
    answer([_IO_URING_SETUP], _ANSWER | _NOT_KNOWN)
    for kind in _OF_FILES:
        tests = (_LOAD, 0, 0, 24), (_AND, 0, 0, 0xFF00), (_EQUAL, 0, 1, kind)
        answer([ioctl], _ANSWER | _NOT_FOR_FILES, *tests)
    for request in _OF_TERMINALS:
        answer([ioctl], _ANSWER | _NOT_PERMITTED, (_LOAD, 0, 0, 24), (_EQUAL, 0, 1, request))
    program.append((_RETURN, 0, 0, _ALLOW))
    instructions = b"".join(itertools.starmap(struct.Struct("HBBI").pack, program))
    code = ctypes.create_string_buffer(instructions)
    filter_ = struct.pack("HP", len(program), ctypes.addressof(code))
    checked(LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    # 4: older kernels add a mitigation otherwise, and the script would be slower.
    return checked(LIBC.syscall(seccomp, 1, 12 if listens else 4, filter_))


class Answers:
    """Answers calls of a contained process; a descriptor for `select.poll` says when.

    `sent` is a socket that gives the descriptor of `filter_calls`, or ends without one.
    """

    def __init__(self, sent: socket.socket, scratch: str, writable: Sequence[str]) -> None:
        self._sent, self._listener = sent, -1
        # By their descriptors: the script may put links in their places.
        self._scratch = os.open(scratch, os.O_PATH | os.O_CLOEXEC)
        self._list = os.open(_LIST, _NEW_FILE | os.O_APPEND, 0o600, dir_fd=self._scratch)
        self._writable = tuple(f"{folder}/" for folder in writable)
        self._shared = frozenset(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else ()
        self._numbers = itertools.count()
        self._moved: dict[str, str] = {}
        """Names in the scratch folder, by the paths that programs have opened; "" for paths that
        were removed."""
        self._noted: set[str] = set()

    def fileno(self) -> int:
        """Return what can be read when there is something to do."""
        if self._listener < 0:
            _, received, _, _ = socket.recv_fds(self._sent, 16, 1)
            # The other end of the socket is closed then, and there is never anything to do.
            self._listener = received[0] if received else self._sent.detach()
        return self._listener

    def give(self) -> None:
        """Answer a call, unless its caller has ended meanwhile."""
        notice = bytearray(80)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
        except FileNotFoundError:
            return
        id, pid, _, number = struct.unpack_from("QIIi", notice)
        arguments = struct.unpack_from("6Q", notice, 32)
        result: int | None = 0 if number in _CHANGING_METADATA else None  # None: the call goes on
        try:
            if number in _OPENING:
                result = self._open(id, pid, number, arguments)
            elif number in _CHANGING_METADATA:
                self._change_metadata(pid, number, arguments)
            else:
                result = self._change_name(pid, number, arguments)
        except FileNotFoundError:
            if number in _CHANGING_METADATA:
                result = -errno.ENOENT  # `touch` makes a file then
        except OSError:
            pass
        value, error = max(result or 0, 0), min(result or 0, 0)
        answer = struct.pack("QqiI", id, value, error, _GO_ON if result is None else 0)
        with contextlib.suppress(FileNotFoundError):  # the caller has ended
            fcntl.ioctl(self._listener, _SEND, bytearray(answer))

    def _is_writable(self, path: str) -> bool:
        """Tell whether a path is in a folder that may be written to, or new shared memory."""
        is_shared = path.startswith("/dev/shm/") and path.split("/")[3] not in self._shared
        return is_shared or path.startswith(self._writable)

    def _exists(self, path: str) -> bool:
        return bool(self._moved[path]) if path in self._moved else os.path.lexists(path)

    def _change_metadata(self, pid: int, number: int, arguments: Sequence[int]) -> None:
        """Change a mode, if that is allowed."""
        name, places = _CHANGING_METADATA[number]
        path = _path(pid, places[0], arguments)
        if os.path.realpath(os.path.dirname(path)).startswith(f"/proc/{os.getpid()}/"):
            return  # a descriptor of this process; the caller means its own
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            real = os.readlink(opened := f"/proc/self/fd/{descriptor}")
            if not self._is_writable(real):
                self._note(f"{name}: {real}")
            elif name in _CHANGING_MODE:
                os.chmod(opened, arguments[_CHANGING_MODE[name]] & 0o7777)
        finally:
            os.close(descriptor)

    def _change_name(self, pid: int, number: int, arguments: Sequence[int]) -> int | None:
        """Return the result of a call that makes, renames or removes; None if it goes on."""
        name, places = _CHANGING_NAMES[number]
        paths = [_parent_real(_path(pid, place, arguments)) for place in places]
        source, target = paths[0], paths[-1]
        makes, removes = name.startswith(_MAKING), name.startswith(_REMOVING)
        is_error = self._exists(target) if makes else not self._exists(source)
        if self._is_writable(target) or is_error:
            return None
        if makes or removes:
            self._moved.pop(target, None)
        if source in self._moved and len(paths) == 2:
            self._moved[target] = self._moved[source]
        if name.startswith("mkdir"):
            self._moved[target] = _FOLDER
        if removes:
            self._moved[source] = ""
        self._note(f"{name}: {' to '.join(paths)}")
        return 0

    def _open(self, id: int, pid: int, number: int, arguments: Sequence[int]) -> int | None:
        """Open a file in the scratch folder for the caller; None if the call goes on.

        Return a negative number for an error.
        """
        call, (place,) = _OPENING[number]
        flags = arguments[place[1] + 1] if call != "creat" else _WRITING & ~os.O_RDWR
        path = os.path.realpath(_path(pid, place, arguments))
        if self._is_writable(path) or _is_device(path):
            return None
        if path.startswith(f"/proc/{pid}/"):  # its own, also of a process that the script started
            return self._give(id, os.open(path, flags | os.O_CLOEXEC), flags)
        name, exists = self._moved.get(path), self._exists(path)
        is_error = exists if flags & os.O_EXCL else not (exists or flags & os.O_CREAT)
        if is_error or name == _FOLDER or flags & (os.O_PATH | os.O_DIRECTORY):
            return None
        if name is None and exists and not os.path.isfile(path):
            # Read-only mounts let programs write to pipes and disks.
            return None if os.path.isdir(path) else -errno.EACCES
        if not name:
            is_copy = exists and not flags & os.O_TRUNC
            if is_copy and os.path.getsize(path) > MOST_COPIED:
                return None
            name = f"{next(self._numbers)}~{os.path.basename(path)}"
            with open(os.open(name, _NEW_FILE, 0o600, dir_fd=self._scratch), "wb") as new:
                if is_copy:
                    with open(path, "rb") as old:
                        shutil.copyfileobj(old, new)
            self._moved[path] = name
            self._note(f"open: {path}")
        opened = flags & ~(os.O_CREAT | os.O_EXCL) | os.O_NOFOLLOW | os.O_CLOEXEC
        return self._give(id, os.open(name, opened, dir_fd=self._scratch), flags)

    def _give(self, id: int, descriptor: int, flags: int) -> int:
        """Close a descriptor, and return its number in the process of the caller."""
        try:
            added = struct.pack("QIIII", id, 0, descriptor, 0, flags & os.O_CLOEXEC)
            return int(fcntl.ioctl(self._listener, _ADD_DESCRIPTOR, bytearray(added)))
        finally:
            os.close(descriptor)

    def _note(self, what: str) -> None:
        if what not in self._noted:
            self._noted.add(what)
            os.write(self._list, os.fsencode(what.replace("\n", " ") + "\n"))


_OPENING = _table(_OPENS)
_CHANGING_METADATA = _table(_METADATA)
_CHANGING_NAMES = _table(_NAMES)


def _is_device(path: str) -> bool:
    return path.startswith("/dev/") and stat.S_ISCHR(os.lstat(path).st_mode)


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
            more = os.pread(memory, 4096 - (address + len(data)) % 4096, address + len(data))
            if not more:
                raise ProcessLookupError(pid)
            data += more
    finally:
        os.close(memory)
    return os.fsdecode(data.partition(b"\0")[0])


def _parent_real(path: str) -> str:
    """Return a path without links, except for its last name."""
    above, name = os.path.split(path.rstrip("/"))
    return os.path.join(os.path.realpath(above or "/"), name)
