"""What a script that is only tried may write: nothing of the user's changes.

Called in the process of the script, before the script.  Files that it opens for writing become
files in a scratch folder, which it reads again under the same name; checkpoints, and what it would
remove or rename, are left alone; trackers and hubs are switched off.  Folders that it makes are
made, and removed afterwards where they are empty.  Caches may be written, as PyTorch's compiler
and downloads need them.  Whatever reaches a file by another way is refused by an audit hook, but
for libraries in C that open files themselves (HDF5, SQLite) and programs that the script starts.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import io
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial, reduce, wraps
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

__all__ = ["SWITCHED_OFF", "WritesKept", "folders_made"]

SWITCHED_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "TRACKIO_MODE": "disabled",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment variables by which trackers and hubs keep quiet."""

_SHARED = "/dev/shm/"
"""No device: people keep files there.  Memory that is shared goes another way."""

_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TWO = "rename", "replace", "link", "symlink"
_CHANGES = *_TWO, "remove", "unlink", "rmdir", "truncate", "chmod", "chown", "utime"
_LOOKS = "stat", "lstat", "access"
_EVENTS: dict[str, tuple[tuple[int, int], ...]] = {
    "open": ((0, -1),),
    "os.link": ((1, 3),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, -1),),
}
"""Events of Python's audit at which files change: places of their paths among the arguments, and
of the descriptors of the paths' folders; -1 without one."""

_UPLOADS = "create_commit", "create_repo", "upload_file", "upload_folder", "upload_large_folder"
_LATE: dict[str, tuple[str, ...]] = {
    "safetensors.torch": ("save_file", "save_model"),
    # The functions are methods of an object that is made with the module.
    "huggingface_hub.hf_api": (*_UPLOADS, *(f"HfApi.{name}" for name in _UPLOADS)),
}
"""Functions that do nothing once their module is imported."""

_FOLDERS = "folders.txt"


def folders_made(scratch: Path) -> list[str]:
    """Return the folders that a script has made, in their order."""
    try:
        lines = (scratch / _FOLDERS).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


