"""What came of the tests of client libraries: a plugin of pytest that writes it, and the table.

    FASTDATA_CLIENTS_RESULTS=now.json python -m pytest -p clients_table tests/clients
    python scripts/clients_table.py before=old.json after=now.json

A row is a test function with all its cases; which client it is of, its module says:
``test_lightning_module.py`` is of lightning.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

# Modules that are called otherwise than the client, and tests of no client.
CLIENTS = {
    "batches": "torch",
    "ddp": "torch",
    "ranks": "torch",
    "transforms": "timm, torchvision, albumentations",
}
OUTCOMES = {"failed": "FAILED", "passed": "passed", "skipped": "skipped", "not run": "not run"}
_found: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note all tests, with what they prove."""
    for item in items:
        proves = [number for mark in item.iter_markers("proves") for number in mark.args]
        _found[item.nodeid] = {"proves": proves, "outcome": None}


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Forget tests that are not wanted."""
    for item in items:
        _found.pop(item.nodeid, None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what came of one: the first phase that says something else than "passed" counts."""
    found = _found.setdefault(report.nodeid, {"proves": [], "outcome": None})
    if found["outcome"] in (None, "passed"):
        found["outcome"] = report.outcome


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note modules that cannot be imported: with an older package all their tests fail."""
    if report.failed:
        _found[f"{report.nodeid}::"] = {"proves": [], "outcome": "failed"}


def pytest_sessionfinish() -> None:
    """Write all of it."""
    if path := os.environ.get("FASTDATA_CLIENTS_RESULTS"):
        names = {name for node in _found for name in client_of(node).split(", ")} | {"torch"}
        about = {"python": platform.python_version(), **{name: version_of(name) for name in names}}
        Path(path).write_text(json.dumps({"versions": about, "tests": _found}, indent=1))


def client_of(node: str) -> str:
    """Return the client that a test is of."""
    name = Path(node.partition("::")[0]).stem.removeprefix("test_").split("_")[0]
    return CLIENTS.get(name, name)


def version_of(name: str) -> str:
    """Return the installed version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def rows(results: dict[str, Any]) -> dict[tuple[str, str], tuple[set[str], Counter[str]]]:
    """Return for each client and test what it proves, and how many of its cases came to what."""
    found: dict[tuple[str, str], tuple[set[str], Counter[str]]] = {}
    for node, result in results["tests"].items():
        test = node.partition("::")[2].partition("[")[0]
        # Two clients may have tests of one name, in several modules.
        key = node.partition("::")[0], test
        proves, outcomes = found.setdefault(key, (set(), Counter()))
        proves.update(result["proves"])
        outcomes[result["outcome"] or "not run"] += 1
    return found


def summary(outcomes: Counter[str]) -> str:
    """Return a cell: "passed 4", or "FAILED 1, passed 3"."""
    return ", ".join(
        f"{said} {outcomes[name]}" for name, said in OUTCOMES.items() if outcomes[name]
    )


def table(columns: dict[str, dict[str, Any]]) -> str:
    """Return the results as Markdown, one column for each file of them."""
    last = list(columns.values())[-1]
    lines = [
        f"| client | version | test | proves | {' | '.join(columns)} |",
        "|" + "---|" * (4 + len(columns)),
    ]
    every = {name: rows(results) for name, results in columns.items()}
    totals: dict[str, Counter[str]] = {name: Counter() for name in columns}
    for key, (proves, _) in rows(last).items():
        module, test = key
        names = client_of(module)
        versions = ", ".join(last["versions"].get(name, "") for name in names.split(", "))
        cells = []
        for name, found in every.items():
            broken = (module, "") in found
            outcomes = found.get(key, (set(), Counter({"failed": 1} if broken else {})))[1]
            totals[name].update(outcomes)
            cells.append(summary(outcomes) or "not run")
        said = test.removeprefix("test_").replace("_", " ") or "(cannot be imported)"
        lines.append(
            f"| {names} | {versions} | {said} | {', '.join(sorted(proves))} | {' | '.join(cells)} |"
        )
    cells = [summary(totals[name]) for name in columns]
    lines.append(f"| all | | | | {' | '.join(cells)} |")
    with_torch = {name: last["versions"][name] for name in ("python", "torch")}
    return "\n".join(
        [*lines, "", "With " + ", ".join(f"{a} {b}" for a, b in with_torch.items()) + "."]
    )


def column(argument: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the results of ``NAME=FILE``."""
    name, equals, path = argument.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=FILE")
    try:
        results = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from error
    if not (isinstance(results, dict) and results.keys() >= {"versions", "tests"}):
        raise argparse.ArgumentTypeError(f"{path} is not what this plugin writes")
    return name, results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("columns", nargs="+", type=column, metavar="NAME=FILE")
    print(table(dict(parser.parse_args().columns)))
