"""What is taken of `scripts/bench`: datasets, words for a machine, how numbers are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from bench_data import Datasets, list_images
from harness import REPOSITORY, available_cores, hardware, last_line, readable, say

__all__ = [
    "REPOSITORY",
    "Datasets",
    "available_cores",
    "find_or_make_images",
    "hardware",
    "last_line",
    "list_images",
    "readable",
    "say",
]


def find_or_make_images(given: Path | None, work: Path, count: int) -> Path:
    """Return a folder of photographs in class folders; made-up ones where there are none.

    The folder given, else the one that ``FASTDATA_BENCH_IMAGES`` names, else the pictures of
    quickstart, else `count` pictures made by `scripts/make_photos.py`, once.

    Raises
    ------
    FileNotFoundError
        If a folder was named, and is not there.
    RuntimeError
        If no pictures could be made.
    """
    named = os.environ.get("FASTDATA_BENCH_IMAGES")
    folder = given or (Path(named) if named else None)
    if folder is not None:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}: give --images another one")
        return folder.resolve()
    of_quickstart = REPOSITORY / ".quickstart" / "photos"
    if of_quickstart.is_dir():
        return of_quickstart
    made = work / f"photos-{count}"
    if not made.is_dir():
        say(f"making {count} pictures in {made} (--images DIR takes photographs instead)")
        work.mkdir(parents=True, exist_ok=True)
        script = REPOSITORY / "scripts" / "make_photos.py"
        command = [sys.executable, str(script), str(made), "--count", str(count), "--classes", "10"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"no pictures could be made: {last_line(done.stderr)}")
    return made
