"""Hugging Face's ImageFolder with metadata, by csv, json and pyarrow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from case_manifest import write_images, write_rows
from cases import Case, Picture

__all__ = ["CASES"]


def csv_beside(folder: Path, pictures: Sequence[Picture]) -> Path:
    write_images(folder, pictures)
    rows = [(f"{p.name}.jpg", p.label) for p in pictures]
    write_rows(folder / "metadata.csv", [("file_name", "label"), *rows])
    return folder


def splits(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write JSON Lines in two split folders."""
    for name, part in (("test", pictures[8:]), ("train", pictures[:8])):
        write_images(folder / name / "images", part)
        rows = [
            {
                "file_name": f"images/{p.name}.jpg",
                "label": p.label,
                "weight": k / 4,
            }
            for k, p in enumerate(part)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name / "metadata.jsonl").write_text(lines)
    return folder


CASES = [
    Case("hf_folder-csv", "hf_folder", csv_beside),
    Case("hf_folder-splits", "hf_folder", splits, keeps_order=False),
]
