"""Count the product's files that a pack, a batch and a tuning pass through.

    python scripts/journeys.py
    python scripts/journeys.py pack --list     # names the files, and the functions entered in each

A file counts if one of its functions is entered in this process while the journey runs; the
bodies of modules and classes do not count, nor what worker processes run.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import sys
import tempfile
import threading
from collections import defaultdict
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
from PIL import Image

import fastdata
from fastdata import transforms
from fastdata.cli import main

REPO = Path(__file__).resolve().parents[1]
ROOMS = (f"{REPO / 'fastdata'}/", f"{REPO / 'converters'}/")


class FilesEntered:
    """The functions entered while it is on, by file; threads started before it are not seen."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    def __enter__(self) -> FilesEntered:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def start_over(self) -> None:
        """Forget what was entered so far."""
        self._codes.clear()

    def by_file(self) -> dict[str, set[str]]:
        """Return the functions of the product."""
        files = defaultdict(set)
        for code in self._codes:
            path = str(Path(code.co_filename).resolve())
            if code.co_flags & inspect.CO_OPTIMIZED and path.startswith(ROOMS):
                files[str(Path(path).relative_to(REPO))].add(code.co_name)
        return files


def make_images(folder: Path) -> None:
    """Write 64 small photographs in 4 class folders."""
    numbers = np.random.default_rng(0)
    for index in range(64):
        path = folder / f"class{index % 4}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = numbers.integers(0, 256, (12, 16, 3), np.uint8)
        Image.fromarray(noise).resize((400, 300), Image.Resampling.BICUBIC).save(path)


def command(*arguments: str) -> None:
    """Run the command line; its output is thrown away."""
    output = io.StringIO()
    sys.argv = ["fastdata", *arguments]
    try:
        with redirect_stdout(output), redirect_stderr(output):
            main()
    except SystemExit as end:
        if end.code:
            sys.exit(output.getvalue())


def one_batch(pack: Path, entered: FilesEntered) -> None:
    """Take batches of a loader; those after the first are seen, not how the loop begins.

    An epoch has 16 of them, so that none that is made ahead is of the next epoch.
    """
    transform = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip()]
    batches = iter(fastdata.loader(pack, 4, shuffle=True, num_workers=2, transform=transform))
    next(batches)
    entered.start_over()
    for _ in range(5):  # the next ones may have been made already
        next(batches)


def run() -> None:
    """Print how many files each journey passes through."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("journey", nargs="*", help="pack, batch, tuning; default: all")
    parser.add_argument("--list", action="store_true", help="name the files and their functions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"  # no earlier tuning is found
        images, packed = Path(folder, "images"), Path(folder, "packed.lmdb")
        make_images(images)
        command("pack", str(images), str(packed))
        for name in given.journey or ("pack", "batch", "tuning"):
            with FilesEntered() as entered:
                if name == "pack":
                    command("pack", str(images), f"{folder}/again.lmdb")
                elif name == "batch":
                    one_batch(packed, entered)
                elif name == "tuning":
                    command("tune-workers", str(packed))
                else:
                    parser.error(f"{name}: not one of pack, batch, tuning")
            files = entered.by_file()
            print(f"{name}: {len(files)} files")
            if given.list:
                for path, functions in sorted(files.items()):
                    print(f"    {path}: {', '.join(sorted(functions))}")


if __name__ == "__main__":
    run()
