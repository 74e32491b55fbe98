"""A server that answers every request as S3 does where something is wrong, which moto cannot."""

from __future__ import annotations

import contextlib
import http.server
from collections.abc import Iterator
from dataclasses import dataclass

from serving import answering

__all__ = ["ANSWERS", "S3Answers", "s3_answers"]

ANSWERS = {
    "InvalidAccessKeyId": (403, "The AWS Access Key Id you provided does not exist."),
    "SignatureDoesNotMatch": (403, "The request signature does not match."),
    "AccessDenied": (403, "Access Denied"),
    "ExpiredToken": (400, "The provided token has expired."),
    "RequestTimeTooSkewed": (403, "The difference between the times is too large."),
    "NoSuchBucket": (404, "The specified bucket does not exist"),
    "PermanentRedirect": (301, "The bucket must be addressed using the specified endpoint."),
    "AuthorizationHeaderMalformed": (400, "The region is wrong; expecting 'eu-central-1'"),
    "InvalidObjectState": (403, "The operation is not valid for the storage class"),
    "NotImplemented": (405, "A header you provided is not implemented"),
}
"""By their codes, as of Amazon's list of error responses: status and text."""


@dataclass
class S3Answers:
    """A server that runs; its answer may be changed as it goes."""

    code: str
    refused_key: str = ""
    """Of an access key, to which the answer is InvalidAccessKeyId."""
    port: int = 0

    @property
    def options(self) -> dict[str, str]:
        """Storage options by which it is reached."""
        return {"endpoint": f"http://127.0.0.1:{self.port}", "region": "us-east-1"}


@contextlib.contextmanager
def s3_answers(code: str) -> Iterator[S3Answers]:
    """Serve one answer on a free port of this machine."""
    state = S3Answers(code)

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            signed = self.headers.get("Authorization") or ""
            is_refused = state.refused_key and state.refused_key in signed
            code = "InvalidAccessKeyId" if is_refused else state.code
            status, text = ANSWERS[code]
            body = (
                '<?xml version="1.0" encoding="UTF-8"?>\n'
                f"<Error><Code>{code}</Code><Message>{text}</Message></Error>"
            ).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    with answering(Handler) as state.port:
        yield state