class WritesKept(importlib.abc.MetaPathFinder):
    """Keeps writes of this process away from files; `blocked` says which there were.

    It stays until the process ends.  `folders_made` of the scratch folder says which folders were
    made, also once the process has been killed.
    """

    def __init__(self, scratch: Path) -> None:
        self.blocked: Counter[str] = Counter()
        self._scratch = scratch
        self._moved: dict[str, str] = {}
        self._numbers = count()
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        places = ["/dev", "/proc", tempfile.gettempdir(), cache, *_set("HF_HOME", "TORCH_HOME")]
        own = [str(scratch), *_set("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
        self._allowed = tuple(f"{os.path.realpath(place)}/" for place in places)
        self._own = tuple(f"{os.path.realpath(place)}/" for place in own)

    def install(self) -> None:
        """Take the place of the functions that write."""
        os.environ.update(SWITCHED_OFF)
        sys.dont_write_bytecode = True
        self._replace(io, "open", self._open)
        builtins.open = io.open
        self._replace(os, "open", self._open_descriptor)
        self._replace(os, "mkdir", self._make_folder)
        for name in _CHANGES:
            self._replace(os, name, self._change)
        self._replace(torch, "save", self._save)
        for name in _LATE.keys() & sys.modules.keys():
            self._silence(sys.modules[name])
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._audit)

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Have a function called in place of another one, which it is given first."""
        original = getattr(owner, name)

        @wraps(original)
        def replaced(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        setattr(owner, name, replaced)

    def _block(self, what: str, /, *_: Any, **__: Any) -> None:
        """Count something that is not done."""
        self.blocked[what] += 1

    # -- places ------------------------------------------------------------------------------

    def _is_allowed(self, path: str) -> bool:
        folder = f"{path}/"
        is_common = folder.startswith(self._allowed) and not path.startswith(_SHARED)
        return is_common or folder.startswith(self._own)

    def _move(self, path: str, place: str) -> None:
        """Have a file be in another place; only from then on is it looked for there."""
        if not hasattr(os.stat, "__wrapped__"):
            for name in _LOOKS:
                self._replace(os, name, self._look)
        self._moved[path] = place
        self._block(f"open: {path}")

    def _place(self, file: Any, *, writes: bool, keeps: bool) -> Any:
        """Return which file is opened in place of this one."""
        if isinstance(file, int):
            return file
        path = os.path.realpath(os.fsdecode(file))
        if path not in self._moved:
            if not writes or self._is_allowed(path):
                return file
            place = str(self._scratch / f"{next(self._numbers)}-{os.path.basename(path)}")
            if keeps and os.path.isfile(path):  # it is appended to, or changed in place
                shutil.copyfile(path, place)
            self._move(path, place)
        return self._moved[path]

    # -- what takes the place of functions -----------------------------------------------------

    def _open(self, original: Any, file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        keeps = "a" in mode or ("+" in mode and "w" not in mode)
        return original(self._place(file, writes=writes, keeps=keeps), mode, *rest, **options)

    def _open_descriptor(
        self, original: Any, path: Any, flags: int, *rest: Any, **options: Any
    ) -> Any:
        if options.get("dir_fd") is None:
            path = self._place(path, writes=bool(flags & _FLAGS), keeps=True)
        return original(path, flags, *rest, **options)

    def _change(self, original: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, int):
            return original(path, *arguments, **options)
        name = original.__name__
        real = [_real(path, options.get("src_dir_fd", options.get("dir_fd")))]
        if name in _TWO:
            second = arguments[0] if arguments else options["dst"]
            real.append(_real(second, options.get("dst_dir_fd", options.get("dir_fd"))))
        moves = name in ("rename", "replace")
        if all(map(self._is_allowed, real if moves else real[-1:])):
            return original(path, *arguments, **options)
        place = self._moved.get(real[0])
        if moves and place is not None:
            self._moved[real[-1]] = self._moved.pop(real[0])
        elif moves and self._is_allowed(real[0]):
            self._move(real[-1], real[0])
        elif name in ("remove", "unlink") and place is not None:
            del self._moved[real[0]]
        elif name not in _TWO and place is not None:
            original(place, *arguments, **options)
        else:
            if name not in _TWO:
                os.lstat(real[0])  # what does not exist is an error, as ever
            self._block(f"os.{name}: {' to '.join(real)}")
        return None

    def _look(self, original: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(path, int):
            # By its name first: to find the real path itself looks at every folder of it.
            name = os.path.basename(os.fsdecode(path))
            if any(os.path.basename(moved) == name for moved in list(self._moved)):
                path = self._moved.get(_real(path, options.get("dir_fd")), path)
        return original(path, *arguments, **options)

    def _make_folder(self, original: Any, path: Any, *arguments: Any, **options: Any) -> None:
        original(path, *arguments, **options)
        if not self._is_allowed(real := os.path.realpath(os.fsdecode(path))):
            with open(self._scratch / _FOLDERS, "a") as file:
                file.write(json.dumps(real) + "\n")

    def _save(self, original: Any, obj: Any, f: Any, *arguments: Any, **options: Any) -> None:
        path = os.path.realpath(os.fspath(f)) if isinstance(f, (str, os.PathLike)) else None
        if path is None or self._is_allowed(path):
            original(obj, f, *arguments, **options)
        else:
            self._block(f"torch.save: {path}")

    # -- what is imported later, and whatever else writes ------------------------------------------

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

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        # Anomaly detection makes thousands of events a step.
        if event not in _EVENTS or (
            event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _FLAGS)
        ):
            return
        for path, folder in _EVENTS[event]:
            if isinstance(arguments[path], int):
                continue
            real = _real(arguments[path], arguments[folder] if folder >= 0 else None)
            if not self._is_allowed(real):
                self._block(f"refused: {real}")
                raise PermissionError(f"fastdata doctor lets a script write nothing: {real}")


def _set(*names: str) -> list[str]:
    """Return the environment variables that are set."""
    return [os.environ[name] for name in names if name in os.environ]


def _real(path: Any, folder: int | None = None) -> str:
    """Return the real path of a file, of a folder by its descriptor if that is given."""
    text = os.fsdecode(path)
    if folder is not None and folder >= 0 and not os.path.isabs(text):
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    # A link is what changes, and not what it points to.
    return os.path.join(os.path.realpath(os.path.dirname(text) or "."), os.path.basename(text))
