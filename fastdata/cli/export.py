"""``fastdata export``: from a dataset back to files."""

from __future__ import annotations

import click

from fastdata.cli.options import (
    EXPORT_FORMATS,
    Choice,
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
  folder      image files, one folder a class, and manifest.csv that lists them
  webdataset  tar files                          (all kinds of fields)
  tfrecord    files of tf.train.Example          (all kinds of fields)
  parquet     tables, as Hugging Face has them   (all kinds of fields)
  dali        an LMDB of Caffe's Datum messages  (one image and a label)

\b
Encoded images are written byte for byte; raw ones as PNG.  What OUT holds beside
(manifest.schema.json, fastdata.json) tells `fastdata pack` what the fields are.

\b
Exit codes: 0 done; 1 failed, e.g. damage; 2 wrong usage; 4 OUT exists; 5 disk full."""


@click.command("export", epilog=_EPILOG, short_help="Write a dataset back to image files.")
@click.argument("dataset", type=click.Path())
@click.argument("out", type=click.Path())
@split_option
@click.option(
    "--select",
    type=parse_slice,
    metavar="START:STOP",
    help="Export only these samples, counted as Python's slices do.",
)
@click.option(
    "--format",
    type=Choice(EXPORT_FORMATS),
    help="What OUT is to hold.  [default: folder]",
)
@click.option(
    "--shard-size",
    metavar="N|SIZE",
    help="Of webdataset, tfrecord and parquet: so many samples a file (5000), or about so many "
    "bytes (2GB).  By default 1GB, of parquet 500MB.",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export at OUT.")
@store_options
@output_options
def export_command(
    dataset: str,
    out: str,
    split: str | None,
    select: slice | None,
    format: str | None,
    shard_size: str | None,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Write the samples of DATASET to the new folder OUT, in a format that others read."""
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
