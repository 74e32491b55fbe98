"""The compiled library: the same pixels as others make, whatever it is given."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from resize_reference import resize_reference
from samples import photo

from fastdata.codecs.blobs import encode_jpeg
from fastdata.codecs.jpeg_segments import INDEX_PREFIX_BYTES, index_spans
from fastdata.native import library as native
from fastdata.native.library import (
    CROP,
    JPEG,
    OTHER_CODEC,
    RAW,
    copy_rows,
    look_up_planes,
    render_crops,
    resize,
)

needs_library = pytest.mark.skipif(
    native.library() is None,
    reason="the compiled library is not here (no C compiler, or no AVX2 nor NEON)",
)
sides = st.integers(1, 70)
CHANNELS = st.sampled_from([1, 2, 3, 4])


WAYS = {"best": 0, "portable": 1, "avx2": 2}
"""What `fd_use_portable` is given for each kind of code."""


def _in_use(name: str) -> Iterator[str]:
    compiled = native.library()
    if compiled is None:
        pytest.skip("the compiled library is not here")
    compiled.fd_use_portable(WAYS[name])
    yield name
    compiled.fd_use_portable(0)


@pytest.fixture(params=["best", "portable"])
def code(request: pytest.FixtureRequest) -> Iterator[str]:
    """Code for this processor's vectors, and that for any."""
    yield from _in_use(request.param)


