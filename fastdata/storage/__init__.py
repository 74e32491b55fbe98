"""Folders, object stores, and all file systems of fsspec, behind one contract.

``contract.py``   the contract: list, read ranges, put, put if absent, remove
``local.py``      folders
``objects.py``    S3, Google Cloud Storage, Azure and HTTP, by obstore
``requests.py``   their requests, within limits of memory and time
``answers.py``    the meaning of obstore's errors
``others.py``     all other URLs, by fsspec
``opening.py``    chooses the store for a location

A location is a path or a URL, ``s3://bucket/train``.
"""

from fastdata.storage.contract import Entry, Store
from fastdata.storage.local import LocalStore
from fastdata.storage.opening import is_url, open_store

__all__ = ["Entry", "LocalStore", "Store", "is_url", "open_store"]
