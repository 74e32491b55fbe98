"""HTML pages: one file each, no script, nothing from a network, for light, dark and paper.

They are well-formed XML too.  ``base.html.jinja`` has the look that pages share.  All content is
made printable and escaped, so that it stays text; should that fail, a policy in the head forbids
the browser to run or fetch anything.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from fastdata import __version__
from fastdata.errors import OptionError
from fastdata.printable import printable
from fastdata.regular_files import read_piece
from fastdata.replacing import Destination, Kind

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
    """Write a page to a file atomically; raises what `check_page_path` does, and `DiskFullError`.

    Only an earlier page is replaced.
    """
    check_page_path(path).write(page.encode())


def check_page_path(path: str | os.PathLike[str]) -> Destination:
    """Check that a page can be written to `path`, before doing the work.

    Raises `DestinationExistsError` if something else than an earlier page is there, `OptionError`
    if it is a folder, or its folder does not exist.
    """
    target = Path(path)
    if target.is_dir() and not target.is_symlink():
        raise OptionError(
            f"{target} is a folder: name a file for the page, such as {target / 'page.html'}"
        )
    if not target.parent.is_dir():
        raise OptionError(
            f"the folder {target.parent} does not exist: make it (mkdir -p "
            f"{shlex.quote(str(target.parent))}), or choose another one for the page"
        )
    return Destination(target, _PAGE)


def _no_page(path: Path) -> str:
    is_page = path.is_file() and _MARK in read_piece(path, 1024)
    return "" if is_page else "is not a page of fastdata"


_PAGE = Kind("a page of fastdata", _no_page)
