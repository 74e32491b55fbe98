"""Write tests/converters/fixtures/hf_folder, with what Hugging Face's `datasets` reads from it.

    pip install datasets==5.2.0 pillow==13.0.0
    python scripts/format_fixtures/make_hf_folder.py

``jsonl`` has two splits with text, numbers, objects and masks; ``csv`` and ``parquet`` one folder
each; ``classes`` has no metadata but class folders below ``data``.  ``expected.json`` has the rows
of every split as `datasets` gives them, images by the mean of their red pixels.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import ClassLabel, load_dataset
from PIL import Image

HERE = Path(__file__).resolve().parents[2] / "tests" / "converters" / "fixtures" / "hf_folder"
CLASSES = ("robin", "jay", "wren")


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((12, 16, 3), 10 * number + 5, np.uint8)
    Image.fromarray(pixels).save(path)


def rows_of(folder: Path, first: int) -> list[dict[str, Any]]:
    """Write four pictures with masks; return their metadata, not in their order."""
    rows = []
    for number in (first + 2, first, first + 3, first + 1):
        picture(folder / f"{number}.png", number)
        Image.fromarray(np.full((12, 16), number % 3, np.uint8)).save(folder / f"m{number}.png")
        count = number % 3
        rows.append(
            {
                "file_name": f"{number}.png",
                "target_mask_file_name": f"m{number}.png",
                "label": CLASSES[number % 3],
                "text": f"a bird, number {number}",
                "weight": number / 4,
                "objects": {
                    "bbox": [[1.0 + k, 2.0, 5.0, 4.5] for k in range(count)],
                    "categories": [k % 2 for k in range(count)],
                },
            }
        )
    return rows


def plain(row: dict[str, Any], features: Any) -> dict[str, Any]:
    """Return a row with images as one number each, and names for classes."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Image.Image):
            value = int(np.asarray(value.convert("RGB"))[..., 0].mean())
        elif isinstance(features[name], ClassLabel):
            value = features[name].int2str(value)
        found[name] = value
    return found


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    for split, first in (("train", 0), ("test", 10)):
        rows = rows_of(HERE / "jsonl" / split, first)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (HERE / "jsonl" / split / "metadata.jsonl").write_text(lines)
    rows = [{k: r[k] for k in ("file_name", "label", "text")} for r in rows_of(HERE / "csv", 0)]
    with open(HERE / "csv" / "metadata.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    rows = rows_of(HERE / "parquet", 5)
    pq.write_table(pa.Table.from_pylist(rows), HERE / "parquet" / "metadata.parquet")
    for number in range(6):
        split = "train" if number < 4 else "test"
        picture(HERE / "classes" / "data" / split / CLASSES[number % 3] / f"{number}.png", number)
    expected: dict[str, Any] = {}
    for name in ("jsonl", "csv", "parquet", "classes"):
        found = load_dataset("imagefolder", data_dir=str(HERE / name))
        expected[name] = {
            split: [plain(row, data.features) for row in data] for split, data in found.items()
        }
        label = next(iter(found.values())).features["label"]
        expected[name]["classes"] = list(getattr(label, "names", []))
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
