"""The worked example of ``converters/README.md`` does what it says there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import run
from docs_blocks import blocks_of
from PIL import Image

import fastdata
from fastdata.errors import OptionError

README = Path(__file__).parents[1] / "converters" / "README.md"


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example as pip would: a module, and metadata that names its entry point."""
    blocks: dict[str, str] = {}
    for block in blocks_of(README):
        blocks.setdefault(block.language, block.text)
    site = tmp_path / "site"
    metadata = site / "fastdata_jsonl-0.1.dist-info"
    metadata.mkdir(parents=True)
    (site / "fastdata_jsonl.py").write_text(blocks["python"], encoding="utf-8")
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fastdata-jsonl\nVersion: 0.1\n"
    )
    (entry,) = re.findall(r"^jsonl = \"(.*)\"$", blocks["toml"], re.MULTILINE)
    (metadata / "entry_points.txt").write_text(f"[fastdata.converters]\njsonl = {entry}\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "fastdata_jsonl", raising=False)


def make_source(folder: Path) -> None:
    """Make five images, and six lines about them."""
    folder.mkdir()
    lines = []
    for i in range(6):
        lines.append(json.dumps({"file_name": f"{i}.png", "text": f"picture {i}"}))
        if i < 5:
            Image.fromarray(np.full((90, 80, 3), i, np.uint8)).save(folder / f"{i}.png")
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.usefixtures("plugin")
def test_the_example_packs_and_lists_what_is_missing(tmp_path: Path) -> None:
    make_source(tmp_path / "captions")
    report = fastdata.pack(
        tmp_path / "captions", tmp_path / "captions.h5", shuffle=True, num_workers=0, progress=False
    )
    assert [reject.key for reject in report.rejects] == ["5.png"]
    dataset = fastdata.open(tmp_path / "captions.h5")
    texts = [dataset[i].text for i in range(len(dataset))]
    assert sorted(texts) == [f"picture {i}" for i in range(5)]
    assert [f"picture {key[0]}" for key in dataset.keys] == texts
    assert [int(sample.image[0, 9, 9]) for sample in dataset] == [int(t[-1]) for t in texts]


def test_the_example_is_short() -> None:
    (code,) = [b for b in blocks_of(README) if "class JsonLinesSource" in b.text]
    assert len(code.text.splitlines()) <= 40


@pytest.mark.usefixtures("plugin")
def test_the_example_can_be_chosen_by_name_opened_and_refuses_fields(tmp_path: Path) -> None:
    make_source(tmp_path / "captions")
    (tmp_path / "captions" / "more").mkdir()  # now the folder format would take it
    options = {"format": "jsonl", "num_workers": 0, "progress": False}
    report = fastdata.pack(tmp_path / "captions", tmp_path / "out.lmdb", **options)  # type: ignore[arg-type]
    assert report.num_samples == 5
    opened = fastdata.open(tmp_path / "captions", format="jsonl")
    assert [opened[i].text for i in range(5)] == [f"picture {i}" for i in range(5)]
    with pytest.raises(OptionError, match=r"fields \['txt'\] are not in the source"):
        fastdata.pack(
            tmp_path / "captions",
            tmp_path / "b.lmdb",
            fields={"txt": "int"},
            **options,  # type: ignore[arg-type]
        )


@pytest.mark.usefixtures("plugin")
def test_the_example_is_listed_among_the_formats_of_other_packages() -> None:
    listed = run("formats").stdout.partition("Formats of other packages:\n")[2]
    assert listed.splitlines()[0].split(maxsplit=1) == ["jsonl", "images with a metadata.jsonl"]


BROKEN = """
from fastdata.converters.base import Source

class Broken(Source):
    name = "broken"

    @classmethod
    def recognises(cls, location):
        raise KeyError("no such thing")

    def __init__(self, location, *, channels=3, fields=None):
        pass

    def __iter__(self):
        return iter(())
"""


@pytest.mark.parametrize(
    ("number", "text", "problem"),
    [
        (1, "import a_package_that_is_not_there", "cannot be imported: ModuleNotFoundError"),
        (2, "raise SystemError('of C code')", "cannot be imported: SystemError: of C code"),
        (3, BROKEN, r"its recognises\(\) failed: KeyError: 'no such thing'"),
    ],
)
def test_a_format_that_fails_is_named_and_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    text: str,
    problem: str,
) -> None:
    metadata = tmp_path / "site" / f"broken{number}-0.1.dist-info"
    metadata.mkdir(parents=True)
    (tmp_path / "site" / f"broken{number}.py").write_text(text)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: broken{number}\nVersion: 1\n")
    entry = f"[fastdata.converters]\nbroken = broken{number}:Broken\n"
    (metadata / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in ("ant", "bee"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(tmp_path / "images" / name / "0.png")
    report = fastdata.pack(tmp_path / "images", tmp_path / "x.lmdb", num_workers=0, progress=False)
    assert report.num_samples == 2
    assert len(fastdata.open(tmp_path / "images")) == 2
    assert run("formats").exit_code == 0
    messages = [record.getMessage() for record in caplog.records]
    assert any(re.search(f"format 'broken' of another package.*{problem}", m) for m in messages)
