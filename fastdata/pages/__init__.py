"""HTML pages: one file each, no script, nothing from a network, for light, dark and paper.

They are well-formed XML too.  ``base.html.jinja`` has the look that pages share.  All content is
made printable and escaped, so that it stays text; should that fail, a policy in the head forbids
the browser to run or fetch anything.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from fastdata import __version__
from fastdata.errors import OptionError, full_disk_explained
from fastdata.own_files import create_own
from fastdata.printable import printable

__all__ = ["check_page_path", "render", "write_page"]

_MARK = b'<meta name="generator" content="fastdata" />'
"""The head of every page has this: no other file is replaced."""


def render(package: str, template: str, content: Mapping[str, Any]) -> str:
    """Return a page: `template` of `package` (or of this one), filled with `content`.

    A name that the template uses and `content` lacks is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package, ""), jinja2.PackageLoader(__name__, "")]
        ),
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else printable(value),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(content, version=__version__) + "\n"


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page to a file atomically.

    Only an earlier page is replaced: see `check_page_path`.  Raises `DiskFullError` if the disk is
    full.
    """
    check_page_path(path)
    target = Path(os.path.realpath(path))  # the file that a link points to is replaced
    scratch = target.with_name(f".{target.name}.{os.getpid()}.new")
    with full_disk_explained(target, "Make room, or write the page to another disk."):
        try:
            with open(create_own(scratch, 0o666), "wb") as file:
                file.write(page.encode())
            os.replace(scratch, target)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise


def check_page_path(path: str | os.PathLike[str]) -> None:
    """Check that a page can be written to `path`, before doing the work.

    Raises `OptionError` if it exists and is not an earlier page, or if its folder does not exist.
    """
    target = Path(path)
    if target.is_dir():
        raise OptionError(
            f"{target} is a folder: name a file for the page, such as {target / 'page.html'}"
        )
    if target.exists() and not target.is_file():
        raise OptionError(f"{target} is not a regular file: choose another name for the page")
    if target.exists() and not _is_page(target):
        raise OptionError(
            f"{target} is not a page of fastdata, so it is not replaced: choose another name for "
            f"the page (--html FILE), or remove the file (rm {shlex.quote(str(target))})"
        )
    if not target.parent.is_dir():
        raise OptionError(
            f"the folder {target.parent} does not exist: make it (mkdir -p "
            f"{shlex.quote(str(target.parent))}), or choose another one for the page"
        )


def _is_page(target: Path) -> bool:
    """Return whether a file is a page of `render`, or empty."""
    with open(target, "rb") as file:
        start = file.read(1024)
    return _MARK in start or not start
