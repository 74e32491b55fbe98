"""S3, Google Cloud Storage, Azure and HTTP servers, by obstore."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

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
from fastdata.storage.answers import (
    ODD_KEY,
    RETRY_SECONDS,
    TRANSIENT,
    answer_of,
    explanation,
    may_pass,
    reason_of,
    status_of,
    text_of,
)
from fastdata.storage.contract import MOST_READ_BYTES, Entry, Store
from fastdata.storage.guard import METADATA, Guard
from fastdata.storage.requests import MOST_OBJECTS, GrowthError, LimitError, answered, listed
from fastdata.waits import said_while

__all__ = ["ObjectStore"]

CONNECT_SECONDS, READ_SECONDS, WHOLE_SECONDS = 10, 30, 3600
"""Until there is a connection, until more comes by it, and for a whole request, such as a part of
an upload.  obstore's own limit of 30 s is too short for large objects over slow networks."""

ANSWER_SECONDS = 120
"""Until an answer begins."""

PAUSES = 0.1, 15.0
"""Seconds between two tries, at first and at last.  Random: from half of it to all of it."""

MOST_RETRIES = 1000
"""Limit of obstore's own retries, which a part of a large upload has."""

CONFLICT = 409
"""S3's answer to concurrent conditional uploads: the client must try again."""

MOST_BYTES = 1 << 62
"""Largest size of an object that is believed."""

_PIECE_BYTES = 1 << 24
"""Bytes of a body that are received between two checks of its length."""

AWS_SCHEMES = "s3", "s3a"

