"""``fastdata pack`` makes a dataset of images; ``fastdata formats`` lists the formats it reads."""

from __future__ import annotations

import contextlib
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
    Command,
    json_options,
    output_options,
    parse_size,
    part_options,
    seed_option,
    shard_options,
    source_options,
)
from fastdata.cli.output import log_shown
from fastdata.cli.shell import on_interruption, print_report, print_result

__all__ = ["formats_command", "pack_command"]

_KEPT = "The packed samples are kept: run the same command again to continue."

_PACK_EPILOG = """\b
Examples:
  fastdata pack ./images train.lmdb
  fastdata pack labels.csv train.h5 --size 224 --resize crop --codec raw
  fastdata pack "train-*.tar" shards/ --shard-size 2GB --shuffle

\b
SOURCE is a folder of class folders, as for torchvision's ImageFolder; or a .csv or .tsv
with the columns path,label[,more]; or anything that `fastdata formats` lists.  Quote a
pattern of files: "train-*.tfrecord", "train-{000..146}.tar".  URLs work too: s3://...

\b
If the command is interrupted, run it again: it continues.

\b
Exit codes: 0 all packed; 1 failed; 2 wrong usage; 3 packed, but DESTINATION.rejects.csv
lists rejected samples; 4 DESTINATION exists, is locked, or has another unfinished pack;
5 disk full; 130 Ctrl-C."""

_GROUPS = {
    "Images": "size resize enlarge filter codec quality channels",
    "Which samples": "format option field explain limit shuffle seed max-pixels on-error",
    "Output": "container shards shard-size overwrite",
    "Speed and clusters": "num-workers plan part commit executor",
}


@click.command(
    "pack",
    cls=Command,
    groups=_GROUPS,
    epilog=_PACK_EPILOG,
    short_help="Pack images into a dataset.",
)
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--size",
    type=parse_size,
    default=256,
    show_default=True,
    metavar="N|HxW",
    help="Pixels of the side that --resize names; HxW for exact and crop.",
)
@click.option(
    "--resize",
    type=Choice(RESIZES),
    help="short, long: scale that side to --size. exact: squeeze to --size. crop: scale, then cut "
    "--size out of the centre. none: keep the size.  [default: short; none with --codec keep]",
)
@click.option("--enlarge", is_flag=True, help="Also enlarge images smaller than --size.")
@click.option(
    "--filter",
    type=Choice(FILTERS),
    default="bilinear",
    show_default=True,
    help="Filter for resizing, antialiased.",
)
@click.option(
    "--codec",
    type=Choice(CODECS),
    default="auto",
    show_default=True,
    help="How to store images. auto: raw up to 64x64, else jpeg, but png for masks. keep: copy "
    "the files byte for byte.",
)
@click.option(
    "--quality", type=int, default=90, show_default=True, metavar="1-100", help="JPEG quality."
)
@click.option(
    "--channels", type=int, default=3, show_default=True, metavar="3|1", help="3: RGB. 1: grey."
)
@shard_options
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace DESTINATION once the new dataset is complete; discard another unfinished pack.",
)
@source_options
@click.option("--shuffle", is_flag=True, help="Pack in random order.")
@seed_option("--shuffle")
@part_options
@click.option(
    "--explain",
    is_flag=True,
    help="If no format fits, list the nearest ones and their missing parts.",
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
    explain: bool,
    **options: Any,
) -> int:
    """Pack the images of SOURCE into the dataset DESTINATION (.lmdb, .h5 or a folder)."""
    if more:
        raise click.UsageError(
            f"expected SOURCE and DESTINATION, got {2 + len(more)} arguments. If the shell "
            f"expanded a pattern, quote it: fastdata pack '*{PurePath(source).suffix}' {more[-1]}"
        )
    steps = [*["plan"] * plan, *["commit"] * commit, *([part] if part is not None else [])]
    if len(steps) > 1:
        raise click.UsageError(
            "--plan, --part and --commit are separate steps. Run --plan, then --part K/N for each "
            "K from 0 to N-1, then --commit."
        )
    with on_interruption(_KEPT), log_shown(quiet) as shown, _explained(source, explain):
        import fastdata

        report = fastdata.pack(
            source,
            destination,
            part=steps[0] if steps else None,
            progress=False if quiet else None,
            **options,
        )
    return print_report(report, as_json=as_json, quiet=quiet, shown=shown)


@contextlib.contextmanager
def _explained(source: str, wanted: bool) -> Iterator[None]:
    """Add to the refusal of a source which formats are nearest to it."""
    from fastdata.errors import SourceError

    try:
        yield
    except SourceError as error:
        if wanted:
            from fastdata.converters.finding import nearest_formats

            error.args = (f"{error}{nearest_formats(source)}",)
        raise


_FORMATS_EPILOG = """\b
Examples:
  fastdata formats
  fastdata formats tfrecord
  fastdata pack "train-*.tfrecord" train.lmdb --format tfrecord --option image=image/encoded

\b
`fastdata pack` recognises the format of its source.  --format NAME chooses another one,
--option NAME=VALUE sets an option; a list of values has commas: --option columns=a,b.

\b
Exit codes: 0 done; 2 wrong usage."""

_FORMATS = {
    "Folders and lists of images": "flat folder archive manifest hf_folder dataset imagefolder "
    "iterable",
    "Files of many samples": "arrow beton fastdata hdf5 litdata lmdb mds numpy "
    "parquet recordio tfrecord torch webdataset zarr",
    "Annotations: boxes, masks": "coco masks voc yolo",
    "Published datasets, as downloaded": "cifar idx ilsvrc mvtec",
}


@click.command(
    "formats",
    cls=Command,
    epilog=_FORMATS_EPILOG,
    short_help="List the formats that pack reads.",
)
@click.argument("name", required=False)
@json_options
def formats_command(name: str | None, as_json: bool) -> int:
    """List the formats that `fastdata pack` reads, or the options of the format NAME."""
    from fastdata.converters.finding import format_class, format_names

    described = [_described(format_class(n)) for n in ([name] if name else format_names())]
    lines = _format_lines(described[0]) if name else _list_lines(described)
    return print_result({"formats": described}, lambda: "\n".join(lines), as_json=as_json)


def _list_lines(described: list[dict[str, Any]]) -> Iterator[str]:
    summaries = {entry["name"]: entry["summary"] for entry in described}
    listed = {title: names.split() for title, names in _FORMATS.items()}
    other = summaries.keys() - {name for names in listed.values() for name in names}
    width = max(map(len, summaries))
    for title, names in {**listed, "Formats of other packages": sorted(other)}.items():
        lines = [f"  {name:<{width}}  {summaries[name]}" for name in names if name in summaries]
        yield from [f"{title}:", *lines, ""] if lines else []
    yield "`fastdata formats NAME` explains the options of a format."


def _format_lines(entry: dict[str, Any]) -> Iterator[str]:
    yield f"{entry['name']}: {entry['summary']}"
    for option in entry["options"]:
        value = {"bool": "true|false", "tuple": "A,B,..."}.get(option["kind"], option["kind"])
        yield f"  --option {option['name']}={value}"
        default = _text(option["default"])
        text = option["help"] + (f"  [default: {default}]" if default else "")
        yield from textwrap.wrap(text, 90, initial_indent=" " * 6, subsequent_indent=" " * 6)


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
    """Return a value as `--option` takes it, empty for none."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
