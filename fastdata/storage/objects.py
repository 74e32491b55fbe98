"""S3, Google Cloud Storage, Azure and HTTP servers, by obstore."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import from_url

from fastdata.errors import (
    MissingExtraError,
    ObjectNotFoundError,
    OptionError,
    StorageError,
)
from fastdata.installing import install_line
from fastdata.storage.contract import Entry, Store

__all__ = ["ObjectStore"]

CONNECT_SECONDS, READ_SECONDS = 10, 30
"""Until there is a connection, and until more comes by it.  There is no limit for a whole request,
as obstore's own of 30 s: a large object over a slow network takes longer."""

RETRY_SECONDS = 180
"""For which a request that fails in passing is made again, with growing pauses."""

MOST_RETRIES = 1000
"""In that time: obstore's own, 10, are over within half a minute or so."""

PAUSES = {
    "init_backoff": timedelta(milliseconds=100),
    "max_backoff": timedelta(seconds=15),
    "base": 2,
}
"""Between them, as obstore draws them at random."""

LISTED = 1000
"""Objects that come at once."""

AWS_SCHEMES = "s3", "s3a"

_SIGNED = re.compile(r"\?[^\s\"'>)]*")
"""The query of a URL in a message, which may have a signature in it."""

_REMEDY = (
    "Credentials come from where the cloud's own tools have them; data that is open to all needs "
    "--storage-option anonymous=true (storage_options={'anonymous': 'true'})"
)

_REGION = (
    "the bucket is in another region, or has another endpoint. Name it with --storage-option "
    "region=... (storage_options={'region': ...}) or AWS_REGION"
)

_NO_BUCKET = "Compare its name, and the endpoint, with what the cloud's own tools list"

_REASONS = (
    ("NoSuchBucket", f"there is no such bucket. {_NO_BUCKET}"),
    ("ContainerNotFound", f"there is no such container. {_NO_BUCKET}"),
    ("RequestTimeTooSkewed", "this machine's clock is wrong: set it (chronyc, timedatectl)"),
    ("InvalidAccessKeyId", f"the access key is not known. {_REMEDY}"),
    ("SignatureDoesNotMatch", f"the secret key is wrong. {_REMEDY}"),
    ("ExpiredToken", "the credentials have expired: log in again"),
    ("AccessDenied", f"the credentials do not allow it. {_REMEDY}"),
    ("PermanentRedirect", _REGION),
    ("AuthorizationHeaderMalformed", _REGION),
    ("redirect without LOCATION", _REGION),
)
"""What servers' answers mean, and what to do."""

_ANSWER = re.compile(r"<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?")
"""Of S3, and of those that speak as it does."""

_IS_WRONG = "status code: 4"
_REFUSED = "401 Unauthorized", "403 Forbidden"


_is_used = False
_is_lost = False
"""Whether this process has made a request, and whether the one that it was forked from had."""


def _after_fork() -> None:
    global _is_lost
    _is_lost |= _is_used


os.register_at_fork(after_in_child=_after_fork)


