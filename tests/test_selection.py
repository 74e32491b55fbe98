"""`scripts/test` runs most tests by default, and every test with ``--all``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

pytestmark = [pytest.mark.build, pytest.mark.timeout(300)]


def default_arguments() -> list[str]:
    """Return the arguments that `scripts/test` gives pytest by default."""
    code = 'source scripts/lib.sh && printf "%s\\0" "${default_tests[@]}"'
    said = subprocess.run(["bash", "-c", code], cwd=REPOSITORY, capture_output=True, check=True)
    return said.stdout.decode().rstrip("\0").split("\0")


def collected(*arguments: str) -> set[str]:
    """Return the IDs of the tests that pytest selects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_default_and_marked_tests_are_all_tests() -> None:
    arguments = default_arguments()
    expression = arguments[arguments.index("-m") + 1]
    found = re.fullmatch(r"smoke or not \((.+)\)", expression)
    assert found is not None, expression
    by_default, marked = collected(*arguments), collected("-m", f"({found[1]}) and not smoke")
    assert not by_default & marked
    assert by_default | marked == collected()
    page = (REPOSITORY / "docs" / "contributing.md").read_text("utf-8")
    explained = re.findall(r"^\| `(\w+)` \|", page.partition("## Marks of tests")[2], re.MULTILINE)
    assert sorted(explained) == sorted([*found[1].split(" or "), "smoke"])


def test_a_test_that_is_named_runs_whatever_its_marks() -> None:
    name = "tests/test_selection.py::test_default_and_marked_tests_are_all_tests"
    assert collected(name) == {name}


REASONS = {
    "NATIVE": "the compiled library is not here",
    "DALI": "could not import 'nvidia.dali'",
    "CHROMIUM": "no Chromium",
    "CUDA": "no CUDA device",
}


@pytest.mark.parametrize("demanded", ["1", "0"])
def test_a_skip_fails_if_its_part_is_demanded(demanded: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")}
    for part, reason in REASONS.items():
        (tmp_path / f"test_{part}.py").write_text(
            f"import pytest\n\ndef test_part(): pytest.skip({reason!r})\n"
        )
        (tmp_path / f"test_all_of_{part}.py").write_text(
            f"import pytest\n\npytest.skip({reason!r}, allow_module_level=True)\n"
        )
        environment[f"FASTDATA_REQUIRE_{part}"] = demanded
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "--rootdir", "."]
    options = ["--continue-on-collection-errors", "."]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode == 0) == (demanded == "0"), done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("4 failed, 4 errors in" if demanded == "1" else "8 skipped in")
    for part, reason in REASONS.items():
        said = f"FASTDATA_REQUIRE_{part}=1 demands a part, but a test was skipped: {reason}"
        assert done.stdout.count(said) >= 2 or demanded == "0"
