"""The meaning of obstore's errors: whether to retry, the reason and the remedy.

Most of it is only in the text of an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from obstore import exceptions

__all__ = [
    "ODD_KEY",
    "RETRY_SECONDS",
    "TRANSIENT",
    "answer_of",
    "explanation",
    "may_pass",
    "reason_of",
    "status_of",
    "text_of",
]

RETRY_SECONDS = 180
"""Time for which transient errors are retried."""

TRANSIENT = 408, 425, 429
"""Transient statuses below 500.  From 500 on all are, except 501 (not implemented)."""

_REMEDY = (
    "Credentials come from where the cloud's own tools have them; data that is open to all needs "
    "--storage-option anonymous=true (storage_options={'anonymous': 'true'})"
)

_REGION = (
    "the bucket is in another region, or has another endpoint. Name it with --storage-option "
    "region=... (storage_options={'region': ...}) or AWS_REGION"
)

_COMPARE = "Compare the URL and the storage options with what the server expects"

ODD_KEY = "Encountered object with invalid path"
"""obstore's error for a page of a listing that has a key such as ``a//b``."""

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
    ("TooManyRedirects", f"the server redirects in a circle. {_COMPARE}"),
    (
        "BadScheme",
        "the endpoint, or where it redirects to, is not of https. Give an endpoint of http with "
        "--storage-option endpoint=http://...",
    ),
    ("Parse(", f"the server sends no HTTP, or headers without an end. {_COMPARE}"),
    (
        "not yet implemented by HttpStore",
        "a plain HTTP server cannot write an object only if there is none, which packing needs so "
        "that nothing is lost. Pack to a bucket or to a local folder",
    ),
    (
        "Content-Length Header missing",
        "the server does not say how long the object is. Use another server, or copy the data here",
    ),
)
"""Error codes of servers, with reason and remedy."""

_ANSWER = re.compile(r"<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?")
"""Error code and message of S3 and its clones."""

_NEVER = re.compile(r"TooManyRedirects|BadScheme|Parse\(")
"""Parts of obstore's errors for answers that are the same when they are asked for again."""

_STATUS = re.compile(r"status code: ((\d{3})[A-Za-z '-]*)")
_METHOD = re.compile(r"Error performing ([A-Z]+) ")
_NO_CONNECTION = re.compile(r"(?<!Generic )HTTP error: ")
"""Parts of obstore's errors: status, method, failed connection."""

_REMEDIES = {
    "PROPFIND": (
        "This server lists no files (WebDAV's PROPFIND does): give the URL of a packed dataset or "
        "of one file, or copy the folder here"
    ),
    "PUT": "This server takes no uploads: pack to a bucket or to a local folder",
    "POST": "This server takes no uploads in parts: pack to a local folder, and copy that",
    "DELETE": "This server removes nothing: pack to a bucket or to a local folder",
}
"""Remedies if a server does not support a method."""

_BUSY = f"It was asked again for {RETRY_SECONDS} s. The server is busy or out of order: try later"
_UNREACHED = (
    f"no whole answer came for {RETRY_SECONDS} s. Compare the URL and the endpoint, and see "
    "whether the server runs and the network reaches it"
)


def explanation(error: BaseException) -> str:
    """Return the reason and the remedy."""
    return reason_of(error) or _said(error)


def _said(error: BaseException) -> str:
    """Return the reason and the remedy of an error that `_REASONS` lacks."""
    status, answer = status_of(error), answer_of(error)
    if isinstance(error, exceptions.NotSupportedError) and "Range" in str(error):
        return "this server sends no ranges of files: use one that does, or copy the data here"
    if _is_refused(error):
        return f"it is not allowed{f' ({answer})' if answer else ''}. {_REMEDY}"
    if status:
        method = _METHOD.search(str(error))
        remedy = _REMEDIES.get(method[1], _COMPARE) if method else _COMPARE
        if may_pass(error):
            remedy = _BUSY
        elif status not in ("405", "501"):
            remedy = _COMPARE
        return f"the server answered {answer}. {remedy}"
    return f"{_UNREACHED} ({text_of(error)})" if may_pass(error) else text_of(error)


def status_of(error: BaseException) -> str:
    """Return the status of a server's answer; "" without an answer."""
    found = _STATUS.search(str(error))
    return found[2] if found else ""


def answer_of(error: BaseException) -> str:
    """Return the status, the error code and the message of a server's answer."""
    status, said = _STATUS.search(str(error)), _ANSWER.search(str(error))
    words = [status[1] if status else "", *(said.groups() if said else ())]
    return ": ".join(filter(None, map(_line_of, words)))


def may_pass(error: BaseException, transient: Sequence[int] = TRANSIENT) -> bool:
    """Return whether the same request may succeed soon."""
    if status := int(status_of(error) or 0):
        return status in transient or (status >= 500 and status != 501)
    return (
        isinstance(error, exceptions.GenericError)
        and _NO_CONNECTION.search(str(error)) is not None
        and not _NEVER.search(str(error))
    )


def _is_refused(error: BaseException) -> bool:
    kinds = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
    return isinstance(error, kinds) or status_of(error) in ("401", "403")


def reason_of(error: BaseException) -> str:
    text = str(error)
    return next((why for name, why in _REASONS if name in text), "")


def text_of(error: BaseException) -> str:
    """Return a library's message in one line, without debug output."""
    return _line_of(str(error).partition("Debug source:")[0])


def _line_of(text: str | None) -> str:
    return " ".join((text or "").split())[:500]
