"""Write tests/converters/fixtures/mds with MosaicML Streaming itself.

    pip install mosaicml-streaming==0.13.0 torch==2.13.0   # and the torchvision for that torch
    python scripts/format_fixtures/make_mds.py

``plain`` and ``zstd`` have the same samples, ``gz`` some of their columns; values are those of
`sample`, which the tests repeat.  ``br`` has a compression and ``pkl`` a column that are refused.
"""

from __future__ import annotations

import io
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from streaming import MDSWriter

HERE = Path(__file__).resolve().parents[2] / "tests" / "converters" / "fixtures" / "mds"
COUNT, HEIGHT, WIDTH = 5, 6, 8
COLUMNS = {
    "png": "png",
    "pil": "pil",
    "jpeg": "jpeg",
    "grey": "pil",
    "label": "int",
    "small": "uint8",
    "large": "uint64",
    "weight": "float32",
    "name": "str",
    "digits": "str_int",
    "price": "str_decimal",
    "about": "json",
    "blob": "bytes",
    "any": "ndarray",
    "typed": "ndarray:float32",
    "fixed": "ndarray:int16:2,3",
}


def picture(index: int) -> np.ndarray:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([9 * y, 9 * x, 40 * index + x + y], axis=2).astype(np.uint8)


def sample(index: int) -> dict[str, Any]:
    jpeg = io.BytesIO()
    Image.fromarray(picture(index)).save(jpeg, "JPEG", quality=90)
    return {
        "png": Image.fromarray(picture(index)),
        "pil": Image.fromarray(picture(index)),
        "jpeg": Image.open(jpeg),
        "grey": Image.fromarray(picture(index)[:, :, 2]),
        "label": index % 3,
        "small": np.uint8(index),
        "large": np.uint64(index + 2**40),
        "weight": np.float32(index / 7),
        "name": f"sample {index} é",
        "digits": 10**12 + index,
        "price": Decimal(f"{index}.25"),
        "about": {"index": index},
        "blob": bytes([index]) * (index + 1),
        "any": np.arange(index + 1, dtype=np.float64),
        "typed": np.full((2, index + 1), index, np.float32),
        "fixed": np.arange(6, dtype=np.int16).reshape(2, 3) + index,
    }


def write(name: str, columns: dict[str, str], size_limit: int = 3000, **options: Any) -> None:
    out = HERE / name
    shutil.rmtree(out, ignore_errors=True)
    with MDSWriter(out=str(out), columns=columns, size_limit=size_limit, **options) as writer:
        for index in range(COUNT):
            made = sample(index) | {"anything": {1, 2}}
            writer.write({key: made[key] for key in columns})


def main() -> None:
    write("plain", COLUMNS, hashes=["sha1", "xxh64"])
    write("zstd", COLUMNS, compression="zstd:7", hashes=["xxh3_64"])
    write("gz", {"png": "png", "label": "int"}, compression="gz")
    write("br", {"png": "png", "label": "int"}, compression="br")
    write("pkl", {"png": "png", "label": "int", "anything": "pkl"})


if __name__ == "__main__":
    main()
