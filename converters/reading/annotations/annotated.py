"""Images with annotations: checks of size and orientation.

In a source, boxes and masks refer to the rows and columns of the image file.  If a file has
an Exif orientation that swaps these, and the annotations state the swapped size, they refer
to the upright picture.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.jpeg import is_jpeg, read_jpeg_header
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import open_image, orient, pil_orientation
from fastdata.errors import ImageError

from ...packing.boxes import turn_boxes

__all__ = ["Frame", "check_parts", "frame_of", "upright_frame_of"]

_BEYOND = 0.1
"""Part of a picture's size by which a box may exceed the picture."""


class Frame(NamedTuple):
    """The picture that annotations are of."""

    height: int  # height, width: in pixels
    width: int
    orientation: int  # exif orientation of the file, 1 to 8
    upright: bool  # whether the annotations are of the picture after that has been applied

    def boxes(self, boxes: Any) -> NDArray[np.float32]:
        """Return boxes, [n, 4], of the rows and columns of the file, as packing takes them."""
        found = np.asarray(boxes, np.float64).reshape(-1, 4)
        if self.upright:
            size = self.height, self.width
            of_file = size[::-1] if self.orientation >= 5 else size
            found = turn_boxes(found, self.orientation, of_file, back=True)
        return found.astype(np.float32)

    def blank(self) -> NDArray[np.uint8]:
        """Return a mask, H x W, of zeros."""
        if self.height * self.width > MAX_PIXELS:
            size = f"{self.width} x {self.height}"
            raise ImageError(f"{size} pixels are more than the limit of {MAX_PIXELS}")
        return np.zeros((self.height, self.width), np.uint8)

    def mask(self, mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a mask, H x W, upright, as packing takes pixels."""
        return mask if self.upright else orient(mask, self.orientation)


def frame_of(data: bytes, size: tuple[int, int] | None, check: bool = True) -> Frame:
    """Return the frame of an image file's annotations.

    data: the image file; only its header is read.
    size: height and width that the annotations state.
    """
    height, width, orientation = _header(data)
    if size is None or size == (height, width):
        return Frame(height, width, orientation, False)
    if size == (width, height) and orientation >= 5:
        return Frame(width, height, orientation, True)
    if check:
        raise ImageError(
            f"its annotations are of a picture of {size[1]} x {size[0]} pixels, and it has "
            f"{width} x {height} (--option check_size=false believes the picture)"
        )
    return Frame(height, width, orientation, False)


def upright_frame_of(data: bytes) -> Frame:
    """Return the frame of annotations that refer to the upright picture.

    Trainers with YOLO's files read pictures upright.

    data: the image file; only its header is read.
    """
    height, width, orientation = _header(data)
    upright = (width, height) if orientation >= 5 else (height, width)
    return Frame(*upright, orientation, True)


def check_parts(boxes: NDArray[Any]) -> None:
    """Refuse boxes, N x 4 (x1, y1, x2, y2), that are no parts of a picture's width and height."""
    if boxes.size and not (boxes.min() >= -_BEYOND and boxes.max() <= 1 + _BEYOND):  # or NaN
        raise ValueError(
            f"boxes from {boxes.min():g} to {boxes.max():g}: they should be parts of the "
            "picture's size, 0 to 1"
        )
    if np.any(boxes[:, 2:] < boxes[:, :2]):
        raise ValueError("a box ends before it begins")


def _header(data: bytes) -> tuple[int, int, int]:
    """Return height, width and orientation of the file's rows and columns."""
    if is_jpeg(data):
        header = read_jpeg_header(data)
        return header.height, header.width, header.orientation
    with open_image(data) as image:
        return image.height, image.width, pil_orientation(image)
