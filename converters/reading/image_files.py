"""Which files are images, by their names and by their first bytes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from fastdata.codecs.kinds import UNOPENED

__all__ = [
    "BOTH_CASES",
    "SUFFIXES",
    "files_below",
    "has_own_images",
    "ignored_files",
    "is_hidden",
    "is_image_bytes",
    "is_image_name",
    "kind_of_image",
    "reraise",
    "suffix_of",
    "unopened_files",
]

SUFFIXES = (
    # ``torchvision.datasets.folder.IMG_EXTENSIONS``
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    # others of the formats that `fastdata.codecs.pillow` opens
    *(".gif", ".jfif", ".jpe", ".mpo", ".apng", ".avif", ".jp2", ".j2k", ".jpx"),
    *(".pbm", ".pnm", ".dib", ".tga"),
)
"""Suffixes of image files; the one list for all formats of sources."""

BOTH_CASES = (*SUFFIXES, *(suffix.upper() for suffix in SUFFIXES))
"""The same, as files have them: ``.JPEG`` in ImageNet."""

_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"\0\0\0\x0cjP  \r\n", "jp2"),
    (b"\xff\x4f\xff\x51", "jp2"),
    (b"P5", "pnm"),
    (b"P6", "pnm"),
)


def is_image_name(name: str) -> bool:
    """Tell whether a file of this name is taken for an image."""
    return name.lower().endswith(SUFFIXES)


_LEFT_BEHIND = frozenset(
    (
        *("__MACOSX", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information"),
        *("Thumbs.db", "desktop.ini", "Desktop.ini", "Icon\r"),
    )
)
"""Folders and files that operating systems, servers and file managers write among data."""


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is never data: its name begins with a dot, or a system made it.

    torchvision's ImageFolder takes folders whose names begin with a dot.
    """
    return (name.startswith(".") and name != "..") or name in _LEFT_BEHIND


def suffix_of(name: str) -> str:
    """Return a file's suffix, or its name if it has none, for `ignored_files`."""
    return os.path.splitext(name)[1] or name


def has_own_images(folder: Path) -> bool:
    """Tell whether there are image files directly in a folder."""
    with os.scandir(folder) as entries:
        return any(is_image_name(entry.name) and not entry.is_dir() for entry in entries)


def files_below(root: Path, place: str) -> Iterator[str]:
    """Yield the files of a folder and of its folders, relative to the root, in sorted order.

    Links are followed; hidden files and folders are left out.
    """
    for folder, folders, files in os.walk(root / place, onerror=reraise, followlinks=True):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        inside = os.path.relpath(folder, root)
        for file in sorted(files):
            if not is_hidden(file):
                yield file if inside == os.curdir else os.path.join(inside, file)


def reraise(error: OSError) -> NoReturn:
    """Raise the error of a folder that cannot be listed; `os.walk` would skip the folder."""
    raise error


def ignored_files(counts: Counter[str]) -> list[str]:
    """Return the notes on files other than images; empty if there are none.

    counts: how many there are, by `suffix_of`.
    """
    unopened = unopened_files(counts)
    others = Counter({s: n for s, n in counts.items() if s.lower() not in UNOPENED})
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(5))
    notes = [f"{others.total()} files without an image suffix left out: {kinds}"] * bool(others)
    return [f"left out: {unopened}"] * bool(unopened) + notes


def unopened_files(counts: Counter[str]) -> str:
    """Return which pictures are of formats that are not opened, and what to do; "" for none."""
    found = [(n, s, *UNOPENED[s.lower()]) for s, n in counts.most_common() if s.lower() in UNOPENED]
    kinds = ", ".join(f"{n:,} {suffix} ({name})" for n, suffix, name, _ in found[:5])
    text = f"pictures of formats that fastdata does not open: {kinds}; convert them, e.g. "
    return f"{text}`{found[0][-1]}`" if found else ""


def kind_of_image(data: bytes | bytearray | memoryview) -> str:
    """Return the kind of an image file, e.g. "jpeg", by its first bytes; "" for no known one."""
    start = bytes(data[:12])
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return "webp"
    if start[4:] in (b"ftypavif", b"ftypavis"):
        return "avif"
    return next((kind for magic, kind in _STARTS if start.startswith(magic)), "")


def is_image_bytes(value: Any) -> bool:
    """Tell whether these are bytes that begin as an image file does; PNM does not count."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return False
    return kind_of_image(value) not in ("", "pnm")
