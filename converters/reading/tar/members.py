"""Members of a sample and the fields that they become: what ``jpg``, ``cls``, ``npy`` stand for.

The meanings are those of WebDataset's ``autodecode.py`` as far as they are data; members
that only unpickling could read (``pyd``, ``pth``) are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, BytesField, Field, ImageField, ScalarField, Schema

from ...scan import Keyed, read
from ..box_forms import BoxNumbers, parse_boxes
from ..class_names import known_numbers
from ..field_names import is_mask_name, safe_name, unique_name
from ..fields import field_of, image_field, resolve_boxes, resolve_fields
from ..image_files import SUFFIXES, is_image_bytes
from ..npy import parse_npy
from ..selection import MEMBERS
from ..spans import FileSpan

__all__ = [
    "ChosenMember",
    "MembersReader",
    "choose_members",
    "main_suffixes",
    "member_fields",
    "parse_member",
]

# -- which members are taken ------------------------------------------------------------


_IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)
_LABELS = ("cls", "class")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript", "json", "jsn")
_NPY = b"\x93NUMPY"
_PICKLES = ("pyd", "pickle", "pkl", "pth", "pt", "joblib")


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
    for field, text in MEMBERS.parse(wanted).items():
        chosen[field] = entry = parse_member(text)
        for suffix in entry.suffixes:
            if suffix.rpartition(".")[2] in _PICKLES:
                raise MEMBERS.refused(place, suffix, "is a pickle: reading it would execute it")
        if not set(entry.suffixes) & set(there):
            raise MEMBERS.missing(place, field, text, there, "the first samples have")
    return chosen


def parse_member(text: str) -> ChosenMember:
    """Return the member that ``suffix;suffix`` or ``suffix:key`` names."""
    suffixes, _, key = text.partition(":")
    return ChosenMember(tuple(part.strip().lower() for part in suffixes.split(";")), key.strip())


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
        if kind in _IMAGES:
            images.setdefault(stem, []).append(suffix)
    if not images:
        raise SourceError(MEMBERS.unclear(place, "no image in the first samples", there))
    kinds = {suffix for suffixes in images.values() for suffix in suffixes}
    samples = [sample for sample in samples if not kinds.isdisjoint(sample)]  # no README.md
    masks = [stem for stem in images if is_mask_name(stem)]
    plain = [stem for stem in images if not is_mask_name(stem)]
    label = next((suffix for suffix in _LABELS if suffix in there), "")
    usual: list[tuple[str, list[str]]] = []
    for stem in plain:
        name = "image" if not stem or len(plain) == 1 else safe_name(stem)
        usual.append((name, images[stem]))
    for stem in masks:
        usual.append(("mask" if len(masks) == 1 else safe_name(stem), images[stem]))
    usual += [("label", [label])] * (label != "")
    for suffix in there:
        stem, _, kind = suffix.rpartition(".")
        if kind in _NUMBERS and suffix != label:
            usual.append((safe_name(suffix), [suffix]))
        elif kind in (*_TEXTS, "npy"):
            usual.append((safe_name("text" if suffix == "txt" else stem or kind), [suffix]))
    chosen: dict[str, ChosenMember] = {}
    for name, suffixes in usual:
        taken: list[str] = []  # which stand for each other: no sample has two of them
        for suffix in suffixes:
            if not any(suffix in sample and set(taken) & set(sample) for sample in samples):
                taken.append(suffix)
        if 2 * sum(not set(taken).isdisjoint(sample) for sample in samples) >= len(samples):
            chosen[unique_name(name, chosen)] = ChosenMember(tuple(taken))
        elif suffixes == [label] or name == "mask":  # else most samples would be rejected
            reason = f"the {name} {suffixes[0]!r} is only in some of the first samples"
            raise SourceError(MEMBERS.unclear(place, reason, there))
    taken = [suffix for entry in chosen.values() for suffix in entry.suffixes]
    if not set(taken) & kinds:
        reason = "no image is in most of the first samples"
        raise SourceError(MEMBERS.unclear(place, reason, there))
    notes += MEMBERS.left_out(sorted(set(there) - set(taken)))
    return chosen


def _rank(suffix: str) -> int:
    kind = suffix.rpartition(".")[2]
    return _IMAGES.index(kind) if kind in _IMAGES else len(_IMAGES)


# -- their values -----------------------------------------------------------------------


def member_fields(
    chosen: Mapping[str, ChosenMember],
    samples: Sequence[Mapping[str, bytes]],
    fields: Mapping[str, Field | str],
    channels: int,
    boxes: Sequence[str],
    notes: list[str],
) -> tuple[dict[str, Field], dict[str, BoxNumbers]]:
    """Return the field of each name, and what boxes are.

    They are as the user says, or by the values that the first samples have.
    """

    def own(name: str) -> Field:
        return _field(name, chosen[name], samples, channels, notes)

    resolved = resolve_fields(chosen, fields, channels, own)
    columns: dict[str, list[Any]] = {}
    for name, field in resolved.items():
        if isinstance(field, (ArrayField, ImageField)):
            for data in _datas(chosen[name], samples):
                with suppress(ValueError, RecursionError):
                    columns.setdefault(name, []).append(_value_of(data, field, chosen[name], name))
    return resolved, resolve_boxes(resolved, columns, parse_boxes(boxes, whole=True), fields, notes)


def _datas(entry: ChosenMember, samples: Sequence[Mapping[str, bytes]]) -> Iterator[bytes]:
    for sample in samples:
        yield from [sample[suffix] for suffix in entry.suffixes if suffix in sample][:1]


def _field(
    name: str,
    entry: ChosenMember,
    samples: Sequence[Mapping[str, bytes]],
    channels: int,
    notes: list[str],
) -> Field:
    values, failure = [], ""
    for data in _datas(entry, samples):
        try:
            values.append(_guessed(data, entry, name))
        except (ValueError, RecursionError) as error:
            failure = f": {error}"
    if not values:
        raise SourceError(
            f"{name!r} can be read from none of the first samples{failure}. Say what kind of "
            "field it is, or name other members: --option members=FIELD=SUFFIX,..."
        )
    if is_image_bytes(values[0]):
        return image_field(f"{name} {entry.suffixes[0].rpartition('.')[0]}", channels)
    if any(isinstance(value, bytes) for value in values):
        return BytesField()  # some were text, by chance
    return field_of(values, channels, name, notes)


def _guessed(data: bytes, entry: ChosenMember, name: str) -> Any:
    """Return the value of a member of which only the suffix is known."""
    kind = entry.suffixes[0].rpartition(".")[2]
    if entry.key:
        return _entry(data, entry.key)
    if kind in _IMAGES or is_image_bytes(data):
        return b"\xff\xd8\xff" if kind in _IMAGES else data[:16]
    if kind in _NUMBERS:
        return 0  # a class, whatever this one sample's says
    if kind == "npy":
        return parse_npy(data)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _value_of(at: FileSpan | bytes, field: Field, entry: ChosenMember, name: str) -> Any:
    """Return the value of a field from a member; an image file is left where it is."""
    kind = entry.suffixes[0].rpartition(".")[2]
    if isinstance(field, ImageField) and not entry.key and kind != "npy":
        return at
    data = read(at)
    if entry.key:
        value = _entry(data, entry.key)
        return _number(value, field, name) if isinstance(value, str) else value
    if isinstance(field, BytesField):
        return data
    if isinstance(field, (ArrayField, ScalarField, ImageField)) and data.startswith(_NPY):
        return parse_npy(data)
    if isinstance(field, ArrayField):
        return json.loads(data)
    text = data.decode()
    if not isinstance(field, ScalarField):
        return text
    # A class may be called "1" and not have that number; `cls` is a number where it can be.
    whole = kind in _NUMBERS and text.strip().removeprefix("-").isdecimal()
    return int(text) if whole else _number(text, field, name)


def _entry(data: bytes, key: str) -> Any:
    value = json.loads(data)
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise ValueError(f"the JSON member has no entry {key!r}")
        value = value[part]
    return value


def _number(text: str, field: Field, name: str) -> Any:
    """Read a number, or the name of a class, where the field is of numbers."""
    if not isinstance(field, ScalarField):
        return text
    text = text.strip()
    if field.classes is not None and text in (numbers := known_numbers(field.classes)):
        return numbers[text]
    try:
        return float(text) if field.dtype.startswith("float") else int(text)
    except ValueError:
        raise ValueError(
            f"{name!r} is {text[:60]!r}, not a number or a class's name (--option classes=FILE "
            "gives the names)"
        ) from None


class MembersReader(NamedTuple):
    """Reads the members of a sample, in the schema's order; images are left as they are.

    A sample of an export has its name and its JSON member, or None, behind them: its key is in
    that, or the name.
    """

    schema: Schema
    chosen: tuple[ChosenMember, ...]

    def __call__(self, values: tuple[Any, ...]) -> tuple[Any, ...] | Keyed:
        columns = zip(self.schema.items(), self.chosen, values, strict=False)
        found = tuple(_value_of(at, field, entry, name) for (name, field), entry, at in columns)
        if len(values) == len(found):
            return found
        key, document = values[-2:]
        if document is not None:
            about = json.loads(read(document))
            key = about.get("key", key) if isinstance(about, dict) else None
        if not isinstance(key, str):
            raise ValueError("the key in the JSON member is no text")
        return Keyed(key, found)
