"""What holds of all transforms: the table of torchvision's in the documentation, and refusals."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError

PAGE = Path(__file__).parents[1] / "docs" / "transforms.md"


def table() -> dict[str, str]:
    """Return what the page says of each of torchvision's transforms: "yes", or what else to do."""
    _, _, text = PAGE.read_text().partition("## All transforms of torchvision\n")
    said: dict[str, str] = {}
    for row in re.findall(r"^\| (`.*)", text.partition("\n## ")[0], re.MULTILINE):
        names, answer, *_ = row.split(" | ")
        for name in re.findall(r"`(\w+)`", names):
            assert name not in said, f"{name} is there twice"
            said[name] = answer
    return said


def test_all_transforms_of_torchvision_are_in_the_table() -> None:
    assert len(table()) == 63


def test_each_transform_that_the_table_calls_supported_is_there() -> None:
    assert [name for name, said in table().items() if said == "yes" and name not in T.__all__] == []


def test_each_transform_that_is_there_is_called_supported() -> None:
    both = [name for name in table() if name in T.__all__ and name != "Transform"]  # a type here
    assert [name for name in both if table()[name] != "yes"] == []


# -- parameters --------------------------------------------------------------------------

REQUIRED: dict[str, Any] = {
    "bits": 3,
    "degrees": 5,
    "dtype": torch.float32,
    "kernel_size": 3,
    "max_size": 9,
    "mean": [0.5],
    "min_size": 8,
    "padding": 2,
    "sharpness_factor": 1,
    "size": 8,
    "std": [0.5],
    "target_size": (8, 8),
    "threshold": 9,
    "transforms": [T.RandomInvert()],
}
WRONG = (None, -1, "x", (), [None, 1], (1, 2, 3), math.nan, 1e300, 10**30, 1j, object(), int)
ARRAYS = np.array([1, 2]), torch.tensor([1, 2])
OF_ARRAYS = "size", "padding", "padding_mode", "interpolation", "antialias", "num_classes", "p"
CLASSES = [
    one
    for name in T.__all__
    if isinstance(one := getattr(T, name), type)
    and hasattr(one, "__dataclass_fields__")
    and name not in ("Albumentations", "V2")  # which need these libraries
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_wrong_parameter_is_refused_by_its_name(kind: Any) -> None:
    parameters = inspect.signature(kind).parameters
    required = {name: value for name, value in REQUIRED.items() if name in parameters}
    for name in parameters:
        for value in (*WRONG, *(ARRAYS if name in OF_ARRAYS else ())):
            message = name
            try:
                kind(**{**required, name: value})
            except OptionError as error:
                message = str(error)
            assert name in message or name in ("fn", "transforms"), (value, message)
