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
import functools
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

_open = io.open  # before it is kept from writing

_SHARED = "/dev/shm/"
"""No device: people keep files there.  Memory that is shared goes another way."""

_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = (
    *("remove", "unlink", "rmdir", "rename", "replace", "link", "symlink"),
    *("truncate", "chmod", "chown", "utime"),
)
_LOOKS = "stat", "lstat", "access"
_EVENTS = {
    *("open", "os.rename", "os.link", "os.symlink"),
    *("os.remove", "os.rmdir", "os.truncate"),
}
"""Events of Python's audit at which a file may change."""

_LATE: dict[str, tuple[str, ...]] = {
    "safetensors.torch": ("save_file", "save_model"),
    "huggingface_hub.hf_api": (
        "HfApi.create_commit",
        "HfApi.create_repo",
        "HfApi.upload_file",
        "HfApi.upload_folder",
        "HfApi.upload_large_folder",
    ),
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
        self._looks = False  # whether `_LOOKS` are our functions
        home = Path.home()
        places = [Path("/dev"), Path("/proc"), Path(tempfile.gettempdir())]
        places.append(Path(os.environ.get("XDG_CACHE_HOME", home / ".cache")))
        places += [
            Path(os.environ[name]) for name in ("HF_HOME", "TORCH_HOME") if name in os.environ
        ]
        caches = (
            "TORCHINDUCTOR_CACHE_DIR",
            "TRITON_CACHE_DIR",
        )  # of this process, as the scratch folder
        own = [scratch, *(os.environ[name] for name in caches if name in os.environ)]
        self._caches = [os.path.realpath(place) for place in own]
        self._allowed = tuple(os.path.realpath(place) for place in places)

    def install(self) -> None:
        """Take the place of the functions that write."""
        os.environ.update(SWITCHED_OFF)
        sys.dont_write_bytecode = True
        builtins.open = io.open = self._opening(io.open)
        os.open = self._opening_descriptor(os.open)
        for name in _CHANGES:
            setattr(os, name, self._changing(getattr(os, name)))
        os.mkdir = self._making(os.mkdir)
        torch.save = self._saving(torch.save)
        for name in _LATE.keys() & sys.modules.keys():
            self._silence(sys.modules[name])
        sys.meta_path.insert(0, self)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            # Anomaly detection makes thousands of events a step.
            if event in _EVENTS:
                self._audit(event, arguments)

        sys.addaudithook(hook)

    def note(self, what: str) -> None:
        """Count something that was not done."""
        self.blocked[what] += 1

    # -- places ------------------------------------------------------------------------------

    def _is_allowed(self, path: str) -> bool:
        if any(path.startswith(f"{place}/") for place in self._caches):
            return True
        inside = any(path == place or path.startswith(place + os.sep) for place in self._allowed)
        return inside and not path.startswith(_SHARED)

    def _scratch_file(self, path: str) -> str:
        if path not in self._moved:
            place = str(self._scratch / f"{len(self._moved)}-{Path(path).name}")
            self._move(path, place)
            self.note(f"written elsewhere: {path}")
        return self._moved[path]

    def _move(self, path: str, place: str) -> None:
        """Have a file be in another place; only from then on is it looked for there."""
        if not self._looks:
            self._looks = True
            for name in _LOOKS:
                setattr(os, name, self._looking(getattr(os, name)))
        self._moved[path] = place

    def _place(self, file: Any, *, writes: bool, keeps: bool = False) -> Any:
        """Return which file is opened in place of this one."""
        if isinstance(file, int):
            return file
        path = os.path.realpath(os.fsdecode(file))
        if path in self._moved:
            return self._moved[path]
        if not writes or self._is_allowed(path):
            return file
        keeps = keeps and os.path.isfile(path)  # it is appended to, or changed in place
        place = self._scratch_file(path)
        if keeps:
            with _open(path, "rb") as source, _open(place, "wb") as target:
                shutil.copyfileobj(source, target)
        return place

    # -- what takes the place of functions -----------------------------------------------------

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            writes = any(letter in mode for letter in "wax+")
            keeps = "a" in mode or ("+" in mode and "w" not in mode)
            place = self._place(file, writes=writes, keeps=keeps)
            return original(place, mode, *arguments, **options)

        return opened

    def _opening_descriptor(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def opened(path: Any, flags: int, *arguments: Any, **options: Any) -> Any:
            if options.get("dir_fd") is not None:
                return original(path, flags, *arguments, **options)
            place = self._place(path, writes=bool(flags & _FLAGS), keeps=True)
            return original(place, flags, *arguments, **options)

        return opened

    def _changing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        name = original.__name__
        both = name in ("rename", "replace", "link", "symlink")

        @functools.wraps(original)
        def changed(path: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(path, int):
                return original(path, *arguments, **options)
            folders = options.get("src_dir_fd", options.get("dir_fd")), options.get("dst_dir_fd")
            paths = [path, arguments[0] if arguments else options.get("dst")][: 1 + both]
            real = [_real(*pair) for pair in zip(paths, folders, strict=False)]
            changed = real[-1:] if name in ("link", "symlink") else real
            if all(map(self._is_allowed, changed)):
                return original(path, *arguments, **options)
            place = self._moved.get(real[0])
            if place is not None and name in ("rename", "replace"):
                self._moved[real[-1]] = self._moved.pop(real[0])
            elif name in ("rename", "replace") and self._is_allowed(real[0]):
                self._move(real[-1], real[0])
                self.note(f"written elsewhere: {real[-1]}")
            elif place is not None and name in ("remove", "unlink"):
                del self._moved[real[0]]
            elif place is not None and not both:
                original(place, *arguments, **options)
            else:
                if not both:
                    os.lstat(real[0])  # what does not exist is an error, as ever
                self.note(f"os.{name}: {' to '.join(real)}")
            return None

        return changed

    def _looking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def looked(path: Any, *arguments: Any, **options: Any) -> Any:
            # By its name first: to find the real path itself looks at every folder of it.
            if self._moved and not isinstance(path, int) and self._has_moved(path):
                path = self._moved.get(_real(path, options.get("dir_fd")), path)
            return original(path, *arguments, **options)

        return looked

    def _has_moved(self, path: Any) -> bool:
        """Return whether a file of this name is in another place."""
        name = os.path.basename(os.fsdecode(path))
        return any(os.path.basename(moved) == name for moved in list(self._moved))

    def _making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(path: Any, *arguments: Any, **options: Any) -> Any:
            original(path, *arguments, **options)
            if not self._is_allowed(real := os.path.realpath(os.fsdecode(path))):
                with _open(self._scratch / _FOLDERS, "a") as file:
                    file.write(json.dumps(real) + "\n")

        return made

    def _saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def saved(obj: Any, f: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(f, (str, os.PathLike)):
                return original(obj, f, *arguments, **options)
            path = os.path.realpath(os.fspath(f))
            if self._is_allowed(path):
                return original(obj, f, *arguments, **options)
            self.note(f"torch.save: {path}")
            return None

        return saved

    def _nothing(self, name: str) -> Callable[..., Any]:
        def nothing(*_: Any, **__: Any) -> None:
            self.note(name)

        return nothing

    # -- what is imported later, and whatever else writes ------------------------------------------

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Have functions of some modules do nothing, once they are imported."""
        if name not in _LATE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run: Any = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._silence(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _silence(self, module: ModuleType) -> None:
        for dotted in _LATE[module.__name__]:
            *owners, last = dotted.split(".")
            owner: Any = functools.reduce(getattr, owners, module)
            if hasattr(owner, last):
                setattr(owner, last, self._nothing(f"{module.__name__}.{dotted}"))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & _FLAGS or isinstance(path, int):
                return
            changed = [_real(path)]
        elif event in ("os.rename", "os.link", "os.symlink"):
            changed = [_real(path, fd) for path, fd in zip(arguments, arguments[2:], strict=False)]
            changed = changed if event == "os.rename" else [_real(arguments[1], arguments[-1])]
        elif event in ("os.remove", "os.rmdir"):
            changed = [_real(*arguments)]
        else:  # os.truncate
            changed = [_real(arguments[0])] if not isinstance(arguments[0], int) else []
        for path in changed:
            if not self._is_allowed(path):
                self.note(f"refused: {path}")
                raise PermissionError(f"fastdata doctor lets a script write nothing: {path}")


def _real(path: Any, folder: int | None = None) -> str:
    """Return the real path of a file, of a folder by its descriptor if that is given."""
    text = os.fsdecode(path)
    if folder is not None and folder >= 0 and not os.path.isabs(text):
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    # A link is what changes, and not what it points to.
    return os.path.join(os.path.realpath(os.path.dirname(text) or "."), os.path.basename(text))
