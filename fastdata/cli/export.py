"""``fastdata export`` writes a dataset back to files."""

from __future__ import annotations

import click

from fastdata.cli.options import (
    EXPORT_FORMATS,
    Choice,
    Command,
    output_options,
    parse_slice,
    split_option,
    store_options,
)
from fastdata.cli.shell import print_report

__all__ = ["export_command"]

_EPILOG = """\b
Examples:
  fastdata export train.lmdb ./images
  fastdata export all.lmdb ./val --split val
  fastdata export train.lmdb ./sample --select 0:100
  fastdata pack ./images/manifest.csv again.lmdb
  fastdata export train.lmdb ./tars --format webdataset --shard-size 500MB
  fastdata pack ./tars again.lmdb

\b
Formats:
  folder      image files in class folders, and manifest.csv, a list of all samples
  webdataset  tar files
  tfrecord    files of tf.train.Example
  parquet     tables with images, as for Hugging Face's datasets

\b
Encoded images are written byte for byte; raw ones become PNG.

\b
Exit codes: 0 done; 1 failed, e.g. damage; 2 wrong usage; 4 OUT exists or is locked;
5 disk full; 130 Ctrl-C."""


@click.command(
    "export",
    cls=Command,
    epilog=_EPILOG,
    short_help="Write a dataset back to image files, tar, TFRecord or Parquet.",
)
@click.argument("dataset", type=click.Path())
@click.argument("out", type=click.Path())
@split_option
@click.option(
    "--select",
    type=parse_slice,
    metavar="START:STOP",
    help="Export only these samples; a slice as in Python.",
)
@click.option(
    "--format",
    type=Choice(EXPORT_FORMATS),
    default="folder",
    show_default=True,
    help="Format of OUT.",
)
@click.option(
    "--shard-size",
    metavar="N|SIZE",
    help="Samples in each file (5000), or its approximate size (2GB); for webdataset, tfrecord "
    "and parquet.  [default: 1GB; 500MB for parquet]",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export at OUT.")
@store_options
@output_options
def export_command(
    dataset: str,
    out: str,
    split: str | None,
    select: slice | None,
    format: str,
    shard_size: str | None,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Write the samples of DATASET to the new folder OUT, in a format that other tools read."""
    import fastdata

    chosen = fastdata.open(dataset, split=split)
    report = fastdata.export(
        chosen if select is None else chosen[select],
        out,
        format=format,
        shard_size=shard_size,
        overwrite=overwrite,
        progress=False if quiet else None,
    )
    return print_report(report, as_json=as_json, quiet=quiet)
