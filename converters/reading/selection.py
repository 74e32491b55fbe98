"""The options by which users choose what is read: ``FIELD=NAME``, the same in every format.

``columns=``, ``features=``, ``arrays=`` and ``members=`` differ in what the format calls its
parts, and in nothing else: ``image=photo,label`` takes the part ``photo`` as the field
``image``, and ``label`` under its own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastdata.errors import OptionError
from fastdata.schema import Field

from .field_names import safe_name

__all__ = [
    "ARRAYS",
    "COLUMNS",
    "FEATURES",
    "MEMBERS",
    "Selection",
    "TableColumn",
    "joined",
    "left_out",
]

_MOST_KNOWN = 30


def joined(names: Iterable[str], most: int = 12) -> str:
    """Return names with commas between them, ``a, b, c``; dots stand for those beyond `most`."""
    every = list(names)
    return ", ".join(every[:most]) + " ..." * (len(every) > most) or "none"


def left_out(what: str, names: Iterable[str], remedy: str = "") -> list[str]:
    """Return the note on what a source does not take, in a list; empty if it takes all.

    what: what these are: ``"columns"``.
    remedy: how to have them, where they can be had.
    """
    every = list(names)
    return [f"{what} left out: {joined(every)}{f' ({remedy})' if remedy else ''}"] * bool(every)


class TableColumn(NamedTuple):
    """A column as a format has it, and the field that it can be."""

    name: str  # empty where columns have only positions
    field: Field | None  # None where it cannot be taken
    refusal: str = ""  # why not; goes on behind the name: "is pickled"


@dataclass(frozen=True)
class Selection:
    """One such option."""

    option: str  # its name, which is also what the parts are: ``"columns"``
    part: str  # one of them: ``"column"``
    example: str  # what stands for its name in messages

    def parse(self, entries: Sequence[str]) -> dict[str, str]:
        """Return the part that each field is read from."""
        chosen: dict[str, str] = {}
        for entry in entries:
            field, equals, name = (text.strip() for text in entry.partition("="))
            if not field or (equals and not name):
                raise OptionError(
                    f"{self.option}={','.join(entries)}: {entry!r} is neither "
                    f"FIELD={self.example} nor {self.example}"
                )
            if not equals:
                field, name = safe_name(field), field
            if field in chosen:
                raise OptionError(
                    f"{self.option}={','.join(entries)}: the field {field!r} stands twice"
                )
            chosen[field] = name
        return chosen

    def check(
        self,
        chosen: Mapping[str, str],
        place: object,
        refusals: Mapping[str, str],
        there: str = "there are",
    ) -> None:
        """Refuse a choice of parts that are not there, or of which `refusals` has a reason."""
        for field, name in chosen.items():
            if name not in refusals:
                raise self.missing(place, field, name, refusals, there)
        for name in chosen.values():
            if refusals[name]:
                able = (other for other, reason in refusals.items() if not reason)
                raise self.refused(place, name, refusals[name], able)

    @property
    def remedy(self) -> str:
        """What to do where the choice is not clear."""
        return (
            f"Name what is wanted: --option {self.option}=image={self.example},label={self.example}"
        )

    def missing(
        self, place: object, field: str, name: str, known: Iterable[str], there: str = "there are"
    ) -> OptionError:
        """Return the error for a part that is not there.

        field, name: as `parse` returns them.
        """
        return OptionError(
            f"{place}: no {self.part} {name!r} for the field {field!r}; {there} "
            f"{joined(known, _MOST_KNOWN)}. {self.remedy}"
        )

    def unclear(self, place: object, reason: str, known: Iterable[str]) -> str:
        """Return the message where nothing is chosen and nothing is usual."""
        return f"{place}: {reason}; there are {joined(known, _MOST_KNOWN)}. {self.remedy}"

    def refused(
        self, place: object, name: str, reason: str, able: Iterable[str] = ()
    ) -> OptionError:
        """Return the error for a part that cannot be read.

        reason: goes on behind its name: ``"is pickled"``.
        """
        others = ",".join(able)
        remedy = f". Take others: --option {self.option}={others}" if others else ""
        return OptionError(f"{place}: the {self.part} {name!r} {reason}{remedy}")

    def left_out(self, names: Iterable[str]) -> list[str]:
        """Return the note on parts that are not taken; see `left_out`."""
        takes = f"--option {self.option}=FIELD={self.example},... takes others"
        return left_out(self.option, names, takes)


ARRAYS = Selection("arrays", "array", "ARRAY")
COLUMNS = Selection("columns", "column", "COLUMN")
FEATURES = Selection("features", "feature", "FEATURE")
MEMBERS = Selection("members", "member", "SUFFIX")
