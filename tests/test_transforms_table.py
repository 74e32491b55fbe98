"""The table of torchvision's transforms in the documentation, against fastdata's."""

from __future__ import annotations

import re
from pathlib import Path

from fastdata import transforms as T  # noqa: N812

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