@pytest.fixture(params=list(WAYS))
def resizing_code(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same, and code for AVX2 where the best is for AVX-512."""
    yield from _in_use(request.param)


def crop_of(data: Any, codec: int, shape: tuple[int, int], /, **fields: Any) -> np.ndarray:
    """Return one `CROP` of the whole image, with some fields changed; `data` is to be kept."""
    crop = np.zeros(1, CROP)
    pixels = np.frombuffer(data, np.uint8)
    crop["data"], crop["size"], crop["codec"] = pixels.ctypes.data, pixels.nbytes, codec
    crop["factor"] = 1
    crop["height"] = crop["rows"] = shape[0]
    crop["width"] = crop["columns"] = shape[1]
    for name, value in fields.items():
        crop[name] = value
    return crop


def render(
    data: Any, codec: int, shape: tuple[int, int], out: np.ndarray, /, **fields: Any
) -> list[int]:
    """Render one crop; return the places that were refused."""
    return render_crops(crop_of(data, codec, shape, **fields), out).tolist()


@pytest.mark.usefixtures("resizing_code")
@pytest.mark.parametrize("codec", [RAW, JPEG])
def test_planes_have_the_pixels_of_channels_last_memory(codec: int) -> None:
    @given(sides, sides, st.none() | st.tuples(st.integers(1, 150), sides), CHANNELS, st.booleans())
    @settings(deadline=None)
    def check(
        height: int, width: int, target: tuple[int, int] | None, channels: int, flip: bool
    ) -> None:
        channels = channels if codec == RAW or channels in (1, 3) else 3
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
        data = pixels.tobytes() if codec == RAW else encode_jpeg(pixels, 90)
        rows, columns = target or (height, width)
        fields = {"flip": flip, "antialias": 1}
        last = np.zeros((1, rows, columns, channels), np.uint8)
        planes = np.full((2, channels, rows, columns), 7, np.uint8)
        refused = render(data, codec, (height, width), last, **fields)
        there = planes[:1].transpose(0, 2, 3, 1)
        assert render(data, codec, (height, width), there, **fields) == refused
        if refused:
            return
        np.testing.assert_array_equal(there, last)
        assert (planes[1] == 7).all()  # nothing is written behind the image

    check()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_a_table_is_looked_up_to_planes(code: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for channels, height, width in ((3, 130, 160), (3, 5, 7), (2, 9, 40), (4, 3, 3)):
        pixels = rng.integers(0, 256, (2, height, width, channels), np.uint8)
        table = rng.integers(0, 256, (256, channels)).astype(dtype)
        out = np.zeros((2, channels, height, width), dtype)
        look_up_planes(pixels, table, out.transpose(0, 2, 3, 1))
        expected = table[pixels, np.arange(channels)].transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(out, expected)


# -- resizing ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("resizing_code")
def test_resizing_is_that_of_plain_python() -> None:
    @settings(max_examples=150, deadline=None)
    @given(sides, sides, sides, sides, CHANNELS, st.booleans(), st.integers(0, 99))
    def check(
        height: int,
        width: int,
        rows: int,
        columns: int,
        channels: int,
        antialias: bool,
        seed: int,
    ) -> None:
        image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
        out = np.empty((rows, columns, channels), np.uint8)
        assert resize(image, out, antialias=antialias)
        expected = resize_reference(image, (rows, columns), antialias=antialias)
        np.testing.assert_array_equal(out, expected)

    check()


@pytest.mark.usefixtures("resizing_code")
def test_a_window_of_a_raw_image_is_resized_and_mirrored() -> None:
    image = photo(90, 121)
    crop = crop_of(image, RAW, (90, 121), top=11, left=60, rows=79, columns=61, flip=1)
    out = np.empty((1, 40, 50, 3), np.uint8)
    assert len(render_crops(crop, out)) == 0
    expected = resize_reference(image[11:, 60:], (40, 50), antialias=False, flip=True)
    np.testing.assert_array_equal(out[0], expected)


@pytest.mark.usefixtures("resizing_code")
@pytest.mark.parametrize("codec", [RAW, JPEG])
def test_a_part_of_a_resized_window_is_that_of_the_whole(codec: int) -> None:
    image = photo(90, 121)
    packed = encode_jpeg(image, 90)
    stored = {RAW: image.tobytes(), JPEG: packed}[codec]
    pixels = {RAW: image, JPEG: simplejpeg.decode_jpeg(packed)}[codec]

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        def inside(length: int) -> tuple[int, int]:
            start = data.draw(st.integers(0, length - 1))
            return start, data.draw(st.integers(1, length - start))

        (top, rows), (left, columns) = inside(90), inside(121)
        window = {"top": top, "left": left, "rows": rows, "columns": columns}
        # Now and then nothing is resized in one of the directions, or both.
        height = data.draw(st.one_of(st.just(rows), sides))
        width = data.draw(st.one_of(st.just(columns), sides))
        (y, out_rows), (x, out_columns) = inside(height), inside(width)
        antialias, flip = data.draw(st.booleans()), data.draw(st.booleans())
        part = {"target_rows": height, "target_columns": width, "part_top": y, "part_left": x}
        out = np.empty((1, out_rows, out_columns, 3), np.uint8)
        how = {"antialias": antialias, "flip": flip}
        assert render(stored, codec, (90, 121), out, **window, **part, **how) == []
        whole = resize_reference(
            pixels[top : top + rows, left : left + columns], (height, width), antialias=antialias
        )
        expected = whole[y : y + out_rows, x : x + out_columns]
        np.testing.assert_array_equal(out[0], expected[:, ::-1] if flip else expected)

    check()


@pytest.mark.usefixtures("resizing_code")
@pytest.mark.parametrize("codec", [RAW, JPEG])
def test_reduced_pixels_are_resized_by_where_they_lie(codec: int) -> None:
    height, width = 131, 150
    packed = encode_jpeg(photo(height, width), 90)

    def reduced(factor: int) -> np.ndarray:
        rows, columns = -(-height // factor), -(-width // factor)
        if codec == RAW:
            return photo(rows, columns)
        return simplejpeg.decode_jpeg(packed, min_height=rows, min_width=columns, min_factor=factor)

    pictures = {factor: reduced(factor) for factor in (2, 4, 8)}

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        factor = data.draw(st.sampled_from(list(pictures)))
        small = pictures[factor]
        stored = small.tobytes() if codec == RAW else packed
        top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        rows, columns = (
            data.draw(st.integers(1, height - top)),
            data.draw(st.integers(1, width - left)),
        )
        size = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
        window = {"top": top, "left": left, "rows": rows, "columns": columns}
        out = np.empty((1, *size, 3), np.uint8)
        how = {"antialias": 1, "factor": factor}
        assert render(stored, codec, (height, width), out, **window, **how) == []
        expected = resize_reference(
            small, size, antialias=True, factor=factor, window=(top, left, rows, columns)
        )
        np.testing.assert_array_equal(out[0], expected)

    check()


@pytest.mark.usefixtures("resizing_code")
def test_windows_of_raw_images_are_zero_beyond_the_image() -> None:
    corners = st.integers(-30, 30)

    @settings(max_examples=200, deadline=None)
    @given(sides, sides, corners, corners, sides, sides, CHANNELS, st.booleans())
    def check(
        height: int,
        width: int,
        top: int,
        left: int,
        rows: int,
        columns: int,
        channels: int,
        flip: bool,
    ) -> None:
        image = np.random.default_rng(0).integers(1, 256, (height, width, channels), np.uint8)
        out = np.full((1, rows, columns, channels), 77, np.uint8)
        window = {"top": top, "left": left, "rows": rows, "columns": columns, "flip": flip}
        assert render(image, RAW, (height, width), out, **window) == []
        framed = np.pad(image, ((100, 100), (100, 100), (0, 0)))
        expected = framed[top + 100 :, left + 100 :][:rows, :columns]
        np.testing.assert_array_equal(out[0], expected[:, ::-1] if flip else expected)

    check()


@pytest.mark.usefixtures("resizing_code")
@pytest.mark.parametrize(("size", "extreme"), [((1, 1), 255), ((2, 3), 0), ((300, 5), 255)])
def test_a_plain_picture_stays_as_it_is_at_any_size(size: tuple[int, int], extreme: int) -> None:
    image = np.full((*size, 3), extreme, np.uint8)
    for target in ((1, 1), (7, 200), (64, 3)):
        for antialias in (False, True):
            out = np.full((*target, 3), 77, np.uint8)
            assert resize(image, out, antialias=antialias)
            assert (out == extreme).all()


@pytest.mark.usefixtures("resizing_code")
def test_nothing_is_written_outside_the_places_of_crops() -> None:
    image = photo(50, 60)
    crops = np.concatenate([crop_of(image, RAW, (50, 60)) for _ in range(3)])
    crops["codec"][1] = OTHER_CODEC
    memory = np.full((5, 33, 35, 3), 77, np.uint8)
    assert render_crops(crops, memory[1:4]).tolist() == [1]
    assert (memory[[0, 2, 4]] == 77).all()


# -- JPEG ----------------------------------------------------------------------------------------


def jpeg(pixels: np.ndarray, kind: str, quality: int) -> bytes:
    if kind == "packed":
        return encode_jpeg(pixels, quality)
    subsampling, interval = kind.split()
    file = io.BytesIO()
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    options = {"restart_marker_blocks": int(interval)} if int(interval) else {}
    image.save(file, "JPEG", quality=quality, subsampling=subsampling, **options)
    return file.getvalue()


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("kind", "colours"),
    [
        ("packed", 3),
        ("packed", 1),
        ("4:2:0 0", 3),
        ("4:2:0 0", 1),
        ("4:2:0 3", 3),
        ("4:2:2 2", 3),
        ("4:4:4 5", 3),
        ("4:4:4 5", 1),
        ("4:4:4 0", 3),
    ],
)
def test_windows_of_jpegs_are_those_of_the_whole(kind: str, colours: int) -> None:
    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        height, width = data.draw(st.integers(1, 80)), data.draw(st.integers(5, 80))
        quality, channels = (
            data.draw(st.sampled_from([30, 90, 100])),
            data.draw(st.sampled_from([1, 3])),
        )
        top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        rows = data.draw(st.integers(1, height - top))
        columns = data.draw(st.integers(1, width - left))
        file = jpeg(photo(height, width, colours), kind, quality)
        # Decoders cannot distinguish the scales of smaller pictures; narrower ones are refused.
        wide = min(height, width) >= 8 and width > 32
        factor = data.draw(st.sampled_from([1, 2, 4, 8])) if wide else 1
        high, broad = -(-height // factor), -(-width // factor)
        colour = "RGB" if channels == 3 else "GRAY"
        whole = simplejpeg.decode_jpeg(
            file, colour, min_height=high, min_width=broad, min_factor=factor
        )
        window = {"top": top, "left": left, "rows": rows, "columns": columns, "factor": factor}
        y, x = top // factor, left // factor
        end_y, end_x = -(-(top + rows) // factor), -(-(left + columns) // factor)
        out = np.empty((1, end_y - y, end_x - x, channels), np.uint8)
        assert render(file, JPEG, (height, width), out, **window) == []
        expected = whole.reshape(high, broad, channels)[y:end_y, x:end_x]
        np.testing.assert_array_equal(out[0], expected)

    check()


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("kind", "quality", "noisy"), [("4:4:4 0", 30, 0), ("4:2:0 0", 90, 0), ("4:4:4 0", 100, 1)]
)
def test_what_lies_before_a_window_is_passed_over(kind: str, quality: int, noisy: int) -> None:
    """Without restart intervals, codes are passed several at a time; noise fills blocks."""
    height, width = 290, 330
    image = photo(height, width)
    if noisy:
        image = np.random.default_rng(0).integers(0, 256, image.shape, np.uint8)
    file = jpeg(image, kind, quality)
    random = np.random.default_rng(1)
    for factor in (1, 2, 4, 8):
        high, broad = -(-height // factor), -(-width // factor)
        whole = simplejpeg.decode_jpeg(file, min_height=high, min_width=broad, min_factor=factor)
        for _ in range(4):
            top, left = int(random.integers(height - 24)), int(random.integers(width - 24))
            window = {"top": top, "left": left, "rows": 24, "columns": 24, "factor": factor}
            expected = whole[top // factor : -(-(top + 24) // factor)]
            expected = expected[:, left // factor : -(-(left + 24) // factor)]
            out = np.empty((1, *expected.shape), np.uint8)
            assert render(file, JPEG, (height, width), out, **window) == []
            np.testing.assert_array_equal(out[0], expected)


@pytest.mark.usefixtures("code")
def test_damage_is_refused_alike_where_it_is_passed_over() -> None:
    file = jpeg(photo(290, 330), "4:4:4 0", 80)
    random = np.random.default_rng(2)
    whole, corner = np.empty((1, 290, 330, 3), np.uint8), np.empty((1, 2, 2, 3), np.uint8)
    refused = 0
    for _ in range(150):
        broken = bytearray(file)
        broken[random.integers(700, len(file) - 2)] ^= 1 << random.integers(8)
        data = bytes(broken)
        window = {"top": 288, "left": 328, "rows": 2, "columns": 2}
        corner_refused = bool(render(data, JPEG, (290, 330), corner, **window))
        whole_refused = bool(render(data, JPEG, (290, 330), whole))
        # Coefficients out of range are seen only where pixels are made of them.
        assert whole_refused >= corner_refused
        refused += corner_refused
    assert refused > 10


@pytest.mark.usefixtures("code")
def test_every_colour_is_converted_as_libjpeg_does() -> None:
    # Plain squares of 8 x 8, so that what is decoded is what was coded, for many colours.
    colours = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    file = jpeg(colours.repeat(8, 0).repeat(8, 1), "4:4:4 0", 100)
    out = np.empty((1, 512, 512, 3), np.uint8)
    assert render(file, JPEG, (512, 512), out) == []
    np.testing.assert_array_equal(out[0], simplejpeg.decode_jpeg(file))


def progressive() -> bytes:
    file = io.BytesIO()
    Image.fromarray(photo(40, 50)).save(file, "JPEG", progressive=True)
    return file.getvalue()


def cmyk() -> bytes:
    file = io.BytesIO()
    Image.fromarray(photo(40, 50)).convert("CMYK").save(file, "JPEG")
    return file.getvalue()


@needs_library
@pytest.mark.parametrize("made", [progressive, cmyk, lambda: b"", lambda: b"\xff\xd8\xff\xd9"])
def test_what_it_does_not_understand_is_refused(made: Any) -> None:
    out = np.empty((1, 40, 50, 3), np.uint8)
    assert render(made(), JPEG, (40, 50), out) == [0]


@needs_library
@pytest.mark.parametrize(
    "fields",
    [
        {"top": -1},
        {"left": 1},
        {"rows": 0},
        {"rows": 41},
        {"columns": 2**31 - 1},
        {"height": 39},
        {"width": 51},
        {"height": 0},
        {"size": 100},
        {"codec": 7},
        {"factor": 0},
        {"factor": 3},
        {"factor": 16},
        {"factor": 2},  # 20 x 25 pixels, but not this picture's
        {"target_rows": 19},
        {"target_columns": -1},
        {"target_rows": 40, "part_top": 21},
        {"target_columns": 40, "part_left": -1},
        {"target_rows": 70_000},
    ],
)
@pytest.mark.parametrize("codec", [RAW, JPEG])
def test_what_does_not_fit_is_refused(codec: int, fields: dict[str, int]) -> None:
    image = photo(42, 50) if fields == {"factor": 2} else photo(40, 50)
    data = image.tobytes() if codec == RAW else encode_jpeg(image)
    out = np.empty((1, 20, 25, 3), np.uint8)
    assert render(data, codec, (40, 50), out, **fields) == [0]


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("kind", ["packed", "4:2:0 0", "4:2:2 2"])
def test_a_jpeg_cut_short_anywhere_is_refused(kind: str) -> None:
    file = jpeg(photo(40, 50), kind, 80)
    out = np.empty((1, 40, 50, 3), np.uint8)
    for length in range(0, len(file), 7):
        for end in (b"", b"\xff\xd9"):
            cut = file[:length] + end
            assert render(cut, JPEG, (40, 50), out) == [0], length


@pytest.mark.usefixtures("code")
def test_an_index_that_lies_is_refused() -> None:
    file = encode_jpeg(photo(64, 96))
    ((start, end),) = index_spans(file) or ()
    lengths = np.frombuffer(file[start + INDEX_PREFIX_BYTES : end], ">u2")
    out = np.empty((1, 64, 96, 3), np.uint8)

    def refused(changed: np.ndarray) -> bool:
        forged = file[: start + INDEX_PREFIX_BYTES] + changed.astype(">u2").tobytes() + file[end:]
        return render(forged, JPEG, (64, 96), out) == [0]

    assert not refused(lengths)
    for at in range(len(lengths) - 1):
        for by in (1, -1, 2, 300):
            moved = lengths.astype(int)
            moved[at] += by
            moved[at + 1] -= by  # segments after these lie where they are said to lie
            assert refused(moved.clip(0)), (at, by)
    assert refused(np.append(lengths[:-1], lengths[-1] + 1))
    assert refused(np.append(lengths[:-1], lengths[-1] - 1))
    assert refused(np.append(lengths[:-1], 65535))


READ_TO_THE_END = """
import ctypes, mmap, sys
import numpy as np
from fastdata.native.library import CROP, render_crops
from fastdata.native.library import library

library().fd_use_portable(int(sys.argv[1]))
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 64 * page)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
assert libc.mprotect(address + 63 * page, page, 0) == 0  # nobody may read the last page
for file in sys.argv[2:]:
    codec, height, width, name = file.split(":")
    data = open(name, "rb").read()
    memory[63 * page - len(data) : 63 * page] = data
    whole = int(height), int(width), 0
    for rows, columns, antialias in (whole, (9, 17, 0), (9, 17, 1), (80, 90, 0)):
        crop = np.zeros(1, CROP)
        crop["data"], crop["size"] = address + 63 * page - len(data), len(data)
        crop["codec"], crop["antialias"], crop["factor"] = int(codec), antialias, 1
        crop["height"], crop["width"] = int(height), int(width)
        for top, left in ((0, 0), (int(height) - 9, int(width) - 13)):
            crop["top"], crop["left"] = top, left
            crop["rows"], crop["columns"] = int(height) - top, int(width) - left
            for flip in (0, 1):
                crop["flip"] = flip
                out = np.empty((1, rows, columns, 3), np.uint8)
                assert len(render_crops(crop, out)) == 0, (file, rows, columns)
