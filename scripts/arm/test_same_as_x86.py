"""The library for AArch64 makes what that for x86-64 makes, whatever it is given.

Started by scripts/check-arm.
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFile
from samples import photo

from fastdata.codecs.blobs import encode_jpeg
from fastdata.native import library as native
from fastdata.native.library import CROP, JPEG, RAW, transcode_jpeg

CASES = int(os.environ.get("FASTDATA_ARM_CASES", "3000"))
ImageFile.MAXBLOCK = 1 << 22  # PIL writes optimized noise in no smaller memory
SEED = int(os.environ.get("FASTDATA_ARM_SEED", "0"))
Dice = np.random.Generator
Pixels = NDArray[np.uint8]


def picture(dice: Dice, channels: int) -> Pixels:
    """Return a photograph, noise, or black and white."""
    longest = int(dice.choice([12, 70, 300]))
    height, width = (int(side) for side in dice.integers(1, longest, 2, endpoint=True))
    kind = dice.integers(4)
    if kind < 2 and channels in (1, 3):
        return photo(height, width, channels)
    noise = dice.integers(0, 256, (height, width, channels), np.uint8)
    return noise if kind < 3 else (noise & 1) * np.uint8(255)


def jpeg_file(dice: Dice, pixels: Pixels) -> bytes:
    """Return the picture as a JPEG of any kind."""
    quality = int(dice.choice([1, 30, 75, 90, 95, 100]))
    if dice.random() < 0.3:
        return encode_jpeg(pixels, quality)
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(
        file,
        "JPEG",
        quality=quality,
        subsampling=str(dice.choice(["4:4:4", "4:2:2", "4:2:0"])),
        optimize=bool(dice.integers(2)),
        progressive=bool(dice.random() < 0.03),
        restart_marker_blocks=int(dice.choice([0, 1, 2, 5, 100])),
    )
    return file.getvalue()


def damaged(dice: Dice, data: bytes) -> bytes:
    """Return it with bytes changed, lost or repeated."""
    broken = bytearray(data)
    for _ in range(int(dice.choice([1, 1, 1, 5, 50]))):
        at = int(dice.integers(len(broken))) if broken else 0
        what = dice.integers(10)
        if what < 5:
            broken[at : at + 1] = (broken[at] ^ 1 << int(dice.integers(8))).to_bytes(1, "big")
        elif what < 8:
            broken[at : at + 1] = dice.bytes(1)
        elif what == 8:
            del broken[at : at + int(dice.integers(1, 100))]
        else:
            broken[at:at] = broken[at : at + int(dice.integers(1, 100))]
    return bytes(broken)


def crop_of(dice: Dice) -> tuple[bytes, NDArray[Any], tuple[int, int, int]]:
    """Return stored bytes, a crop of them but for the address, and the shape of the result."""
    is_jpeg = dice.random() < 0.6
    channels = int(dice.choice([1, 3] if is_jpeg else [1, 2, 3, 4]))
    pixels = picture(dice, int(dice.choice([channels, 1, 3])) if is_jpeg else channels)
    height, width, _ = pixels.shape
    data = jpeg_file(dice, pixels) if is_jpeg else pixels.tobytes()
    if is_jpeg and dice.random() < 0.3:
        data = damaged(dice, data)
    top, left = int(dice.integers(height)), int(dice.integers(width))
    if dice.random() < 0.3:
        top = left = 0
    rows, columns = (int(dice.integers(1, n, endpoint=True)) for n in (height - top, width - left))
    if dice.random() < 0.3:
        rows, columns = height - top, width - left
    shape = (rows, columns)
    if dice.random() < 0.7:
        shape = tuple(int(side) for side in dice.integers(1, dice.choice([8, 60, 250]), 2))
    elif not is_jpeg:  # raw windows that are not resized may lie outside
        top, left = int(dice.integers(-99, 99)), int(dice.integers(-99, 99))
    crop = np.zeros(1, CROP)
    crop["size"], crop["codec"] = len(data), JPEG if is_jpeg else RAW
    crop["height"], crop["width"], crop["top"], crop["left"] = height, width, top, left
    crop["rows"], crop["columns"] = rows, columns
    crop["antialias"], crop["flip"] = dice.integers(2), dice.integers(2)
    crop["factor"] = 1
    if is_jpeg and dice.random() < 0.5:
        crop["factor"], crop["antialias"] = dice.choice([2, 4, 8]), 1
    if dice.random() < 0.3:  # a part of what the window becomes
        more = dice.integers(0, 20, 4)
        crop["target_rows"], crop["target_columns"] = shape[0] + more[0], shape[1] + more[1]
        crop["part_top"], crop["part_left"] = np.minimum(more[:2], more[2:])
    return data, crop, (*shape, channels)


def result_of(
    library: Any, portable: int, data: bytes, crop: NDArray[Any], shape: tuple[int, int, int]
) -> tuple[int, Pixels]:
    """Return the status and the pixels, also as planes; none where the crop was refused."""
    stored, asked = np.frombuffer(data, np.uint8), crop.copy()
    asked["data"] = stored.ctypes.data
    out = np.zeros((2, *shape), np.uint8)
    library.fd_use_portable(portable)
    for planar in (0, 1):
        library.fd_render_crops(asked.ctypes.data, 1, out[planar].ctypes.data, *shape, planar)
    library.fd_use_portable(0)
    status = int(asked["status"][0])
    return status, out if status == 0 else out[:0]


def both_libraries() -> tuple[Any, Any]:
    """Return the library for AArch64 and that for this processor."""
    arm: Any = native.loaded_library()
    x86 = getattr(arm, "of_this_processor", None)
    assert x86 is not None, "without -p arm_library, or no compiled library for this processor"
    assert x86.fd_is_fast(), "this processor has no AVX2"
    return arm, x86


@pytest.mark.timeout(3600)
def test_any_jpeg_is_coded_anew_alike_on_both_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    arm, x86 = both_libraries()
    dice = np.random.default_rng(SEED)
    made = 0
    for number in range(CASES // 10):
        data = jpeg_file(dice, picture(dice, int(dice.choice([1, 3]))))
        if dice.random() < 0.5:
            data = damaged(dice, data)
        interval = int(dice.choice([1, 2, 5, 100]))
        results = []
        for library, portable in ((x86, 0), (x86, 1), (arm, 0), (arm, 1)):
            monkeypatch.setattr(native, "loaded_library", lambda library=library: library)
            library.fd_use_portable(portable)
            results.append(transcode_jpeg(data, interval))
            library.fd_use_portable(0)
        assert all(result == results[0] for result in results), f"case {number}"
        made += results[0] is not None
    print(f"\n{CASES // 10} JPEGs coded anew, equal; not refused: {made}")
    assert made > CASES // 40


@pytest.mark.timeout(3600)
def test_any_crop_is_the_same_on_both_processors() -> None:
    arm, x86 = both_libraries()
    dice = np.random.default_rng(SEED)
    others = ("portable, x86-64", x86, 1), ("NEON", arm, 0), ("portable, AArch64", arm, 1)
    made = {RAW: 0, JPEG: 0}
    for number in range(CASES):
        data, crop, shape = crop_of(dice)
        status, expected = result_of(x86, 0, data, crop, shape)
        for name, library, portable in others:
            found, pixels = result_of(library, portable, data, crop, shape)
            assert found == status, f"case {number}, {name}: {crop} {shape}"
            assert np.array_equal(pixels, expected), f"case {number}, {name}: {crop} {shape}"
        made[int(crop["codec"][0])] += status == 0
    print(f"\n{CASES} crops, equal; of them made, not refused: {made[RAW]} raw, {made[JPEG]} JPEG")
    assert min(made.values()) > CASES // 4
