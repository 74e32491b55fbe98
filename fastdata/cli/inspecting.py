"""``fastdata info``, ``verify`` and ``view`` show a dataset and check it."""

from __future__ import annotations

from typing import Any

import click

from fastdata.cli.options import (
    Command,
    json_options,
    output_options,
    seed_option,
    split_option,
    store_options,
)
from fastdata.cli.output import megabytes
from fastdata.cli.shell import print_result
from fastdata.printable import printable

__all__ = ["info_command", "verify_command", "view_command"]

_CLASSES_SHOWN = 20

_INTERNAL_OPTIONS = {"compiled", "dct_margin", "max_pixels"}
"""Options of a pack that only ``--json`` prints."""

_INFO_EPILOG = """\b
Examples:
  fastdata info train.lmdb
  fastdata info train.lmdb --json | jq -r .digest
  fastdata info s3://bucket/train --storage-option region=eu-west-1

\b
Exit codes: 0 done; 1 failed, e.g. no dataset there; 2 wrong usage."""


@click.command(
    "info",
    cls=Command,
    epilog=_INFO_EPILOG,
    short_help="Print fields, classes, sizes and the code that loads a dataset.",
)
@click.argument("dataset", type=click.Path())
@store_options
@json_options
def info_command(dataset: str, as_json: bool) -> int:
    """Print the fields, classes, sizes and digest of DATASET, and the code that loads it.

    This reads no images.  `fastdata verify` checks them.
    """
    from fastdata.summary import summarise

    summary = summarise(dataset)
    return print_result(
        summary, lambda: "\n".join(map(printable, _info_lines(summary))), as_json=as_json
    )


def _info_lines(summary: dict[str, Any]) -> list[str]:
    shards = summary["num_shards"]
    lines = [
        f"{summary['path']}: {summary['num_samples']:,} samples, {shards:,} "
        f"{'/'.join(summary['containers'])} shard{'s' * (shards != 1)}, "
        f"{megabytes(summary['file_bytes'])}"
    ]
    for field in summary["fields"]:
        lines.append(f"  {field['name']}: {_field_line(field)}")
    for field in summary["fields"]:
        lines += _class_lines(field)
    if summary["options"]:
        options = " ".join(
            f"{name}={_size(value) if isinstance(value, list) else value}"
            for name, value in summary["options"].items()
            if value is not None and name not in _INTERNAL_OPTIONS
        )
        lines.append(f"packed with: {options}")
    lines.append(f"digest: {summary['digest']}")
    lines += ["load it:", *(f"  {line}" for line in summary["load_code"].splitlines())]
    return lines


def _size(sides: list[int]) -> str:
    """Return height and width as ``--size`` takes them."""
    return "x".join(map(str, sides if len(set(sides)) > 1 else sides[:1]))


def _field_line(field: dict[str, Any]) -> str:
    if field["kind"] == "image":
        kind = "mask" if field["mask"] else "RGB image" if field["channels"] == 3 else "grey image"
        kind += f", {len(field['classes'])} classes" if field.get("classes") else ""
        codecs = ", ".join(f"{name} {count:,}" for name, count in field["codecs"].items())
        from fastdata.summary import size_text

        size = size_text(field["height"], field["width"])
        return f"{kind}, {size}, {megabytes(field['bytes'])}; {codecs}"
    classes = f", {len(field['classes'])} classes" if field.get("classes") else ""
    if field["kind"] == "scalar":
        return f"{field['dtype']}{classes}"
    if field["kind"] == "array":
        shape = "x".join("?" if length is None else str(length) for length in field["shape"])
        return f"{'boxes' if field.get('boxes') else 'array'}, {field['dtype']}, {shape}{classes}"
    return str(field["kind"])


