"""What an image may ask for before it is decoded: pixels, and memory.

A file of some kB may claim any size.  `fastdata.codecs.jpeg.check_scans` limits the time of JPEGs.
"""

from __future__ import annotations

from fastdata.errors import ImageError
from fastdata.processes.resources import format_bytes, memory_share

__all__ = ["MAX_PIXELS", "check_memory", "check_pixels"]

MAX_PIXELS = 178_956_970
"""Default limit against decompression bombs: the one at which Pillow refuses."""

_SMALL_BYTES = 256 << 20
"""Images that take less are never asked for: looking up what is free takes 0.1 ms."""


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    """Refuse an image of more than `max_pixels` pixels."""
    if height * width > max_pixels:
        raise ImageError(
            f"{width} x {height} pixels are more than the limit of {max_pixels} (max_pixels); as "
            f"RGB they take {format_bytes(3 * height * width)} of memory"
        )


def check_memory(size: tuple[int, int], bytes_a_pixel: int) -> None:
    """Refuse an image of this height and width that does not fit the memory that is there for it.

    `bytes_a_pixel` is what decoding takes at its peak.
    """
    needed = size[0] * size[1] * bytes_a_pixel
    if needed > _SMALL_BYTES and needed > (share := memory_share()):
        raise ImageError(
            f"{size[1]} x {size[0]} pixels take {format_bytes(needed)} of memory to decode, and "
            f"this process may take {format_bytes(share)}, its share of what is free; use fewer "
            "workers, or make the image smaller"
        )
