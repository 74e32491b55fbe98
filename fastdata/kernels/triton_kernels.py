"""The kernels, in Triton's language.  Imported by `fastdata.kernels.pixels` alone.

Each program makes `BLOCK` neighbouring values of the output, which lie side by side in
memory, so that its threads read and write whole cache lines.
"""

# Triton's functions carry no types; annotations in kernels are its own.
# mypy: ignore-errors

import triton
import triton.language as tl

__all__ = ["gather_windows", "look_up"]


@triton.jit
def look_up(values, table, out, count, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """out[i] = table[values[i], i % CHANNELS]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(values + at, mask=inside, other=0).to(tl.int32)
    channel = (at % CHANNELS).to(tl.int32)
    tl.store(out + at, tl.load(table + value * CHANNELS + channel, mask=inside), mask=inside)


@triton.jit
def gather_windows(
    store,
    plan,
    table,
    out,
    HEIGHT: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    CHANNELS: tl.constexpr,  # noqa: N803
    LOOK_UP: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Windows of images that lie one after another, flipped, through a table.

    `plan` has eight int64 an image: where it begins in `store`; bytes of its rows, negative
    where it is flipped; top and left of the window; first and behind the last row, and
    column, that are not zero.
    """
    image = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < HEIGHT * WIDTH * CHANNELS
    row = at // (WIDTH * CHANNELS)
    channel = at % CHANNELS
    column = (at // CHANNELS) % WIDTH

    mine = plan + image * 8
    begin = tl.load(mine)
    pitch = tl.load(mine + 1)
    top = tl.load(mine + 2)
    left = tl.load(mine + 3)
    column = tl.where(pitch < 0, WIDTH - 1 - column, column)
    y = row + top
    x = column + left
    seen = (y >= tl.load(mine + 4)) & (y < tl.load(mine + 5))
    seen = seen & (x >= tl.load(mine + 6)) & (x < tl.load(mine + 7))
    address = begin + y * tl.abs(pitch) + x * CHANNELS + channel
    value = tl.load(store + address, mask=inside & seen, other=0)
    to = out + image * (HEIGHT * WIDTH * CHANNELS) + at
    if LOOK_UP:
        value = tl.load(table + value.to(tl.int32) * CHANNELS + channel, mask=inside)
    tl.store(to, value, mask=inside)
