"""Arrow IPC files with a column of images, as ``datasets.Dataset.save_to_disk`` writes them.

A file is a stream of record batches (``data-00000-of-00001.arrow``), or has them with a
directory at its end (Feather).  It is mapped into memory, and an image is a place in it, from which
workers read it.  Sources: "Serialization and Interprocess Communication (IPC)" in the Arrow
columnar format's specification, read by pyarrow; ``datasets/arrow_dataset.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError

from .base import Reject, Sample
from .reading.json_files import read_object
from .reading.locations import first_bytes
from .reading.splits import table_files
from .reading.tables.arrow_types import arrow, table_errors
from .reading.tables.rows import MappedTable, row_reader
from .reading.tables.table_source import Block, TableSource

__all__ = ["ArrowSource"]

_SUFFIXES = (".arrow", ".feather", ".ipc")
_FILE = b"ARROW1"
_STREAM = b"\xff\xff\xff\xff"
_LARGEST_SCHEMA = 64 << 20
_MOST_OPEN = 8


class ArrowSource(TableSource):
    """Arrow files with images, or a folder by ``save_to_disk``; each row is a sample."""

    name = "arrow"
    summary = "Arrow files with a column of images, or a folder by datasets' save_to_disk"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = table_files(location, _SUFFIXES)
        return bool(files) and _is_arrow(first_bytes(files[0], 8))

    @functools.cached_property
    def _open(self) -> Callable[[str], _Opened]:
        """Open a file, or find it open; of the instance, so that none stays so when it is gone."""
        return functools.lru_cache(_MOST_OPEN)(_Opened)

    @classmethod
    def files_of(cls, location: Any) -> list[Path]:
        arrow(".ipc")
        files = table_files(location, _SUFFIXES)
        if Path(location).is_dir():
            files = [path for path in files if not path.name.startswith("cache-")]
            _check_states(files)
        return files

    def features_beside(self, file: int) -> dict[str, Any]:
        found = _json(self.paths[file].with_name("dataset_info.json")).get("features")
        return found if isinstance(found, dict) else {}

    def table_schema(self, file: int) -> Any:
        return self._open(str(self.paths[file])).schema

    def blocks(self, file: int) -> Iterator[int | str]:
        opened = self._open(str(self.paths[file]))
        yield from opened.rows
        if opened.damage:
            yield opened.damage

    def batches(self, file: int, block: int, columns: Sequence[str]) -> Iterator[Any]:
        yield self._open(str(self.paths[file])).batch(block)

    def mapped(self, file: int) -> MappedTable | None:
        return self._open(str(self.paths[file])).mapped

    def row(self, index: int, block: Block) -> Sample | Reject:
        split, path = self._split_numbers[block.file], self.paths[block.file]
        try:
            opened = self._open(str(path))
            part = opened.batch(block.number).slice(index - block.start, 1)
            read = row_reader(part, self.layout_of(block.file), split, opened.mapped)
        except table_errors() as error:
            raise SourceError(f"{path}, batch {block.number}: {error}") from error
        return self.sample(index, read, 0)


class _Opened:
    """An Arrow file, mapped into memory, and where its record batches are."""

    def __init__(self, path: str) -> None:
        pa, ipc = arrow(), arrow(".ipc")
        self._map = pa.memory_map(path)
        whole = self._map.read_buffer()
        self.mapped = MappedTable(path, whole.address, whole.size)
        self._map.seek(0)
        self.rows: list[int] = []
        self.damage = ""
        self._places: list[int] = []
        self._directory: Any = None
        if whole[:6].to_pybytes() == _FILE:
            self._directory = ipc.open_file(self._map)
            self.schema = self._directory.schema
            self._count(self._directory.num_record_batches)
        else:
            self.schema = ipc.read_schema(self._map)
            self._find(whole.size)

    def _count(self, batches: int) -> None:
        for number in range(batches):
            try:
                self.rows.append(self._directory.get_batch(number).num_rows)
            except table_errors() as error:
                self.damage = f"record batch {number} cannot be read, the rest is lost: {error}"
                return

    def _find(self, size: int) -> None:
        """Note where the messages of a stream are; its bodies are not touched."""
        place = self._map.tell()
        try:
            while place < size:
                message = arrow(".ipc").read_message(self._map)
                if message.type == "dictionary":
                    raise SourceError(
                        "a stream with dictionaries is not read; write the table as a file: "
                        "pyarrow.ipc.new_file"
                    )
                if message.type == "record batch":
                    self._places.append(place)
                    self.rows.append(len(arrow(".ipc").read_record_batch(message, self.schema)))
                place = self._map.tell()
            self.damage = "the file ends without the mark of its end: it may be cut short"
        except SourceError:
            raise
        except EOFError:  # the mark
            if self._map.tell() < size:
                self.damage = f"there is something behind the end, at byte {self._map.tell():,}"
        except table_errors() as error:
            self.damage = f"at byte {place:,}: {error}; the rest of the file is lost"

    def batch(self, number: int) -> Any:
        """Return a record batch, whose bytes stay in the file."""
        if number >= len(self.rows):
            raise SourceError(self.damage or f"there is no record batch {number}")
        if self._directory is not None:
            return self._directory.get_batch(number)
        self._map.seek(self._places[number])
        message = arrow(".ipc").read_message(self._map)
        return arrow(".ipc").read_record_batch(message, self.schema)


def _is_arrow(start: bytes) -> bool:
    length = int.from_bytes(start[4:8], "little")
    return start[:6] == _FILE or (
        start[:4] == _STREAM and 0 < length < _LARGEST_SCHEMA and length % 8 == 0
    )


def _json(path: Path) -> dict[str, Any]:
    """Return what a file beside the tables says; nothing where there is none."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from error


def _check_states(files: Sequence[Path]) -> None:
    """Refuse rows that are not all meant to be there, by ``state.json``."""
    for folder in dict.fromkeys(path.parent for path in files):
        state = _json(folder / "state.json")
        if state.get("_indices_data_files"):
            raise SourceError(
                f"{folder}: of these rows only some are meant, by a list of indices that an old "
                "version of datasets has kept. Save it again: load_from_disk, flatten_indices, "
                "save_to_disk."
            )
