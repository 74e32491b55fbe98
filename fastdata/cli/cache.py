"""``fastdata cache`` looks after the samples downloaded to this machine."""

from __future__ import annotations

from typing import Any

import click

from fastdata.cli.options import Command, json_options
from fastdata.cli.output import megabytes
from fastdata.cli.shell import print_result
from fastdata.errors import OptionError
from fastdata.printable import printable

__all__ = ["cache_command"]

_EPILOG = """\b
Examples:
  fastdata cache list
  fastdata cache verify --cache-dir /local/nvme
  fastdata cache clear s3://bucket/train
  fastdata cache clear --all

\b
Exit codes: 0 done; 1 failed; 2 wrong usage; 3 damage found."""

_folder = click.option(
    "--cache-dir",
    type=click.Path(),
    help="Folder of the cache.  [default: $FASTDATA_CACHE, or the user's cache folder]",
)


@click.group(
    "cache",
    epilog=_EPILOG,
    short_help="List, verify or clear the samples downloaded to this machine.",
    invoke_without_command=True,
)
@click.pass_context
def cache_command(context: click.Context) -> None:
    """List, verify or clear the cache: samples downloaded from object stores to this machine."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cache_command.command("list", cls=Command, short_help="List the datasets in the cache.")
@_folder
@json_options
def list_command(cache_dir: str | None, as_json: bool) -> int:
    """List the datasets in the cache; the last one was opened last."""
    found = [
        {
            "url": one.url,
            "folder": str(one.folder),
            "num_samples": one.num_samples,
            "num_present": one.num_present,
            "disk_bytes": one.disk_bytes,
        }
        for one in _open(cache_dir).datasets()
    ]

    def text() -> str:
        lines = [
            f"{printable(one['url'])}: {one['num_present']:,} of {one['num_samples']:,} samples, "
            f"{megabytes(one['disk_bytes'])}"
            for one in found
        ]
        return "\n".join(lines) if lines else "the cache is empty"

    return print_result({"datasets": found}, text, as_json=as_json)


@cache_command.command("clear", cls=Command, short_help="Remove datasets from the cache.")
@click.argument("urls", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Remove all datasets.")
@_folder
@json_options
def clear_command(urls: tuple[str, ...], every: bool, cache_dir: str | None, as_json: bool) -> int:
    """Remove the datasets at URLS from the cache.

    Running readers keep their open files.  The object store keeps its data.
    """
    if bool(urls) == every:
        raise click.UsageError("expected either URLs of datasets or --all.")
    from fastdata.storage.opening import check_secrets

    for url in urls:
        check_secrets(url, {})
    folder = _open(cache_dir)
    wanted = {url.rstrip("/") for url in urls}
    found = [one for one in folder.datasets() if every or one.url in wanted]
    missing = wanted - {one.url for one in found}
    if missing:
        raise OptionError(
            f"the cache {folder.path} has no {', '.join(sorted(missing))}. `fastdata cache list` "
            "lists its datasets."
        )
    freed = sum(one.disk_bytes for one in found)
    for one in found:
        folder.remove(one)
    document: dict[str, Any] = {"removed": [one.url for one in found], "freed_bytes": freed}
    return print_result(
        document,
        lambda: f"{len(found):,} removed, {megabytes(freed)}",
        as_json=as_json,
    )


@cache_command.command("verify", cls=Command, short_help="Check the checksums of cached data.")
@click.argument("urls", nargs=-1)
@_folder
@json_options
def verify_command(urls: tuple[str, ...], cache_dir: str | None, as_json: bool) -> int:
    """Check the checksums of the cached data of URLS, or of all datasets.

    This downloads nothing.  A reader downloads a damaged sample again when it needs it, and damaged
    columns when it opens the dataset.
    """
    from fastdata.remote.verifying import damaged_columns, damaged_samples

    folder = _open(cache_dir)
    wanted = {url.rstrip("/") for url in urls}
    found: list[dict[str, Any]] = []
    for one in folder.datasets():
        if not wanted or one.url in wanted:
            columns = damaged_columns(one)
            samples = [] if columns else damaged_samples(one)
            entry = {"url": one.url, "num_present": one.num_present}
            found.append({**entry, "damaged": samples, "damaged_columns": columns})

    def text() -> str:
        lines = []
        for one in found:
            state = "intact"
            if one["damaged_columns"]:
                state = f"damaged columns ({_some(one['damaged_columns'])})"
            elif one["damaged"]:
                state = f"{len(one['damaged']):,} damaged ({_some(one['damaged'])})"
            lines.append(f"{printable(one['url'])}: {state}; {one['num_present']:,} samples")
        return "\n".join(lines) if lines else "the cache is empty"

    damage = any(one["damaged"] or one["damaged_columns"] for one in found)
    return print_result({"datasets": found}, text, as_json=as_json, found=damage)


def _some(found: list[Any]) -> str:
    """Return the first ten as text."""
    return printable(", ".join(map(str, found[:10]))) + (" ..." if len(found) > 10 else "")


def _open(cache_dir: str | None) -> Any:
    from fastdata.remote import CacheFolder, default_cache_folder

    return CacheFolder.open(cache_dir or default_cache_folder())
