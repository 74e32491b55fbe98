"""File names from keys: safe ones, no two alike.

A key is whatever a source called a sample: a path, an absolute path, a
number, or something that an attacker chose.  What comes out is always a
relative path below the folder it is meant for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import xxhash

from ..reading.image_files import kind_of_image

__all__ = ["FileNames", "folder_names", "image_suffix", "split_key"]

_KINDS: dict[str, tuple[str, ...]] = {
    "jpeg": (".jpg", ".jpeg", ".jfif", ".jpe", ".mpo"),
    "png": (".png", ".apng"),
    "gif": (".gif",),
    "bmp": (".bmp", ".dib"),
    "webp": (".webp",),
    "tiff": (".tif", ".tiff"),
    "pnm": (".ppm", ".pgm", ".pbm", ".pnm"),
    "avif": (".avif",),
    "jp2": (".jp2", ".j2k", ".jpx"),
    "tga": (".tga",),
}
"""The suffixes of a kind of file, first the one it gets where its key has none of them."""

_SUFFIXES = tuple(suffix for suffixes in _KINDS.values() for suffix in suffixes)
_RESERVED = (*_SUFFIXES, ".csv", ".json", ".bin")
_COMPONENT_BYTES = 200
"""Of the 255 that file systems allow: a number and a suffix may follow."""
_FOLDER_BYTES = 1000
"""Of the 4,096 a path may have; deeper folders are left out."""


def image_suffix(data: bytes | memoryview, key: str) -> str:
    """Return the suffix for an image file: the key's own where that is right."""
    kind = kind_of_image(data)
    own = os.path.splitext(key)[1]
    if not kind:
        return own if own.lower() in _SUFFIXES else ".bin"
    return own if own.lower() in _KINDS[kind] else _KINDS[kind][0]


def split_key(key: str, class_name: str | None = None) -> tuple[list[str], str]:
    """Return the folders and the stem that a key asks for, made safe.

    Folders up to the one named like the class are left out: the class has a folder of its own.
    """
    *folders, name = [p for p in key.split("/") if p not in ("", ".", "..")] or [""]
    if class_name in folders:
        folders = folders[folders.index(class_name) + 1 :]
    stem, suffix = os.path.splitext(name)
    if suffix.lower() not in _SUFFIXES:
        stem = name
    folders = [_folder(folder) for folder in folders]
    if sum(len(os.fsencode(folder)) + 1 for folder in folders) > _FOLDER_BYTES:
        folders = []
    return folders, _component(stem)


def folder_names(names: Iterable[str], taken: FileNames | None = None) -> list[str]:
    """Return a folder name for each class name, no two alike, and none that is `taken`."""
    taken = taken or FileNames()
    return [taken.claim("", _folder(name), "") for name in names]


class FileNames:
    """Makes paths that differ from each other.

    Paths are remembered as 8 bytes of hash: should two hash alike, the second gets a number
    that it did not need.
    """

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._next: dict[int, int] = {}

    def claim(self, folder: str, stem: str, suffix: str) -> str:
        """Return ``folder/stem + suffix``, with a number behind the stem if that is taken."""
        path = os.path.join(folder, stem + suffix)
        first = hash_ = xxhash.xxh3_64_intdigest(path.encode())
        while hash_ in self._taken:
            number = self._next.get(first, 2)
            self._next[first] = number + 1
            path = os.path.join(folder, f"{stem}-{number}{suffix}")
            hash_ = xxhash.xxh3_64_intdigest(path.encode())
        self._taken.add(hash_)
        return path


def _folder(name: str) -> str:
    """Return a safe folder name, which no file's name can equal."""
    name = _component(name)
    return name + "_" if name.lower().endswith(_RESERVED) else name


def _component(name: str) -> str:
    """Return one component of a path: no separators, no control characters, not too long."""
    name = re.sub(r"[\x00-\x1f\x7f/\\]", "_", name)
    name = name.encode("utf-8", "replace")[:_COMPONENT_BYTES].decode("utf-8", "ignore")
    return "_" if name in ("", ".", "..") else name
