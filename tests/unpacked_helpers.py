"""What tests of files that are not packed share: folders, manifests, and who opens which file."""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pack_helpers import pil_file, with_orientation
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from samples import mask, photo

import fastdata
from fastdata import transforms as T  # noqa: N812

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]

WORKERS: dict[str, dict[str, Any]] = {
    "caller": {"num_workers": 0},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "processes": {"num_workers": 2, "worker_method": "process"},
}


def every_file() -> dict[str, bytes]:
    """Return image files of every kind that packing knows, by their names."""
    colour, grey = photo(61, 83, seed=1), photo(61, 83, 1, seed=2)[:, :, 0]
    xmp = b'<x xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    text, turning = PngInfo(), PngInfo()
    text.add_text("Software", "a painter")
    turning.add_itxt("XML:com.adobe.xmp", xmp.decode())
    files = {
        "plain.jpg": pil_file(photo(160, 140, seed=3), "JPEG", quality=90),
        "full.jpeg": pil_file(colour, "JPEG", quality=90, subsampling=0),
        "progressive.jpg": pil_file(colour, "JPEG", progressive=True),
        "grey.jpg": pil_file(grey, "JPEG"),
        "cmyk.jpg": pil_file(Image.fromarray(colour).convert("CMYK"), "JPEG"),
        "rgb.png": pil_file(colour, "PNG"),
        "named_wrongly.png": pil_file(colour, "JPEG"),
        "text.png": pil_file(colour, "PNG", pnginfo=text),
        "turned_by_xmp.png": pil_file(colour, "PNG", pnginfo=turning),
        "grey.png": pil_file(grey, "PNG"),
        "deep.png": pil_file((grey.astype(np.uint16) << 8) + 77, "PNG"),
        "bits.png": pil_file(Image.fromarray(grey).convert("1"), "PNG"),
        "alpha.png": pil_file(Image.fromarray(colour).convert("RGBA"), "PNG"),
        "palette.png": pil_file(Image.fromarray(colour).quantize(16), "PNG"),
        "lossless.webp": pil_file(colour, "WEBP", lossless=True),
        "plain.bmp": pil_file(colour, "BMP"),
        "plain.ppm": pil_file(colour, "PPM"),
        "plain.tif": pil_file(colour, "TIFF"),
    }
    for orientation in range(2, 9):
        files[f"turned{orientation}.jpg"] = with_orientation(colour, orientation, "JPEG")
    for kind in ("PNG", "TIFF", "WEBP"):
        suffix = kind.lower().replace("tiff", "tif")
        files[f"turned.{suffix}"] = with_orientation(colour, 6, kind)
    return files


def write_class_folders(root: Path, files: dict[str, bytes]) -> Path:
    """Write files into two class folders, in turns."""
    for number, (name, data) in enumerate(files.items()):
        folder = root / ("ant", "bee")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return root


def write_scenes(
    root: Path, count: int = 20, rows: dict[int, dict[str, str]] | None = None
) -> Path:
    """Write a manifest of oriented images with masks, boxes, text and numbers."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "scenes.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, ["path", "label", "mask", "boxes", "caption", "weight"])
        writer.writeheader()
        for index in range(count):
            turn = 1 + index % 8
            size = 50 + index, 70 - index
            image = with_orientation(photo(*size, seed=index), turn, "JPEG", quality=90)
            (root / f"{index}.jpg").write_bytes(image)
            (root / f"{index}_mask.png").write_bytes(
                with_orientation(mask(*size, seed=index)[:, :, 0], turn, "PNG")
            )
            row = {
                "path": f"{index}.jpg",
                "label": ("newt", "ape")[index % 2],
                "mask": f"{index}_mask.png",
                "boxes": str([[index, 2, index + 20, 30], [0, 0, 9, 8]]),
                "caption": f"picture {index}",
                "weight": str(index / 2),
            }
            writer.writerow({**row, **(rows or {}).get(index, {})})
    return path


def same_value(first: Any, second: Any) -> bool:
    """Return whether two fields of batches or samples are equal, bit for bit."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.dtype == second.dtype
            and torch.equal(first, second)
        )
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same_value, first, second))
    return bool(first == second)


def check_same_batches(first: Any, second: Any, epochs: int = 2) -> int:
    """Compare the batches of two loaders; return how many there were."""
    count = 0
    with first, second:
        for _ in range(epochs):
            for one, other in zip(first, second, strict=True):
                assert type(one)._fields == type(other)._fields
                for name, a, b in zip(one._fields, one, other, strict=True):
                    assert same_value(a, b), (count, name)
                count += 1
    return count


def packed(source: Path, destination: Path, **options: Any) -> Path:
    """Pack files as they are; all of them can be."""
    report = fastdata.pack(source, destination, codec="keep", num_workers=0, **options)
    assert report.num_rejected == 0
    return destination


_watching: list[Counter[str]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    # The builtin open says so too, with a mode, before its opener does.
    if event != "open" or arguments[1] is not None:
        return
    if _watching and isinstance(arguments[0], (str, os.PathLike)):
        _watching[0][os.path.basename(os.fspath(arguments[0]))] += 1


@contextmanager
def files_opened() -> Iterator[Counter[str]]:
    """Count how often each file is opened in this process, by its name; whoever does it."""
    if not getattr(sys, "_fastdata_watch", False):
        sys.addaudithook(_hook)  # which cannot be taken back
        sys._fastdata_watch = True  # type: ignore[attr-defined]
    counts: Counter[str] = Counter()
    _watching[:] = [counts]
    try:
        yield counts
    finally:
        _watching.clear()
