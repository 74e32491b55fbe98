"""What fastdata is called where packages are installed from, and what to type to install it.

The name of the distribution is here and in pyproject.toml, and nowhere else in code.  It is
not the name of the import: a package index has another project that is called ``fastdata``, with
an import of that name too.
"""

from __future__ import annotations

from pathlib import Path

from fastdata.errors import FastdataError

__all__ = ["BUILD_AGAIN", "DISTRIBUTION", "UPGRADE", "check_not_replaced", "install_line"]

DISTRIBUTION = "fastdata-vision"

UPGRADE = f"pip install --upgrade {DISTRIBUTION}"

BUILD_AGAIN = f"pip install --force-reinstall --no-deps --no-cache-dir {DISTRIBUTION}"


def install_line(extra: str) -> str:
    """Return what to type for what an extra brings: ``pip install 'fastdata-vision[plot]'``."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def check_not_replaced() -> None:
    """Raise `FastdataError` if another project's ``fastdata`` was installed over this one.

    Those files that the other lacks are still there, so that much would work, as far as it does not
    need what is lost.
    """
    import fastdata

    if "pack" not in getattr(fastdata, "__all__", ()):
        raise FastdataError(
            f"{Path(__file__).with_name('__init__.py')} is not of {DISTRIBUTION}, which this "
            "command is of: another project called fastdata was installed into the same folder. "
            f"Remove both and install one: pip uninstall fastdata {DISTRIBUTION}, then "
            f"pip install {DISTRIBUTION}"
        )
