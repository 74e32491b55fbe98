"""Listings of S3 buckets with keys that obstore has no name for, such as ``a//b``; by boto3.

obstore gives nothing of a page with such a key.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from fastdata.errors import StorageError

__all__ = ["listed_by_boto"]


def listed_by_boto(
    url: str, options: Mapping[str, str], prefix: str, *, signed: bool
) -> Iterator[dict[str, Any]]:
    """Yield what obstore says of objects below a prefix."""
    bucket, _, root = url.partition("://")[2].partition("/")
    root = f"{root.rstrip('/')}/".removeprefix("/")
    region = options.get("region") or os.environ.get("AWS_REGION")
    endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT")
    config = Config(
        retries={"mode": "standard"}, **({} if signed else {"signature_version": UNSIGNED})
    )
    try:
        client = boto3.client("s3", region_name=region, endpoint_url=endpoint, config=config)
        with contextlib.closing(client):
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=bucket, Prefix=root + prefix):
                for one in page.get("Contents", ()):
                    key = one["Key"].removeprefix(root)
                    yield {"path": key, "size": one["Size"], "e_tag": one["ETag"]}
    except (BotoCoreError, ClientError, ValueError) as error:
        raise StorageError(f"{url}: {error}") from error
