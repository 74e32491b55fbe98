"""What a script that is only tried writes: it goes to a scratch folder, and is read from there.

Called in the process of the script, before the script.  Python's own functions find files that
the script opens for writing, and folders that it makes, in the scratch folder from then on.  A file
that the script renames or removes has the new name, or is gone, for the script alone.  Checkpoints
are not written; trackers and hubs are switched off.

This keeps scripts running.  `fastdata.processes.protection` protects the files.  Without it, an
audit hook refuses writes of Python elsewhere, except those of libraries in C.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import importlib.abc
import importlib.machinery
import io
import os
import pathlib
import re
import shutil
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce, wraps
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

__all__ = ["SWITCHED_OFF", "WritesKept"]

SWITCHED_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "TRACKIO_MODE": "disabled",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment variables that switch trackers and hubs off."""

_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOOKS = "stat", "lstat", "access", "listdir", "scandir", "readlink", "chdir", "statvfs"
_METADATA = "chmod", "chown", "lchown", "fchmod", "fchown", "utime", "setxattr", "removexattr"
_EVENTS: dict[str, tuple[tuple[int, int], ...]] = {
    "open": ((0, -1),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.removexattr": ((0, -1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.setxattr": ((0, -1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, -1),),
    "os.utime": ((0, 3),),
}
"""Events of Python's audit at which files change: places of their paths among the arguments, and
of the descriptors of the paths' folders; -1 without one."""

_UPLOADS = "create_commit", "create_repo", "upload_file", "upload_folder", "upload_large_folder"
_LATE: dict[str, tuple[str, ...]] = {
    "safetensors.torch": ("save_file", "save_model"),
    # The functions are methods of an object that is made with the module.
    "huggingface_hub.hf_api": (*_UPLOADS, *(f"HfApi.{name}" for name in _UPLOADS)),
    "sqlite3": (),
    "sqlite3.dbapi2": (),
    "h5py._hl.files": (),
}
"""Functions that do nothing once their module is imported; the last modules open other files."""


class WritesKept(importlib.abc.MetaPathFinder):
    """Keeps writes of this process away from files; `blocked` says which there were.

    `writable` folders are written to, as `scratch` is.  It stays until the process ends.
    """

    def __init__(self, scratch: Path, writable: Sequence[str] = ()) -> None:
        self.blocked: Counter[str] = Counter()
        self._scratch = scratch
        folders = (str(scratch), *writable)
        self._writable = tuple(f"{os.path.realpath(folder)}/" for folder in folders)
        self._moved: dict[str, str] = {}
        """The new places of files and folders, by their real paths; "" if they were removed."""
        self._names: set[str] = set()  # of those paths
        self._numbers = count()
        self._thread = threading.local()

    def install(self, *, audits: bool) -> None:
        """Take the place of the functions that write; without the kernel's help, refuse others."""
        os.environ.update(SWITCHED_OFF)
        sys.dont_write_bytecode = True
        files: dict[str, Callable[..., Any]] = dict.fromkeys(_METADATA, self._change_metadata)
        files |= dict.fromkeys(("rename", "replace", "link", "symlink"), self._name)
        files |= dict.fromkeys(("remove", "unlink", "rmdir"), self._remove)
        files |= dict.fromkeys(("mkdir", "mkfifo", "mknod"), self._make)
        files |= {"open": self._open_descriptor, "truncate": self._truncate}
        self._replace_all(files)
        self._replace(io, "open", self._open)
        builtins.open = io.open
        self._replace(torch, "save", self._save)
        for name in _LATE.keys() & sys.modules.keys():
            self._silence(sys.modules[name])
        sys.meta_path.insert(0, self)
        if audits:
            sys.addaudithook(self._audit)

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Have a function called in place of another one, which it is given first."""
        original = getattr(owner, name)

        @wraps(original)
        def replaced(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        setattr(owner, name, replaced)

    def _replace_all(self, functions: dict[str, Callable[..., Any]]) -> None:
        """Replace functions of `os`."""
        # Up to Python 3.10, `pathlib` keeps its own references to functions of os.
        accessor: Any = getattr(pathlib, "_NormalAccessor", None)
        for name, function in functions.items():
            self._replace(os, name, self._as_they_are(function))
            if name != "open" and hasattr(accessor, name):
                setattr(accessor, name, staticmethod(getattr(os, name)))

    def _as_they_are(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function during which all functions of files see them as they are."""

        def called(original: Any, *arguments: Any, **options: Any) -> Any:
            if getattr(self._thread, "is_inside", False):
                return original(*arguments, **options)
            with self._inside():
                return function(original, *arguments, **options)

        return called

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        before, self._thread.is_inside = getattr(self._thread, "is_inside", False), True
        try:
            yield
        finally:
            self._thread.is_inside = before

    def _block(self, what: str, /, *_: Any, **__: Any) -> None:
        """Count something that is not done."""
        self.blocked[what] += 1

    # -- places ------------------------------------------------------------------------------

    def _is_allowed(self, path: str) -> bool:
        if f"{path}/".startswith((*self._writable, f"/proc/{os.getpid()}/")):
            return True
        return path.startswith("/dev/") and _is_device(path)

    def _place(self, real: str) -> str:
        """Return where a real path is now; "" if it was removed."""
        above, below = real, ""
        while above and above not in self._moved:
            above, _, name = above.rpartition("/")
            below = f"/{name}{below}"
        place = self._moved[above] if above else ""
        return place and place + below if above else real

    def _move(self, real: str, place: str | None = None) -> str:
        """Have a file or folder be in another place, by default a new one; return that."""
        if not self._moved:  # only from now on is it looked for there
            self._replace_all(dict.fromkeys(_LOOKS, self._look))
        name = os.path.basename(real)
        # Processes that are forked later count on from the same number.
        new = f"{os.getpid()}-{next(self._numbers)}-{name}"
        self._moved[real] = place = place or str(self._scratch / new)
        self._names.add(name)
        return place

    def _hide(self, real: str) -> None:
        """Have a path lead nowhere."""
        self._moved.pop(real, None)
        if os.path.lexists(self._place(real)):
            self._move(real, real)
            self._moved[real] = ""

    def _check_folder(self, real: str) -> None:
        """Raise `FileNotFoundError` if a path is in no folder."""
        if not os.path.isdir(self._place(os.path.dirname(real))):
            raise _error(errno.ENOENT, real)

    # -- what takes the place of functions -----------------------------------------------------

    def _opened(self, file: Any, folder: int | None, *, mode: str) -> Any:
        """Return which file is opened in place of this one, with the letters of a mode."""
        writes = any(letter in mode for letter in "wax+")
        if not writes and not self._moved and folder is None:
            return file
        real = os.path.realpath(_real(file, folder))
        place = self._place(real)
        if not writes and not place:
            raise _error(errno.ENOENT, file)
        if not writes or self._is_allowed(place) or os.path.isdir(place):
            return file if place == real and folder is None else place
        if "x" in mode and os.path.lexists(place):
            raise _error(errno.EEXIST, file)
        self._check_folder(real)
        new = self._move(real)
        self._block(f"open: {real}")
        if "w" not in mode and os.path.isfile(place):  # it is appended to, or changed in place
            shutil.copyfile(place, new)
        return new

    def _open(self, original: Any, file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if not isinstance(file, int):
            file = self._opened_by_name(file, mode)
        return original(file, mode, *rest, **options)  # with the opener of the caller

    def _open_descriptor(
        self,
        original: Any,
        path: Any,
        flags: int,
        *rest: Any,
        dir_fd: int | None = None,
        **options: Any,
    ) -> Any:
        mode = "+" if flags & _FLAGS else "r"
        is_new = bool(flags & os.O_TRUNC and flags & os.O_CREAT)
        mode += "w" * is_new + "x" * bool(flags & os.O_EXCL)
        return original(self._opened(path, dir_fd, mode=mode), flags, *rest, **options)

    def _opened_by_name(self, file: Any, mode: str) -> Any:
        if getattr(self._thread, "is_inside", False):
            return file
        with self._inside():
            return self._opened(file, None, mode=mode)

    # These libraries notice if the kernel gives them another file than that of its name.

    def _open_sqlite(self, original: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(name, (str, os.PathLike)) and not re.match("$|:memory:$|file:", str(name)):
            name = self._opened_by_name(name, "+")
        return original(name, *arguments, **options)

    def _open_hdf5(
        self, original: Any, file: Any, name: Any, mode: str = "r", *rest: Any, **options: Any
    ) -> None:
        if isinstance(name, (str, os.PathLike)):
            name = self._opened_by_name(name, {"r+": "+", "w-": "x"}.get(mode, mode))
        original(file, name, mode, *rest, **options)

    def _truncate(self, original: Any, path: Any, length: int) -> None:
        original(path if isinstance(path, int) else self._opened(path, None, mode="+"), length)

    def _change_metadata(self, original: Any, path: Any, *arguments: Any, **options: Any) -> None:
        place = self._place(real := _real(path, folder := options.pop("dir_fd", None)))
        if not place:
            raise _error(errno.ENOENT, path)
        if self._is_allowed(place):
            original(path if folder is None and place == real else place, *arguments, **options)
        else:
            if not isinstance(path, int):
                os.lstat(place)  # a file that does not exist is an error, as ever
            self._block(f"os.{original.__name__}: {real}")

    def _make(self, original: Any, path: Any, *arguments: Any, **options: Any) -> None:
        place = self._place(real := _real(path, options.pop("dir_fd", None)))
        if not self._is_allowed(place):
            if os.path.lexists(place):
                raise _error(errno.EEXIST, path)
            self._check_folder(real)
            place = self._move(real)
            self._block(f"os.{original.__name__}: {real}")
        original(place, *arguments, **options)

    def _remove(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._place(real := _real(path, dir_fd))
        is_folder = original.__name__ == "rmdir"
        if not place:
            raise _error(errno.ENOENT, path)
        if self._is_allowed(place):
            original(place)
        elif stat.S_ISDIR(os.lstat(place).st_mode) != is_folder:
            raise _error(errno.ENOTDIR if is_folder else errno.EISDIR, path)
        elif is_folder and any(self._place(f"{real}/{name}") for name in os.listdir(place)):
            raise _error(errno.ENOTEMPTY, path)
        else:
            self._block(f"os.{original.__name__}: {real}")
        if place != real or not self._is_allowed(place):
            self._hide(real)

    def _name(self, original: Any, src: Any, dst: Any, **options: Any) -> None:
        """Give a file another name, or one more, for the script."""
        name, folder = original.__name__, options.get("dir_fd")
        to = _real(dst, options.get("dst_dir_fd", folder))
        is_link = name == "symlink"
        text = os.path.join(os.path.dirname(to), os.fsdecode(src)) if is_link else src
        from_ = _real(text, options.get("src_dir_fd"))
        source, place = self._place(from_), self._place(to)
        if not is_link and not os.path.lexists(source):
            raise _error(errno.ENOENT, src)
        if self._is_allowed(place) and (is_link or self._is_allowed(source)):
            try:
                original(src if is_link else source, place)
            except OSError as error:
                if error.errno != errno.EXDEV:  # the first Landlock has no renames between folders
                    raise
                self._move(to, source)
        elif "link" in name and os.path.lexists(place):
            raise _error(errno.EEXIST, dst)
        else:
            self._check_folder(to)
            self._move(to, source or from_)
            self._block(f"os.{name}: {from_} to {to}")
        if "link" not in name and (source != from_ or not self._is_allowed(from_)):
            self._hide(from_)

    def _look(self, original: Any, path: Any = ".", *arguments: Any, **options: Any) -> Any:
        # First by name: finding a real path needs a system call for each of its folders.
        if (
            path is not None
            and not isinstance(path, int)
            and not self._names.isdisjoint(os.fsdecode(path).split("/"))
        ):
            real = _real(path, options.get("dir_fd"))
            place = self._place(real)
            if not place:
                if original.__name__ == "access":
                    return False
                raise _error(errno.ENOENT, path)
            if place != real:
                path = place
                options.pop("dir_fd", None)
        return original(path, *arguments, **options)

    def _save(self, original: Any, obj: Any, f: Any, *arguments: Any, **options: Any) -> None:
        path = os.path.realpath(os.fspath(f)) if isinstance(f, (str, os.PathLike)) else None
        if path is None or self._is_allowed(path):
            original(obj, f, *arguments, **options)
            return
        self._block(f"torch.save: {path}")
        with self._inside():
            if not os.path.lexists(self._place(path)):  # the script may rename or remove the file
                self._check_folder(path)
                Path(self._move(path)).touch()

    # -- later imports, and all other writes -------------------------------------------------------

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Have functions of some modules do nothing, once they are imported."""
        if name not in _LATE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self._replace(spec.loader, "exec_module", self._import)
        return spec

    def _import(self, original: Any, module: ModuleType) -> None:
        original(module)
        self._silence(module)

    def _silence(self, module: ModuleType) -> None:
        for dotted in _LATE[module.__name__]:
            *owners, last = dotted.split(".")
            owner: Any = reduce(getattr, owners, module)
            if hasattr(owner, last):
                setattr(owner, last, partial(self._block, f"{module.__name__}.{dotted}"))
        if module.__name__.startswith("sqlite3"):
            self._replace(module, "connect", self._open_sqlite)
        elif module.__name__.startswith("h5py"):
            self._replace(module.File, "__init__", self._open_hdf5)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        # Anomaly detection makes thousands of events a step.
        if event not in _EVENTS or (
            event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _FLAGS)
        ):
            return
        for path, folder in _EVENTS[event]:
            if isinstance(arguments[path], int) and event in ("open", "os.truncate"):
                continue  # it was opened for writing
            real = _real(arguments[path], arguments[folder] if folder >= 0 else None)
            # With a folder, an opener takes another path, as `tempfile` does.
            is_folder = event == "open" and os.path.isdir(real)
            if not is_folder and not self._is_allowed(real):
                self._block(f"refused: {real}")
                raise PermissionError(f"fastdata doctor lets a script write nothing: {real}")


def _real(path: Any, folder: int | None = None) -> str:
    """Return the real path of a file, of a folder by its descriptor if that is given."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    text = os.fsdecode(path)
    if folder is not None and folder >= 0 and not os.path.isabs(text):
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    folder_name, name = os.path.split(text.rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(text)
    # The link changes, not its target.
    return os.path.join(os.path.realpath(folder_name or "/" * text.startswith("/") or "."), name)


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def _error(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)
