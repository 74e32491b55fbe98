"""Every code block of the documentation and of the READMEs runs (`docs_blocks` says how)."""

from __future__ import annotations

import inspect
import os
import re
import shutil
from pathlib import Path

import docs_blocks
import docs_sources
import pytest
import torch
from docs_blocks import MARK, REPOSITORY, Block, PageRun, blocks_of, pages
from torch.utils.data import DataLoader
from warm_python import WarmPython

import fastdata
from fastdata import transforms

PAGES = [page for page in pages() if blocks_of(page)]

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures and datasets that many pages name; not to be changed."""
    folder = tmp_path_factory.mktemp("common")
    docs_sources.make_common(folder)
    return folder


@pytest.fixture
def page_folder(
    request: pytest.FixtureRequest, common: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with what a page names, as the current one."""
    shutil.copytree(common, tmp_path, copy_function=os.link, dirs_exist_ok=True)
    docs_sources.add_sources(_name(request.param), tmp_path)
    monkeypatch.chdir(tmp_path)
    docs_blocks.measure_quickly(monkeypatch)
    monkeypatch.setenv("FASTDATA_TUNED_DIR", str(tmp_path / ".tuned"))
    # No client asks its hub for anything.
    for name in ("HF_HUB_OFFLINE", "NO_ALBUMENTATIONS_UPDATE"):
        monkeypatch.setenv(name, "1")


def _name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def _marks(page: Path) -> list[pytest.MarkDecorator]:
    """Mark the recipes, and pages that use a client."""
    blocks = [block for block in blocks_of(page) if block.language in {"python", "setup"}]
    used = set().union(*(block.modules() for block in blocks))
    if page.parent.name == "recipes" or used - {"nvidia.dali"}:
        return [pytest.mark.clients]
    return [pytest.mark.dali] if used else []


@pytest.mark.parametrize(
    ("page_folder", "page"),
    [pytest.param(page, page, marks=_marks(page), id=_name(page)) for page in PAGES],
    indirect=["page_folder"],
)
@pytest.mark.usefixtures("page_folder")
def test_the_blocks_of_a_page_run(page: Path, warm_python: WarmPython) -> None:
    run = PageRun(blocks_of(page), warm_python)
    state = torch.random.get_rng_state()
    try:
        run.run()
    finally:
        run.close()
        torch.random.set_rng_state(state)
    if run.missing:
        pytest.skip(f"{', '.join(sorted(run.missing))} not installed: {len(run.left_out)} blocks")


FAULTY = {
    "no language": ("```\nfastdata formats\n```", "of language ''"),
    "Python fails": ("```python\nraise ValueError('no')\n```", "no"),
    "no such name": ("```python\na = 1\n```\n\n```python\nb\n```", "name 'b'"),
    "another exception": (
        "<!-- test: raises OptionError -->\n```python\n1 / 0\n```",
        "ZeroDivisionError",
    ),
    "no exception": ("<!-- test: raises OptionError -->\n```python\na = 1\n```", "None"),
    "skipped, but no Python": (
        "<!-- test: skip because so -->\n```python\n1 +\n```",
        "invalid syntax",
    ),
    "a command fails": ("```bash\nfastdata info nothing.lmdb\n```", "DatasetNotFoundError|no such"),
    "skipped, but no such option": (
        "<!-- test: skip because so -->\n```bash\nfastdata info a --nothing\n```",
        "No such option",
    ),
    "no such command": ("```bash\nfastdata nothing\n```", "nothing"),
    "no such program": ("```bash\nfastdata formats\nscripts/nothing\n```", "unknown"),
    "no such script": ("```bash\ntorchrun nothing.py\n```", "no block is saved as nothing.py"),
    "no JSON": ("```json\n{'a': 1}\n```", "property name"),
    "a mark of no block": (
        "<!-- test: needs cuda -->\n\ntext\n\n```python\na = 1\n```",
        "right before its block",
    ),
}


@pytest.mark.parametrize(("text", "message"), FAULTY.values(), ids=FAULTY)
def test_a_block_that_does_not_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}\n")
    with pytest.raises((Exception, pytest.fail.Exception), match=message):
        PageRun(blocks_of(page)).run()


LEFT_OUT = {"needs cuda": 7, "skip": 6}
"""How many blocks are marked so; a change of it is a decision."""


def test_blocks_are_marked_in_the_known_ways_and_few_are_left_out() -> None:
    marked: dict[str, list[Block]] = {name: [] for name in LEFT_OUT}
    for page in PAGES:
        for block in blocks_of(page):
            for mark in block.marks:
                assert MARK.fullmatch(mark), f"{block.place}: {mark!r} is no known mark"
            for name in LEFT_OUT:
                if block.mark(name) is not None:
                    marked[name].append(block)
    for name, blocks in marked.items():
        places = "\n".join(block.place for block in blocks)
        assert len(blocks) == LEFT_OUT[name], f"{name}:\n{places}"


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_links_to_files_are_to_files_that_are_there(page: Path) -> None:
    # scripts/docs also checks anchors, and that the navigation has every page.
    text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_files_and_folders_of_the_architecture_are_there() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    (layers,) = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"(?:^|  )(\w+(?:/|\.py))(?=  )", layers, re.MULTILINE))
    named |= set(re.findall(r"`([\w./]+(?:\.py|\.md|/))`", text))
    assert {"errors.py", "steps/", "packing/driver.py", "geometric.py"} <= named
    roots = [REPOSITORY, REPOSITORY / "fastdata", REPOSITORY / "converters"]
    # A name without a folder is of the one that its sentence names.
    anywhere = {path.name for root in roots[1:] for path in root.rglob("*.py")}
    gone = [n for n in named - anywhere if not any((root / n).exists() for root in roots)]
    assert gone == []


def test_the_api_reference_has_every_public_name() -> None:
    pages = (REPOSITORY / "docs" / "api").glob("*.md")
    listed = set(re.findall(r"^::: ([\w.]+)$", "".join(p.read_text() for p in pages), re.MULTILINE))
    public = {f"fastdata.{name}" for name in fastdata.__all__}
    public |= {f"fastdata.transforms.{name}" for name in transforms.__all__}
    listed = {
        name.replace("fastdata.errors.FastdataError", "fastdata.FastdataError") for name in listed
    }
    assert sorted(public - listed) == []


def test_the_table_of_a_dataloader_is_complete() -> None:
    text = (REPOSITORY / "docs" / "moving" / "dataloader.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    arguments = set(inspect.signature(DataLoader).parameters)
    public = {name for name in vars(DataLoader([0])) if not name.startswith("_")}
    assert sorted((arguments | public) - listed) == []


def test_the_example_of_the_readme_says_nothing_as_a_script(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    example = next(b for b in blocks_of(REPOSITORY / "README.md") if b.language == "python")
    images = docs_sources.folders(tmp_path / "images", docs_sources.make_pictures(40))
    fastdata.pack(images, tmp_path / "train.lmdb", progress=False)
    done = warm_python.run(example.text, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
