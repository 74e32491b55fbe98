"""Pack the same pictures from every format that fastdata reads, in turns, and compare.

    python scripts/bench/converters.py --images DIR
    python scripts/bench/converters.py --images DIR --only 'tfrecord*' --rounds 5 --small 0

Two things are measured of each format, by the time of the pack call with two workers, after one of
a single sample that imports what the format needs:

- photographs: the given files, repeated until there are 2,000 (`--photographs`), packed to short
  side 256 as JPEG of quality 90, beside the same photographs in class folders.  Formats that
  hold pixels have photographs of 320 x 320 pixels, and class folders of these beside them;
  formats that have masks are read without and with them, these beside a manifest with a column
  of images and one of masks.
- small pictures: 20,000 (`--small`) of 32 x 32 pixels, taken over as they are.

The files are written by the same code that writes them for the tests
(``tests/converters/case_*.py``), once, and kept in `--work`.
"""

from __future__ import annotations

import functools
import io
import json
import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench_data import find_images, list_images
from harness import REPOSITORY, Contender, command_line, say
from table import Bar, compare

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "converters")]

from case_mvtec import mask_of  # noqa: E402
from cases import CLASSES, Case, all_cases  # noqa: E402

SQUARE = 320
ASKED = 0.9


class LazyPicture:
    """A picture as the tests' writers take it, decoded when its pixels are asked for."""

    def __init__(self, name: str, data: bytes, label: int) -> None:
        self.name, self.data, self.label = name, data, label

    @property
    def pixels(self) -> np.ndarray[Any, Any]:
        """Return what PIL reads, H x W x 3, uint8."""
        return np.asarray(Image.open(io.BytesIO(self.data)).convert("RGB"))


def photographs(images: Path, count: int, *, square: bool) -> list[LazyPicture]:
    """Return photographs; squares have one shape."""
    files = list_images(images)
    datas = [_squared(path) if square else path.read_bytes() for path in files[:count]]
    repeated = islice(cycle(datas), count)
    return [LazyPicture(f"{k:06}", data, k % len(CLASSES)) for k, data in enumerate(repeated)]


def _squared(path: Path) -> bytes:
    file = io.BytesIO()
    Image.open(path).convert("RGB").resize((SQUARE, SQUARE)).save(file, "JPEG", quality=90)
    return file.getvalue()


