"""Names of picture formats that are not opened, and how to convert them.

`fastdata.codecs.pillow` opens a few formats.  This module names the others, by the first bytes or
the suffix of a file, with a command that makes a PNG.
"""

from __future__ import annotations

from typing import NamedTuple

from fastdata.codecs.jpeg import is_jpeg, read_jpeg_header
from fastdata.codecs.tiff import check_tags, is_tiff
from fastdata.errors import ImageError

__all__ = ["START_BYTES", "UNOPENED", "odd_kind"]

START_BYTES = 132
"""The first bytes that tell a format: DICOM's sign is the last."""


class _Kind(NamedTuple):
    name: str
    suffixes: tuple[str, ...]
    signs: tuple[tuple[int, bytes], ...]  # where in the file they are
    command: str = "magick IN{0} OUT.png"


_BRANDS = ("heic", "heix", "hevc", "hevx", "heim", "heis", "mif1", "msf1")
_RAW = (".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf", ".pef")

_KINDS = (
    _Kind("HEIC", (".heic", ".heif"), tuple((4, b"ftyp" + brand.encode()) for brand in _BRANDS)),
    _Kind(
        "JPEG XL",
        (".jxl",),
        ((0, b"\xff\x0a"), (0, b"\0\0\0\x0cJXL ")),
        "djxl IN.jxl OUT.png",
    ),
    _Kind("JPEG-LS", (".jls",), (), "ffmpeg -i IN.jls OUT.png"),
    _Kind("JPEG XR", (".jxr", ".wdp", ".hdp"), ((0, b"II\xbc"),), "JxrDecApp -i IN.jxr -o OUT.tif"),
    _Kind("DICOM", (".dcm", ".dicom"), ((128, b"DICM"),), "dcmj2pnm --write-png IN.dcm OUT.png"),
    _Kind("Photoshop", (".psd", ".psb"), ((0, b"8BPS"),), "magick IN.psd[0] OUT.png"),
    _Kind("OpenEXR", (".exr",), ((0, b"v/1\x01"),)),
    _Kind("Radiance HDR", (".hdr",), ((0, b"#?RADIANCE"), (0, b"#?RGBE"))),
    _Kind("FITS", (".fits", ".fit"), ((0, b"SIMPLE  ="),)),
    _Kind("SVG", (".svg",), ((0, b"<svg"),)),
    _Kind("EPS", (".eps", ".ps"), ((0, b"%!PS"), (0, b"\xc5\xd0\xd3\xc6"))),
    _Kind("PDF", (), ((0, b"%PDF"),)),
    _Kind("WMF", (".wmf",), ((0, b"\xd7\xcd\xc6\x9a"),)),
    _Kind("ICO", (".ico",), ((0, b"\0\0\1\0"),)),
    _Kind("PCX", (".pcx",), ()),
    _Kind("GIMP", (".xcf",), ((0, b"gimp xcf"),)),
    _Kind("DDS", (".dds",), ((0, b"DDS "),)),
    _Kind("QOI", (".qoi",), ((0, b"qoif"),)),
    _Kind("camera raw", _RAW, ((0, b"FUJIFILMCCD-RAW"), (4, b"ftypcrx "), (8, b"CR\2\0"))),
)

UNOPENED: dict[str, tuple[str, str]] = {
    suffix: (kind.name, kind.command.format(suffix)) for kind in _KINDS for suffix in kind.suffixes
}
"""Suffixes of pictures that are not opened: the format, and the command that converts a file."""

_FRAMES = {0xC3: "lossless", 0xCB: "lossless arithmetic-coded"}
_FRAMES |= dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "hierarchical")
"""Of T.81, table B.1, those that libjpeg may lack.  It has arithmetic coding."""


def odd_kind(data: bytes | memoryview) -> str:
    """Return the name of a format that was not opened, with advice; "" if it is unknown."""
    if is_jpeg(data):
        return _odd_jpeg(data)
    start = bytes(data[:START_BYTES])
    for name, suffixes, signs, command in _KINDS:
        if any(start.startswith(sign, at) for at, sign in signs):
            shown = command.format((*suffixes, "")[0])
            return f"{name}; convert it to PNG or JPEG, e.g. `{shown}`"
    return _odd_tiff(data) if is_tiff(data) else ""


def _odd_jpeg(data: bytes | memoryview) -> str:
    try:
        header = read_jpeg_header(data)
    except ImageError:
        return ""
    kind = _FRAMES.get(header.frame, "")
    if header.precision != 8:
        kind = f"{header.precision}-bit {kind}".strip()
    return kind and f"a {kind} JPEG; convert it to PNG, e.g. `ffmpeg -i IN.jpg OUT.png`"


def _odd_tiff(data: bytes | memoryview) -> str:
    try:
        tags = check_tags(data)
    except ImageError:
        return ""
    bits, samples = (tags[n].value if n in tags else 1 for n in (258, 277))
    bands = "-b 1 -b 2 -b 3" if samples > 2 else "-b 1"
    return (
        f"a TIFF of {samples} channel{'s' * (samples != 1)} of {bits} bits, which Pillow does not "
        f"read; write the channels that are colours as a PNG, e.g. `gdal_translate {bands} IN.tif "
        "OUT.png`"
    )
