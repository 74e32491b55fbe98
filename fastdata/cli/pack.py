"""``fastdata pack``: from images to a dataset; and ``fastdata formats``: what it can read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import click

from fastdata.cli.options import (
    CODECS,
    FILTERS,
    RESIZES,
    Choice,
    json_options,
    output_options,
    parse_size,
    part_options,
    shard_options,
    source_options,
    work_options,
)
from fastdata.cli.output import log_shown
from fastdata.cli.shell import on_interruption, print_report, print_result

__all__ = ["formats_command", "pack_command"]

_KEPT = "What was packed so far is kept: running the same command again continues."

_PACK_EPILOG = """\b
Examples:
  fastdata pack ./images train.lmdb
  fastdata pack labels.csv train.h5 --size 224 --resize crop --codec raw
  fastdata pack ./images shards/ --shard-size 2GB --shuffle
  fastdata pack s3://bucket/images s3://bucket/train --executor dask:tcp://host:8786

\b
SOURCE is a folder of class folders, as torchvision's ImageFolder takes it, a .csv or
.tsv with the columns path,label[,more], or of another format that `fastdata formats`
lists.  Several files: a pattern in quotes, "train-*.tfrecord" or "train-{000..146}.tar".

\b
Interrupted in any way, the same command goes on where it stopped.

\b
Exit codes: 0 all packed; 3 packed, but samples were rejected (listed in
DESTINATION.rejects.csv); 1 failed; 2 wrong usage; 4 DESTINATION exists, is being
packed to, or has an unfinished pack of something else; 5 disk full."""


@click.command("pack", epilog=_PACK_EPILOG, short_help="Pack images into a dataset.")
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--size",
    type=parse_size,
    default=256,
    show_default=True,
    metavar="N|HxW",
    help="Pixels of the side that --resize names, or height and width.",
)
@click.option(
    "--resize",
    type=Choice(RESIZES),
    help="What --size is: the short or long side; the exact shape; the shape to crop to from the "
    "centre.  [default: short; none with --codec keep]",
)
@click.option("--enlarge", is_flag=True, help="Also enlarge images that are smaller.")
@click.option(
    "--filter",
    type=Choice(FILTERS),
    default="bilinear",
    show_default=True,
    help="Resizing filter, antialiased.",
)
@click.option(
    "--codec",
    type=Choice(CODECS),
    default="auto",
    show_default=True,
    help="How images are stored. auto: raw up to 64x64, else jpeg, png for masks. JPEGs that "
    "have the size already keep their pixels. keep: the files byte for byte.",
)
@click.option(
    "--quality", type=int, default=90, show_default=True, help="Of JPEGs that are encoded, 1-100."
)
@click.option("--channels", type=int, default=3, show_default=True, help="3 (RGB) or 1 (grey).")
@shard_options
@work_options
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace DESTINATION once the new dataset is complete; drop another unfinished pack.",
)
@click.option("--limit", type=int, metavar="N", help="Take only the first N samples.")
@click.option("--shuffle", is_flag=True, help="Pack in a random order.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of that order.")
@source_options
@part_options
@click.option(
    "--dct-margin",
    type=float,
    default=3.0,
    show_default=True,
    help="Decode JPEGs at 1/2, 1/4 or 1/8 where so many times the target remains.",
)
@output_options
def pack_command(
    source: str,
    destination: str,
    more: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    plan: bool,
    part: str | None,
    commit: bool,
    **options: Any,
) -> int:
    """Pack the images of SOURCE into the dataset DESTINATION (.lmdb, .h5 or a folder)."""
    if more:
        raise click.UsageError(
            f"one SOURCE and one DESTINATION are asked for, and these are {2 + len(more)} names. "
            "Quote a pattern, so that the shell leaves it as it is: "
            f"fastdata pack '*{PurePath(source).suffix}' {more[-1]}"
        )
    steps = [*["plan"] * plan, *["commit"] * commit, *([part] if part is not None else [])]
    if len(steps) > 1:
        raise click.UsageError("--plan, --part and --commit are three commands")
    with on_interruption(_KEPT), log_shown(quiet) as shown:
        import fastdata

        report = fastdata.pack(
            source,
            destination,
            part=steps[0] if steps else None,
            progress=False if quiet else None,
            **options,
        )
    return print_report(report, as_json=as_json, quiet=quiet, shown=shown)


_FORMATS_EPILOG = """\b
Examples:
  fastdata formats
  fastdata formats tfrecord
  fastdata pack "train-*.tfrecord" train.lmdb --format tfrecord --option image=image/encoded

\b
Options of a format are given to `fastdata pack` as --option NAME=VALUE; several
values of one option are separated by commas.

\b
Exit codes: 0 done; 2 wrong usage."""


@click.command("formats", epilog=_FORMATS_EPILOG, short_help="List the formats that can be packed.")
@click.argument("name", required=False)
@json_options
def formats_command(name: str | None, as_json: bool) -> int:
    """List the formats that `fastdata pack` reads, or one of them with its options."""
    from fastdata.converters.finding import format_class, format_names

    described = [_described(format_class(n)) for n in ([name] if name else format_names())]
    return print_result(
        {"formats": described},
        lambda: "\n".join(_format_lines(described, with_help=name is not None)),
        as_json=as_json,
    )


def _format_lines(described: list[dict[str, Any]], *, with_help: bool) -> Iterator[str]:
    width = max(len(entry["name"]) for entry in described)
    for entry in described:
        yield f"{entry['name']:<{width}}  {entry['summary']}"
        for option in entry["options"]:
            default = (
                "" if option["default"] is None else f"  [default: {_text(option['default'])}]"
            )
            yield f"{'':<{width}}    --option {option['name']}={option['kind'].upper()}{default}"
            if with_help:
                for line in textwrap.wrap(option["help"], 88 - width):
                    yield f"{'':<{width}}        {line}"


def _described(kind: Any) -> dict[str, Any]:
    from fastdata.converters.finding import options_of

    return {
        "name": kind.name,
        "summary": kind.summary,
        "options": [
            {
                "name": option.name,
                "kind": option.kind.__name__,
                "default": option.default,
                "help": option.help + (f" ({', '.join(option.choices)})" if option.choices else ""),
            }
            for option in options_of(kind)
        ],
    }


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
