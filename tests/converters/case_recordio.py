"""RecordIO files from dmlc-core's and MXNet's sources: no code that the reader uses."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from cases import Case, Picture

__all__ = ["CASES", "MAGIC", "packed", "record", "write_records"]

MAGIC = struct.pack("<I", 0xCED7230A)


def record(data: bytes) -> bytes:
    """Return a record as ``RecordIOWriter::WriteRecord`` writes it."""
    parts, begin, at = [], 0, data.find(MAGIC)
    while at >= 0:
        if at % 4 == 0:
            parts.append(data[begin:at])
            begin = at + 4
        at = data.find(MAGIC, at + (4 if at % 4 == 0 else 1))
    parts.append(data[begin:])
    kinds = [0] if len(parts) == 1 else [1, *[2] * (len(parts) - 2), 3]
    out = b""
    for kind, part in zip(kinds, parts, strict=True):
        out += MAGIC + struct.pack("<I", kind << 29 | len(part)) + part + bytes(-len(part) % 4)
    return out


def packed(data: bytes, label: float | list[float], number: int = 0) -> bytes:
    """Return what ``mxnet.recordio.pack(IRHeader(0, label, number, 0), data)`` does."""
    if isinstance(label, list):
        head = struct.pack("<IfQQ", len(label), 0.0, number, 0)
        return head + struct.pack(f"<{len(label)}f", *label) + data
    return struct.pack("<IfQQ", 0, label, number, 0) + data


def write_records(path: Path, contents: Sequence[bytes], *, index: bool = True) -> Path:
    """Write records as ``MXIndexedRecordIO`` does."""
    lines, out = [], bytearray()
    for number, content in enumerate(contents):
        lines.append(f"{number}\t{len(out)}\n")
        out += record(content)
    path.write_bytes(out)
    if index:
        path.with_suffix(".idx").write_text("".join(lines))
    return path


def with_index(folder: Path, pictures: Sequence[Picture]) -> Path:
    contents = [packed(p.data, p.label, k) for k, p in enumerate(pictures)]
    return write_records(folder / "train.rec", contents)


def alone(folder: Path, pictures: Sequence[Picture]) -> str:
    half = len(pictures) // 2
    for number, part in enumerate((pictures[:half], pictures[half:])):
        contents = [packed(p.data, p.label, k) for k, p in enumerate(part)]
        write_records(folder / f"part{number}.rec", contents, index=False)
    return str(folder / "part*.rec")


def in_parts(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Records with the magic number in them: the number of the image is it, twice."""
    number = 0xCED7230A << 32 | 0xCED7230A
    contents = [packed(p.data, p.label, number) for p in pictures]
    return write_records(folder / "train.rec", contents)


CASES = [
    Case("recordio-idx", "recordio", with_index),
    Case("recordio", "recordio", alone),
    Case("recordio-parts", "recordio", in_parts),
]
