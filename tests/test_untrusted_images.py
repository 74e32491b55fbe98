"""Images that would start a program, or take time and memory without end: refused everywhere."""

from __future__ import annotations

import ast
import io
import re
import struct
import subprocess
import sys
import textwrap
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from samples import make_records, photo, pil_encode, put_blob, write_shard

import fastdata
from fastdata.codecs import limits, pillow
from fastdata.codecs.decoders import jpeg_decoder
from fastdata.codecs.image import decode_image
from fastdata.errors import FastdataError, FileCorruptError, ImageError, ShardCorruptError
from fastdata.formats.layout import CODECS
from fastdata.viewing.page import view

ROOT = Path(__file__).parents[1]
SIZE = 24, 32

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 24\n%%EndComments\n{} loop\n%%EOF\n"
WMF = struct.pack("<I6xhhhhh", 0x9AC6CDD7, 0, 0, 32, 24, 1440) + bytes(22) + b"\1\0\x09\0"
FITS = b"".join(
    card.ljust(80)
    for card in (b"SIMPLE  = %20s" % b"T", b"BITPIX  = %20s" % b"8", b"NAXIS   = 0", b"END")
).ljust(2880)
PROGRAMS = {"eps": EPS, "wmf": WMF, "fits": FITS}


# -- no program --------------------------------------------------------------------------

_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn")
_watched: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and event in _STARTS:
        _watched.append(f"{event}{arguments}")
        raise RuntimeError(f"{event} is not to be called")


@pytest.fixture(autouse=True, scope="module")
def _audited() -> None:
    sys.addaudithook(_audit)  # which cannot be removed


@pytest.fixture
def started() -> Iterator[list[str]]:
    """What the test tried to start."""
    global _watched
    _watched = []
    yield _watched
    _watched = None


def _save(path: Path, data: bytes | np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else pil_encode(data, "PNG"))


def _class_folders(root: Path, data: bytes) -> dict[str, Any]:
    for suffix in ("jpg", "png", "webp", "tif", "bmp"):
        _save(root / "cat" / f"x.{suffix}", data)
    _save(root / "cat" / "sound.png", photo(*SIZE))
    return {"format": "folder"}


def _masks(root: Path, data: bytes) -> dict[str, Any]:
    for name in "abc":
        _save(root / "images" / f"{name}.png", photo(*SIZE))
        _save(
            root / "masks" / f"{name}.png",
            data if name == "b" else np.eye(*SIZE, dtype=np.uint8)[:, :, None],
        )
    return {"format": "masks"}


def _coloured_masks(root: Path, data: bytes) -> dict[str, Any]:
    _masks(root, data)
    _save(root / "masks" / "a.png", np.zeros((*SIZE, 3), np.uint8))
    _save(root / "masks" / "c.png", np.zeros((*SIZE, 3), np.uint8))
    return {"format": "masks"}


def _voc(root: Path, data: bytes) -> dict[str, Any]:
    for name in "ab":
        _save(root / "JPEGImages" / f"{name}.jpg", pil_encode(photo(*SIZE), "JPEG"))
        _save(
            root / "SegmentationClass" / f"{name}.png",
            data if name == "b" else np.eye(*SIZE, dtype=np.uint8)[:, :, None],
        )
        (root / "Annotations").mkdir(exist_ok=True)
        (root / "Annotations" / f"{name}.xml").write_text(
            f"<annotation><filename>{name}.jpg</filename><size><width>{SIZE[1]}</width><height>{SIZE[0]}</height>"
            "<depth>3</depth></size><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
            "<xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
        )  # fmt: skip
    return {"format": "voc", "source_options": {"masks": "classes"}}


