"""Packed datasets, opened to be copied; and what is said of data at a location that is not packed.

`fastdata.opening` opens image files as they lie as well; copies need shards.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fastdata.dataset import Dataset
from fastdata.errors import DatasetNotFoundError, FormatError, OptionError, SourceError
from fastdata.formats.layout import is_container
from fastdata.formats.manifest import MANIFEST
from fastdata.shards import Location, open_shards
from fastdata.storage import is_url

from .finding import format_of
from .reading.locations import first_bytes

__all__ = ["needs_packing", "open_packed", "pack_command", "unpacked_location"]

_NONE: Mapping[str, Any] = MappingProxyType({})


def open_packed(location: Location | Iterable[Location]) -> Dataset:
    """Return the packed dataset at a location, or at several as one.

    Raises what `fastdata.open` does, and `OptionError` for files that are not packed.
    """
    locations = [location] if isinstance(location, (str, os.PathLike)) else list(location)
    try:
        shards = open_shards(locations, check=True)
    except (DatasetNotFoundError, FormatError) as error:
        place = unpacked_location(locations, _NONE, error)
        raise needs_packing(place, pack_command(place)) from error
    return Dataset(shards, range(len(shards)))


def unpacked_location(
    locations: Sequence[Location], options: Mapping[str, Any], error: Exception
) -> Path:
    """Return the one location that is of another format, whose files can be loaded as they lie.

    Raises `error`, which says why it is no packed dataset, if it is of no other format either.
    `options` are ``format``, ``channels``, ``fields`` and ``source_options``, if they are given.
    """
    if any(map(is_url, locations)):
        raise error
    names = [_format_at(location, options) for location in locations]
    name = next((name for name in names if name not in (None, "fastdata")), None)
    if name is None:
        raise error
    location = Path(locations[names.index(name)])
    if len(locations) > 1:
        raise FormatError(
            f"{location} is not packed, and only packed datasets can be opened as one. Pack it: "
            f"{pack_command(location)}. Or open each by itself, and join them with "
            "torch.utils.data.ConcatDataset"
        ) from error
    return location


def needs_packing(location: Path, command: str) -> OptionError:
    """Return the error that only packed datasets can do what was called."""
    return OptionError(
        f"{location} is not packed, and this needs a packed dataset. Pack it: {command}"
    )


def pack_command(location: Path, options: Mapping[str, Any] = _NONE) -> str:
    """Return the command that packs what is at a location, with the options it was opened by."""
    name = location.absolute().name.split(".")[0] or "images"
    words = ["fastdata", "pack", str(location), f"{name}.lmdb"]
    for option in ("format", "channels"):
        if option in options:
            words += [f"--{option}", str(options[option])]
    for flag, option in (("--field", "fields"), ("--option", "source_options")):
        for key, value in options.get(option, {}).items():
            if isinstance(value, (str, int, float)):  # what a command line can say
                words += [flag, f"{key}={value}"]
    return shlex.join(words)


def _format_at(location: Location, options: Mapping[str, Any]) -> str | None:
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
