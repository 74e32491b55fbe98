"""A sample of a WebDataset tar file: its members, and how they become values."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from fastdata.schema import Schema

from ...base import Deferred
from ..spans import FileSpan
from .member_choice import Chosen
from .member_values import value_of

__all__ = ["Members", "Plan", "Told"]


class Plan(NamedTuple):
    """Which member of a sample each field is read from."""

    schema: Schema
    chosen: tuple[Chosen, ...]
    exported: bool


class Told(NamedTuple):
    """How an exported sample is called: by its members' name, unless JSON says otherwise."""

    name: str
    json: FileSpan | bytes | None

    @property
    def key(self) -> str:
        """The key."""
        if self.json is None:
            return self.name
        data = self.json if isinstance(self.json, bytes) else self.json.read()
        document = json.loads(data)
        key = document.get("key", self.name) if isinstance(document, dict) else None
        if not isinstance(key, str):
            raise ValueError("the key in the JSON member is no text")
        return key


class Members(Deferred):
    """The members of a sample, in the schema's order: places, or what was inflated."""

    def __init__(
        self, places: tuple[FileSpan | bytes, ...], plan: Plan, told: Told | None = None
    ) -> None:
        self.places, self.plan, self.told = places, plan, told

    def load(self) -> tuple[Any, ...]:
        """Return values; images are left as they are."""
        if self.told is not None:
            self.stored_key = self.told.key
        columns = zip(self.plan.schema.items(), self.plan.chosen, self.places, strict=True)
        return tuple(value_of(at, field, entry, name) for (name, field), entry, at in columns)
