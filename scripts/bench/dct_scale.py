"""What decoding JPEGs at reduced DCT scale costs in accuracy, by margin.

    python scripts/bench/dct_scale.py --images DIR

A JPEG decoded at 1/2 or 1/4 and then resized is not quite the picture that
was decoded whole and resized.  For each photograph, scale s and margin m the
target is made such that just m times its size remains at that scale; the
result is compared with PIL's antialiased bilinear of the full decode, before encoding:

whole     all pixels
inside    without the last row and column, where partly covered pixels weigh too much
rough     all pixels, the last row and column counted as fully covered

Prints one JSON line a scale and margin, then a table of PSNR in dB.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import pages
from fastdata.codecs.bilinear import resize_bilinear
from fastdata.codecs.image import decode_jpeg
from fastdata.codecs.jpeg import read_jpeg_header
from results import Measured

MARGINS = (1.5, 2.0, 3.0, 4.0)
KINDS = ("whole", "inside", "rough")
SUFFIXES = {".jpg", ".jpeg"}


def psnr(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Return the peak signal-to-noise ratio of two images of 8 bits, in dB."""
    error = float(np.mean((left.astype(np.float64) - right) ** 2))
    return 10 * np.log10(255**2 / error) if error else float("inf")


def measure(data: bytes, factor: int, margin: float) -> tuple[float, float, float] | None:
    """Return PSNR whole, inside and rough for one file; None where the target would be tiny."""
    header = read_jpeg_header(data)
    size = header.height, header.width
    target = int(size[0] / factor / margin), int(size[1] / factor / margin)
    if min(target) < 16:
        return None
    image = Image.open(io.BytesIO(data)).convert("RGB")
    expected = np.asarray(image.resize(target[::-1], Image.Resampling.BILINEAR))
    pixels = decode_jpeg(data, header, 3, factor)
    result = resize_bilinear(pixels, target, size, factor)
    rough = resize_bilinear(pixels, target, pixels.shape[:2])
    return (
        psnr(result, expected),
        psnr(result[:-1, :-1], expected[:-1, :-1]),
        psnr(rough, expected),
    )


def main() -> int:
    """Measure all photographs at all scales and margins."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--images", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--limit", type=int, default=1000, help="photographs")
    options = parser.parse_args()
    paths = sorted(p for p in options.images.rglob("*") if p.suffix.lower() in SUFFIXES)
    files = [path.read_bytes() for path in paths[: options.limit]]
    if not files:
        raise SystemExit(f"{options.images} has no JPEG files")
    lines = []
    for factor in (2, 4):
        for margin in MARGINS:
            found = [measure(data, factor, margin) for data in files]
            columns = [values for values in found if values is not None]
            values: dict[str, Any] = {"scale": f"1/{factor}", "margin": margin}
            values["images"] = len(columns)
            for name, column in zip(KINDS, zip(*columns, strict=True), strict=True):
                values[name] = [round(min(column), 1), round(statistics.median(column), 1)]
            line = {
                "benchmark": "dct_scale",
                "row": f"1/{factor}, {margin}",
                "values": values,
                "versions": {name: version(name) for name in ("pillow", "simplejpeg")},
                "settings": {"samples": len(files)},
            }
            print(json.dumps(line), flush=True)
            lines.append(line)
    print("\n" + "\n".join(pages.dct_scale(Measured.of(lines))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
