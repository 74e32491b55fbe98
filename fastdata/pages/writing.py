"""Rendering a page, and writing it whole or not at all.

Whatever a page shows is text in it: everything is escaped, and a policy in its head forbids
the browser to run or fetch anything, should that ever fail.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from fastdata import __version__
from fastdata.errors import OptionError, full_disk_explained

__all__ = ["check_page_path", "render", "write_page"]


def render(package: str, template: str, content: Mapping[str, Any]) -> str:
    """Return a page.

    Parameters
    ----------
    package : str
        Where the template is; templates of this package are found too.
    template : str
    content : mapping
        What the template shows; an undefined name is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package, ""), jinja2.PackageLoader(__package__, "")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(content, version=__version__) + "\n"


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, which is there whole or, after an error, as before.

    Parameters
    ----------
    page : str
    path : path-like
        An earlier page there is replaced, and nothing else.  Its folder has to exist.

    Raises
    ------
    OptionError
        If `path` is a folder, a file that is no page (e.g. the dataset) or another thing, or its
        folder does not exist.
    DiskFullError
        If there is no room.
    """
    check_page_path(path)
    place = Path(os.path.realpath(path))  # what a link points to is replaced, not the link
    scratch = place.with_name(f".{place.name}.{os.getpid()}.new")
    with full_disk_explained(place, "Make room, or write the page to another disk."):
        try:
            scratch.write_bytes(page.encode())
            os.replace(scratch, place)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise


def check_page_path(path: str | os.PathLike[str]) -> None:
    """Raise what `write_page` would of a place that cannot take a page, before the work is done.

    Raises
    ------
    OptionError
    """
    place = Path(path)
    if place.is_dir():
        raise OptionError(
            f"{place} is a folder: name a file for the page, such as {place / 'page.html'}"
        )
    if place.exists() and not place.is_file():
        raise OptionError(f"{place} is no ordinary file: name another for the page")
    if place.exists() and not _is_page(place):
        raise OptionError(
            f"{place} is a file, and no page that could be replaced: name another for the page, "
            "or remove it yourself"
        )
    if not place.parent.is_dir():
        raise OptionError(
            f"{place.parent} is no folder: make it (mkdir -p), or write the page elsewhere"
        )


def _is_page(place: Path) -> bool:
    """Tell whether a file is HTML, or empty."""
    with open(place, "rb") as file:
        start = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return start.startswith((b"<!doctype html", b"<html")) or place.stat().st_size == 0
