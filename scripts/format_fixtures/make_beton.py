"""Write tests/converters/fixtures/beton with FFCV itself.

    apt install libopencv-dev libturbojpeg0-dev pkg-config   # with which pip builds it
    pip install ffcv==1.0.2 torch==2.13.0
    python scripts/format_fixtures/make_beton.py

``all.beton.gz`` has a field of every kind and images in both modes (gzip, since FFCV pads its
pages to 2 MiB); ``all.npz`` has what FFCV's own loader read from it, in order.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from ffcv.fields import (
    BytesField,
    FloatField,
    IntField,
    JSONField,
    NDArrayField,
    RGBImageField,
    TorchTensorField,
)
from ffcv.fields.basics import FloatDecoder, IntDecoder
from ffcv.fields.bytes import BytesDecoder
from ffcv.fields.ndarray import NDArrayDecoder
from ffcv.fields.rgb_image import SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter

HERE = Path(__file__).resolve().parents[2] / "tests" / "converters" / "fixtures" / "beton"
COUNT, HEIGHT, WIDTH = 5, 12, 16


def picture(index: int) -> np.ndarray:
    """Return a smooth picture, which JPEG keeps nearly as it is."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([16 * y, 15 * x, (30 * index + 2 * x + 2 * y) % 256], axis=2).astype(np.uint8)


class Samples:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> tuple:
        index = int(number)
        note = f"note {index} é".encode()
        return (
            picture(index),
            picture(index + 1),
            index % 3,
            index / 7,
            np.frombuffer(note * (index + 1), np.uint8),
            {"index": index, "name": f"sample {index}"},
            np.arange(6, dtype=np.int16).reshape(2, 3) + index,
            torch.arange(4, dtype=torch.float32) + index,
        )


def main() -> None:
    HERE.mkdir(parents=True, exist_ok=True)
    np.random.seed(1)  # for which images are JPEG
    path = HERE / "all.beton"
    fields = {
        "image": RGBImageField(write_mode="proportion", compress_probability=0.5),
        "second": RGBImageField(write_mode="jpg"),
        "label": IntField(),
        "weight": FloatField(),
        "blob": BytesField(),
        "about": JSONField(),
        "grid": NDArrayField(np.dtype("int16"), (2, 3)),
        "vector": TorchTensorField(torch.float32, (4,)),
    }
    writer = DatasetWriter(str(path), fields, page_size=1 << 21, num_workers=1)
    writer.from_indexed_dataset(Samples())
    pipelines = {
        "image": [SimpleRGBImageDecoder()],
        "second": [SimpleRGBImageDecoder()],
        "label": [IntDecoder()],
        "weight": [FloatDecoder()],
        "blob": [BytesDecoder()],
        "about": [BytesDecoder()],
        "grid": [NDArrayDecoder()],
        "vector": [NDArrayDecoder()],
    }
    loader = Loader(
        str(path),
        batch_size=1,
        num_workers=1,
        order=OrderOption.SEQUENTIAL,
        pipelines=pipelines,
        drop_last=False,
    )
    batches = [[np.array(value) for value in batch] for batch in loader]
    read = dict(zip(fields, map(np.concatenate, zip(*batches, strict=True)), strict=True))
    np.savez_compressed(HERE / "all.npz", mode=loader.reader.metadata["f0"]["mode"], **read)
    (HERE / "all.beton.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    path.unlink()


if __name__ == "__main__":
    main()