LAYOUTS: dict[str, Callable[[Path, bytes], dict[str, Any]]] = {
    "class folders": _class_folders,
    "masks": _masks,
    "coloured masks": _coloured_masks,
    "voc": _voc,
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packing_an_image_starts_no_program(
    tmp_path: Path, layout: str, kind: str, started: list[str]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    options = LAYOUTS[layout](root, PROGRAMS[kind])
    for codec in ("auto", "keep"):
        report = fastdata.pack(
            root, tmp_path / f"{codec}.lmdb", num_workers=0, progress=False, codec=codec, **options
        )
        assert report.num_rejected == (5 if layout == "class folders" else 1)
        assert "known format" in report.rejects[0].reason
        assert report.num_samples
    assert started == []


@pytest.mark.parametrize("kind", PROGRAMS)
def test_reading_an_image_starts_no_program(tmp_path: Path, kind: str, started: list[str]) -> None:
    path = write_shard(tmp_path / "a.lmdb", make_records(count=3, size=SIZE))
    put_blob(path, 1, PROGRAMS[kind], codec=CODECS.index("file"), height=SIZE[0], width=SIZE[1])
    with pytest.raises(ShardCorruptError, match="known format"):
        fastdata.open(path)[1]
    with (
        fastdata.loader(path, batch_size=3, num_workers=0) as loader,
        pytest.raises(ShardCorruptError, match="known format"),
    ):
        list(loader)
    view(path, tmp_path / "page.html")
    _class_folders(tmp_path / "root", PROGRAMS[kind])
    dataset = fastdata.open(tmp_path / "root", format="folder")
    with pytest.raises(FileCorruptError, match="known format"):
        dataset[1]
    with (
        fastdata.loader(dataset, batch_size=2, num_workers=0) as loader,
        pytest.raises(FileCorruptError, match="known format"),
    ):
        list(loader)
    assert started == []


_OPENS = r"Image\.open|ImageFile\..*|(.* )?(open|ImageFile|\w*ImagePlugin)( .*)?"
"""What opens an image by Pillow: an attribute, or a name that is imported."""


def test_only_one_module_opens_images_by_pillow() -> None:
    """All other modules of the product go by `fastdata.codecs.pillow.open_image`."""
    strays = []
    for folder in ("fastdata", "converters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_bytes())):
                called = ""
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    called = f"{node.value.id}.{node.attr}"
                elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("PIL"):
                    called = " ".join(alias.name for alias in node.names)
                if name != "fastdata/codecs/pillow.py" and re.fullmatch(_OPENS, called):
                    strays.append(f"{name}:{node.lineno}: {called}")
                if called in ("cv2.imread", "cv2.imdecode") and "fastdata/codecs/" not in name:
                    strays.append(f"{name}:{node.lineno}: {called}")
    assert strays == []


def test_the_formats_are_those_that_the_documentation_names() -> None:
    text = (ROOT / "docs/converters/images.md").read_text()
    named = re.search(r"^\| (PNG[^|]*) \| decoded by Pillow", text, re.MULTILINE)
    assert named
    other = {"PNM": "PPM", "JPEG 2000": "JPEG2000"}
    names = {other.get(name, name.upper()) for name in re.split(", | and ", named[1])}
    assert names == set(pillow.FORMATS) - {"JPEG", "MPO"}


def test_a_reader_that_a_user_registers_is_not_asked() -> None:
    class Own(Image.Image):
        def __init__(self, *_: object) -> None:
            raise AssertionError("it was asked")

    Image.register_open("OWN", Own, lambda prefix: True)  # type: ignore[arg-type]
    try:
        with pytest.raises(ImageError, match="not an image of a known format"):
            decode_image(b"own format")
    finally:
        Image.ID.remove("OWN")
        del Image.OPEN["OWN"]


# -- scans -------------------------------------------------------------------------------


def _progressive(scans: int, mode: str = "L", side: int = 64) -> bytes:
    """Return a progressive JPEG with so many scans more, each the last one again."""
    file = io.BytesIO()
    image = Image.fromarray(photo(side, side)).convert(mode)
    image.save(file, "JPEG", progressive=True, quality=50)
    data = file.getvalue()[:-2]
    return data + data[data.rindex(b"\xff\xda") :] * scans + b"\xff\xd9"


PIXELS = 64 * 64
REASON = r"scans of 64 x 64 pixels .* more than the limit of 81,920 \(20 times max_pixels\)"


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("codec", ["auto", "keep", "png"])
def test_too_many_scans_are_rejected(tmp_path: Path, codec: str, mode: str) -> None:
    samples = [{"image": data} for data in (_progressive(0, mode), _progressive(1000, mode))]
    report = fastdata.pack(
        samples, tmp_path / "a.lmdb", num_workers=0, progress=False, codec=codec, max_pixels=PIXELS
    )
    assert report.num_samples == 1
    assert re.search(r"^1,0\d\d " + REASON, report.rejects[0].reason)


@pytest.mark.parametrize("decoder", ["auto", "simplejpeg", "opencv", "pil"])
@pytest.mark.parametrize("codec", ["jpeg", "file"])
def test_too_many_scans_of_a_stored_image_are_corrupt(
    tmp_path: Path, codec: str, decoder: Any
) -> None:
    path = write_shard(tmp_path / "a.lmdb", make_records(count=3, size=(64, 64)))
    for index, scans in ((1, 0), (2, 1000)):
        put_blob(path, index, _progressive(scans, "RGB"), codec=CODECS.index(codec))
    dataset = fastdata.open(path, max_pixels=PIXELS)
    assert dataset[1].image.shape == (3, 64, 64)
    with pytest.raises(ShardCorruptError, match=REASON):
        dataset[2]
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 0, "decoder": decoder}
    for transform in (None, [fastdata.transforms.RandomResizedCrop(16)]):
        with (
            fastdata.loader(path, transform=transform, max_pixels=PIXELS, **options) as loader,
            pytest.raises(ShardCorruptError, match=REASON),
        ):
            list(loader)
    report = fastdata.pack(
        path, tmp_path / "b.lmdb", codec="keep", num_workers=0, progress=False, max_pixels=PIXELS
    )
    assert re.search(REASON, report.rejects[0].reason)


def test_too_many_scans_in_a_folder_are_corrupt(tmp_path: Path) -> None:
    for name, scans in (("a", 0), ("b", 1000)):
        _save(tmp_path / "cat" / f"{name}.jpg", _progressive(scans))
    dataset = fastdata.open(tmp_path, max_pixels=PIXELS, format="folder")
    assert dataset[0].image.shape == (3, 64, 64)
    with pytest.raises(FileCorruptError, match=REASON):
        dataset[1]
    with (
        fastdata.loader(dataset, batch_size=2, num_workers=0) as loader,
        pytest.raises(FileCorruptError, match=REASON),
    ):
        list(loader)


def test_the_limit_of_scans_is_for_whole_images() -> None:
    """Only what is in the image counts: scans, and not bytes that look like one."""
    many = _progressive(1000)
    usual = _progressive(0)
    film = usual + b"\xff\xda" * 10_000  # behind the end, as of a motion photo
    comment = b"\xff\xfe" + struct.pack(">H", 2 + 20_000) + b"\xff\xda" * 10_000
    place = usual.rindex(b"\xff\xda")
    commented = usual[:place] + comment + usual[place:]
    baseline = pil_encode(photo(64, 64), "JPEG")
    for data in (
        usual,
        film,
        commented,
        baseline,
    ):
        decode_image(data, max_pixels=PIXELS)
    assert decode_image(usual, max_pixels=PIXELS).pixels.shape == (64, 64, 3)
    with pytest.raises(ImageError, match=REASON):
        decode_image(many, max_pixels=PIXELS)
    for name in ("simplejpeg", "pil"):
        with pytest.raises(ImageError, match=REASON):
            jpeg_decoder(name).decode(many, 3, max_pixels=PIXELS)  # type: ignore[arg-type]


def test_scans_are_refused_before_anything_is_decoded() -> None:
    data = _progressive(60)
    at = data.index(b"\xff\xc2") + 5
    data = data[:at] + struct.pack(">HH", 13000, 13000) + data[at + 4 :]
    with pytest.raises(ImageError, match=r"^\d\d scans of 13000 x 13000 pixels .* 3,579,139,400"):
        decode_image(data)


# -- memory ------------------------------------------------------------------------------


def _png(side: int, colour: int, depth: int = 8) -> bytes:
    """Return a PNG of one value, without holding its pixels."""
    length = {0: 1, 2: 3, 3: 1, 6: 4}[colour] * depth // 8 * side + 1
    packer = zlib.compressobj(1)
    pixels = b"".join(packer.compress(bytes(length)) for _ in range(side)) + packer.flush()
    palette = [(b"PLTE", bytes(768)), (b"tRNS", b"\0")] * (colour == 3)
    header = struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), *palette, (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def _tiff(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("CMYK", (side, side)).save(file, "TIFF", compression="tiff_deflate")
    return file.getvalue()


def _webp(side: int, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (9, 8, 7)).save(file, "WEBP", method=0, **options)
    return file.getvalue()


def _saved(mode: str, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(photo(3000, 3000)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def _wide_tile() -> bytes:
    """Return a TIFF of 1000 x 1000 pixels in a tile of 8000 x 8000."""
    body = zlib.compress(bytes(8000 * 8000), 1)
    tags = _layout(1000, 8, tiles=[8], sizes=[len(body)]) | {322: (4, [8000]), 323: (4, [8000])}
    return _directory(tags, body)


ASKED: dict[str, Callable[[], bytes]] = {
    "progressive cmyk.jpg": lambda: _saved("CMYK", "JPEG", progressive=True),
    "one strip.tif": lambda: _saved("RGB", "TIFF", compression="tiff_lzw", strip_size=1 << 30),
    "wide tile.tif": _wide_tile,
    "rgb.jp2": lambda: _saved("RGB", "JPEG2000", irreversible=True),
    "rgba.jp2": lambda: _saved("RGBA", "JPEG2000"),
    "deep.pgm": lambda: b"P5\n2500 2500\n65534\n" + bytes(2500 * 2500 * 2),
}
_ASKED = """
import sys
from fastdata.codecs import limits
from fastdata.codecs.image import decode_image
from fastdata.errors import ImageError
from fastdata.processes.resources import parse_bytes
def peak():
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
data = sys.stdin.buffer.read()
limits._SMALL_BYTES = 0
limits.memory_share = lambda: 0
try:
    decode_image(data)
except ImageError as error:
    words = str(error).split()
limits.memory_share = lambda: 10**12
before = peak()
decode_image(data)
print(peak() - before, parse_bytes(words[words.index("take") + 1]))
"""

SIDE = 4000
LARGE: dict[str, tuple[Callable[[], bytes], int]] = {
    "rgb.png": (lambda: _png(SIDE, 2), 4 + 3),
    "rgba.png": (lambda: _png(SIDE, 6), 4 + 3),
    "palette.png": (lambda: _png(SIDE, 3), 1 + 3),
    "grey16.png": (lambda: _png(SIDE, 0, 16), 2 + 3),
    "cmyk.tif": (lambda: _tiff(SIDE), 4 + 3),
    "lossy.webp": (lambda: _webp(SIDE), 7),
    "lossless.webp": (lambda: _webp(SIDE, lossless=True), 7),
}
_PEAK = """
import sys
from fastdata.codecs.image import decode_image
def peak():
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
data = sys.stdin.buffer.read()
before = peak()
pixels = decode_image(data, max_pixels=10**9).pixels
print(peak() - before)
"""


def _in_child(code: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        input=data, capture_output=True, check=True, timeout=120,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("name", LARGE)
def test_pixels_are_copied_once(name: str) -> None:
    """Besides what the decoder has: 4 bytes a pixel of Pillow, or 1 or 2 of one channel."""
    make, expected = LARGE[name]
    found = _in_child(_PEAK, make())
    assert int(found.stdout) < expected * SIDE**2 + (30 << 20)  # bands of some rows
    assert found.stderr == b""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("name", ASKED)
def test_memory_is_counted_before_it_is_taken(name: str) -> None:
    peak, asked = map(int, _in_child(_ASKED, ASKED[name]()).stdout.split())
    assert peak < asked + (20 << 20)  # bands of some rows


def test_large_images_do_not_warn(tmp_path: Path) -> None:
    """Pillow warns of more than 89 million pixels; no thread's filters of warnings change."""
    large = _png(9600, 0)
    _save(tmp_path / "cat" / "a.png", large)
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        decode_image(large, 1)
        assert fastdata.open(tmp_path, format="folder")[0].image.shape == (3, 9600, 9600)
        warnings.warn("others are seen", UserWarning, stacklevel=1)
    assert [str(one.message) for one in noted] == ["others are seen"]
    assert [f for f in warnings.filters if f in before] == before
    assert Image.MAX_IMAGE_PIXELS == 89_478_485


def test_warnings_of_other_threads_are_seen_while_an_image_is_open() -> None:
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        with pillow.open_image(pil_encode(photo(8, 8), "PNG")):
            thread = threading.Thread(target=warnings.warn, args=("from another thread",))
            thread.start()
            thread.join()
            warnings.warn("from this one", stacklevel=1)
    assert [str(one.message) for one in noted] == ["from another thread"]


def test_an_image_that_does_not_fit_the_memory_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "memory_share", lambda: 300_000_000)
    samples = [{"image": data} for data in (pil_encode(photo(*SIZE), "PNG"), _png(7000, 2))]
    report = fastdata.pack(samples, tmp_path / "a.lmdb", num_workers=0, progress=False)
    assert report.num_samples == 1
    assert re.search(
        "7000 x 7000 pixels take 343MB of memory to decode, and this process may take 300MB.*"
        "use fewer workers",
        report.rejects[0].reason,
    )


def test_workers_share_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdata.processes import resources

    large = _png(7000, 2)
    monkeypatch.setattr(resources, "available_bytes", lambda: 1_000_000_000)
    for workers, rejected in ((1, 0), (4, 1)):
        report = fastdata.pack(
            [{"image": pil_encode(photo(*SIZE), "PNG")}, {"image": large}],
            tmp_path / f"{workers}.lmdb", num_workers=workers, progress=False, size=32,
        )  # fmt: skip
        assert report.num_rejected == rejected
    assert "may take 250MB" in report.rejects[0].reason


def test_the_reason_of_too_many_pixels_names_the_memory() -> None:
    message = r"5000 x 5000 pixels are more than the limit of 1000 \(max_pixels\).*75.0MB of memory"
    with pytest.raises(FastdataError, match=message):
        decode_image(_png(5000, 2), max_pixels=1000)


def test_comments_of_a_plain_pnm_are_passed_over() -> None:
    """Pillow would copy 1 MB for each: 1 MB of them took 45 s."""
    pixels = photo(8, 8)
    numbers = " ".join(map(str, pixels.reshape(-1).tolist())).encode()
    comments = b"#\n" * 500_000
    data = b"P3\n" + comments + b"8 #size\r8\n255\n" + comments + numbers + b"\n#"
    assert np.array_equal(decode_image(data).pixels, pixels)


# -- TIFF --------------------------------------------------------------------------------

CODES = {1: "B", 3: "H", 4: "I", 5: "Q", 16: "Q"}
Tags = dict[int, tuple[int, list[int]]]


def _directory(tags: Tags, pixels: bytes = b"", order: str = "<", *, big: bool = False) -> bytes:
    """Return a TIFF with these tags: type and numbers.  `pixels` are at byte 8, in BigTIFF 16."""
    number, pointer = ("Q", "Q") if big else ("H", "I")
    start = (16 if big else 8) + len(pixels)
    inline = 8 if big else 4
    place = start + struct.calcsize(f"={number}") + len(tags) * (4 + 2 * inline) + inline
    entries, outside = b"", b""
    for tag, (kind, values) in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(values)}{CODES[kind]}", *values)
        entries += struct.pack(f"{order}HH{pointer}", tag, kind, len(values))
        if len(packed) <= inline:
            entries += packed.ljust(inline, b"\0")
        else:
            entries += struct.pack(order + pointer, place + len(outside))
            outside += packed
    name = b"II" if order == "<" else b"MM"
    magic = struct.pack(f"{order}HHH", 43, 8, 0) if big else struct.pack(f"{order}H", 42)
    head = name + magic + struct.pack(order + pointer, start) + pixels
    return head + struct.pack(order + number, len(tags)) + entries + bytes(inline) + outside


def _layout(side: int, compression: int = 1, **more: list[int]) -> Tags:
    values = {256: [side], 257: [side], 258: [8], 259: [compression], 262: [1], 277: [1]}
    names = {"strips": 273, "rows": 278, "bytes": 279, "tiles": 324, "sizes": 325}
    values |= {names[name]: numbers for name, numbers in more.items()}
    return {tag: (4, numbers) for tag, numbers in values.items()}


MANY = [8] * 400_000
TILED: Tags = {322: (4, [16]), 323: (4, [16])}
LIMIT = "numbers; with it there are more than 300,000, and reading them would take too long"
TIFF: dict[str, tuple[Tags, str]] = {
    "strips": (_layout(64, strips=MANY, rows=[1], bytes=[64] * 64), "tag 273.* 400,000 " + LIMIT),
    "tiles": (_layout(64, tiles=MANY, sizes=[256]) | TILED, "tag 324.* 400,000 " + LIMIT),
    "bytes": (_layout(64, strips=[8], rows=[64]) | {279: (1, MANY)}, "tag 279.* 400,000 " + LIMIT),
    "rational": (_layout(64, strips=[8], bytes=[4096]) | {282: (5, MANY)}, "tag 282.*" + LIMIT),
    "few rows": (
        _layout(64, strips=[8] * 65, rows=[1], bytes=[64] * 65),
        "tag 273 has 65 strips, more than the 64 of an image of 64 x 64 pixels",
    ),
    "whole strips": (
        _layout(64, strips=[8, 8], rows=[65], bytes=[4096] * 2),
        "tag 273 has 2 strips, more than the 1 of",
    ),
    "few tiles": (
        _layout(64, tiles=[8] * 17, sizes=[256] * 17) | TILED,
        "tag 324 has 17 tiles, more than the 16 of an image of 64 x 64 pixels",
    ),
    "many tags": (
        _layout(64, strips=[8], bytes=[4096]) | {40_000 + k: (1, [1]) for k in range(4096)},
        "more than 4,096 tags",
    ),
    "wide tiles": (
        _layout(64, 8, tiles=[8] * 4, sizes=[9] * 4) | {322: (4, [4_000_000]), 323: (4, [16])},
        "4 tiles of 4000000 x 16 pixels, of an image of 64 x 64, are more than the limit",
    ),
}


@pytest.mark.parametrize("name", TIFF)
def test_a_tiff_that_takes_too_long_is_rejected(tmp_path: Path, name: str) -> None:
    tags, reason = TIFF[name]
    kinds = [(order, big) for order in "<>" for big in (False, True) if (order, big) != (">", True)]
    sound = _directory(_layout(64, strips=[8], bytes=[4096]), bytes(4096))
    for codec in ("auto", "keep"):
        files = [_directory(tags, bytes(4096), order, big=big) for order, big in kinds]
        report = fastdata.pack(
            [{"image": data} for data in (sound, *files)], tmp_path / f"{codec}.lmdb",
            num_workers=0, progress=False, codec=codec,
        )  # fmt: skip
        assert report.num_samples == 1
        for reject in report.rejects:
            assert re.search(reason, reject.reason)


def test_other_directories_of_a_tiff_are_counted() -> None:
    """Pillow reads those of Exif and GPS in full."""
    inner = _directory({33434: (5, MANY)})
    tags = _layout(64, strips=[8], bytes=[4096]) | {34665: (4, [0])}
    for _ in range(2):
        outer = _directory(tags, bytes(4096))
        tags[34665] = (4, [len(outer)])
    place = len(outer) - 8  # by which the offsets of `inner` are moved
    count, number, kind, length, at = struct.unpack_from("<HHHII", inner, 8)
    moved = struct.pack("<HHHII", count, number, kind, length, at + place) + inner[8 + 14 :]
    with pytest.raises(ImageError, match="tag 33434.* 400,000 " + LIMIT):
        decode_image(outer + moved)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_many_numbers_of_exif_are_not_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would make an object of each."""
    for exif, size in (({274: (3, [6])}, SIZE[::-1]), ({274: (5, MANY)}, SIZE)):
        file = io.BytesIO()
        Image.fromarray(photo(*SIZE)).save(file, kind, exif=b"Exif\0\0" + _directory(exif))
        with monkeypatch.context() as patched:
            patched.delattr("PIL.Image.Exif.load")
            assert decode_image(file.getvalue()).pixels.shape[:2] == size


@pytest.mark.parametrize("same", [False, True])
def test_too_many_scans_in_a_tiff_are_rejected(same: bool) -> None:
    """Each of 90 scans in each tile; the tiles may be one."""
    for scans in (0, 90):
        jpeg = _progressive(scans)
        pixels = jpeg if same else jpeg * 4
        offsets = [8 + k * len(jpeg) * (not same) for k in range(4)]
        side = 128 if not scans else 13_000
        tags = _layout(128, 7, tiles=offsets, sizes=[len(jpeg)] * 4)
        data = _directory(tags | {322: (4, [64]), 323: (4, [64])}, pixels)
        if not scans:
            assert decode_image(data).pixels.shape == (side, side, 3)
    tags |= {256: (4, [13_000]), 257: (4, [13_000]), 322: (4, [6512]), 323: (4, [6512])}
    reason = r"3\d\d scans of strips or tiles of 42,406,144 pixels .* \(20 times max_pixels\)"
    with pytest.raises(ImageError, match=reason):
        decode_image(_directory(tags, pixels))


@pytest.mark.parametrize("side", [256, 60_000])
def test_tiff_with_a_tile_above_the_limit_is_refused(side: int) -> None:
    values = {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side // 2, 324: 200}
    body = zlib.compress(bytes(256 * 128))
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in values.items()]
    entries.append(struct.pack("<HHII", 325, 4, 1, len(body)))
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)
    if side == 256:  # larger than the image, as any software writes
        decode_image(head.ljust(200, b"\0") + body, claimed_pixels=64 * 64)
        return
    with pytest.raises(ImageError, match="1 tiles of 60000 x 30000 pixels"):
        decode_image(head.ljust(200, b"\0") + body)