def _class_lines(field: dict[str, Any]) -> list[str]:
    if "class_counts" not in field:  # no classes, or the classes of an array
        return []
    names = map(printable, field["classes"])
    counts = list(zip(names, field["class_counts"], strict=True))
    width = max(len(name) for name, _ in counts[:_CLASSES_SHOWN])
    lines = [f"classes of {field['name']}, samples each:"]
    lines += [f"  {name:<{width}}  {count:,}" for name, count in counts[:_CLASSES_SHOWN]]
    if len(counts) > _CLASSES_SHOWN:
        lines.append(f"  ... and {len(counts) - _CLASSES_SHOWN:,} more: --json lists all")
    if field["num_without_class"]:
        lines.append(f"  (no class: {field['num_without_class']:,})")
    return lines


_VERIFY_EPILOG = """\b
Examples:
  fastdata verify train.lmdb
  fastdata verify shards/ --json

\b
Exit codes: 0 intact; 1 failed, e.g. no dataset there; 2 wrong usage; 3 damage found."""


@click.command(
    "verify",
    cls=Command,
    epilog=_VERIFY_EPILOG,
    short_help="Check every checksum of a dataset.",
)
@click.argument("dataset", type=click.Path())
@store_options
@output_options
def verify_command(dataset: str, quiet: bool, as_json: bool) -> int:
    """Read all of DATASET, check every checksum, and print a line for each damaged item.

    In a folder of shards, this also compares the shards with the manifest.
    """
    from fastdata.verifying import verify

    report = verify(dataset, progress=False if quiet else None)
    damage = [str(damage) for damage in report.damage]

    def text() -> str:
        found = "intact" if report.intact else f"{len(damage):,} damaged"
        remedy = "Restore the file from a copy, or pack the dataset again."
        summary = (
            f"{dataset}: {found}; {report.num_samples:,} samples in {report.num_shards:,} "
            f"shard{'s' * (report.num_shards != 1)}, {megabytes(report.file_bytes)} read"
            f"{'' if report.intact else f'. {remedy}'}"
        )
        return "\n".join([*damage, *[summary] * (not quiet)])

    return print_result(
        report.to_json(),
        text,
        as_json=as_json,
        quiet=quiet and not damage,  # damage is listed all the same
        found=not report.intact,
    )


_VIEW_EPILOG = """\b
Examples:
  fastdata view train.lmdb
  fastdata view shards/ --html page.html --per-class 20 --thumbnail 96

\b
The page is one file without scripts.  It loads nothing, so you can send it to others.

\b
Exit codes: 0 done; 1 failed, e.g. no dataset there; 2 wrong usage; 4 FILE is not
a page of fastdata; 5 disk full."""


@click.command(
    "view",
    cls=Command,
    epilog=_VIEW_EPILOG,
    short_help="Write an HTML page with pictures of a dataset.",
)
@click.argument("dataset", type=click.Path())
@click.option(
    "--html",
    type=click.Path(),
    metavar="FILE",
    help="The page to write.  [default: train.html for train.lmdb]",
)
@click.option(
    "--per-class",
    type=int,
    default=8,
    show_default=True,
    help="Samples of each class; without classes, 10 N samples.",
)
@click.option("--max-samples", type=int, default=240, show_default=True, help="Most samples.")
@click.option(
    "--thumbnail",
    type=int,
    default=144,
    show_default=True,
    help="Pixels of the longer side of a picture.",
)
@seed_option("the random choice of samples")
@split_option
@store_options
@output_options
def view_command(dataset: str, quiet: bool, as_json: bool, **options: Any) -> int:
    """Write an HTML page with pictures of DATASET, its classes, sizes, fields and rejects."""
    if options["html"] == "-":
        raise click.UsageError("--html needs the name of a file, e.g. --html page.html.")
    import fastdata

    shown = fastdata.view(dataset, **options)
    text = (
        f"{printable(shown['path'])}: a page with {shown['num_shown']:,} of "
        f"{shown['num_samples']:,} samples, {megabytes(shown['page_bytes'])}. Open it in a browser."
    )
    return print_result(shown, lambda: text, as_json=as_json, quiet=quiet)
