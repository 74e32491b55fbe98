"""Which store a location is of."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from urllib.parse import unquote, urlsplit

from fastdata.errors import MissingExtraError, OptionError
from fastdata.installing import install_line
from fastdata.storage.contract import Store
from fastdata.storage.local import LocalStore

__all__ = ["check_secrets", "is_url", "open_store"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

OBJECT_SCHEMES = "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https"
"""Those that obstore reaches."""

_SECRETS = re.compile(
    r"secret|token|passw|passphrase|sas|credential|bearer|cookie|header|authorization|^auth$|^key$|"
    r"connection_string|(access|account|customer|encryption|master|service_account|private)_?key"
)
"""Names of options that no one should write where others read them."""


def is_url(location: object) -> bool:
    """Return whether a location is a URL; everything else is a path."""
    return isinstance(location, str) and _SCHEME.match(location) is not None


def open_store(location: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Store:
    """Return the store whose objects are those below a path or a URL.

    Nothing is asked of a server yet.  `options` are for stores that are reached by a network:
    ``endpoint``, ``region``, ``anonymous``, and whatever else obstore, or fsspec for other URLs,
    knows by these names.  Credentials are no options: they come from where each cloud's own tools
    have them.

    Raises `OptionError` for a URL or options that cannot be, and `MissingExtraError` where the
    library is not installed that is needed.
    """
    options = dict(options or {})
    if not is_url(location):
        if options:
            raise OptionError(f"{location} is a path, which has no storage options")
        return LocalStore(location)
    url = str(location).rstrip("/")
    check_secrets(url, options)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return LocalStore(unquote(parts.path))
    if parts.scheme in OBJECT_SCHEMES and (objects := _objects()) is not None:
        return objects(url, options)
    try:
        from fastdata.storage.others import FsspecStore
    except ImportError as error:
        raise MissingExtraError(f"{url} needs a library: {install_line('cloud')}") from error
    return FsspecStore(url, options)


def check_secrets(url: str, options: Mapping[str, str]) -> None:
    """Raise an `OptionError`, which does not show them, for credentials in a URL or in options."""
    for name, text in {"": url, **options}.items():
        try:
            parts = urlsplit(text if "://" in str(text) else "")
            if parts.scheme in ("http", "https") and not parts.hostname:
                raise ValueError
        except ValueError:
            raise OptionError(f"{name or 'the URL'} is no URL: its host cannot be read") from None
        if "@" in parts.netloc or parts.query:
            shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
            raise OptionError(
                f"{name or shown}: the URL has a user, a password or a signature in it, which "
                "would be seen in logs and process lists. Credentials come from where the cloud's "
                "own tools have them"
            )
        if _SECRETS.search(name.lower()):
            raise OptionError(
                f"storage option {name!r}: credentials are no options, as these are seen in lists "
                "of processes. They come from where the cloud's own tools have them"
            )


def _objects() -> Callable[[str, Mapping[str, str]], Store] | None:
    """Return what makes stores by obstore; None without it, as on Python 3.10."""
    try:
        from fastdata.storage.objects import ObjectStore
    except ImportError:
        return None
    return ObjectStore
