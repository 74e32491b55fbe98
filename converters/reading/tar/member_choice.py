"""Which members of a sample become which fields: what ``jpg``, ``cls``, ``npy`` stand for.

The meanings are those of WebDataset's ``autodecode.py`` as far as they are data; members
that only unpickling could read (``pyd``, ``pth``) are not read.  ``member_values.py`` reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastdata.errors import SourceError

from ..exported import Exported
from ..field_names import is_mask_name, safe_name, unique_name
from ..image_files import SUFFIXES
from ..selection import MEMBERS

__all__ = [
    "IMAGES",
    "NUMBERS",
    "ChosenMember",
    "choose_members",
    "exported_members",
    "main_suffixes",
]

IMAGES = (*(suffix[1:] for suffix in SUFFIXES), "gif")
_LABELS = ("cls", "class")
NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript", "json", "jsn")
_PICKLES = ("pyd", "pickle", "pkl", "pth", "pt", "joblib")

_SUFFIX = re.compile(r"[^A-Z/;:]+")


class ChosenMember(NamedTuple):
    """What a field is read from."""

    suffixes: tuple[str, ...]  # of the member; the first that a sample has
    key: str = ""  # of an entry of a JSON member; empty for the whole of a member


def choose_members(
    wanted: Sequence[str], samples: Sequence[Mapping[str, bytes]], notes: list[str], place: str
) -> dict[str, ChosenMember]:
    """Return the fields and what each is read from.

    wanted: as the user gives it, ``field=suffix;suffix:key``; empty for what is usual.
    """
    there = sorted({suffix for sample in samples for suffix in sample})
    if not wanted:
        return _usual(there, samples, notes, place)
    chosen: dict[str, ChosenMember] = {}
    for field, member in MEMBERS.parse(wanted).items():
        suffixes, _, key = member.partition(":")
        alternatives = tuple(part.strip().lower() for part in suffixes.split(";") if part.strip())
        for suffix in alternatives:
            if suffix.rpartition(".")[2] in _PICKLES:
                raise MEMBERS.refused(place, suffix, "is a pickle: reading it would execute it")
        if not set(alternatives) & set(there):
            raise MEMBERS.missing(place, field, member, there, "the first samples have")
        chosen[field] = ChosenMember(alternatives, key.strip())
    return chosen


def exported_members(exported: Exported) -> dict[str, ChosenMember]:
    """Return what each field of an export is read from."""
    chosen: dict[str, ChosenMember] = {}
    for name, place in exported.stored_as.items():
        suffixes, colon, key = place.partition(":")
        alternatives = tuple(suffixes.split(";"))
        if not all(map(_SUFFIX.fullmatch, alternatives)) or (colon and not key):
            raise exported.misfit(f"{place[:60]!r}, of {name!r}, is no member of a sample")
        chosen[name] = ChosenMember(alternatives, key)
    return chosen


def main_suffixes(chosen: Mapping[str, ChosenMember]) -> tuple[str, ...]:
    """Return the suffixes of an export's main image; its file's name is a sample's key."""
    plain = [e.suffixes for e in chosen.values() if not e.key and "." not in e.suffixes[0]]
    return next((suffixes for suffixes in plain if suffixes[0] not in ("cls", "txt")), ())


def _usual(
    there: Sequence[str], samples: Sequence[Mapping[str, bytes]], notes: list[str], place: str
) -> dict[str, ChosenMember]:
    images: dict[str, list[str]] = {}
    for suffix in sorted(there, key=_rank):
        stem, _, kind = suffix.rpartition(".")
        if kind in IMAGES:
            images.setdefault(stem, []).append(suffix)
    if not images:
        raise SourceError(MEMBERS.unclear(place, "no image in the first samples", there))
    kinds = {suffix for suffixes in images.values() for suffix in suffixes}
    samples = [sample for sample in samples if not kinds.isdisjoint(sample)]  # no README.md
    masks = [stem for stem in images if is_mask_name(stem)]
    plain = [stem for stem in images if not is_mask_name(stem)]
    chosen: dict[str, ChosenMember] = {}
    for stem in plain:
        name = "image" if stem == "" or len(plain) == 1 else safe_name(stem)
        _put(chosen, name, images[stem], samples)
    for stem in masks:
        _put(chosen, "mask" if len(masks) == 1 else safe_name(stem), images[stem], samples)
    if not chosen:
        reason = "no image is in most of the first samples"
        raise SourceError(MEMBERS.unclear(place, reason, there))
    label = next((suffix for suffix in _LABELS if suffix in there), None)
    if label is not None:
        _put(chosen, "label", [label], samples)
    for suffix in there:
        stem, _, kind = suffix.rpartition(".")
        if kind in NUMBERS and suffix != label:
            _put(chosen, safe_name(suffix), [suffix], samples)
        elif kind in (*_TEXTS, "npy"):
            name = "text" if suffix == "txt" else stem or kind
            _put(chosen, safe_name(name), [suffix], samples)
    left = sorted(set(there) - {suffix for entry in chosen.values() for suffix in entry.suffixes})
    notes += MEMBERS.left_out(left)
    return chosen


def _rank(suffix: str) -> int:
    kind = suffix.rpartition(".")[2]
    return IMAGES.index(kind) if kind in IMAGES else len(IMAGES)


def _put(
    chosen: dict[str, ChosenMember],
    name: str,
    suffixes: list[str],
    samples: Sequence[Mapping[str, bytes]],
) -> None:
    """Choose the suffixes that stand for each other: those of which no sample has two.

    None where they are in less than half of the samples.
    """
    taken: list[str] = []
    for suffix in suffixes:
        if not any(suffix in sample and set(taken) & set(sample) for sample in samples):
            taken.append(suffix)
    if 2 * sum(not set(taken).isdisjoint(sample) for sample in samples) < len(samples):
        return  # most samples would be rejected for the want of it
    chosen[unique_name(name, chosen)] = ChosenMember(tuple(taken))
