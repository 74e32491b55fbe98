"""Write the inputs that `scripts/fuzz` begins with: small JPEGs of every kind.

    python scripts/fuzzing/seeds.py PHOTOS FOLDER

Each file is a JPEG and 16 random bytes, which target.c takes sizes and windows from.  `FOLDER.dict`
gets the markers of JPEG, for libFuzzer to put in.
"""

from __future__ import annotations

import io
import itertools
import random
import sys
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from fastdata.native.library import encode_jpeg, transcode_jpeg

SIZES = ((96, 128), (33, 17), (8, 8), (1, 1), (64, 300))
SAMPLINGS = (0x111111, 0x211111, 0x221111, 0x121111, 0x411111)
"""As cv2.IMWRITE_JPEG_SAMPLING_FACTOR takes them: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1."""
MOST_PHOTOS = 40
PARAMETERS = 16


def variants(image: Image.Image, first: int) -> list[bytes]:
    """Return files of an image: each kind of size, sampling, scans, restart interval and index."""
    files = []
    kinds = enumerate(itertools.product(SIZES, SAMPLINGS), first)
    for number, ((height, width), sampling) in kinds:
        options = {
            cv2.IMWRITE_JPEG_QUALITY: 30 + number * 7 % 70,
            cv2.IMWRITE_JPEG_SAMPLING_FACTOR: sampling,
            cv2.IMWRITE_JPEG_PROGRESSIVE: number % 2,
            cv2.IMWRITE_JPEG_OPTIMIZE: number // 2 % 2,
            cv2.IMWRITE_JPEG_RST_INTERVAL: (0, 1, 4)[number % 3],
        }
        pixels = np.asarray(image.resize((width, height)))[..., ::-1]
        flat = [value for option in options.items() for value in option]
        files.append(cv2.imencode(".jpg", pixels, flat)[1].tobytes())
    for mode in ("L", "CMYK", "RGB"):
        file = io.BytesIO()
        image.resize((50, 40)).convert(mode).save(file, "JPEG", progressive=first % 2 == 0)
        files.append(file.getvalue())
    small = np.asarray(image.resize((120, 90)))
    files += [encode_jpeg(small, 80, 2) or b"", encode_jpeg(small[..., :1], 80, 3) or b""]
    files += [transcode_jpeg(one, 2) or b"" for one in files[:4]]
    return [one for one in files if one]


def main(photos: str, folder: str) -> None:
    """Write the files; random pictures stand in for photographs that are not there."""
    draw = random.Random(0)
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    suffixes = (".jpg", ".jpeg")
    found = [one for one in sorted(Path(photos).rglob("*")) if one.suffix.lower() in suffixes]
    chosen = found[:: max(1, len(found) // MOST_PHOTOS)]
    images = [Image.open(one, formats=["JPEG"]).convert("RGB") for one in chosen]
    if not images:
        noise = np.random.default_rng(0).integers(0, 256, (4, 12, 16, 3), np.uint8)
        images = [
            Image.fromarray(one).resize((320, 240), Image.Resampling.BICUBIC) for one in noise
        ]
    count = 0
    for number, image in enumerate(images):
        for one in variants(image, number):
            (out / f"{count:05}").write_bytes(one + draw.randbytes(PARAMETERS))
            count += 1
    markers = [*range(0xC0, 0xD0), *range(0xD8, 0xF0), 0xFE, 0xD0, 0xD7, 0x01]
    lines = [f'"\\xFF\\x{marker:02X}"' for marker in markers]
    out.with_suffix(".dict").write_text(
        "\n".join([*lines, '"JFIF\\x00"', '"Adobe"', '"Exif\\x00"', ""])
    )
    print(f"{count:,} seeds of {len(images)} pictures", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
