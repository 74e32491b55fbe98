"""Members of a sample as fields: what ``jpg``, ``cls``, ``json``, ``npy`` stand for.

The meanings are those of WebDataset's ``autodecode.py`` as far as they are data; members
that only unpickling could read (``pyd``, ``pth``) are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, BytesField, Field, ImageField, ScalarField

from .fields import check_names, field_of, is_image_bytes, named_field
from .naming import safe_name
from .npy import parse_npy
from .spans import FileSpan

__all__ = ["Chosen", "choose", "settle", "value_of"]

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
_MASKS = ("mask", "seg", "segmentation", "masks")
_LABELS = ("cls", "class")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript", "json", "jsn")
_PICKLES = ("pyd", "pickle", "pkl", "pth", "pt", "joblib")


class Chosen(NamedTuple):
    """What a field is read from.

    Attributes
    ----------
    suffixes : tuple of str
        Of the member; the first that a sample has.
    key : str
        Of an entry of a JSON member; empty for the whole of a member.
    """

    suffixes: tuple[str, ...]
    key: str = ""


def choose(
    wanted: Sequence[str], samples: Sequence[Mapping[str, bytes]], notes: list[str], place: str
) -> dict[str, Chosen]:
    """Return the fields and what each is read from.

    Parameters
    ----------
    wanted : sequence of str
        As the user gives it, ``field=suffix;suffix:key``; empty for what is usual.
    samples : sequence of mapping
        The first samples, by suffix.
    notes : list of str
        Told what is left out.
    place : str
        Of the samples, for messages.

    Raises
    ------
    OptionError
        If something wanted is not there, or is not read.
    SourceError
        If nothing is wanted and there is no image.
    """
    there = sorted({suffix for sample in samples for suffix in sample})
    if not wanted:
        return _usual(there, samples, notes, place)
    chosen: dict[str, Chosen] = {}
    for entry in wanted:
        field, equals, rest = entry.partition("=")
        suffixes, _, key = rest.partition(":")
        alternatives = tuple(part.strip().lower() for part in suffixes.split(";") if part.strip())
        if not equals or not alternatives:
            raise OptionError(f"members: {entry!r} is not of the form field=suffix")
        for suffix in alternatives:
            if suffix.rpartition(".")[2] in _PICKLES:
                raise OptionError(f"members: {suffix!r} is a pickle: reading it would execute it")
        if not set(alternatives) & set(there):
            raise OptionError(
                f"{place}: no member {rest!r} for the field {field!r}; the first samples have "
                f"{', '.join(there[:30])}. Name what is wanted: "
                "--option members=image=SUFFIX,label=SUFFIX,text=json:KEY"
            )
        chosen[field.strip()] = Chosen(alternatives, key.strip())
    return chosen


def _usual(
    there: Sequence[str], samples: Sequence[Mapping[str, bytes]], notes: list[str], place: str
) -> dict[str, Chosen]:
    images: dict[str, list[str]] = {}
    for suffix in sorted(there, key=_rank):
        stem, _, kind = suffix.rpartition(".")
        if kind in _IMAGES:
            images.setdefault(stem, []).append(suffix)
    if not images:
        raise SourceError(
            f"{place}: no image in the first samples, which have {', '.join(there[:30])}. Name "
            "what is wanted: --option members=image=SUFFIX,label=SUFFIX"
        )
    kinds = {suffix for suffixes in images.values() for suffix in suffixes}
    samples = [sample for sample in samples if not kinds.isdisjoint(sample)]  # no README.md
    masks = [stem for stem in images if _is_mask(stem)]
    plain = [stem for stem in images if not _is_mask(stem)]
    chosen: dict[str, Chosen] = {}
    for stem in plain:
        name = "image" if stem == "" or len(plain) == 1 else safe_name(stem)
        _put(chosen, name, images[stem], samples)
    for stem in masks:
        _put(chosen, "mask" if len(masks) == 1 else safe_name(stem), images[stem], samples)
    if not chosen:
        raise SourceError(
            f"{place}: no image is in most of the first samples; their members are "
            f"{', '.join(there[:30])}. Name what is wanted: --option members=image=SUFFIX"
        )
    label = next((suffix for suffix in _LABELS if suffix in there), None)
    if label is not None:
        _put(chosen, "label", [label], samples)
    for suffix in there:
        stem, _, kind = suffix.rpartition(".")
        if kind in _NUMBERS and suffix != label:
            _put(chosen, safe_name(suffix), [suffix], samples)
        elif kind in (*_TEXTS, "npy"):
            name = "text" if suffix == "txt" else stem or kind
            _put(chosen, safe_name(name), [suffix], samples)
    left = sorted(set(there) - {suffix for entry in chosen.values() for suffix in entry.suffixes})
    if left:
        notes.append(
            f"members left out: {', '.join(left[:12])}{' ...' * (len(left) > 12)} "
            "(--option members=FIELD=SUFFIX,... takes others)"
        )
    return chosen


def _rank(suffix: str) -> int:
    kind = suffix.rpartition(".")[2]
    return _IMAGES.index(kind) if kind in _IMAGES else len(_IMAGES)


def _is_mask(stem: str) -> bool:
    return bool(set(re.split(r"[^a-z]+", stem)) & set(_MASKS))


def _put(
    chosen: dict[str, Chosen],
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
    while name in chosen:
        name += "_"
    chosen[name] = Chosen(tuple(taken))


def settle(
    chosen: Mapping[str, Chosen],
    samples: Sequence[Mapping[str, bytes]],
    fields: Mapping[str, Field | str],
    channels: int,
) -> dict[str, Field]:
    """Return the field of each name, by the user's word or by what the first samples have.

    Raises
    ------
    OptionError
        If `fields` has a name that was not chosen.
    SourceError
        If what the samples have fits no field.
    """
    check_names(fields, list(chosen))
    settled: dict[str, Field] = {}
    for name, entry in chosen.items():
        if name in fields:
            settled[name] = named_field(fields[name], channels)
            continue
        values, failure = [], ""
        for sample in samples:
            data = next((sample[suffix] for suffix in entry.suffixes if suffix in sample), None)
            if data is not None:
                try:
                    values.append(_guessed(data, entry, name))
                except (ValueError, RecursionError) as error:
                    failure = f": {error}"
        if not values:
            raise SourceError(
                f"{name!r} can be read from none of the first samples{failure}. Say what kind of "
                "field it is, or name other members: --option members=FIELD=SUFFIX,..."
            )
        mask = "mask" in name or _is_mask(entry.suffixes[0].rpartition(".")[0])
        settled[name] = _field(values, channels, name, mask)
    return settled


def _field(values: list[Any], channels: int, name: str, mask: bool) -> Field:
    first = values[0]
    if is_image_bytes(first):
        return ImageField(channels=1, mask=True) if mask else ImageField(channels=channels)
    if isinstance(first, np.ndarray) and first.ndim:
        # Not as field_of has it, which takes some arrays of uint8 for images.
        if len({array.ndim for array in values}) > 1:
            raise SourceError(f"{name!r}: arrays have different numbers of dimensions")
        shapes = zip(*(array.shape for array in values), strict=True)
        lengths = tuple(each[0] if len(set(each)) == 1 else None for each in shapes)
        return ArrayField(np.result_type(*values).name, lengths)
    if any(isinstance(value, bytes) for value in values):
        return BytesField()  # some were text, by chance
    return field_of(values, channels, name)


def _guessed(data: bytes, entry: Chosen, name: str) -> Any:
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


def value_of(at: FileSpan | bytes, field: Field, entry: Chosen, name: str) -> Any:
    """Return the value of a field from a member; an image is left where it is.

    Raises
    ------
    ValueError
        If the member does not hold such a value.
    """
    if isinstance(field, ImageField) and not entry.key:
        return at
    data = at if isinstance(at, bytes) else at.read()
    if entry.key:
        value = _entry(data, entry.key)
        return _number(value, field, name) if isinstance(value, str) else value
    if isinstance(field, BytesField):
        return data
    if isinstance(field, ArrayField):
        return parse_npy(data) if data.startswith(b"\x93NUMPY") else json.loads(data)
    if isinstance(field, ScalarField) and data.startswith(b"\x93NUMPY"):
        return parse_npy(data)
    text = data.decode()
    return _number(text, field, name) if isinstance(field, ScalarField) else text


def _entry(data: bytes, key: str) -> Any:
    value = json.loads(data)
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise ValueError(f"the JSON member has no entry {key!r}")
        value = value[part]
    return value


def _number(text: str, field: Field, name: str) -> Any:
    """Read a number, or the name of a class, where the field is one of numbers."""
    if not isinstance(field, ScalarField):
        return text
    text = text.strip()
    if field.classes is not None and text in field.classes:
        return field.classes.index(text)
    try:
        return float(text) if field.dtype.startswith("float") else int(text)
    except ValueError:
        raise ValueError(f"{name!r} is {text[:60]!r}, which is no number") from None
