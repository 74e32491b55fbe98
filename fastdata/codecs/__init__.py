"""Images to bytes and back: headers, decoding, resizing, encoding."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""An image: uint8, H x W x C, RGB or grey."""
