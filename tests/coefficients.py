"""JPEGs of any coefficients, also of such as no picture has: only the entropy code is made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["jpeg_of"]

_DC_BITS, _AC_BITS = 5, 9


class _Bits:
    def __init__(self) -> None:
        self._bits: list[str] = []

    def put(self, value: int, count: int) -> None:
        if count:
            self._bits.append(f"{value:0{count}b}")

    def done(self) -> bytes:
        """Return the bytes, filled up with ones and stuffed."""
        text = "".join(self._bits)
        text += "1" * (-len(text) % 8)
        return (
            int(f"1{text}", 2).to_bytes(len(text) // 8 + 1, "big")[1:].replace(b"\xff", b"\xff\x00")
        )


def _coded(value: int) -> tuple[int, int]:
    """Return size and bits of a coefficient (T.81, F.1.2.1)."""
    size = abs(value).bit_length()
    return size, value if value >= 0 else value + (1 << size) - 1


def _segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def jpeg_of(
    blocks: Sequence[NDArray[np.int64]],
    quants: Sequence[NDArray[np.int64]],
    size: tuple[int, int],
    sampling: int = 0x11,
) -> bytes:
    """Return a baseline JPEG of one component, or of three.

    Parameters
    ----------
    blocks : sequence of ndarray, shape [n, 64]
        Of each component, in the order of coding; in each the first number is the *difference* of
        DC, of 15 bits at most, and the others are coefficients in zigzag order.
    quants : sequence of ndarray, shape [64]
        One for each component, from 1 to 255.
    size : (int, int)
        Height and width.
    sampling : int
        Of luma, as in the frame header.
    """
    count = len(blocks)
    out = b"\xff\xd8"
    for number, quant in enumerate(quants):
        out += _segment(0xDB, bytes([number]) + bytes(quant.astype(np.uint8)))
    frame = bytes([8]) + size[0].to_bytes(2, "big") + size[1].to_bytes(2, "big") + bytes([count])
    for number in range(count):
        frame += bytes([number + 1, 0x11 if number else sampling, number])
    out += _segment(0xC0, frame)
    # Every symbol has a code of the same length, which is its number.
    lengths = [0] * 16
    lengths[_DC_BITS - 1] = 16
    out += _segment(0xC4, bytes([0x00, *lengths]) + bytes(range(16)))
    lengths = [0] * 16
    lengths[_AC_BITS - 1] = 256
    # A table has 255 codes of a length at most in its byte: the last symbol is never used.
    lengths[_AC_BITS - 1] = 255
    out += _segment(0xC4, bytes([0x10, *lengths]) + bytes(range(255)))
    scan = bytes([count]) + b"".join(bytes([n + 1, 0x00]) for n in range(count))
    out += _segment(0xDA, scan + bytes([0, 63, 0]))
    bits = _Bits()
    per_mcu = [(sampling >> 4) * (sampling & 15) if count > 1 else 1, 1, 1]
    at = [0] * count
    while at[0] < len(blocks[0]):
        for component in range(count):
            for _ in range(per_mcu[component]):
                _put_block(bits, blocks[component][at[component]].tolist())
                at[component] += 1
    return out + bits.done() + b"\xff\xd9"


def _put_block(bits: _Bits, block: list[int]) -> None:
    size, value = _coded(block[0])
    bits.put(size, _DC_BITS)
    bits.put(value, size)
    run = 0
    last = max((k for k in range(1, 64) if block[k]), default=0)
    for k in range(1, last + 1):
        if not block[k]:
            run += 1
            continue
        while run > 15:
            bits.put(0xF0, _AC_BITS)
            run -= 16
        size, value = _coded(block[k])
        bits.put(run << 4 | size, _AC_BITS)
        bits.put(value, size)
        run = 0
    if last < 63:
        bits.put(0, _AC_BITS)
