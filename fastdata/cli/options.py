"""Options of the commands: choices, types of values, shared options, and groups in ``--help``.

The choices repeat ``Literal`` types of modules that are too heavy to import for
``--help``; ``tests/test_cli.py`` compares the two.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from fastdata.bounds import BOUNDS, check_float, check_int
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
    "Command",
    "bounded",
    "copy_options",
    "grouped_options",
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
    "seed_option",
    "shard_options",
    "source_options",
    "split_option",
    "storage_options",
    "store_options",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

RESIZES: Final = ("short", "long", "exact", "crop", "none")
FILTERS: Final = ("bilinear", "bicubic", "lanczos")
CODECS: Final = ("auto", "jpeg", "png", "raw", "keep")
CONTAINERS: Final = ("lmdb", "hdf5")
EXPORT_FORMATS: Final = ("folder", "webdataset", "tfrecord", "parquet")
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
        raise click.BadParameter(f"{value!r} is neither a number nor HEIGHTxWIDTH, e.g. 224x320.")
    height, width = match.groups()
    return int(height) if width is None else (int(height), int(width))


def parse_crop(value: object) -> int | tuple[int, int] | str:
    """Parse ``none``, or a size above 0 as `parse_size` does."""
    if str(value).strip().lower() == "none":
        return "none"
    size = value if isinstance(value, tuple) else parse_size(value)  # click converts twice
    if min(size if isinstance(size, tuple) else (size,)) < 1:
        raise click.BadParameter(f"a size is at least 1, not {value!r}.")
    return size


def parse_workers(value: object) -> int | str:
    """Parse ``auto``, or a number of workers."""
    text = str(value).strip().lower()
    if text == "auto":
        return text
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{value!r} is neither a number of workers nor auto.")
    return int(text)


def parse_field(value: str | tuple[str, str]) -> tuple[str, str]:
    """Parse ``NAME=KIND``."""
    if isinstance(value, tuple):
        return value  # click converts twice
    name, _, kind = value.partition("=")
    if not name or kind not in FIELD_KINDS:
        raise click.BadParameter(
            f"{value!r} is not NAME=KIND; a kind is one of {', '.join(FIELD_KINDS)}."
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


# -- groups in --help ---------------------------------------------------------------------

SHARED: Final = {
    "Object stores": "storage-option cache-dir cache-bytes",
    "General options": "quiet json traceback help",
}
"""Options that have the same group in every command."""


class Command(click.Command):
    """A command whose ``--help`` has groups: their titles, and the names of their options."""

    def __init__(self, *args: Any, groups: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.groups = dict(groups or {})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group."""
        for title, rows in grouped_options(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)


def grouped_options(
    command: click.Command, context: click.Context
) -> dict[str, list[tuple[str, str]]]:
    """Return the options of a command and their explanations, by titles of groups."""
    rows: dict[str, tuple[str, str]] = {}
    for parameter in command.get_params(context):
        row = parameter.get_help_record(context)
        if row is not None and isinstance(parameter, click.Option):
            name = max(parameter.opts, key=len).removeprefix("--")
            rows[name] = row[0].replace("INTEGER", "N"), row[1]
    own, shared = (
        {title: [rows.pop(n) for n in names.split() if n in rows] for title, names in part.items()}
        for part in (getattr(command, "groups", {}), SHARED)
    )
    groups = {**own, "Options": [*rows.values()], **shared}
    return {title: rows for title, rows in groups.items() if rows}


# -- shared options -----------------------------------------------------------------------


def option_group(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds several options, which ``--help`` lists in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def bounded(name: str) -> Callable[[Any, Any, Any], Any]:
    """Return the callback of an option that has the bounds of this name."""

    def check(context: Any, parameter: Any, value: Any) -> Any:
        whole = isinstance(BOUNDS[name][0], int)
        return value if value is None else (check_int if whole else check_float)(name, value)

    return check


def _as_dict(context: Any, parameter: Any, pairs: tuple[tuple[str, str], ...]) -> Any:
    """Return pairs as the library takes them: a dict, or None."""
    return dict(pairs) or None


json_options = option_group(
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document, also for an error."
    ),
    click.option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        help="Print the traceback of an error.",
    ),
)
"""Options of all commands; `Shell` looks for both itself."""

output_options = option_group(
    click.option("--quiet", "-q", is_flag=True, help="Print only errors."),
    json_options,
)

