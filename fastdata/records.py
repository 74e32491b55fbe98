"""How samples and batches are handed out: records, which are named tuples or dicts.

Their fields have the names of choice: Hugging Face's Trainer, for one, calls ``model(**batch)``,
so it needs dicts whose names are the model's arguments.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from fastdata.errors import OptionError
from fastdata.schema import Schema, record_type

__all__ = ["BatchFormat", "RecordFormat"]

BatchFormat: TypeAlias = Literal["tuple", "dict"]


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How records, which are samples and batches alike, are handed out: named tuples or dicts.

    `names` are new names of fields, e.g. ``{"image": "pixel_values"}``; the others keep theirs.
    `OptionError` if a value cannot be used.
    """

    batch_format: BatchFormat = "tuple"
    names: Mapping[str, str] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.batch_format not in ("tuple", "dict"):
            raise OptionError(f"batch_format is 'tuple' or 'dict', not {self.batch_format!r}")
        if self.names is None:
            return
        if not isinstance(self.names, Mapping):
            raise OptionError(
                "names maps names of fields to new ones, such as "
                f"{{'image': 'pixel_values'}}; it is not {self.names!r}"
            )
        new_names: Iterable[object] = self.names.values()
        for name in new_names:
            if not isinstance(name, str) or not name:
                raise OptionError(f"names: a field is called by a text, not {name!r}")
            if self.batch_format == "tuple" and not _is_attribute(name):
                raise OptionError(
                    f"names: {name!r} cannot be the name of a field of a named tuple; choose "
                    "letters, digits and underscores that begin with a letter, or "
                    "batch_format='dict'"
                )
        changed = {old: new for old, new in self.names.items() if new != old}
        object.__setattr__(self, "names", changed or None)

    def check(self, schema: Schema) -> None:
        """Raise `OptionError` unless all fields that are renamed exist, and no two share a name."""
        if self.names is None:
            return
        fields = schema.sample_type._fields
        for name in self.names:
            if name not in fields:
                raise OptionError(
                    f"names: there is no field {name!r}; the fields are {', '.join(fields)}"
                )
        taken: dict[str, str] = {}
        for name in fields:
            new = self.names.get(name, name)
            if new in taken:
                raise OptionError(
                    f"names: the fields {taken[new]!r} and {name!r} would both be called {new!r}; "
                    "rename one of them to something else"
                )
            taken[new] = name

    def format(self, record: Any) -> Any:
        """Return a record, a named tuple of the fields of a checked schema, in this format."""
        if self.names is None:
            return record if self.batch_format == "tuple" else record._asdict()
        names = [self.names.get(name, name) for name in record._fields]
        if self.batch_format == "dict":
            return dict(zip(names, record, strict=True))
        return record_type(tuple(names))._make(record)


def _is_attribute(name: str) -> bool:
    """Return whether a named tuple can have this field."""
    plain = name.isidentifier() and not name.startswith("_") and not keyword.iskeyword(name)
    return plain and not hasattr(tuple, name)
