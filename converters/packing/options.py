"""The options of a pack, checked before anything is read or written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from fastdata.bounds import check_int
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.resize import Filter, Resize
from fastdata.errors import OptionError, did_you_mean
from fastdata.native.library import loaded_library
from fastdata.processes.resources import parse_bytes
from fastdata.schema import Codec

__all__ = ["Container", "EncodeOptions", "PackOptions", "parse_shard_size"]

Container = Literal["lmdb", "hdf5"]


def _check_choice(name: str, value: object, kind: Any) -> None:
    choices = get_args(kind)
    if value not in choices:
        raise OptionError(
            f"{name}={value!r} is not one of {', '.join(map(repr, choices))}."
            f"{did_you_mean(str(value), map(str, choices))}"
        )


def _check_numbers(options: object, *names: str) -> None:
    """Make numbers ints; raise `OptionError` for one out of its bounds."""
    for name in names:
        object.__setattr__(options, name, check_int(name, getattr(options, name)))


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How one image is resized and encoded; sent to workers with every chunk.

    `pack` explains the options.
    """

    size: tuple[int, int] = (256, 256)
    """Height and width; ``short`` and ``long`` take the first for the side they name."""
    resize: Resize = "short"
    enlarge: bool = False
    filter: Filter = "bilinear"
    codec: Codec = "auto"
    quality: int = 90
    channels: int = 3
    max_pixels: int = MAX_PIXELS
    """For JPEGs alone it may be above PIL's limit, which is the default."""
    dct_margin: float = 3.0
    """A JPEG is decoded at 1/2, 1/4 or 1/8 if at least this many times the target size remains: at
    3, photographs stay within 47 dB of decoding them whole (``docs/design/packing.md``)."""

    compiled: bool = field(default_factory=lambda: loaded_library() is not None)
    """Whether the compiled library encodes JPEGs: the same pixels, in other bytes.  It belongs to
    the identity of a pack; False for codecs without JPEGs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", self.compiled and self.codec in ("auto", "jpeg"))
        given: Any = self.size
        size = tuple(given) if isinstance(given, (tuple, list)) else ()
        if len(size) != 2:
            raise OptionError(f"size={self.size!r} is neither an int nor (height, width)")
        size = tuple(check_int("size", side) for side in size)
        object.__setattr__(self, "size", size)
        _check_choice("resize", self.resize, Resize)
        _check_choice("filter", self.filter, Filter)
        _check_choice("codec", self.codec, Codec)
        _check_numbers(self, "quality", "max_pixels")
        if self.channels not in (1, 3):
            raise OptionError(f"channels={self.channels!r} is neither 3 nor 1")
        if self.resize in ("short", "long") and size[0] != size[1]:
            raise OptionError(
                f"resize={self.resize!r} takes one size, not {size}: use 'exact' or 'crop' for both"
            )
        if self.codec == "keep" and self.resize != "none":
            raise OptionError(
                "codec='keep' copies files byte for byte: use it with resize='none' (--resize none)"
            )


@dataclass(frozen=True, slots=True)
class PackOptions:
    """All options that, with the source, determine the content of a packed dataset.

    A shard has `shard_size` samples, or is closed after `shard_bytes` bytes of images.
    """

    encode: EncodeOptions
    container: Container = "lmdb"
    shards: int = 1
    shard_size: int | None = None
    shard_bytes: int | None = None
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _check_choice("container", self.container, Container)
        optional = ("shard_size", "shard_bytes", "limit")
        _check_numbers(self, "shards", *(n for n in optional if getattr(self, n) is not None))
        if self.shards > 1 and (self.shard_size or self.shard_bytes):
            raise OptionError("shards= and shard_size= exclude each other: give one")
        object.__setattr__(self, "seed", check_int("pack.seed", self.seed))

    @property
    def many(self) -> bool:
        """Whether the destination is a directory of shards."""
        return self.shards > 1 or self.shard_size is not None or self.shard_bytes is not None

    def to_json(self) -> dict[str, Any]:
        """Return the options as a flat JSON object."""
        flat = asdict(self)
        flat.update(flat.pop("encode"))
        flat["size"] = list(flat["size"])
        return flat


def parse_shard_size(value: int | str | None) -> dict[str, int]:
    """Return the option that a shard size stands for: samples, or bytes as ``"2GB"``."""
    if value is None:
        return {}
    if isinstance(value, int):
        return {"shard_size": check_int("shard_size", value)}
    text = str(value).strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        return {"shard_size": check_int("shard_size", int(text))}
    nbytes = parse_bytes(text)
    if nbytes is None:
        raise OptionError(
            f"shard_size={value!r:.100} is neither a number of samples nor bytes such as '2GB'"
        )
    return {"shard_bytes": check_int("shard_bytes", nbytes)}
