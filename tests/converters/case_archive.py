"""Class folders in tar files by Python's tarfile and in zip files by its zipfile."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from case_webdataset import write_tar
from cases import CLASSES, Case, Picture

__all__ = ["CASES", "folders", "write_zip"]


def folders(pictures: Sequence[Picture], top: str = "") -> list[tuple[str, bytes]]:
    """Return name and content of each picture in its class folder."""
    return [
        (f"{top}{CLASSES[p.label]}/{number:06}.jpg", p.data) for number, p in enumerate(pictures)
    ]


def write_zip(
    path: Path, members: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def tar(folder: Path, pictures: Sequence[Picture]) -> Path:
    return write_tar(folder / "a.tar", folders(pictures, "photos/"))


def gzipped(folder: Path, pictures: Sequence[Picture]) -> Path:
    return write_tar(folder / "a.tar.gz", folders(pictures, "./"), "w:gz")


def stored(folder: Path, pictures: Sequence[Picture]) -> Path:
    return write_zip(folder / "a.zip", folders(pictures))


def deflated(folder: Path, pictures: Sequence[Picture]) -> Path:
    half = len(pictures) // 2
    members = [
        *folders(pictures[:half], "a/train/"),
        *folders(pictures[half:], "a/val/"),
    ]
    return write_zip(folder / "a.zip", members, zipfile.ZIP_DEFLATED)


CASES = [
    Case("archive-tar", "archive", tar, keeps_order=False),
    Case("archive-gzip", "archive", gzipped, shuffles=False),
    Case("archive-zip", "archive", stored, keeps_order=False),
    Case("archive-deflated", "archive", deflated, keeps_order=False),
]
