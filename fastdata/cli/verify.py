"""``fastdata verify``: is every byte still what was packed?"""

from __future__ import annotations

import click

from fastdata.cli.options import output_options
from fastdata.cli.output import megabytes
from fastdata.cli.shell import print_result

__all__ = ["verify_command"]

_EPILOG = """\b
Examples:
  fastdata verify train.lmdb
  fastdata verify shards/ --json

\b
Exit codes: 0 intact; 3 damage found; 1 failed, e.g. nothing there; 2 wrong usage."""


@click.command("verify", epilog=_EPILOG, short_help="Compare every checksum of a dataset.")
@click.argument("dataset", type=click.Path())
@output_options
def verify_command(dataset: str, quiet: bool, as_json: bool) -> int:
    """Read all of DATASET, compare every checksum, and list all damage, a line each.

    Of a folder of shards, the shards are also compared with its manifest.
    """
    from fastdata.verifying import verify

    report = verify(dataset, progress=False if quiet else None)
    damage = [str(damage) for damage in report.damage]

    def text() -> str:
        found = "intact" if report.intact else f"{len(damage):,} damaged"
        summary = (
            f"{dataset}: {found}; {report.num_samples:,} samples in {report.num_shards:,} "
            f"shard{'s' * (report.num_shards != 1)}, {megabytes(report.file_bytes)} read"
        )
        return "\n".join([*damage, *[summary] * (not quiet)])

    return print_result(
        report.to_json(),
        text,
        as_json=as_json,
        quiet=quiet and not damage,  # damage is listed all the same
        found=not report.intact,
    )
