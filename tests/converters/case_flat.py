"""Images in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from case_manifest import write_images
from cases import Case, Picture

__all__ = ["CASES", "flat"]


def flat(folder: Path, pictures: Sequence[Picture]) -> Path:
    write_images(folder, pictures)
    (folder / "readme.md").write_text("pictures")
    return folder


def deep(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write images at two depths, in the order of their names."""
    write_images(folder, pictures[:5])
    write_images(folder / "a", pictures[5:8])
    write_images(folder / "a" / "b", pictures[8:])
    return folder


CASES = [
    Case("flat", "flat", flat, labels=False),
]