class ObjectStore(Store):
    """Objects below a URL of a bucket; see `Store`."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url)
        self._options = dict(options)
        scheme = url.partition(":")[0]
        client: dict[str, Any] = {
            "timeout": timedelta(days=1),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=READ_SECONDS),
        }
        config = {name: value for name, value in options.items() if name != "anonymous"}
        is_anonymous = _is_true("anonymous", options.get("anonymous", "false"))
        if is_anonymous:
            config["skip_signature"] = "true"
        if url.startswith("http://") or config.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
        try:
            self._store = from_url(
                url,
                client_options=client,
                retry_config={
                    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                    "max_retries": MOST_RETRIES,
                    "backoff": PAUSES,
                },
                **({} if is_anonymous else _credentials(scheme, url)),
                **config,
            )
        except (exceptions.BaseError, TypeError, ValueError) as error:
            raise OptionError(f"{url}: {_text(error)}") from error

    def check_process(self) -> None:
        """Raise a `StorageError` where a request would wait for threads that a fork has lost."""
        global _is_used
        super().check_process()
        if _is_lost:
            raise StorageError(
                f"{self.url}: this process was forked from one that had used such a store, whose "
                "threads it has not: start processes by spawn or forkserver "
                "(multiprocessing.get_context('spawn'))"
            )
        _is_used = True

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str, dict[str, str]]]:
        return ObjectStore, (self.url, self._options)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield objects; all of them are listed before the first comes, to be in order."""
        self.check_process()
        with self._explained(prefix):
            stream = obstore.list(self._store, prefix.rstrip("/") or None, chunk_size=LISTED)
            found = [_entry(meta) for chunk in stream for meta in chunk]
        # A prefix that is an object, as its folder's name may be, is none of the folder.
        found = [one for one in found if one.key.startswith(prefix)]
        found.sort(key=lambda one: one.key)
        keys = [one.key for one in found]
        # Consoles make an empty object for a folder, whose name obstore gives without its slash.
        for one in found:
            inside = f"{one.key}/" if one.key else ""
            at = bisect_left(keys, inside) if inside else 0
            is_folder = one.size == 0 and at < len(keys) and keys[at].startswith(inside)
            if not is_folder:
                yield one

    def head(self, key: str) -> Entry:
        """Return the size and the ETag of an object."""
        self.check_process()
        with self._explained(key):
            try:
                return _entry(obstore.head(self._store, key))
            except FileNotFoundError:
                raise
            except exceptions.BaseError as error:
                if not _is_refused(error) and _IS_WRONG not in str(error):
                    raise
                refused = error
            # The answer to a HEAD has no text that would say why; that to a GET has.
            obstore.get(self._store, key, options={"range": (0, 1)}).bytes()
            raise refused

    def read(
        self, key: str, start: int = 0, stop: int | None = None, *, tag: str = ""
    ) -> bytes | memoryview:
        """Return bytes of an object, in one request."""
        self.check_process()
        if stop is not None and start >= stop:
            return b""
        options: dict[str, Any] = {"if_match": tag} if tag else {}
        if stop is not None:
            options["range"] = (start, stop)
        elif start:
            options["range"] = {"offset": start}
        with self._explained(key):
            data = memoryview(obstore.get(self._store, key, options=options).bytes())
        self.check_range(key, data, start, stop)
        return data

    def put(self, key: str, data: bytes | Path) -> None:
        """Upload an object; a large file in parts, which are no object until all are there."""
        self.check_process()
        with self._explained(key):
            obstore.put(self._store, key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Upload an object by ``If-None-Match: *``."""
        self.check_process()
        with self._explained(key):
            try:
                obstore.put(self._store, key, data, mode="create")
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    def remove(self, key: str) -> None:
        """Remove an object, if there is one."""
        self.check_process()
        with self._explained(key), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, key)

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        """Turn obstore's errors into ones that name the URL, the reason and the remedy."""
        try:
            yield
        except FileNotFoundError as error:
            if why := _reason(error):  # not even the bucket
                raise StorageError(f"{self.url_of(key)}: {why}") from error
            raise ObjectNotFoundError(f"{self.url_of(key)}: there is no such object") from error
        except exceptions.PreconditionError as error:
            raise self.changed(key) from error
        except (exceptions.BaseError, OSError) as error:
            why = _reason(error)
            if not why:
                said = _ANSWER.search(str(error))
                answer = ": ".join(part for part in said.groups() if part) if said else ""
                why = f"the server answered {answer}" if answer else _text(error)
                if _is_refused(error):
                    why = f"it is not allowed{f' ({answer})' if answer else ''}. {_REMEDY}"
            raise StorageError(f"{self.url_of(key)}: {why}") from error


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["e_tag"] or "")


def _is_true(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise OptionError(f"storage option {name}={value!r} is neither true nor false")
    return value.lower() in ("true", "1", "yes")


def _credentials(scheme: str, url: str) -> dict[str, Any]:
    """Return where credentials come from, beside what obstore itself looks at.

    That looks at environment variables, the tokens of machines in the cloud, and Google's own
    files, but not at ``~/.aws``, of which boto3 knows all.
    """
    if scheme in AWS_SCHEMES and "AWS_ACCESS_KEY_ID" not in os.environ:
        files = os.environ.get("AWS_CONFIG_FILE"), os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
        folder = Path("~/.aws").expanduser()
        if any(files) or folder.is_dir():
            if importlib.util.find_spec("boto3") is None:
                raise MissingExtraError(
                    f"{url}: credentials of {folder} need boto3: {install_line('cloud')}"
                )
            from obstore.auth.boto3 import Boto3CredentialProvider

            return {"credential_provider": Boto3CredentialProvider()}
    if scheme in ("az", "azure", "abfs", "abfss") and not any(
        name.startswith("AZURE_") for name in os.environ
    ):
        return {"use_azure_cli": "true"}
    return {}


def _is_refused(error: BaseException) -> bool:
    kinds = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
    return isinstance(error, kinds) or any(one in str(error) for one in _REFUSED)


def _reason(error: BaseException) -> str:
    text = str(error)
    return next((why for name, why in _REASONS if name in text), "")


def _text(error: BaseException) -> str:
    """Return what a library says, in a line, without signatures and its own structures."""
    said = str(error).partition("Debug source:")[0]
    return " ".join(_SIGNED.sub("?...", said).split())[:500]
