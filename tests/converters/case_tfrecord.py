"""TFRecord files from the specification: no library of TensorFlow's, none that the reader uses."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from cases import Case, Picture

__all__ = ["CASES", "example", "record"]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes, bit by bit (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


TABLE = [_entry(byte) for byte in range(256)]


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """Return one record of a TFRecord file."""
    head = struct.pack("<Q", len(data))
    return head + masked(head) + data + masked(data)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(number: int, body: bytes) -> bytes:
    """Return a field of a protobuf message that holds bytes, or another message."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def example(features: dict[str, object]) -> bytes:
    """Return a serialised tf.train.Example."""
    entries = b""
    for name, given in features.items():
        values = given if isinstance(given, list) else [given]
        if not values:
            feature = message(2, b"")
        elif isinstance(values[0], bytes):
            feature = message(1, b"".join(message(1, value) for value in values))
        elif isinstance(values[0], float):
            feature = message(2, message(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            feature = message(3, message(1, b"".join(varint(value) for value in values)))
        entries += message(1, message(1, name.encode()) + message(2, feature))
    return message(1, entries)


def examples(pictures: Sequence[Picture]) -> list[bytes]:
    return [
        record(example({"image/encoded": p.data, "image/class/label": p.label})) for p in pictures
    ]


def shards(folder: Path, pictures: Sequence[Picture]) -> str:
    half = len(pictures) // 2
    for number, part in enumerate((pictures[:half], pictures[half:])):
        (folder / f"train.tfrecord-{number:05}-of-00002").write_bytes(b"".join(examples(part)))
    return str(folder / "train.tfrecord-*")


def gzipped(folder: Path, pictures: Sequence[Picture]) -> Path:
    (folder / "a.tfrecord.gz").write_bytes(gzip.compress(b"".join(examples(pictures))))
    return folder / "a.tfrecord.gz"


def zlibbed(folder: Path, pictures: Sequence[Picture]) -> Path:
    (folder / "a.tfrecord").write_bytes(zlib.compress(b"".join(examples(pictures))))
    return folder / "a.tfrecord"


def objects(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write what TensorFlow's Object Detection API reads, an object more for each label."""
    box = "image/object/bbox/"
    rows = []
    for p in pictures:
        count = p.label
        rows.append(
            record(
                example(
                    {
                        "image/encoded": p.data,
                        "image/height": p.pixels.shape[0],
                        "image/width": p.pixels.shape[1],
                        box + "xmin": [0.25] * count,
                        box + "ymin": [0.0] * count,
                        box + "xmax": [0.5] * count,
                        box + "ymax": [1.0] * count,
                        "image/object/class/text": [b"ant", b"bee"][:count],
                        "image/object/class/label": [1, 2][:count],
                    }
                )
            )
        )
    (folder / "train.record").write_bytes(b"".join(rows))
    return folder / "train.record"


CASES = [
    Case("tfrecord-objects", "tfrecord", objects, labels=False),
    Case("tfrecord", "tfrecord", shards),
    Case("tfrecord-gzip", "tfrecord", gzipped, shuffles=False),
    Case("tfrecord-zlib", "tfrecord", zlibbed, shuffles=False),
]
