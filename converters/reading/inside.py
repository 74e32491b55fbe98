"""Files that data names: looked for in a folder, and never outside of it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from fastdata.errors import SourceError

__all__ = ["path_inside"]


def path_inside(folder: Path, name: object) -> Path:
    """Return the path of a file that data names, relative to a folder.

    Links in the folder are the user's own, and are followed.

    Raises
    ------
    SourceError
        If it is no name of a file, or one that leads out of the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise SourceError(f"{str(name)[:80]!r} is no name of a file")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SourceError(f"the file name {name[:200]!r} leads outside of its folder")
    return folder / path
