"""``fastdata view``: a dataset as an HTML page."""

from __future__ import annotations

from typing import Any

import click

from fastdata.cli.options import output_options
from fastdata.cli.shell import print_result
from fastdata.printable import printable

__all__ = ["view_command"]

_EPILOG = """\b
Examples:
  fastdata view train.lmdb --html train.html
  fastdata view shards/ --html shards.html --per-class 20 --thumbnail 96

\b
The page holds all that it shows and loads nothing, so it can be sent around.

\b
Exit codes: 0 done; 1 failed, e.g. no dataset; 2 wrong usage; 5 disk full."""


@click.command("view", epilog=_EPILOG, short_help="Show a dataset as an HTML page.")
@click.argument("dataset", type=click.Path())
@click.option("--html", required=True, type=click.Path(), metavar="OUT", help="The page.")
@click.option(
    "--per-class",
    type=int,
    default=8,
    show_default=True,
    help="Samples of each class; ten times as many where there are no classes.",
)
@click.option("--max-samples", type=int, default=240, show_default=True, help="Samples in all.")
@click.option(
    "--thumbnail",
    type=int,
    default=144,
    show_default=True,
    help="Pixels of the longer side of a picture.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draw.")
@output_options
def view_command(dataset: str, quiet: bool, as_json: bool, **options: Any) -> int:
    """Write an HTML page with samples of DATASET, class counts, sizes, rejects and the schema."""
    if options["html"] == "-":
        raise click.UsageError("--html names a file")
    import fastdata

    shown = fastdata.view(dataset, **options)
    text = (
        f"{printable(shown['path'])}: {shown['num_shown']:,} of {shown['num_samples']:,} "
        f"samples, {shown['page_bytes'] / 1e6:.1f} MB"
    )
    return print_result(shown, lambda: text, as_json=as_json, quiet=quiet)
