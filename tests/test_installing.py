"""The name that fastdata is installed by: one, and no place that says another."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastdata
from fastdata import installing

REPOSITORY = Path(__file__).parents[1]
PYPROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
TEXTS = {".c", ".h", ".in", ".jinja", ".md", ".py", ".sh", ".toml", ".txt", ".yml", ""}
PLACES = ("converters", "docs", "fastdata", "scripts", "tests", ".ci")

WRONG = {
    "an extra": r"(?<![\w.-])fastdata\[[\w$,{}]+\]",
    "what pip installs": r"pip (?:install|download)\b[^`#\n]*?(?<![\w./-])fastdata(?![\w/-])",
    "a dependency": r"(?:dependencies|requires)\b.*[\"']fastdata\b(?![-.:])",
    "metadata": r"(?:version|distribution|metadata)\(\s*[\"']fastdata[\"']|Name: fastdata$",
}
"""How the name of the other project would be used."""

REMOVED = re.compile(r"pip uninstall|version\(\"fastdata\"\)")
"""Where scripts/lib.sh takes that project out of an environment."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every file of the repository that people or tools read."""
    files = [path for path in REPOSITORY.iterdir() if path.name != ".git"]
    files += [path for place in PLACES for path in (REPOSITORY / place).rglob("*")]
    for path in files:
        own = path == Path(__file__) or "__pycache__" in path.parts
        if path.is_file() and path.suffix in TEXTS and not own:
            yield (
                path.relative_to(REPOSITORY).as_posix(),
                path.read_text(encoding="utf-8", errors="replace"),
            )


@pytest.mark.parametrize("kind", WRONG)
def test_no_file_names_the_other_project(kind: str) -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(WRONG[kind], line) and not (path.endswith("lib.sh") and REMOVED.search(line))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("an extra", "pip install 'fastdata[parquet]'"),
        ("an extra", 'formats = ["fastdata[parquet,zstd]"]'),
        ("what pip installs", "Upgrade it: pip install --upgrade fastdata"),
        ("what pip installs", '"pip install fastdata"'),
        ("a dependency", 'dependencies = ["fastdata"]'),
        ("a dependency", 'dependencies = ["fastdata>=0.1", "numpy"]'),
        ("metadata", 'importlib.metadata.version("fastdata")'),
        ("metadata", "Name: fastdata"),
    ],
)
def test_such_a_line_is_found(kind: str, line: str) -> None:
    assert re.search(WRONG[kind], line)
    assert not re.search(WRONG[kind], line.replace("fastdata", "fastdata-vision"))


def test_the_name_is_that_of_pyproject() -> None:
    assert re.findall(r'^name = "(.*)"$', PYPROJECT, re.M)[0] == installing.DISTRIBUTION
    assert installing.DISTRIBUTION == "fastdata-vision"
    assert installing.install_line("zstd") == "pip install 'fastdata-vision[zstd]'"
    assert re.search(rf'^version = "{re.escape(fastdata.__version__)}"$', PYPROJECT, re.M)


def extras() -> set[str]:
    """Return the extras that there are."""
    table = PYPROJECT.split("[project.optional-dependencies]\n")[1].split("\n[", 1)[0]
    return set(re.findall(r"^(\w+) = \[", table, re.M))


def test_every_extra_that_is_named_is_there() -> None:
    named = set()
    for path, text in texts():
        for words in re.findall(r"fastdata-vision\[([\w,]+)\]", text):
            named |= {(path, word) for word in words.split(",")}
        if path.endswith(".py") and not path.startswith("tests/"):
            named |= {(path, word) for word in extras_in_code(text)}
    assert {word for _, word in named} >= {"jpeg", "dali", "plot", "parquet", "tfrecord"}
    assert sorted(entry for entry in named if entry[1] not in extras()) == []


def extras_in_code(text: str) -> Iterator[str]:
    """Yield the extras that code asks an install line for."""
    position = {"install_line": 0, "require": 1}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            place = position.get(node.func.id)
            if place is not None and len(node.args) > place:
                extra = node.args[place]
                if isinstance(extra, ast.Constant) and isinstance(extra.value, str):
                    yield extra.value


@pytest.mark.parametrize("words", [["--version"], ["formats"]])
def test_the_command_sees_that_the_other_project_took_its_place(
    tmp_path: Path, words: list[str]
) -> None:
    # As pip leaves it: the other's first file, with this one's among and below its own.
    package = tmp_path / "fastdata"
    package.mkdir()
    for path in Path(fastdata.__file__).parent.iterdir():
        if path.name not in {"__init__.py", "__pycache__"}:
            (package / path.name).symlink_to(path)
    (package / "__init__.py").write_text('__version__ = "0.0.22"\n')
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from fastdata.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert f"{package / '__init__.py'} is not of fastdata-vision" in done.stderr
    assert "pip uninstall fastdata fastdata-vision" in done.stderr
    assert done.stdout == ""
