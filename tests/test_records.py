"""The form of samples and batches: named tuples or dicts, and what fields are called."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from samples import make_records, write_shard

import fastdata
from fastdata.errors import OptionError
from fastdata.schema import ImageField, ScalarField, Schema

SCHEMA = Schema({"image": ImageField(), "label": ScalarField(), "weight": ScalarField("float32")})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = make_records(SCHEMA, 6, size=(4, 5))
    return write_shard(tmp_path_factory.mktemp("records") / "shard.lmdb", records, SCHEMA)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"names": {"image": "image"}}, ("image", "label", "weight")),
        ({"batch_format": "dict"}, ("image", "label", "weight")),
        (
            {"batch_format": "dict", "names": {"image": "pixel_values", "label": "in"}},
            ("pixel_values", "in", "weight"),
        ),
        ({"names": {"image": "label", "label": "image"}}, ("label", "image", "weight")),
    ],
)
def test_records_are_renamed_in_the_order_of_fields(
    path: Path, options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    plain = fastdata.open(path)[5]
    dataset = fastdata.open(path, **options)
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        record = each[5]
        assert isinstance(record, dict) == ("batch_format" in options)
        values = record if isinstance(record, dict) else record._asdict()
        assert tuple(values) == expected
        for found, value in zip(values.values(), plain, strict=True):
            assert (found == value) if isinstance(value, (int, float)) else found.equal(value)
    assert type(pickle.loads(pickle.dumps(record))) is type(record)


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
        (
            {"names": {"picture": "image"}},
            "no field 'picture'; the fields are image, label, weight",
        ),
        (
            {"names": {"image": "label"}},
            "the fields 'image' and 'label' would both be called 'label'",
        ),
        (
            {"names": {"image": "x", "weight": "x"}},
            "'image' and 'weight' would both be called 'x'",
        ),
    ],
)
def test_names_that_cannot_be_are_refused(path: Path, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.open(path, **options)
