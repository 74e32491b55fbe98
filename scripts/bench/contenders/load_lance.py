"""Epochs of Lance's dataset for random access, or the writing of its file; run by `load.py`.

Its own `get_safe_loader` starts the workers, and reads the rows of a batch at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa  # type: ignore[import-untyped]
from cv2_crop import CROPS, collate
from epochs import options, print_report, time_epochs
from lance.torch.data import SafeLanceDataset, get_safe_loader
from stored_epochs import labelled

ROWS = 500
NO_DICTIONARY = {"lance-encoding:dict-size-ratio": "0.01"}
"""A photograph that is used several times stays there several times, as in all other files."""


def write(given: dict[str, Any]) -> None:
    """Write files into a Lance dataset, in their order."""
    image = pa.field("image", pa.binary(), metadata=NO_DICTIONARY)
    schema = pa.schema([image, ("label", pa.int64())])
    samples = labelled(given["files"])

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(samples), ROWS):
            rows = [
                {"image": Path(path).read_bytes(), "label": label}
                for path, label in samples[start : start + ROWS]
            ]
            yield pa.RecordBatch.from_pylist(rows, schema)

    lance.write_dataset(batches(), given["destination"], schema)


def batch_of(transform: str, rows: list[dict[str, Any]]) -> Any:
    """Return the crops and the labels of rows."""
    crop = CROPS[transform]
    return collate([(crop(row["image"]), row["label"]) for row in rows])


def main() -> None:
    """Write, or time epochs."""
    given = options()
    if "destination" in given:
        write(given)
        return
    loader = get_safe_loader(
        SafeLanceDataset(given["data"]),
        batch_size=given["batch_size"],
        num_workers=given["workers"],
        shuffle=given["shuffle"],
        drop_last=True,
        collate_fn=partial(batch_of, given["transform"]),
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "pylance", "torch", "opencv-python-headless", "numpy")


if __name__ == "__main__":
    main()
