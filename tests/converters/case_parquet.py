"""Parquet and Arrow files by pyarrow, laid out as Hugging Face's ``datasets`` does it.

What ``datasets`` itself writes is in ``fixtures/parquet``; these cases make more of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import CLASSES, Case, Picture

__all__ = ["CASES", "hugging_face", "table"]


def hugging_face(**features: Any) -> dict[bytes, bytes]:
    """Return the metadata by which ``datasets`` says what columns are."""
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


FEATURES = {"image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"}}


def table(pictures: Sequence[Picture]) -> Any:
    """Return a table as ``datasets`` has it: structs of bytes and path, numbers of classes."""
    import pyarrow as pa

    images = [{"bytes": p.data, "path": f"{p.name}.jpg"} for p in pictures]
    image = pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    label = pa.array([p.label for p in pictures], pa.int64())
    return pa.table({"image": image, "label": label}).replace_schema_metadata(
        hugging_face(**FEATURES)
    )


def hub(folder: Path, pictures: Sequence[Picture]) -> Path:
    import pyarrow.parquet as pq

    (folder / "data").mkdir()
    half = len(pictures) // 2
    for number, part in enumerate((pictures[:half], pictures[half:])):
        path = folder / "data" / f"train-{number:05}-of-00002.parquet"
        pq.write_table(table(part), path, row_group_size=max(4, len(part) // 10))
    return folder


def binary(folder: Path, pictures: Sequence[Picture]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "jpeg": pa.array([p.data for p in pictures], pa.large_binary()),
        "label": pa.array([CLASSES[p.label] for p in pictures]).dictionary_encode(),
    }
    pq.write_table(
        pa.table(columns),
        folder / "a.parquet",
        row_group_size=5,
        compression="zstd",
        write_page_checksum=True,
    )
    return str(folder / "*.parquet")


def saved_to_disk(folder: Path, pictures: Sequence[Picture]) -> Path:
    import pyarrow as pa

    half = len(pictures) // 2
    names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (pictures[:half], pictures[half:]), strict=True):
        content = table(part)
        with pa.ipc.new_stream(folder / name, content.schema) as writer:
            writer.write_table(content, max_chunksize=max(4, len(part) // 10))
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


def dictionaries(folder: Path, pictures: Sequence[Picture]) -> Path:
    import pyarrow as pa

    columns = {
        "image": pa.array([p.data for p in pictures]),
        "label": pa.array([CLASSES[p.label] for p in pictures]).dictionary_encode(),
    }
    content = pa.table(columns)
    with pa.ipc.new_file(folder / "a.arrow", content.schema) as writer:
        writer.write_table(content, max_chunksize=5)
    return folder / "a.arrow"


def feather(folder: Path, pictures: Sequence[Picture]) -> Path:
    import pyarrow.feather

    pyarrow.feather.write_feather(table(pictures), folder / "a.feather", chunksize=5)
    return folder / "a.feather"


CASES = [
    Case("parquet", "parquet", hub),
    Case("parquet-binary", "parquet", binary),
    Case("arrow", "arrow", saved_to_disk),
    Case("arrow-dictionary", "arrow", dictionaries),
    Case("arrow-feather", "arrow", feather),
]