Result = TypeVar("Result")


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
        is_anonymous = _is_true("anonymous", options.get("anonymous", "false"))
        self._guard: Guard | None = None
        if not is_anonymous and not url.startswith(("http:", "https:")):
            self._guard = Guard(options)
        # obstore would try 501 again, too, and says nothing meanwhile: `_ask` does better.
        self._store = self._opened(max_retries=0)

    def _opened(self, max_retries: int) -> Any:
        """Return obstore's store; it makes a request again up to `max_retries` times by itself."""
        url, options = self.url, self._options
        client: dict[str, Any] = {
            "timeout": timedelta(seconds=WHOLE_SECONDS),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=READ_SECONDS),
        }
        config = {name: value for name, value in options.items() if name != "anonymous"}
        is_anonymous = _is_true("anonymous", options.get("anonymous", "false"))
        if is_anonymous:
            config["skip_signature"] = "true"
        if self._guard is not None:
            client |= {"proxy_url": self._guard.url, "proxy_excludes": METADATA}
        if url.startswith("http://") or config.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
        try:
            return from_url(
                url,
                client_options=client,
                retry_config={
                    "max_retries": max_retries,
                    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                },
                **({} if is_anonymous else _credentials(url.partition(":")[0], url)),
                **config,
            )
        except (exceptions.BaseError, TypeError, ValueError) as error:
            raise OptionError(f"{url}: {text_of(error)}") from error

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
        below = prefix.rstrip("/") or None
        try:
            metas = self._ask(prefix, lambda: listed(self._store, below))
        except StorageError as error:
            if ODD_KEY not in str(error.__cause__) or self.url.partition(":")[0] not in AWS_SCHEMES:
                raise
            from fastdata.storage.odd_keys import listed_by_boto

            is_signed = self._guard is not None
            by_boto = listed_by_boto(self.url, self._options, prefix, signed=is_signed)
            metas = list(itertools.islice(by_boto, MOST_OBJECTS + 1))
            if len(metas) > MOST_OBJECTS:
                more = f"{self.url} has more than {MOST_OBJECTS:,} objects"
                raise StorageError(f"{more}. Give the URL of a smaller folder") from None
        found = [_entry(meta) for meta in metas]
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
        return _entry(self._ask(key, lambda: self._head(key)))

    def _head(self, key: str) -> Any:
        try:
            return answered(
                lambda: obstore.head_async(self._store, key), "an answer", ANSWER_SECONDS
            )
        except FileNotFoundError:
            raise
        except exceptions.BaseError as error:
            status = status_of(error)
            if not status.startswith("4") or int(status) in TRANSIENT:
                raise
            refused = error
        # The answer to a HEAD has no text that would say why; that to a GET has.
        self._answer(key, {"range": (0, 1)})
        raise refused

    def _answer(self, key: str, options: dict[str, Any]) -> Any:
        """Return the answer to a GET, of which the body is still to come."""
        return answered(
            lambda: obstore.get_async(self._store, key, options=options),
            "an answer",
            ANSWER_SECONDS,
        )

    def read(
        self,
        key: str,
        start: int = 0,
        stop: int | None = None,
        *,
        tag: str = "",
        most_bytes: int = MOST_READ_BYTES,
    ) -> bytes | memoryview:
        """Return bytes of an object, in one request."""
        if stop is not None and start >= stop:
            return b""
        options: dict[str, Any] = {"if_match": tag} if tag else {}
        if stop is not None:
            options["range"] = (start, stop)
            most_bytes = stop - start
        elif start:
            options["range"] = {"offset": start}
        data = self._ask(key, lambda: self._received(key, options, tag, most_bytes))
        self.check_range(key, data, start, stop)
        return data

    def _received(
        self, key: str, options: dict[str, Any], tag: str, most_bytes: int
    ) -> bytes | memoryview:
        """Return a body; it takes memory for bytes that have come, not for announced ones."""
        answer = self._answer(key, options)
        if tag and (answer.meta["e_tag"] or tag) != tag:  # a server that does not know If-Match
            raise self.changed(key)
        first, end = answer.range
        self.check_size(key, end - first, most_bytes)
        pieces, received = [], 0
        for piece in answer.stream(min_chunk_size=max(1, min(end - first, _PIECE_BYTES))):
            pieces.append(piece)
            received += len(piece)
            self.check_size(key, received, end - first)
        return memoryview(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def put(self, key: str, data: bytes | Path) -> None:
        """Upload an object; a large file in parts, which are no object until all are there."""
        # Of a file, each part is then tried again by itself, and not all of them.
        again = self._store if isinstance(data, bytes) else self._opened(MOST_RETRIES)
        stores = itertools.chain([self._store], itertools.repeat(again))

        def put() -> None:
            store = next(stores)
            answered(lambda: obstore.put_async(store, key, data), "an answer")

        self._ask(key, put)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Upload an object by ``If-None-Match: *``."""

        def put() -> bool:
            try:
                answered(
                    lambda: obstore.put_async(self._store, key, data, mode="create"), "an answer"
                )
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
                if status_of(error) == str(CONFLICT):
                    raise
                return False
            return True

        return self._ask(key, put, (*TRANSIENT, CONFLICT))

    def remove(self, key: str) -> None:
        """Remove an object, if there is one."""

        def remove() -> None:
            answered(lambda: obstore.delete_async(self._store, key), "an answer", ANSWER_SECONDS)

        with contextlib.suppress(ObjectNotFoundError):
            self._ask(key, remove)

    def _ask(
        self,
        key: str,
        request: Callable[[], Result],
        transient: Sequence[int] = TRANSIENT,
    ) -> Result:
        """Make a request, again while it fails in passing; a warning says so after 10 s."""
        self.check_process()
        began, pause, why = time.monotonic(), PAUSES[0], "no whole answer yet"
        is_second = False

        def waited_for() -> str:
            return f"{self.url_of(key)} ({why}; it is asked for {RETRY_SECONDS} s)"

        with self._explained(key), said_while(waited_for):
            while True:
                try:
                    return request()
                except LimitError as error:
                    if is_second or not isinstance(error, GrowthError):
                        raise StorageError(
                            f"{self.url_of(key)}: the server {error}. Use another server, or give "
                            "the URL of a smaller folder"
                        ) from None
                    is_second, why = True, f"the server {error}"
                except (exceptions.BaseError, OSError) as error:
                    if self._guard is not None and self._guard.refused:
                        why, self._guard.refused = self._guard.refused, ""
                        raise StorageError(f"{self.url_of(key)}: {why}") from None
                    if not may_pass(error, transient) or time.monotonic() - began > RETRY_SECONDS:
                        raise
                    why = answer_of(error) or "no whole answer"
                time.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, PAUSES[1])

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        """Turn obstore's errors into ones that name the URL, the reason and the remedy."""
        try:
            yield
        except StorageError:
            raise
        except FileNotFoundError as error:
            why = reason_of(error)  # not even the bucket
            if status_of(error) == "405":  # obstore takes it for 404
                why = explanation(error)
            if why:
                raise StorageError(f"{self.url_of(key)}: {why}") from error
            raise ObjectNotFoundError(f"{self.url_of(key)}: there is no such object") from error
        except exceptions.PreconditionError as error:
            raise self.changed(key) from error
        except (exceptions.BaseError, NotImplementedError, OSError) as error:
            raise StorageError(f"{self.url_of(key)}: {explanation(error)}") from error


def _entry(meta: Any) -> Entry:
    if meta["size"] > MOST_BYTES:
        raise StorageError(f"{meta['path']}: an object cannot have {meta['size']:,} bytes")
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
