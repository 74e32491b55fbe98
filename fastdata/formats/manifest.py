"""The manifest of a directory of shards: which files make the dataset.

It is written last, so a directory that has one is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fastdata import __version__
from fastdata.bounds import check_int, strict_json
from fastdata.errors import DatasetNotFoundError, FormatError, ResourceLimitError
from fastdata.formats.layout import VERSION, check_digest, check_options, checksum
from fastdata.formats.writer import replace_file
from fastdata.installing import UPGRADE
from fastdata.regular_files import read_regular
from fastdata.schema import Schema

__all__ = ["MANIFEST", "Manifest", "ShardEntry", "check_shard_name"]

MANIFEST: Final = "manifest.json"

OWN_NAMES: Final = frozenset({MANIFEST, "dataset.json", "dataset.json.new", "present"})
"""Names of fastdata's other files in the folder of a dataset or of the cache."""

_END = b'"\n}'
"""Ends the file, behind the 16 digits of the checksum of all that comes before them."""


def check_shard_name(name: Any) -> None:
    """Raise ValueError if this cannot be the name of a shard."""
    if not isinstance(name, str):
        raise ValueError(f"the name of a shard is {name!r:.100}")
    if not name or Path(name).name != name or "\0" in name or name == "..":
        raise ValueError(f"shard {name!r} lies outside the directory")
    if name in OWN_NAMES or name.startswith(".fastdata-"):
        raise ValueError(f"a shard cannot be called {name!r}: fastdata has a file of that name")
    name.encode()


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: its path, relative to the manifest's directory, and its content."""

    file: str
    num_samples: int
    file_bytes: int
    digest: str

    def check(self) -> None:
        """Raise ValueError where an entry that came out of a file cannot be true."""
        for name in ("num_samples", "file_bytes"):
            check_int(name, getattr(self, name), error=ValueError)
        # A sample takes more than a byte, so this bounds the sum of all samples too.
        if not self.num_samples < self.file_bytes:
            raise ValueError(f"{self} cannot be true")
        check_digest("the digest of a shard", self.digest)
        check_shard_name(self.file)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A directory of shards, in order.  `digest` is that of all samples together."""

    schema: Schema
    digest: str
    shards: tuple[ShardEntry, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write ``manifest.json``, whole or not at all."""
        replace_file(directory / MANIFEST, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return what ``manifest.json`` contains."""
        body = {
            "format": "fastdata",
            "version": VERSION,
            "writer": f"fastdata {__version__}",
            "digest": self.digest,
            "num_samples": sum(shard.num_samples for shard in self.shards),
            "schema": self.schema.to_json(),
            "options": dict(self.options),
            "shards": [asdict(shard) for shard in self.shards],
        }
        text = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False).encode()
        head = text.removesuffix(b"\n}") + b',\n "checksum": "'
        return head + f"{checksum(head):016x}".encode() + _END

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read and check the manifest of a directory.

        `DatasetNotFoundError` if there is none, `FormatError` if it is damaged, or of a newer
        version.
        """
        path = directory / MANIFEST
        try:
            data = read_regular(path)
        except ResourceLimitError:
            raise
        except OSError as error:
            raise DatasetNotFoundError(
                f"{directory}: a directory without a readable {MANIFEST} is not a dataset "
                f"({error.strerror}). If a pack to it was interrupted, run the same command again; "
                f"if it holds images, pack them: fastdata pack {directory} NAME.lmdb"
            ) from None
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> Manifest:
        """Parse and check a ``manifest.json``; raises the `FormatError` of `read`."""
        try:
            body = strict_json(data)
            version = body["version"]
            if body["format"] != "fastdata":
                raise ValueError(f"format is {body['format']!r:.100}")
            if type(version) is not int or version < 1:
                raise ValueError(f"there is no version {version!r:.100}")
            if version <= VERSION:
                head = data[: -len(_END) - 16]
                if data != head + f"{checksum(head):016x}".encode() + _END:
                    raise ValueError("the checksum does not match")
                shards = tuple(
                    ShardEntry(*(entry[name] for name in ShardEntry.__dataclass_fields__))
                    for entry in body["shards"]
                )
                if not shards:
                    raise ValueError("it lists no shards")
                seen: set[str] = set()
                for shard in shards:
                    shard.check()
                    if shard.file in seen:
                        raise ValueError(f"it lists the shard {shard.file!r} twice")
                    seen.add(shard.file)
                if body["num_samples"] != sum(shard.num_samples for shard in shards):
                    raise ValueError("num_samples is not the sum of its shards'")
                schema, digest = body["schema"], check_digest("digest", body["digest"])
                return cls(Schema.from_json(schema), digest, shards, check_options(body["options"]))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(
                f"{place}: not the manifest of a fastdata dataset ({error}). "
                "Restore it from a copy or pack the dataset again."
            ) from error
        raise FormatError(
            f"{place}: format version {version} is newer than {VERSION}, the newest that this "
            f"release reads. Upgrade it: {UPGRADE}"
        )
