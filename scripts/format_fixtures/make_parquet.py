"""Write tests/converters/fixtures/parquet with Hugging Face's library datasets itself.

    python -m venv /tmp/datasets && /tmp/datasets/bin/pip install datasets==5.2.0 pillow
    /tmp/datasets/bin/python scripts/format_fixtures/make_parquet.py

``test_parquet.py`` and ``test_arrow.py`` know by the same formulas what is in them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from PIL import Image as Pictures

FOLDER = Path(__file__).parents[2] / "tests" / "converters" / "fixtures" / "parquet"


def pixels(index: int) -> np.ndarray:
    """Return picture number `index`."""
    rows, columns = np.indices((12, 16))
    return np.stack([rows * 20, columns * 15, rows + columns + 9 * index], axis=2).astype(np.uint8)


def dataset(indexes: range) -> Dataset:
    """Return rows with columns of many kinds."""
    features = Features(
        {
            "img": Image(),
            "fine": ClassLabel(names=["ant", "bee", "cat"]),
            "caption": Value("string"),
            "score": Value("float32"),
            "good": Value("bool"),
            "bbox": List(List(Value("float32"), length=4)),
            "grid": Array2D((2, 3), "int32"),
            "views": List(Image()),
        }
    )
    pictures = [Pictures.fromarray(pixels(index)) for index in indexes]
    rows = {
        "img": pictures,
        "fine": [index % 3 for index in indexes],
        "caption": [f"picture {index} - ä" for index in indexes],
        "score": [index / 4 for index in indexes],
        "good": [index % 2 == 0 for index in indexes],
        "bbox": [[[0, 1, 2, index + 3]] * (index % 3) for index in indexes],
        "grid": [[[index, 1, 2], [3, 4, 5]] for index in indexes],
        "views": [[picture] for picture in pictures],
    }
    return Dataset.from_dict(rows, features=features)


def main() -> None:
    """Write a folder as the hub has it, and one by save_to_disk."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "hub" / "data").mkdir(parents=True)
    splits = DatasetDict(train=dataset(range(6)), test=dataset(range(6, 8)))
    for number in range(2):
        splits["train"].shard(2, number).to_parquet(
            FOLDER / "hub" / "data" / f"train-{number:05}-of-00002.parquet", batch_size=2
        )
    splits["test"].to_parquet(FOLDER / "hub" / "data" / "test-00000-of-00001.parquet")
    splits.save_to_disk(FOLDER / "disk")


if __name__ == "__main__":
    main()
