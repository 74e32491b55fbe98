"""JPEGs coded anew by the compiled library: every pixel as before, or refused."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from coefficients import jpeg_of
from PIL import Image
from samples import photo, pil_decode
from segment_index import read_segment_index

import fastdata
from fastdata.codecs.jpeg import read_jpeg_header
from fastdata.codecs.jpeg_segments import restart_interval
from fastdata.native import library as native
from fastdata.native.library import transcode_jpeg

pytestmark = pytest.mark.skipif(
    native.loaded_library() is None, reason="the compiled library is not here (no C compiler)"
)
ODD = sorted((Path(__file__).parent / "jpegs").glob("*.jpg"))
SIZES = [(1, 1), (8, 8), (17, 33), (64, 96), (53, 37)]


@pytest.fixture(params=["avx2", "portable"])
def code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both kinds of code that the library has."""
    compiled = native.loaded_library()
    assert compiled is not None
    compiled.fd_use_portable(request.param == "portable")
    yield
    compiled.fd_use_portable(0)


def jpeg(height: int, width: int, channels: int = 3, **options: Any) -> bytes:
    pixels = photo(height, width, channels)
    file = io.BytesIO()
    picture = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
    picture.save(file, "JPEG", **{"quality": 90, "subsampling": "4:2:0", **options})
    return file.getvalue()


def interval_of(data: bytes) -> int:
    return restart_interval(read_jpeg_header(data).mcu_grid[1])


def check(data: bytes) -> bytes:
    """Transcode; compare with what PIL and TurboJPEG make of the original."""
    done = transcode_jpeg(data, interval_of(data))
    assert done is not None
    before, after = read_jpeg_header(data), read_jpeg_header(done)
    assert after.frame == 0xC0
    assert (after.height, after.width) == (before.height, before.width)
    assert after.restart_interval == interval_of(data)
    assert after.adobe_transform == before.adobe_transform
    rows, columns = after.mcu_grid
    starts = read_segment_index(done)
    assert starts is not None
    assert len(starts) - 1 == -(-rows * columns // after.restart_interval)
    for number, start in enumerate(starts[1:-1]):
        assert done[start - 2 : start] == bytes([0xFF, 0xD0 + number % 8])
    for channels in (1, 3):
        np.testing.assert_array_equal(pil_decode(done, channels), pil_decode(data, channels))
    colours = "RGB" if before.components == 3 else "GRAY"
    np.testing.assert_array_equal(*(simplejpeg.decode_jpeg(d, colours) for d in (done, data)))
    return done


KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:4": {"subsampling": "4:4:4"},
    "optimised": {"optimize": True},
    "progressive": {"progressive": True},
    "progressive 4:2:2": {"progressive": True, "subsampling": "4:2:2", "quality": 97},
    "progressive 4:4:4": {"progressive": True, "subsampling": "4:4:4", "quality": 30},
    "markers": {"restart_marker_blocks": 5},
    "progressive with markers": {"progressive": True, "restart_marker_rows": 1},
    "best": {"quality": 100},
    "worst": {"quality": 1},
    "grey": {"channels": 1},
    "progressive grey": {"channels": 1, "progressive": True},
    "metadata": {"comment": b"a comment", "icc_profile": b"profile", "exif": b"Exif\0\0MM\0*"},
}


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_as_before(kind: str) -> None:
    for size in SIZES:
        done = check(jpeg(*size, **KINDS[kind]))
        assert b"profile" not in done
        assert b"comment" not in done
        assert transcode_jpeg(done, interval_of(done)) == done


@pytest.mark.usefixtures("code")
def test_it_takes_no_more_than_the_markers_and_the_index() -> None:
    for options in ({}, {"optimize": True}, {"progressive": True}, {"channels": 1}):
        data = jpeg(256, 384, **options)
        done, (rows, columns) = check(data), read_jpeg_header(data).mcu_grid
        assert len(done) < 1.04 * len(data) + 5 * rows * columns / interval_of(data)


def test_same_bytes_come_of_all_codings_of_a_picture() -> None:
    sources = [{}, {"optimize": True}, {"progressive": True}, {"restart_marker_blocks": 3}]
    assert len({transcode_jpeg(jpeg(48, 64, **options), 2) for options in sources}) == 1


@pytest.mark.usefixtures("code")
def test_unusual_samplings_stay_as_they_are() -> None:
    """None of them is refused, whether or not TurboJPEG has a name for it."""
    for path in ODD:
        data = path.read_bytes()
        done = transcode_jpeg(data, interval_of(data))
        assert done is not None, path.stem
        before, after = read_jpeg_header(data), read_jpeg_header(done)
        assert after.components == 1 or after.sampling == before.sampling
        np.testing.assert_array_equal(pil_decode(done, 3), pil_decode(data, 3), path.stem)