@functools.cache
def small_pictures(count: int) -> list[LazyPicture]:
    """Return pictures of 32 x 32 pixels, 64 different ones."""
    random = np.random.default_rng(0)
    datas = []
    for _ in range(64):
        coarse = random.integers(0, 256, (4, 4, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((32, 32), Image.Resampling.BICUBIC).save(file, "JPEG")
        datas.append(file.getvalue())
    return [LazyPicture(f"{k:06}", datas[k % 64], k % len(CLASSES)) for k in range(count)]


def class_folders(folder: Path, pictures: Sequence[Any]) -> Path:
    """Write the pictures into class folders."""
    for picture in pictures:
        place = folder / CLASSES[picture.label]
        place.mkdir(exist_ok=True)
        (place / f"{picture.name}.jpg").write_bytes(picture.data)
    return folder


FOLDERS = Case("class folders", "folder", class_folders)


def manifest_of_masks(folder: Path, pictures: Sequence[Any]) -> Path:
    """Write a manifest of images and masks."""
    lines = ["image\tmask\n"]
    for picture in pictures:
        (folder / f"{picture.name}.jpg").write_bytes(picture.data)
        Image.fromarray(mask_of(picture)).save(folder / f"{picture.name}.png")
        lines.append(f"{picture.name}.jpg\t{picture.name}.png\n")
    (folder / "images.tsv").write_text("".join(lines))
    return folder / "images.tsv"


def manifest(folder: Path, pictures: Sequence[Any]) -> Path:
    """Write a manifest of images and labels."""
    lines = ["path\tlabel\n"]
    for picture in pictures:
        (folder / f"{picture.name}.jpg").write_bytes(picture.data)
        lines.append(f"{picture.name}.jpg\t{picture.label}\n")
    (folder / "images.tsv").write_text("".join(lines))
    return folder / "images.tsv"


MANIFEST = Case("manifest of masks", "manifest", manifest_of_masks)
BESIDE = {"photographs": FOLDERS, "masks": MANIFEST, "squares": FOLDERS}
WITH_MASKS = ("coco-masks", "mvtec", "mvtec-whole", "voc-masks")


def kind_of(case: Case) -> str:
    """Return what of a case is measured, a key of `BESIDE`."""
    if case.holds == "pixels":
        return "squares"
    return "masks" if case.name in WITH_MASKS else "photographs"


def chosen_cases(only: Sequence[str], *, every: bool) -> list[Case]:
    """Return the cases that are measured: of each format the first of each kind."""
    found: dict[tuple[str, ...], Case] = {}
    # What fastdata has exported comes last: others' files are what is measured.
    cases = [Case("manifest", "manifest", manifest), *all_cases()]
    for case in sorted(cases, key=lambda case: case.name.startswith("exported")):
        if not only or any(fnmatchcase(case.name, pattern) for pattern in only):
            found.setdefault((case.format, kind_of(case), case.name if every or only else ""), case)
    return list(found.values())


def written(case: Case, work: Path, kind: str, pictures: Sequence[Any]) -> str:
    """Return the location of a case's files, written unless they are there."""
    folder = work / f"{kind}-{case.name.replace(' ', '-')}"
    stamp = folder.with_suffix(".json")
    if stamp.exists():
        found = json.loads(stamp.read_text())
        if found["count"] == len(pictures):
            return str(found["location"])
    say(f"writing {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    location = str(case.write(folder, pictures))
    stamp.write_text(json.dumps({"count": len(pictures), "location": location}))
    return location


def contender(case: Case, kind: str, location: str, work: Path, options: Any) -> Contender:
    """Return the program that packs a case's files."""
    settings = {
        "images": location,
        "destination": str(work / "packed.lmdb"),
        "workers": options.workers,
        "quality": 90,
        "pack": {
            "format": case.format,
            "source_options": dict(case.options),
            **({"resize": "none", "codec": "auto"} if kind.startswith("small") else {"size": 256}),
        },
    }
    command = [sys.executable, str(HERE / "contenders" / "pack_fastdata.py"), json.dumps(settings)]
    # Of each format the first case of a kind is measured, unless some are chosen.
    name = case.name if options.only or options.every else case.format
    return Contender(f"{kind}: {name}", command, modules=["fastdata"])


def main() -> int:
    """Read the command line and compare."""
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--images", type=Path, help="folder of class folders of JPEG files")
    parser.add_argument("--photographs", type=int, default=2000, help="0 for none")
    parser.add_argument("--small", type=int, default=20_000, help="0 for none")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="only these, e.g. 'tfrecord*'; repeatable"
    )
    parser.add_argument(
        "--every", action="store_true", help="every way to write a format, not one of each"
    )
    options = parser.parse_args()

    images = find_images(options.images)
    work = options.work.resolve() / "converters"
    cases = chosen_cases(options.only or (), every=options.every)
    large: list[Contender] = []
    bars: list[Bar] = []
    for kind, beside in BESIDE.items():
        chosen = [case for case in cases if kind_of(case) == kind]
        if not chosen or not options.photographs:
            continue
        pictures = photographs(images, options.photographs, square=kind == "squares")
        base = ""
        for case in (beside, *chosen):
            location = written(case, work, kind, pictures)
            large.append(contender(case, kind, location, work, options))
            base = base or large[-1].name
            if case is not beside:
                bars.append(Bar(large[-1].name, base, ASKED))
    tiny = []
    for case in (FOLDERS, *(case for case in cases if kind_of(case) != "masks")):
        if not options.small:
            break
        location = written(case, work, "small", small_pictures(options.small))
        kind = "small, pixels" if kind_of(case) == "squares" else "small"
        tiny.append(contender(case, kind, location, work, options))
    settings = {
        "photographs": options.photographs,
        "small": options.small,
        "workers": options.workers,
    }
    comparisons = {
        "converters, photographs": (large, bars),
        "converters, small pictures": (tiny, [Bar(c.name, tiny[0].name, 0) for c in tiny[1:]]),
    }
    failed = 0
    for name, (contenders, asked) in comparisons.items():
        if contenders:
            failed |= compare(
                name,
                contenders,
                rounds=options.rounds,
                settings=settings,
                output=options.output,
                bars=asked,
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
