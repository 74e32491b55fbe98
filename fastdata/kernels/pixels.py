"""Functions on the pixels of a batch, one kernel each."""

from __future__ import annotations

import functools
import logging
import math
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["gather_windows", "has_kernels", "look_up", "window_plan"]

KERNEL_DEVICES = frozenset({"cuda"})
"""Types of devices with kernels; tests add the CPU, with Triton's interpreter."""

BLOCK = 1024
"""Values that a program of `look_up` makes, 8 a thread."""

# Rows of a window that a program makes, a warp each, and values at a time; a row of 224 pixels has
# 672.  The fastest of 80 on an H100: docs/gpu_check.md.
WITH_TABLE, WITHOUT_TABLE = (1, 1024), (4, 256)

OPTIONS = {"enable_fp_fusion": False}
"""Triton 3.9 warns without this option, although there is no arithmetic to fuse."""

ADDRESSES = 1 << 22
"""That torch's indexing takes at a time: 32 MB of them."""

log = logging.getLogger("fastdata")


@functools.cache
def _kernels() -> ModuleType | None:
    """Return the module of kernels; None where Triton is missing or too old."""
    try:
        from fastdata.kernels import triton_kernels
    except Exception as error:  # whatever is wrong with it, there is another way
        log.info("no Triton (%s): kernels of torch's own are used", error)
        return None
    return triton_kernels


def has_kernels(device: torch.device) -> bool:
    """Return whether there are kernels for a device.

    One is tried on each CUDA device, once: Triton may be installed, and lack the compiler that
    it needs.
    """
    return device.type in KERNEL_DEVICES and _work_on(device)


@functools.cache
def _work_on(device: torch.device) -> bool:
    if _kernels() is None:
        return False
    try:
        pixels = torch.zeros((1, 1, 1, 1), dtype=torch.uint8, device=device)
        _launch_look_up(pixels, torch.zeros((256, 1), device=device))
    except Exception as error:
        log.warning(
            "Triton cannot compile for %s (%s): torch's own kernels are used, which take more "
            "passes over memory. A C compiler is what it mostly lacks",
            device,
            error,
        )
        return False
    return True


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the current one: Triton launches there, wherever its arguments are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def look_up(pixels: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return ``table[pixels, channel]``: by the kernel, one read and one write of memory.

    `pixels` are uint8 [n, H, W, C] and `table` [256, C], contiguous and on one device; the result
    is [n, H, W, C] of the table's dtype.
    """
    channels = pixels.shape[-1]
    if not has_kernels(pixels.device):
        return table[pixels.int(), torch.arange(channels, device=table.device)]
    return _launch_look_up(pixels, table)


def _launch_look_up(pixels: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    out = torch.empty(pixels.shape, dtype=table.dtype, device=pixels.device)
    if out.numel():
        kernels: Any = _kernels()
        grid = (math.ceil(out.numel() / BLOCK),)
        channels = pixels.shape[-1]
        with _on(pixels.device):
            kernels.look_up[grid](
                pixels, table, out, out.numel(), CHANNELS=channels, BLOCK=BLOCK, **OPTIONS
            )
    return out


def gather_windows(
    store: torch.Tensor,
    plan: torch.Tensor,
    size: tuple[int, int, int],
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return windows of images that lie one after another, flipped, through a table.

    `store`, uint8 [m], has images of any sizes, C values a pixel, row by row; `plan`, int64 [n, 8],
    is of `window_plan`, on the same device; `size` is height, width and channels of all windows;
    `table`, [256, C], has the result of each value, by default itself.  The result is [n, H, W,
    C]; beyond an image, it has the result of zero.  The kernel takes one read and one write of
    memory.
    """
    height, width, channels = size
    if not has_kernels(store.device):
        # Some images at a time: addresses take 8 bytes a pixel.
        at_once = max(1, ADDRESSES // max(1, height * width))
        parts = [_gather(store, part, size) for part in torch.split(plan, at_once)]
        pixels = torch.cat(parts) if len(parts) > 1 else parts[0]
        return pixels if table is None else look_up(pixels, table)
    dtype = torch.uint8 if table is None else table.dtype
    out = torch.empty((len(plan), height, width, channels), dtype=dtype, device=store.device)
    if out.numel():
        kernels: Any = _kernels()
        rows, block = WITHOUT_TABLE if table is None else WITH_TABLE
        grid = (math.ceil(height / rows), len(plan))
        with _on(store.device):
            kernels.gather_windows[grid](
                store,
                plan,
                store if table is None else table,
                out,
                HEIGHT=height,
                WIDTH=width,
                CHANNELS=channels,
                LOOK_UP=table is not None,
                ROWS=rows,
                BLOCK=min(block, 1 << (width * channels - 1).bit_length()),
                num_warps=1,
                **OPTIONS,
            )
    return out


def _gather(store: torch.Tensor, plan: torch.Tensor, size: tuple[int, int, int]) -> torch.Tensor:
    """Compute the result of the kernel by torch's indexing."""
    height, width, channels = size
    begin, pitch, top, left, *bounds = plan[:, :, None].unbind(1)
    across = torch.arange(width, device=plan.device)
    y = torch.arange(height, device=plan.device) + top
    x = torch.where(pitch < 0, width - 1 - across, across) + left
    rows = (y >= bounds[0]) & (y < bounds[1])
    columns = (x >= bounds[2]) & (x < bounds[3])
    seen = rows[:, :, None] & columns[:, None]
    # In pixels: an image begins at a whole one, as all images here have as many channels.
    address = ((begin + y * pitch.abs()) // channels)[:, :, None] + x[:, None]
    pixels = store.view(-1, channels)
    values = pixels[torch.where(seen, address, 0)]
    return torch.where(seen[..., None], values, 0)


def window_plan(
    begin: NDArray[np.int64],
    pitch: NDArray[np.int64],
    top: NDArray[np.int64],
    left: NDArray[np.int64],
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    columns: tuple[NDArray[np.int64], NDArray[np.int64]],
    flip: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return the plan of `gather_windows`, int64 [n, 8], of arrays [n].

    `begin` and `pitch` are where each image begins in the store, and the bytes of its rows; `top`
    and `left` are of the window, in pixels of the image; `rows` and `columns` are the first, and
    behind the last, of those that are not zero.
    """
    signed = np.where(flip, -pitch, pitch)
    return np.stack([begin, signed, top, left, *rows, *columns], axis=1)