source_options = option_group(
    click.option(
        "--format",
        metavar="NAME",
        help="Format of SOURCE; `fastdata formats` lists all.  [default: recognised]",
    ),
    click.option(
        "--field",
        "fields",
        type=parse_field,
        multiple=True,
        callback=_as_dict,
        metavar="NAME=KIND",
        help=f"Kind of a column, if the guess is wrong: {', '.join(FIELD_KINDS)}. Repeatable.",
    ),
    click.option(
        "--option",
        "source_options",
        type=parse_option,
        multiple=True,
        callback=_as_dict,
        metavar="NAME=VALUE",
        help="Option of the format; `fastdata formats NAME` lists them. Repeatable.",
    ),
    click.option(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        show_default=True,
        help="Reject images with more pixels: they may be decompression bombs.",
    ),
    click.option("--limit", type=int, help="Take only the first N samples."),
    click.option(
        "--num-workers",
        "--workers",
        type=int,
        help="Worker processes; 0 works without them.  [default: one per core]",
    ),
    click.option(
        "--on-error",
        type=Choice(ON_ERROR),
        default="report",
        show_default=True,
        help="report: leave bad images out and list them. stop: stop at the first.",
    ),
)
"""Options of the commands that read files of other formats."""

_STORAGE_HELP = "Option of the object store: endpoint, region, anonymous. Repeatable."

storage_options = click.option(
    "--storage-option",
    "storage_options",
    type=parse_option,
    multiple=True,
    callback=_as_dict,
    metavar="NAME=VALUE",
    help=_STORAGE_HELP,
)


def _as_default(context: Any, parameter: Any, value: Any) -> None:
    """Set the option's environment variable while the command runs, for all its processes."""
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
"""Environment variables that `fastdata.remote.open_remote` reads for its defaults."""


store_options = option_group(
    click.option(
        "--storage-option",
        "storage_options",
        type=parse_option,
        multiple=True,
        callback=_as_default,
        expose_value=False,
        metavar="NAME=VALUE",
        help=_STORAGE_HELP,
    ),
    click.option(
        "--cache-dir",
        type=click.Path(),
        callback=_as_default,
        expose_value=False,
        help="Folder on a local disk for downloaded samples.  [default: $FASTDATA_CACHE, or "
        "the user's cache folder]",
    ),
    click.option(
        "--cache-bytes",
        metavar="SIZE",
        callback=_as_default,
        expose_value=False,
        help="Largest size of this folder, e.g. 200GB.  [default: half of the free space]",
    ),
)
"""Options for packed datasets at URLs."""

split_option = click.option(
    "--split", metavar="NAME", help="Use only this split, e.g. train, of a dataset with several."
)

part_options = option_group(
    click.option("--plan", is_flag=True, help="Step 1 on a cluster: divide the pack into parts."),
    click.option(
        "--part",
        metavar="K/N",
        help="Step 2, on N machines: pack share K (from 0) of the missing parts.",
    ),
    click.option("--commit", is_flag=True, help="Step 3: join the parts into the dataset."),
    click.option(
        "--executor",
        metavar="ENGINE",
        help="Run all steps as tasks of dask:ADDRESS, dask:local, ray:ADDRESS or ray:auto.",
    ),
    storage_options,
)
"""Options that distribute a pack over machines."""

shard_options = option_group(
    click.option(
        "--container",
        type=Choice(CONTAINERS),
        help="Kind of file.  [default: from the suffix of DESTINATION, else lmdb]",
    ),
    click.option(
        "--shards",
        type=int,
        default=1,
        show_default=True,
        help="Number of files; for more than one, DESTINATION is a folder.",
    ),
    click.option(
        "--shard-size",
        metavar="N|SIZE",
        help="Samples in each file (5000), or its approximate size (2GB).",
    ),
)
"""Number, size and kind of the files of a new dataset."""

copy_options = option_group(
    shard_options,
    click.option("--shuffle", is_flag=True, help="Copy in random order."),
    click.option(
        "--on-error",
        type=Choice(ON_ERROR),
        default="stop",
        show_default=True,
        help="stop: stop at a damaged sample. report: leave such samples out and list them.",
    ),
    click.option(
        "--overwrite", is_flag=True, help="Replace DESTINATION once the new dataset is complete."
    ),
)
"""Options of the commands that copy packed datasets."""


def seed_option(use: str) -> Callable[[_Command], _Command]:
    """Return the option ``--seed``, whose help names its use."""
    return click.option("--seed", type=int, default=0, show_default=True, help=f"Seed for {use}.")
