"""A folder that is there whole or not at all.

``OUT`` is made in ``OUT.exporting/files`` and then renamed; what it replaces waits in
``OUT.exporting/replaced`` meanwhile.  ``OUT.exporting/lock`` keeps others out, and the
kernel drops it with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import DestinationExistsError, DestinationLockedError

__all__ = ["clear_leftovers", "own_workplace", "publish"]


@contextlib.contextmanager
def own_workplace(path: Path) -> Iterator[Path]:
    """Own the folder in which an export is made, and remove it in the end.

    What a killed export left there is removed first.
    """
    workplace = path.with_name(path.name + ".exporting")
    lock = _lock(workplace)
    try:
        if (workplace / "replaced").exists() and not path.exists():
            os.rename(workplace / "replaced", path)  # killed between the two renames
        for entry in os.scandir(workplace):
            if entry.name in ("files", "replaced"):
                shutil.rmtree(entry.path)
        yield workplace
    finally:
        try:
            # The lock file goes last: by it the next export knows what one killed here has left.
            for name in ("files", "replaced"):
                shutil.rmtree(workplace / name, ignore_errors=True)
            shutil.rmtree(workplace, ignore_errors=True)
        finally:
            os.close(lock)


def clear_leftovers(path: Path) -> None:
    """Remove what an export left that was killed once the folder had its name."""
    if path.exists() and path.with_name(path.name + ".exporting").joinpath("lock").exists():
        with own_workplace(path):
            pass


def _lock(workplace: Path) -> int:
    """Make the folder and lock it against other exports; return the lock's descriptor."""
    place = workplace / "lock"
    while True:
        workplace.mkdir(parents=True, exist_ok=True)
        if not place.exists() and any(workplace.iterdir()):
            raise DestinationExistsError(
                f"{workplace} is in the way, and no export made it. Move it elsewhere."
            )
        with contextlib.suppress(FileNotFoundError):  # an export that just finished removed it
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if _holds(descriptor, place):
                return descriptor


def _holds(descriptor: int, place: Path) -> bool:
    """Take the lock; tell whether it is still the one of that name.  Closes it otherwise."""
    held = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.stat(place).st_ino == os.fstat(descriptor).st_ino
    except BlockingIOError:
        raise DestinationLockedError(
            f"{place.parent}: another process is exporting there. Wait for it, or choose "
            "another folder."
        ) from None
    finally:
        if not held:
            os.close(descriptor)
    return held


def publish(files: Path, path: Path, replaced: Path, overwrite: bool) -> None:
    """Give the finished folder its name; an earlier one stays if that fails."""
    if overwrite and path.exists():
        os.rename(path, replaced)
    try:
        os.rename(files, path)
    except BaseException:
        if replaced.exists():
            os.rename(replaced, path)
        raise
