"""FFCV's .beton from its sources: no code of FFCV's, none that the reader uses.

FFCV starts its pages at multiples of the page size, 2 MiB or more.  Here data comes right behind
the metadata, so that what tests damage is not mostly padding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cases import Case, Picture

__all__ = ["CASES", "Beton"]

FLOAT, INT, IMAGE, BYTES, ARRAY, JSON, TENSOR = range(7)


@dataclass
class Beton:
    """A .beton that is being made: `fields` first, then `add`.

    Attributes
    ----------
    fields : list of tuple
        Name, kind, arguments.
    """

    fields: list[tuple[str, int, bytes]]
    rows: list[list[tuple[object, ...]]] = field(default_factory=list)

    def add(self, *values: tuple[object, ...]) -> None:
        """Add a sample: of each field the numbers of its metadata, and its data if it has any."""
        self.rows.append(list(values))

    def data(self, page: int = 1 << 21, version: int = 2) -> bytes:
        """Return the file."""
        sizes = {FLOAT: 8, INT: 8, IMAGE: 13, BYTES: 16, ARRAY: 8, JSON: 16, TENSOR: 8}
        width = self._pack([(0,) * 4] * len(self.fields), [0] * len(self.fields))
        assert len(width) >= sum(sizes[kind] for _, kind, _ in self.fields)
        head = 24 + 1041 * len(self.fields)
        start = head + len(width) * len(self.rows)
        pages, table, metadata = bytearray(), bytearray(), bytearray()
        for number, row in enumerate(self.rows):
            places = []
            for value in row:
                places.append(start + len(pages))
                if isinstance(value[-1], bytes):
                    table += struct.pack("<QQQ", number, places[-1], len(value[-1]))
                    pages += value[-1]
            metadata += self._pack(row, places)
        descriptors = b"".join(
            bytes([kind]) + name.encode().ljust(16, b"\0") + arguments.ljust(1024, b"\0")
            for name, kind, arguments in self.fields
        )
        count, end = len(self.rows), start + len(pages)
        first = struct.pack("<HHIQQ", version, len(self.fields), page, count, end)
        return b"".join((first, descriptors, metadata, pages, table))

    def _pack(self, row: Sequence[tuple[object, ...]], places: Sequence[int]) -> bytes:
        """Return a record; as C's compilers do, numbers are at multiples of their size."""
        out = b""
        aligned = False
        for (_, kind, _), value, place in zip(self.fields, row, places, strict=True):
            if kind in (FLOAT, INT, ARRAY, TENSOR):
                out += b"\0" * (-len(out) % 8)
                aligned = True
            if kind == FLOAT:
                out += struct.pack("<d", value[0])
            elif kind == INT:
                out += struct.pack("<q", value[0])
            elif kind == IMAGE:
                out += struct.pack("<BHHQ", value[0], value[1], value[2], place)
            elif kind in (BYTES, JSON):
                length = len(value[-1]) if isinstance(value[-1], bytes) else 0
                out += struct.pack("<QQ", place, length)
            else:
                out += struct.pack("<Q", place)
        return out + b"\0" * (-len(out) % 8 if aligned else 0)


def array_arguments(dtype: str, shape: tuple[int, ...]) -> bytes:
    described = json.dumps([["", dtype]]).encode()
    lengths = [*shape, *[0] * (32 - len(shape))]
    return struct.pack("<33Q", *lengths, len(described)) + described


def jpegs(folder: Path, pictures: Sequence[Picture]) -> Path:
    beton = Beton([("image", IMAGE, b""), ("label", INT, b"")])
    for p in pictures:
        beton.add((0, p.pixels.shape[1], p.pixels.shape[0], p.data), (p.label,))
    (folder / "train.beton").write_bytes(beton.data())
    return folder / "train.beton"


def pixels(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write pixels, under other names, and beside them all other kinds of fields."""
    shape = array_arguments("<f4", (2, 2))
    beton = Beton(
        [
            ("target", INT, b""),
            ("note", JSON, b""),
            ("picture", IMAGE, b""),
            ("weight", FLOAT, b""),
            ("box", TENSOR, shape),
            ("extra", BYTES, b""),
        ]
    )
    for p in pictures:
        beton.add(
            (p.label,),
            (json.dumps({"name": p.name}).encode() + b"\0",),
            (1, p.pixels.shape[1], p.pixels.shape[0], p.pixels.tobytes()),
            (0.5 * p.label,),
            (struct.pack("<4f", 1, 2, 3, p.label),),
            (p.name.encode(),),
        )
    (folder / "train.beton").write_bytes(beton.data())
    return folder / "train.beton"


CASES = [Case("beton", "beton", jpegs), Case("beton-pixels", "beton", pixels, holds="pixels")]
