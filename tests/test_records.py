"""The form of samples and batches: named tuples or dicts, and what fields are called."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fastdata.errors import OptionError
from fastdata.records import RecordFormat
from fastdata.schema import ImageField, ScalarField, Schema

SCHEMA = Schema({"image": ImageField(), "label": ScalarField(), "weight": ScalarField("float32")})
RECORD = SCHEMA.sample_type("pixels", 3, 0.5)


def test_by_default_a_record_is_handed_out_itself() -> None:
    assert RecordFormat().format(RECORD) is RECORD
    assert RecordFormat(names={}).format(RECORD) is RECORD
    assert RecordFormat(names={"image": "image"}).format(RECORD) is RECORD
    assert RecordFormat(names={"image": "image"}) == RecordFormat()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_format": "dict"}, {"image": "pixels", "label": 3, "weight": 0.5}),
        (
            {"batch_format": "dict", "names": {"image": "pixel_values", "label": "in"}},
            {"pixel_values": "pixels", "in": 3, "weight": 0.5},
        ),
        (
            {"names": {"image": "label", "label": "image"}},
            {"label": "pixels", "image": 3, "weight": 0.5},
        ),
    ],
)
def test_records_are_renamed_in_the_order_of_fields(
    options: dict[str, Any], expected: dict[str, Any]
) -> None:
    record_format = RecordFormat(**options)
    record_format.check(SCHEMA)
    record = record_format.format(RECORD)
    values = record if isinstance(record, dict) else record._asdict()
    assert isinstance(record, dict) == (record_format.batch_format == "dict")
    assert list(values.items()) == list(expected.items())
    copy = pickle.loads(pickle.dumps(record_format))
    assert copy == record_format
    assert hash(copy) == hash(record_format)
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_format": "list"}, "batch_format is 'tuple' or 'dict', not 'list'"),
        ({"names": [("image", "x")]}, r"such as {'image': 'pixel_values'}; it is not \[\('image'"),
        ({"names": {"image": 3}}, "a field is called by a text, not 3"),
        ({"names": {"image": ""}, "batch_format": "dict"}, "called by a text, not ''"),
        ({"names": {"image": "in"}}, "'in' cannot be the name of a field of a named tuple"),
        ({"names": {"image": "_x"}}, "'_x' cannot be the name of a field of a named tuple"),
        ({"names": {"image": "count"}}, "'count' cannot be the name .* or batch_format='dict'"),
    ],
)
def test_what_is_no_format_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RecordFormat(**options)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"picture": "image"}, "no field 'picture'; the fields are image, label, weight"),
        ({"image": "label"}, "the fields 'image' and 'label' would both be called 'label'"),
        ({"image": "x", "weight": "x"}, "'image' and 'weight' would both be called 'x'"),
    ],
)
def test_names_that_do_not_suit_the_fields_are_refused(names: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RecordFormat("dict", names).check(SCHEMA)