@pytest.mark.usefixtures("code")
def test_interleaved_segments_of_any_length() -> None:
    data = jpeg(40, 56, subsampling="4:4:4")
    for interval in (1, 3, 35, 36, 65535):
        done = transcode_jpeg(data, interval)
        assert done is not None
        starts = read_segment_index(done)
        assert starts is not None
        assert len(starts) - 1 == -(-35 // interval)
        np.testing.assert_array_equal(simplejpeg.decode_jpeg(done), simplejpeg.decode_jpeg(data))


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("ids", [b"\1\2\3", b"RGB", b"\0\1\2"])
def test_colours_are_told_as_before(ids: bytes) -> None:
    for jfif, adobe in itertools.product((True, False), (None, 0, 1, 2)):
        check_colours(jfif, adobe, ids)


def check_colours(jfif: bool, adobe: int | None, ids: bytes) -> None:
    data = jpeg(33, 40, subsampling="4:4:4")
    told = data[2:20] if jfif else b""
    if adobe is not None:
        told += b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([adobe])
    data = bytearray(data[:2] + told + data[20:])
    frame, scan = data.index(b"\xff\xc0") + 10, data.index(b"\xff\xda") + 5
    for number, component in enumerate(ids):
        data[frame + 3 * number] = data[scan + 2 * number] = component
    if adobe == 2 and not jfif:  # which is of four colours: broken, as libjpeg sees it
        assert transcode_jpeg(bytes(data), 2) is None
    else:
        check(bytes(data))


def test_an_index_of_several_parts() -> None:
    file = io.BytesIO()
    Image.effect_noise((1448, 1456), 30).save(file, "JPEG", quality=30)
    done = transcode_jpeg(file.getvalue(), 1)
    assert done is not None
    starts = read_segment_index(done)
    assert starts is not None
    assert len(starts) - 1 == 182 * 181 > 32760
    assert all(done[start - 2 : start - 1] == b"\xff" for start in starts[1:])
    np.testing.assert_array_equal(pil_decode(done, 1), pil_decode(file.getvalue(), 1))


def test_packs_of_kept_files_are_coded_anew_by_packing_them(tmp_path: Path) -> None:
    for name, options in KINDS.items():
        file = tmp_path / "images" / name[:4] / f"{name}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(80, 96, **options))
    kept, anew, again = (tmp_path / f"{name}.lmdb" for name in ("kept", "anew", "again"))
    fastdata.pack(tmp_path / "images", kept, codec="keep", num_workers=0)
    report = fastdata.pack(kept, anew, resize="none", num_workers=0)
    old, new = fastdata.open(kept), fastdata.open(anew)
    assert new.digest != old.digest
    assert list(new.keys) == list(old.keys)
    for before, after in zip(old, new, strict=True):
        np.testing.assert_array_equal(after.image, before.image)
        assert after.label == before.label
    (shard,) = new.shards
    assert all(read_segment_index(shard.blob("image", row)) is not None for row in range(len(new)))
    assert fastdata.pack(anew, again, resize="none", num_workers=0).digest == report.digest


# -- coefficients such as no picture has -----------------------------------------------------------


def blocks_of(values: np.ndarray) -> bytes:
    """Return a grey JPEG of these blocks [n, 64], 8 blocks in a row."""
    quant = np.ones(64, np.int64)
    return jpeg_of([values], [quant], (len(values), 64))


@pytest.mark.usefixtures("code")
def test_codes_are_of_16_bits_at_most() -> None:
    # Symbols that are a bit rarer than Fibonacci's numbers have codes as long as there are symbols;
    # the most frequent one is the end of a block.
    counts = [1, 2]
    while len(counts) < 19:
        counts.append(counts[-1] + counts[-2] + 2)
    random = np.random.default_rng(0)
    order = random.permutation(np.repeat(np.arange(18), counts[:18]))
    blocks = np.zeros((counts[18] // 8 * 8, 64), np.int64)
    for block, symbols in zip(blocks, np.array_split(order, len(blocks)), strict=True):
        k = 0
        for run, size in (divmod(symbol, 9) for symbol in symbols):
            k += run + 1
            block[k] = random.integers(1 << size, 2 << size) * random.choice([-1, 1])
    done = check(blocks_of(blocks))
    tables = [done[at + 5 : at + 21] for at in range(len(done)) if done[at : at + 2] == b"\xff\xc4"]
    assert max(max(np.flatnonzero(list(lengths))) + 1 for lengths in tables[:2]) == 16


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("place", "value", "fits"),
    [
        (0, 2047, True),
        (0, -2047, True),
        (0, 2048, False),
        (0, -2048, False),
        (63, 1023, True),
        (1, -1023, True),
        (1, 1024, False),
        (62, -1024, False),
        (30, 32767, False),
    ],
)
def test_coefficients_that_baseline_cannot_code_are_refused(
    place: int, value: int, fits: bool
) -> None:
    blocks = np.zeros((8, 64), np.int64)
    blocks[3, place] = value
    assert (transcode_jpeg(blocks_of(blocks), 2) is not None) is fits


@pytest.mark.usefixtures("code")
def test_a_sum_of_differences_that_overflows_is_refused() -> None:
    blocks = np.zeros((64, 64), np.int64)
    blocks[:, 0] = 2047
    assert transcode_jpeg(blocks_of(blocks), 65535) is None
    blocks[16:, 0] = 0
    assert transcode_jpeg(blocks_of(blocks), 65535) is not None


# -- refused -------------------------------------------------------------------------------------


def scans_of(data: bytes) -> list[int]:
    """Return where the tables and headers of the scans begin, and where the file ends."""
    starts, at = [], read_jpeg_header(data).scan_offset
    while data[at : at + 2] != b"\xff\xd9":
        if data[at] == 0xFF and data[at + 1] not in (0, *range(0xD0, 0xD8)):
            starts.append(at)
            while data[at + 1] != 0xDA:
                at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        at += 1
    return [*starts, at]


PLAIN, PROGRESSIVE = jpeg(40, 56), jpeg(40, 56, progressive=True)


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1, data.count(old)
    return data.replace(old, new)


def with_wide_table(data: bytes) -> bytes:
    """Return the same picture with its first table of quantisation in 16 bits."""
    at = data.index(b"\xff\xdb\0\x43\0")
    wide = b"".join(bytes([0, value]) for value in data[at + 5 : at + 69])
    return data[:at] + b"\xff\xdb\0\x83\x10" + wide + data[at + 69 :]


def cmyk() -> bytes:
    file = io.BytesIO()
    Image.fromarray(photo(40, 56)).convert("CMYK").save(file, "JPEG")
    return file.getvalue()


REFUSED: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "SOI alone": lambda: b"\xff\xd8",
    "no scan": lambda: PLAIN[: PLAIN.index(b"\xff\xda")] + b"\xff\xd9",
    "four colours": cmyk,
    "arithmetic": lambda: changed(PLAIN, b"\xff\xc0\0\x11", b"\xff\xc9\0\x11"),
    "lossless": lambda: changed(PLAIN, b"\xff\xc0\0\x11", b"\xff\xc3\0\x11"),
    "12 bits": lambda: changed(PLAIN, b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    "no height": lambda: changed(PLAIN, b"\x11\x08\0\x28\0", b"\x11\x08\0\0\0"),
    "larger than its data": lambda: changed(PLAIN, b"\x08\0\x28\0", b"\x08\xff\x28\0"),
    "smaller than its data": lambda: changed(PLAIN, b"\x08\0\x28\0\x38", b"\x08\0\x18\0\x38"),
    "no end": lambda: PLAIN[:-2],
    "cut off": lambda: PLAIN[: len(PLAIN) // 2] + b"\xff\xd9",
    "quantised to nothing": lambda: PLAIN[:25] + b"\0" + PLAIN[26:],
    "the last bits missing": lambda: PROGRESSIVE[: scans_of(PROGRESSIVE)[-2]] + b"\xff\xd9",
    "a JFIF of the future": lambda: PLAIN[:11] + b"\2" + PLAIN[12:],
    "the only scan twice": lambda: PLAIN[:-2] + PLAIN[PLAIN.index(b"\xff\xda") :],
    "a scan twice": lambda: (
        PROGRESSIVE[:-2] + PROGRESSIVE[slice(*scans_of(PROGRESSIVE)[-2:])] + b"\xff\xd9"
    ),
    "coarse scans alone": lambda: PROGRESSIVE[: scans_of(PROGRESSIVE)[0]] + b"\xff\xd9",
}


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_it_does_not_understand_in_full_is_refused(kind: str) -> None:
    assert transcode_jpeg(REFUSED[kind](), 2) is None


@pytest.mark.usefixtures("code")
def test_what_is_harmless_is_taken() -> None:
    expected = transcode_jpeg(PLAIN, 2)
    assert expected is not None
    extended = changed(PLAIN, b"\xff\xc0\0\x11", b"\xff\xc1\0\x11")
    for same in (PLAIN + b"a film", extended, with_wide_table(PLAIN)):
        assert transcode_jpeg(same, 2) == expected


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("data", [PLAIN, PROGRESSIVE], ids=["baseline", "progressive"])
def test_damage_is_refused_or_gives_what_libjpeg_makes_of_it(data: bytes) -> None:
    random = np.random.default_rng(7)
    taken = 0
    for number in range(600):
        broken = bytearray(data)
        for _ in range(1 + number % 2):
            broken[random.integers(2, len(data) - 2)] ^= 1 << random.integers(8)
        if number % 5 == 0:
            del broken[random.integers(2, len(data)) :]
        done = transcode_jpeg(bytes(broken), 2)
        if done is None:
            continue
        taken += 1
        np.testing.assert_array_equal(pil_decode(done, 3), pil_decode(bytes(broken), 3))
    assert taken > 30
