"""Errors of situations that many formats meet, so that each says the same words."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from typing import Any

from fastdata.errors import MissingExtraError, OptionError, SourceError
from fastdata.installing import install_line

__all__ = ["already_packed", "check_choice", "no_files", "not_seekable", "refuse_fields", "require"]


def no_files(location: Any, what: str) -> SourceError:
    """Return the error for a location with none of a format's files; ``what``: "tar files"."""
    return SourceError(f"{location}: no {what} there")


def already_packed(place: Any) -> SourceError:
    """Return the error for a dataset of fastdata's that is given as one in another format."""
    return SourceError(
        f"{place}: this is a dataset of fastdata's already; fastdata.open reads it, and "
        "--format fastdata packs it again."
    )


def not_seekable(path: Any) -> OptionError:
    """Return the error for a compressed file where any sample must be reached."""
    return OptionError(
        f"{path}: shuffle needs to reach any sample, and a compressed file can only be read from "
        "its front. Decompress it, or pack in order: the loader shuffles too."
    )


def refuse_fields(fields: Collection[str] | None, format: str) -> None:
    """Refuse ``fields=`` where a format says itself what its fields are."""
    if fields:
        raise OptionError(f"format {format!r} has fields of its own; fields= cannot change them")


def check_choice(option: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuse a value that is none of an option's, of which "" may be one."""
    known = list(choices)
    if value not in known:
        *names, last = [str(choice) for choice in known if choice]
        others = f"{', '.join(names)} or " if names else ""
        raise OptionError(f"{option}={value}: expected {others}{last}")


def require(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency.

    module: e.g. ``"pyarrow.parquet"``.
    purpose: what needs it, for the message: ``"reading Parquet"``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported ({error}): "
            f"{install_line(extra)}"
        ) from error