print("read")
"""


@needs_library
@pytest.mark.parametrize("portable", ["0", "1"])
def test_nothing_is_read_behind_the_stored_bytes(portable: str, tmp_path: Path) -> None:
    image = photo(40, 50)
    kinds = {"packed": encode_jpeg(image), "plain": jpeg(image, "4:4:4 0", 90)}
    files = []
    for name, data in {"raw": image.tobytes(), **kinds}.items():
        (tmp_path / name).write_bytes(data)
        files.append(f"{RAW if name == 'raw' else JPEG}:40:50:{tmp_path / name}")
    done = subprocess.run(
        [sys.executable, "-c", READ_TO_THE_END, portable, *files], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


@pytest.mark.usefixtures("code")
def test_damage_never_makes_another_picture_of_what_libjpeg_accepts() -> None:
    """Bits flipped anywhere: refused, or libjpeg-turbo's pixels, or beyond any camera's range."""
    random = np.random.default_rng(5)
    file = jpeg(photo(40, 50), "packed", 80)
    made = equal = 0
    for number in range(2000):
        broken = bytearray(file)
        broken[random.integers(2, len(file) - 2)] ^= 1 << random.integers(8)
        factor = (1, 2, 4, 8)[number % 4]
        out = np.empty((1, -(-40 // factor), -(-50 // factor), 3), np.uint8)
        if render(bytes(broken), JPEG, (40, 50), out, factor=factor):
            continue
        made += 1
        try:
            expected = simplejpeg.decode_jpeg(
                bytes(broken), min_height=out.shape[1], min_width=out.shape[2], min_factor=factor
            )
        except ValueError:
            continue  # a harmless oddity in the header, that simplejpeg minds
        equal += bool((out[0] == expected).all())
    assert made > 100
    assert equal > 0.97 * made


@needs_library
def test_crops_do_not_mind_each_other_nor_threads() -> None:
    sizes = [(40 + 3 * i, 50 + 5 * i) for i in range(12)]
    files = [
        jpeg(photo(*size), "packed" if i % 2 else "4:4:4 3", 85) for i, size in enumerate(sizes)
    ]
    files[5] = files[5][:300]
    crops = np.concatenate([crop_of(f, JPEG, s) for f, s in zip(files, sizes, strict=True)])
    alone = np.zeros((12, 32, 32, 3), np.uint8)
    for i in range(12):
        render_crops(crops[i : i + 1], alone[i : i + 1])
    results = [np.zeros_like(alone) for _ in range(4)]

    def work(out: np.ndarray) -> None:
        for _ in range(20):
            assert render_crops(crops.copy(), out).tolist() == [5]

    threads = [threading.Thread(target=work, args=(out,)) for out in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for out in results:
        np.testing.assert_array_equal(np.delete(out, 5, 0), np.delete(alone, 5, 0))


# -- copying -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("length", [1, 31, 3072, 16_384, 50_001])
def test_rows_are_copied_from_and_to_any_address(length: int) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 3 * length + 100, np.uint8)
    offsets = np.array([0, 2 * length + 100, 33, 33, length])
    frame = np.full(5 * length + 2, 77, np.uint8)
    out = frame[1:-1].reshape(5, length)
    copy_rows(memory, offsets, length, out)
    np.testing.assert_array_equal(out, [memory[at : at + length] for at in offsets])
    assert frame[0] == frame[-1] == 77
