"""Imports run one way: between the rooms as pyproject.toml has them, and within a room."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("importlinter") is None, reason="import-linter is not installed"
)

GRAPH = """
import grimp, json
graph = grimp.build_graph("fastdata", exclude_type_checking_imports=True, cache_dir=None)
imports = {m: sorted(graph.find_modules_directly_imported_by(m)) for m in graph.modules}
print(json.dumps(imports))
"""


def run(linked_package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that finds this tree before anything that is installed."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=linked_package,
        env={**os.environ, "PYTHONPATH": str(linked_package)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_layers_of_pyproject_are_kept(linked_package: Path) -> None:
    config = str(REPOSITORY / "pyproject.toml")
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = run(linked_package, "-c", code, "--no-cache", "--config", config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_every_room_has_a_layer() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    import tomllib

    with open(REPOSITORY / "pyproject.toml", "rb") as file:
        (contract,) = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = {name for layer in contract["layers"] for name in layer.replace("|", ":").split(":")}
    rooms = {
        path.stem
        for path in (REPOSITORY / "fastdata").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert {name.strip() for name in layers} == (rooms | {"converters"}) - {"__init__", "__main__"}


def test_no_modules_import_each_other_in_a_circle(linked_package: Path) -> None:
    done = run(linked_package, "-c", GRAPH)
    assert done.returncode == 0, done.stderr
    imports: dict[str, list[str]] = json.loads(done.stdout)
    assert "fastdata.converters.packing.driver" in imports
    # What imports only modules that are in no circle is in none either.
    while free := [m for m, imported in imports.items() if not set(imported) & imports.keys()]:
        for module in free:
            del imports[module]
    assert not imports
