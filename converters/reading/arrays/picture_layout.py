"""How rows of arrays are pictures: the order of their dimensions, and what makes them 8-bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fastdata.errors import OptionError

from ..refusals import check_choice
from .columns import Array, Column

__all__ = ["PictureLayout"]

_LAYOUTS = ("nhw", "nhwc", "nchw")
_CHANNELS = (1, 3)


@dataclass(frozen=True)
class PictureLayout:
    """How a row of an array is a picture.

    Attributes
    ----------
    order : {"nhw", "nhwc", "nchw"}
    scale : float or None
        Pixels are multiplied by it and rounded; None where they are 8-bit numbers already.
    """

    order: Literal["nhw", "nhwc", "nchw"]
    scale: float | None = None

    @classmethod
    def of(
        cls,
        where: str,
        column: Column,
        *,
        layout: str | None = None,
        scale: float | None = None,
        mask: bool = False,
    ) -> PictureLayout:
        """Find out how a column holds pictures.

        Raises
        ------
        OptionError
            If it does not, or needs an option to; the message says which.
        """
        if layout is not None:
            check_choice("layout", layout.lower(), _LAYOUTS)
        shape, dtype = column.shape, column.dtype
        what = f"{where}: {column.label!r} is {dtype} of shape {shape}"
        fitting = _orders(shape)
        order = layout.lower() if layout is not None else next(iter(fitting), None)
        if order not in fitting:
            raise OptionError(
                f"{what}; pictures are N x H x W, or N x H x W x C or N x C x H x W with 1 or 3 "
                "channels. Name another array: --option arrays=image=ARRAY,label=ARRAY"
                + (f" (layout={layout} does not fit this one)" if layout else "")
            )
        if dtype is None or dtype.kind not in "buif":
            raise OptionError(f"{what}, which are no pixels")
        if scale is None and dtype != np.uint8:
            if not mask or dtype.kind == "f":
                raise OptionError(
                    f"{what}; pixels are uint8. Say by what they are multiplied to be 0 to 255: "
                    "--option scale=255 (of 0 to 1), scale=1 (of 0 to 255), scale=0.00389105 (of "
                    "16 bits)"
                )
            scale = 1.0
        return cls(order, scale)  # type: ignore[arg-type]

    def picture(self, row: Array) -> Array:
        """Return a row as uint8 pixels, H x W or H x W x C.

        Raises
        ------
        ValueError
            If scaled pixels are beyond 0 to 255.
        """
        if self.scale is not None:
            with np.errstate(all="ignore"):
                scaled = np.rint(row.astype(np.float64) * self.scale)
            if scaled.size and not (scaled.min() >= 0 and scaled.max() <= 255):  # or NaN
                raise ValueError(
                    f"pixels from {row.min()} to {row.max()} times scale={self.scale:g} are not "
                    "all from 0 to 255"
                )
            row = scaled.astype(np.uint8)
        return row.transpose(1, 2, 0) if self.order == "nchw" else row


def _orders(shape: tuple[int, ...]) -> list[str]:
    """Return in which orders an array can be pictures, the likeliest first."""
    if len(shape) == 3:
        return ["nhw"]
    if len(shape) != 4:
        return []
    last = ["nhwc"] if shape[3] in _CHANNELS else []
    return last + (["nchw"] if shape[1] in _CHANNELS else [])
