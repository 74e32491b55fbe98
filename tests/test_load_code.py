"""The code that `pack`, `info` and `view` print runs, whatever is in the dataset."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import run, run_json

import fastdata
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, StringField

IMAGE, MASK = ImageField(), ImageField(channels=1, mask=True)
LABEL = ScalarField(classes=("ant", "bee"))


def pixels(number: int, *, channels: int = 3, several: bool = True) -> np.ndarray[Any, Any]:
    height, width = (30 + number, 40 - number) if several else (24, 24)
    return np.full((height, width, channels), number, np.uint8)


KINDS: dict[str, tuple[dict[str, Field], Callable[[int], dict[str, Any]]]] = {
    "photographs": (
        {"image": IMAGE, "label": LABEL},
        lambda k: {"image": pixels(k), "label": k % 2},
    ),
    "one size": (
        {"image": IMAGE, "label": LABEL},
        lambda k: {"image": pixels(k, several=False), "label": k % 2},
    ),
    "grey": ({"image": ImageField(channels=1)}, lambda k: {"image": pixels(k, channels=1)}),
    "masks": (
        {"image": IMAGE, "mask": MASK},
        lambda k: {"image": pixels(k), "mask": pixels(k, channels=1)},
    ),
    "boxes": (
        {"image": IMAGE, "boxes": ArrayField("float32", (None, 4), boxes=True)},
        lambda k: {"image": pixels(k), "boxes": np.full((k % 3, 4), [1, 2, 9, 8], np.float32)},
    ),
    "a small and a large image": (
        {"image": IMAGE, "small": IMAGE},
        lambda k: {"image": pixels(k), "small": pixels(k)[::2, ::2]},
    ),
    "two sizes, each the same": (
        {"image": IMAGE, "small": IMAGE},
        lambda k: {"image": pixels(k, several=False), "small": pixels(k, several=False)[::2]},
    ),
    "captions": (
        {"image": IMAGE, "caption": StringField(), "points": ArrayField("float32", (None, 2))},
        lambda k: {"image": pixels(k), "caption": "ö" * k, "points": np.ones((k, 2), np.float32)},
    ),
    "no image": ({"label": LABEL}, lambda k: {"label": k % 2}),
}


def loaded(code: str) -> Any:
    """Return the first batch of the loader that the code makes."""
    found: dict[str, Any] = {}
    exec(code, found)
    with found["loader"] as loader:
        return next(iter(loader))


def code_of(text: str) -> str:
    """Return the code at the end of what a command prints."""
    lines = text.partition("load it:\n")[2].splitlines()
    return "\n".join(line.removeprefix("  ") for line in lines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a.lmdb", "shards é", 'quoted".h5'])
def test_the_code_of_a_dataset_runs(tmp_path: Path, kind: str, name: str) -> None:
    fields, make = KINDS[kind]
    samples: Iterable[dict[str, Any]] = map(make, range(9))
    path = tmp_path / name
    parts: dict[str, Any] = {"shard_size": 5} if name.startswith("shards") else {}
    report = fastdata.pack(samples, path, fields=fields, num_workers=0, progress=False, **parts)
    code = code_of(str(report))
    assert code.startswith("import fastdata\n")
    assert code == code_of(run("info", path).stdout) == run_json("info", path)["load_code"]
    batch = loaded(code)
    assert set(batch._fields) == set(fields)
    assert len(batch[0]) == (1 if kind.startswith("a small") else 9)


def test_the_page_of_a_dataset_has_the_same_code(tmp_path: Path) -> None:
    fields, make = KINDS["photographs"]
    path, page = tmp_path / "a.lmdb", tmp_path / "a.html"
    fastdata.pack(map(make, range(9)), path, fields=fields, num_workers=0, progress=False)
    fastdata.view(path, page)
    (shown,) = re.findall(r'<code class="load">(.*?)</code>', page.read_text(), re.S)
    code = html.unescape(re.sub("<br ?/?>", "\n", shown)).strip()
    assert code == run_json("info", path)["load_code"]
