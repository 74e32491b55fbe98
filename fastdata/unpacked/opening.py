"""From a location that is no packed dataset to its files, or to the command that packs it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fastdata.converters.base import IndexedSource
from fastdata.converters.finding import find_source, format_class, format_of
from fastdata.converters.reading.locations import first_bytes
from fastdata.distributed import rank_and_world_size
from fastdata.errors import FormatError, SourceError
from fastdata.formats.layout import is_container
from fastdata.formats.manifest import MANIFEST
from fastdata.unpacked.listing import Listing, pack_command

__all__ = ["list_files", "suggest_packing"]

log = logging.getLogger("fastdata")

PACKED_IS_FASTER = 5
"""Packed at 256 pixels over as they lie, of photographs of 500 x 375 and 110 kB: by
scripts/bench/load.py 5.5 and 6.9 times, in processor time 5.0 times."""


def list_files(
    locations: Sequence[str | os.PathLike[str]], options: Mapping[str, Any], error: Exception
) -> Listing:
    """Return the samples at a location that is no packed dataset.

    Parameters
    ----------
    locations : sequence of path-like
        One, or what is refused.
    options : mapping
        ``format``, ``channels``, ``fields`` and ``source_options``, as of `fastdata.pack`, where
        they are given.
    error : Exception
        Why it is no packed dataset; raised where it is no data of another format either.

    Raises
    ------
    FormatError
        If it is data that is loaded only packed; says how that is done.
    SourceError, OptionError
        If it is no such data, on a closer look, or the options are not for it.
    """
    found = [format_at(location, options) for location in locations]
    name = next((name for name in found if name not in (None, "fastdata")), None)
    if name is None:
        raise error
    location = Path(locations[found.index(name)])
    if len(locations) > 1:
        raise FormatError(
            f"{location} is not packed, and several locations at once are opened of packed "
            "datasets: open each by itself and add them with torch.utils.data.ConcatDataset, or "
            f"pack it: {pack_command(location)}"
        ) from error
    if not issubclass(format_class(name), IndexedSource):
        raise FormatError(
            f"{location}: data of the format {name!r} is not loaded as it lies. Pack it: "
            f"{pack_command(location, options)}"
        ) from error
    # Files are read later, wherever we are then.
    source = find_source(
        os.path.abspath(location),
        format=options.get("format"),
        channels=options.get("channels", 3),
        fields=options.get("fields"),
        options=options.get("source_options"),
    )
    assert isinstance(source, IndexedSource), "its class is one"
    listing = Listing([source], location, options)
    listing.check()
    log.info("%s: %s", location, source.read_as)
    for note in source.notes:
        log.info("%s: %s", location, note)
    return listing


def format_at(location: str | os.PathLike[str], options: Mapping[str, Any]) -> str | None:
    """Return the name of the format at a location, which is given or recognised, or None."""
    given: str | None = options.get("format")
    if given is not None:
        return given
    if os.path.exists(os.path.join(location, MANIFEST)):  # shards, whatever is wrong with them
        return None
    file = os.path.join(location, "data.mdb") if os.path.isdir(location) else location
    if is_container(first_bytes(Path(file), 20)):  # a shard that is damaged, more likely than not
        return None
    try:
        return format_of(location).name
    except SourceError:
        return None


@cache
def suggest_packing(location: Path, command: str) -> None:
    """Say, once a process, what a pack would bring; on the first rank only."""
    if rank_and_world_size(None, None)[0] == 0:
        log.warning(
            "%s is loaded as it lies: every epoch decodes the files in their own size. Packed at "
            "256 pixels, photographs of 500 x 375 were loaded %d times as fast; with smaller files "
            "it is less, with larger ones more (docs/unpacked.md). Pack it once: %s",
            location,
            PACKED_IS_FASTER,
            command,
        )
