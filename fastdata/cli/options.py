"""Options and arguments of the commands: closed choices, types of values, and shared groups.

The choices repeat ``Literal`` types of modules that are too heavy to import for
``--help``; ``tests/test_cli.py`` compares the two.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

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
    "copy_options",
    "json_options",
    "option_group",
    "output_options",
    "parse_crop",
    "parse_field",
    "parse_option",
    "parse_size",
    "parse_slice",
    "parse_workers",
    "part_options",
    "shard_options",
    "source_options",
    "split_option",
    "storage_options",
    "store_options",
    "work_options",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

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
    """A closed choice; an error suggests the nearest value."""

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


# -- groups of options --------------------------------------------------------------------


def option_group(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds several options, which ``--help`` lists in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _as_dict(context: Any, parameter: Any, pairs: tuple[tuple[str, str], ...]) -> Any:
    """Return pairs as the library takes them: a dict, None where there are none."""
    return dict(pairs) or None


json_options = option_group(
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document, also for an error."
    ),
    click.option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        help="Show where an error came from, as FASTDATA_TRACEBACK=1 does.",
    ),
)
"""What all commands have; `Shell` looks for both itself."""

output_options = option_group(
    click.option("--quiet", "-q", is_flag=True, help="No progress and no summary; errors only."),
    json_options,
)

work_options = option_group(
    click.option(
        "--num-workers",
        "--workers",
        type=int,
        help="Worker processes; 0 for none.  [default: one a core]",
    ),
    click.option(
        "--on-error",
        type=Choice(ON_ERROR),
        default="report",
        show_default=True,
        help="Leave bad images out and list them, or stop at the first.",
    ),
)
"""How many workers there are, and what happens to a bad image."""

source_options = option_group(
    click.option(
        "--format", metavar="NAME", help="Format of SOURCE, e.g. folder.  [default: recognised]"
    ),
    click.option(
        "--field",
        "fields",
        type=parse_field,
        multiple=True,
        callback=_as_dict,
        metavar="NAME=KIND",
        help="Kind of a column, where it is not guessed right; may be repeated.",
    ),
    click.option(
        "--option",
        "source_options",
        type=parse_option,
        multiple=True,
        callback=_as_dict,
        metavar="NAME=VALUE",
        help="An option that only this format has (fastdata formats); may be repeated.",
    ),
    click.option(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        show_default=True,
        help="Reject larger images: decompression bombs.",
    ),
)
"""What is read, for the commands that read other people's formats."""

storage_options = click.option(
    "--storage-option",
    "storage_options",
    type=parse_option,
    multiple=True,
    callback=_as_dict,
    metavar="NAME=VALUE",
    help="Of URLs: endpoint, region, anonymous; may be repeated.",
)


def _as_default(context: Any, parameter: Any, value: Any) -> None:
    """Have URLs opened with this option as long as the command runs, in all its processes."""
    if value:
        name = _STORE_VARIABLES[parameter.name]
        before = os.environ.get(name)
        os.environ[name] = json.dumps(dict(value)) if isinstance(value, tuple) else value

        def restore() -> None:
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before

        context.call_on_close(restore)


_STORE_VARIABLES = {
    "storage_options": "FASTDATA_STORAGE_OPTIONS",
    "cache_dir": "FASTDATA_CACHE",
    "cache_bytes": "FASTDATA_CACHE_BYTES",
}
"""What `fastdata.remote.open_remote` looks at where it is given none."""


store_options = option_group(
    click.option(
        "--storage-option",
        "storage_options",
        type=parse_option,
        multiple=True,
        callback=_as_default,
        expose_value=False,
        metavar="NAME=VALUE",
        help="Of URLs: endpoint, region, anonymous; may be repeated.",
    ),
    click.option(
        "--cache-dir",
        type=click.Path(),
        callback=_as_default,
        expose_value=False,
        help="Of URLs: folder for what has been fetched, on a local disk.  [default: "
        "$FASTDATA_CACHE, or among the user's caches]",
    ),
    click.option(
        "--cache-bytes",
        metavar="SIZE",
        callback=_as_default,
        expose_value=False,
        help="Of URLs: what that folder may take, e.g. 200GB.  [default: half of what is free]",
    ),
)
"""How a packed dataset at a URL is read."""

split_option = click.option(
    "--split", metavar="NAME", help="Use only this split, e.g. train, of a dataset with several."
)

part_options = option_group(
    click.option("--plan", is_flag=True, help="Only cut a pack of several shards into parts."),
    click.option(
        "--part",
        metavar="K/N",
        help="Only pack share K of N, from 0 on, of the parts that are missing; on any machine.",
    ),
    click.option("--commit", is_flag=True, help="Only make a dataset of the parts."),
    click.option(
        "--executor",
        metavar="ENGINE",
        help="Pack shards as tasks of dask:ADDRESS, dask:local, ray:ADDRESS or ray:auto.",
    ),
    click.option(
        "--retries",
        type=int,
        default=2,
        show_default=True,
        help="Retries of a part that failed; then the pack ends with an error.",
    ),
    storage_options,
)
"""How a pack is spread over machines."""

shard_options = option_group(
    click.option(
        "--container",
        type=Choice(CONTAINERS),
        help="Kind of file.  [default: by the destination's suffix, else lmdb]",
    ),
    click.option(
        "--shards",
        type=int,
        default=1,
        show_default=True,
        help="Cut into so many files; more than one make the destination a folder.",
    ),
    click.option(
        "--shard-size",
        metavar="N|SIZE",
        help="Cut into files of so many samples (5000), or of about so many bytes (2GB).",
    ),
)
"""Number, size and kind of the files of a new dataset."""

copy_options = option_group(
    shard_options,
    click.option("--shuffle", is_flag=True, help="In a random order."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of what is random."),
    click.option(
        "--on-error",
        type=Choice(ON_ERROR),
        default="stop",
        show_default=True,
        help="Stop at a damaged sample, or leave such samples out and list them.",
    ),
    click.option(
        "--overwrite", is_flag=True, help="Replace the destination once the new one is complete."
    ),
)
"""What is written, for the commands that copy packed datasets."""
