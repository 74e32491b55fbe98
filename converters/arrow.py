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

from .reading.json_files import read_object
from .reading.locations import first_bytes
from .reading.splits import table_files
from .reading.tables.arrow_fields import arrow, table_errors
from .reading.tables.rows import MappedTable
from .reading.tables.table_source import TableSource

__all__ = ["ArrowSource"]

_SUFFIXES = (".arrow", ".feather", ".ipc")
_FILE = b"ARROW1"
_STREAM = b"\xff\xff\xff\xff"
_END = b"\xff\xff\xff\xff\0\0\0\0"
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

    def look(self, path: Path) -> tuple[Any, dict[str, Any], list[int | str]]:
        opened = self._open(str(path))
        description = path.with_name("dataset_info.json")
        features = read_object(description).get("features") if description.exists() else None
        lost = [opened.damage] if opened.damage else []
        beside = features if isinstance(features, dict) else {}
        return opened.schema, beside, [*opened.rows, *lost]

    def batches(self, path: Path, block: int, columns: Sequence[str]) -> Iterator[Any]:
        yield self._open(str(path)).batch(block)

    def mapped(self, path: Path) -> MappedTable | None:
        return self._open(str(path)).mapped


class _Opened:
    """An Arrow file, mapped into memory, and the rows of each of its record batches."""

    def __init__(self, path: str) -> None:
        ipc, file = arrow(".ipc"), arrow().memory_map(path)
        whole = file.read_buffer()
        self.mapped = MappedTable(path, whole.address, whole.size)
        file.seek(0)
        self.rows: list[int] = []
        self.damage = ""
        self._reads: list[Callable[[], Any]] = []
        reads: Iterator[Callable[[], Any]]
        if whole[: len(_FILE)].to_pybytes() == _FILE:
            directory = ipc.open_file(file)
            self.schema, count = directory.schema, directory.num_record_batches
            reads = (functools.partial(directory.get_batch, number) for number in range(count))
        else:
            self.schema = ipc.read_schema(file)
            if any(arrow(".types").is_dictionary(type_) for type_ in self.schema.types):
                raise SourceError(
                    "a stream with dictionaries is not read; write the table as a file: "
                    "pyarrow.ipc.new_file"
                )
            messages = ipc.MessageReader.open_stream(file)
            reads = (functools.partial(ipc.read_record_batch, m, self.schema) for m in messages)
            if whole[whole.size - len(_END) :].to_pybytes() != _END:
                self.damage = "the file does not end with the mark of its end: it may be cut short"
        try:
            for read in reads:
                self.rows.append(read().num_rows)
                self._reads.append(read)
        except table_errors() as error:
            self.damage = f"record batch {len(self.rows)} cannot be read, the rest is lost: {error}"

    def batch(self, number: int) -> Any:
        """Return a record batch, whose bytes stay in the file."""
        if number >= len(self._reads):  # the file has changed
            raise SourceError(self.damage or f"there is no record batch {number}")
        return self._reads[number]()


def _is_arrow(start: bytes) -> bool:
    length = int.from_bytes(start[4:8], "little")
    return start[:6] == _FILE or (
        start[:4] == _STREAM and 0 < length < _LARGEST_SCHEMA and length % 8 == 0
    )


def _check_states(files: Sequence[Path]) -> None:
    """Refuse rows that are not all meant to be there, by ``state.json``."""
    for folder in dict.fromkeys(path.parent for path in files):
        state = folder / "state.json"
        if state.exists() and read_object(state).get("_indices_data_files"):
            raise SourceError(
                f"{folder}: of these rows only some are meant, by a list of indices that an old "
                "version of datasets has kept. Save it again: load_from_disk, flatten_indices, "
                "save_to_disk."
            )
