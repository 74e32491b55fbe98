"""The closed choices of options, and the types of arguments.

The choices repeat ``Literal`` types of modules that are too heavy to import for
``--help``; ``tests/test_cli.py`` holds them against these.
"""

from __future__ import annotations

import re
from typing import Any, Final

import click

from fastdata.errors import did_you_mean

__all__ = [
    "CODECS",
    "CONTAINERS",
    "EXPORT_FORMATS",
    "FIELD_KINDS",
    "FILTERS",
    "MODELS",
    "RESIZES",
    "WORKER_METHODS",
    "Choice",
    "parse_crop",
    "parse_field",
    "parse_option",
    "parse_size",
    "parse_slice",
    "parse_workers",
]

RESIZES: Final = ("short", "long", "exact", "crop", "none")
FILTERS: Final = ("bilinear", "bicubic", "lanczos")
CODECS: Final = ("auto", "jpeg", "png", "raw", "keep")
CONTAINERS: Final = ("lmdb", "hdf5")
EXPORT_FORMATS: Final = ("folder", "webdataset", "tfrecord", "parquet", "dali")
ON_ERROR: Final = ("report", "stop")
FIELD_KINDS: Final = (
    "image",
    "mask",
    "label",
    "int",
    "float",
    "bool",
    "string",
    "bytes",
    "array",
    "boxes",
)
MODELS: Final = ("resnet18", "resnet50", "vit_s")
WORKER_METHODS: Final = ("auto", "thread", "process")
MAX_PIXELS: Final = 178_956_970


class Choice(click.Choice):  # type: ignore[type-arg]
    """A closed choice that suggests what was meant."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            meant = did_you_mean(str(value), map(str, self.choices))
            raise click.BadParameter(error.message + meant, ctx=ctx, param=param) from error


def parse_size(value: object) -> int | tuple[int, int]:
    """Parse ``256``, or height and width as ``224x320``."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", str(value).strip().lower())
    if match is None:
        raise click.BadParameter(f"{value!r} is neither a number nor HEIGHTxWIDTH such as 224x320.")
    height, width = match.groups()
    return int(height) if width is None else (int(height), int(width))


def parse_crop(value: object) -> int | tuple[int, int] | str:
    """Parse ``none``, or a size above 0 as `parse_size` does."""
    if str(value).strip().lower() == "none":
        return "none"
    size = value if isinstance(value, tuple) else parse_size(value)  # click converts twice
    if min(size if isinstance(size, tuple) else (size,)) < 1:
        raise click.BadParameter(f"{value!r} is no size: 1 or more.")
    return size


def parse_workers(value: object) -> int | str:
    """Parse ``auto``, or a number of workers."""
    text = str(value).strip().lower()
    if text == "auto":
        return text
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{value!r} is neither a number of workers, 0 or more, nor auto.")
    return int(text)


def parse_field(value: str | tuple[str, str]) -> tuple[str, str]:
    """Parse ``NAME=KIND``."""
    if isinstance(value, tuple):
        return value  # click converts twice
    name, _, kind = value.partition("=")
    if not name or kind not in FIELD_KINDS:
        raise click.BadParameter(
            f"{value!r} is not NAME=KIND with a kind out of {', '.join(FIELD_KINDS)}."
        )
    return name, kind


def parse_option(value: str | tuple[str, str]) -> tuple[str, str]:
    """Parse ``NAME=VALUE``."""
    if isinstance(value, tuple):
        return value  # click converts twice
    name, equals, rest = value.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{value!r} is not NAME=VALUE.")
    return name, rest


def parse_slice(value: str) -> slice:
    """Parse ``START:STOP[:STEP]``."""
    if not re.fullmatch(r"(-?\d+)?:(-?\d+)?(:[1-9]\d*)?", value):
        raise click.BadParameter(f"{value!r} is not START:STOP or START:STOP:STEP, e.g. 0:100.")
    return slice(*(int(part) if part else None for part in value.split(":")))
