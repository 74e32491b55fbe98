"""Pack every file of a folder, one by one, and count what became of each.

    python scripts/pack_corpus.py FOLDER [--codec keep] [--list rejected]

For collections of odd and damaged images, such as the test images of Pillow, libjpeg-turbo,
jpeg-decoder and image-rs. Each file is packed and read back in a process of its own, so that one
that crashes or hangs is counted and costs no other. Beside it stands what Pillow and OpenCV make
of the file: what both can read should be packed, unless the documentation says why not.

Exit code: 0; 1 if a file crashed or hung, or could not be read back.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, get_args

from PIL import Image

import fastdata
from fastdata.schema import Codec

SECONDS = 30.0
OUTCOMES = ("packed", "rejected", "unreadable", "crashed", "hung")


class Result(NamedTuple):
    """What became of a file."""

    outcome: str
    reason: str = ""
    pillow: bool = False
    opencv: bool = False


def tried(path: Path, codec: Codec) -> Result:
    """Pack a file and read it back, here."""
    pillow, opencv = read_by_pillow(path), read_by_opencv(path)
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "x.lmdb")
        # Beside a sound one: a pack of nothing but rejects is an error.
        sound = Path(folder, "sound.png")
        Image.new("RGB", (8, 8)).save(sound)
        report = fastdata.pack(
            [{"image": sound}, {"image": path}],
            packed,
            codec=codec,
            num_workers=0,
            progress=False,
            resize="none",
        )
        if report.num_rejected:
            return Result("rejected", report.rejects[0].reason, pillow, opencv)
        try:
            fastdata.open(packed)[1]
            list(fastdata.loader(packed, batch_size=1, num_workers=0))
        except Exception as error:
            return Result("unreadable", f"{type(error).__name__}: {error}", pillow, opencv)
    return Result("packed", "", pillow, opencv)


def read_by_pillow(path: Path) -> bool:
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")
            image.convert("RGB")
    except Exception:
        return False
    return True


def read_by_opencv(path: Path) -> bool:
    import cv2

    try:
        return cv2.imread(os.fspath(path)) is not None
    except cv2.error:
        return False


def send(path: Path, codec: Codec, there: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what C libraries print
    try:
        there.send(tried(path, codec))
    except Exception as error:
        there.send(Result("crashed", f"{type(error).__name__}: {error}"))


def in_a_process(path: Path, codec: Codec) -> Result:
    """Pack a file in a process that may crash or hang."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=send, args=(path, codec, there))
    process.start()
    there.close()
    try:
        if not here.poll(SECONDS):
            return Result("hung", f"after {SECONDS:.0f} s")
        return here.recv()  # type: ignore[no-any-return]
    except EOFError:
        process.join()
        return Result("crashed", f"exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def files_in(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--codec", default="auto", choices=get_args(Codec))
    parser.add_argument("--list", action="append", default=[], choices=OUTCOMES)
    arguments = parser.parse_args()

    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    lost = []
    for path in files_in(arguments.folder):
        result = in_a_process(path, arguments.codec)
        counts[result.outcome] += 1
        if result.outcome != "packed" and (result.pillow or result.opencv):
            reasons[result.reason.split(":")[0][:100]] += 1
        if result.outcome != "packed" and result.pillow and result.opencv:
            lost.append((path, result.reason))
        if result.outcome in (*arguments.list, "unreadable", "crashed", "hung"):
            print(f"{result.outcome}: {path.relative_to(arguments.folder)}: {result.reason}")
    print(f"{counts.total()} files: " + ", ".join(f"{counts[one]} {one}" for one in OUTCOMES))
    if reasons:
        print("rejected, though Pillow or OpenCV reads them:")
        for reason, count in reasons.most_common():
            print(f"  {count:5}  {reason}")
    if lost:
        print("rejected, though both read them:")
        for path, reason in lost:
            print(f"  {path.relative_to(arguments.folder)}: {reason}")
    return int(bool(counts["unreadable"] + counts["crashed"] + counts["hung"]))


if __name__ == "__main__":
    sys.exit(main())
