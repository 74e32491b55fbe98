"""The manifest of a directory of shards: which files make the dataset.

It is written last, so a directory that has one is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fastdata.errors import DatasetNotFoundError, FormatError
from fastdata.formats.layout import VERSION, checksum
from fastdata.schema import Schema

__all__ = ["MANIFEST", "Manifest", "ShardEntry"]

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: its path, relative to the manifest's directory, and what it holds."""

    file: str
    num_samples: int
    file_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A directory of shards, in order.  `digest` is that of all samples together."""

    schema: Schema
    digest: str
    shards: tuple[ShardEntry, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write ``manifest.json``, whole or not at all."""
        body = {
            "format": "fastdata",
            "version": VERSION,
            "digest": self.digest,
            "num_samples": sum(shard.num_samples for shard in self.shards),
            "schema": self.schema.to_json(),
            "options": dict(self.options),
            "shards": [asdict(shard) for shard in self.shards],
        }
        body["checksum"] = _checksum(body)
        scratch = directory / f"{MANIFEST}.new"
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump(body, file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, directory / MANIFEST)

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read and check the manifest of a directory.

        Raises
        ------
        DatasetNotFoundError
            If there is none.
        FormatError
            If it is damaged, or of a newer version.
        """
        path = directory / MANIFEST
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DatasetNotFoundError(
                f"{directory}: a directory without a readable {MANIFEST} is not a dataset "
                f"({error.strerror}). If a pack to it was interrupted, run the same command again."
            ) from None
        try:
            body = json.loads(data)
            if body["format"] != "fastdata":
                raise ValueError(f"format is {body['format']!r}")
            version = int(body["version"])
            if version <= VERSION:
                stored = body.pop("checksum")
                if stored != _checksum(body):
                    raise ValueError("the checksum does not match")
                shards = tuple(ShardEntry(**entry) for entry in body["shards"])
                if any(Path(shard.file).name != shard.file for shard in shards):
                    raise ValueError("a shard lies outside the directory")
                schema = Schema.from_json(body["schema"])
                return cls(schema, body["digest"], shards, body["options"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(
                f"{path}: not the manifest of a fastdata dataset ({error}). "
                "Restore it from a copy or pack the dataset again."
            ) from error
        raise FormatError(
            f"{path}: format version {version} is newer than {VERSION}, the newest that this "
            "release reads. Upgrade it: pip install --upgrade fastdata"
        )


def _checksum(body: Mapping[str, Any]) -> str:
    return f"{checksum(json.dumps(body, sort_keys=True).encode()):016x}"
