"""The kernels, in Triton's language.  Imported by `fastdata.kernels.pixels` alone.

Each step of a program makes `BLOCK` neighbouring values of the output, which lie side by
side in memory, so that its threads read and write whole cache lines.
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
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Windows of images that lie one after another, flipped, through a table.

    `plan` has eight int64 an image: where it begins in `store`; bytes of its rows, negative
    where it is flipped; top and left of the window; first and behind the last row, and
    column, that are not zero.

    A program makes `ROWS` rows of one window.  What is long is computed once a row; a value
    costs short integers only, of which a GPU has four times as many a second.
    """
    image = tl.program_id(1).to(tl.int64)
    mine = plan + image * 8
    pitch = tl.load(mine + 1)
    flipped = pitch < 0
    pitch = tl.abs(pitch)
    top = tl.load(mine + 2)
    left = tl.load(mine + 3)
    begin = tl.load(mine) + left * CHANNELS
    first_row = tl.load(mine + 4)
    last_row = tl.load(mine + 5)
    low = (tl.load(mine + 6) - left).to(tl.int32)
    high = (tl.load(mine + 7) - left).to(tl.int32)
    for step in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + step
        y = row + top
        source = store + (begin + y * pitch)
        target = out + (image * HEIGHT + row) * (WIDTH * CHANNELS)
        # Of a row that is not there no column is; beyond the window nothing is written.
        end = tl.where((y >= first_row) & (y < last_row), high, low)
        length = tl.where(row < HEIGHT, WIDTH * CHANNELS, 0)
        for start in range(0, WIDTH * CHANNELS, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < length
            column = at // CHANNELS
            channel = at - column * CHANNELS
            column = tl.where(flipped, WIDTH - 1 - column, column)
            seen = inside & (column >= low) & (column < end)
            value = tl.load(source + (column * CHANNELS + channel), mask=seen, other=0)
            if LOOK_UP:
                place = value.to(tl.int32) * CHANNELS + channel
                value = tl.load(table + place, mask=inside)
            tl.store(target + at, value, mask=inside)
