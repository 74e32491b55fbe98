"""Write tests/converters/fixtures/litdata with LitData itself.

    pip install litdata==0.2.76 zstd pyarrow torch==2.13.0
    python scripts/format_fixtures/make_litdata.py

``plain``, ``chunk``, ``batch`` and ``sample`` have the same samples, the latter compressed in
LitData's three ways; values are those of `sample`, which the tests repeat.  ``tuple`` has no names,
``pickle`` a column that is refused.  ``rows`` has only plain values, which LitData writes as a
table of Arrow; it is refused, like ``batch``.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from litdata.streaming.writer import BinaryWriter
from PIL import Image

HERE = Path(__file__).resolve().parents[2] / "tests" / "converters" / "fixtures" / "litdata"
COUNT, HEIGHT, WIDTH = 5, 6, 8


def picture(index: int) -> np.ndarray:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([9 * y, 9 * x, 40 * index + x + y], axis=2).astype(np.uint8)


def jpeg(index: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(index)).save(file, "JPEG", quality=95)
    return file.getvalue()


def sample(index: int) -> dict[str, Any]:
    return {
        "image": Image.open(io.BytesIO(jpeg(index))),
        "raw": Image.fromarray(picture(index)),
        "file": jpeg(index),
        "chw": torch.from_numpy(picture(index).transpose(2, 0, 1).copy()),
        "hwc": picture(index),
        "class": index % 3,
        "weight": index / 7,
        "flag": index % 2 == 0,
        "name": f"sample {index} é",
        "vector": torch.arange(index + 1, dtype=torch.float32),
        "list": {"grid": np.full((2, 3), index, np.int16), "line": np.arange(4.0)},
    }


def write(name: str, samples: list[Any], *, chunk_size: int = 4, **options: Any) -> None:
    out = HERE / name
    shutil.rmtree(out, ignore_errors=True)
    writer = BinaryWriter(str(out), chunk_size=chunk_size, **options)
    for index, made in enumerate(samples):
        writer[index] = made
    writer.done()
    writer.merge()


def main() -> None:
    samples = [sample(index) for index in range(COUNT)]
    write("plain", samples)
    for level in ("chunk", "batch", "sample"):
        # Not bytes: rows of plain values alone become a table of Arrow, whatever is asked for.
        few = [{"image": sample(index)["image"], "label": index % 3} for index in range(COUNT)]
        write(
            level,
            few,
            compression="zstd",
            compression_level=level,
            compression_batch_size=2 if level == "batch" else None,
        )
    write("tuple", [(jpeg(index), index % 3) for index in range(2)])
    write("pickle", [{"image": jpeg(index), "set": {1, 2}} for index in range(2)])
    write("rows", [{"image": jpeg(index), "label": index} for index in range(2)])


if __name__ == "__main__":
    main()
