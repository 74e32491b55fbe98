"""Run the command line in this process, on little folders of images."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from samples import photo, pil_encode

from fastdata.cli import main

__all__ = ["make_folder", "run", "run_json", "start"]


def run(*words: object) -> Result:
    """Run ``fastdata`` in this process, with standard output and error apart."""
    # click 8.2 keeps them apart by itself and has no such option any more.
    mixed = "mix_stderr" in inspect.signature(CliRunner).parameters
    runner = CliRunner(**({"mix_stderr": False} if mixed else {}))
    return runner.invoke(main, [str(word) for word in words])


def run_json(*words: object, code: int = 0) -> Any:
    """Run it with ``--json``; return the one document on standard output."""
    result = run(*words, "--json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    """Start ``fastdata`` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fastdata", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def make_folder(
    root: Path, classes: Sequence[str] = ("cat", "dog"), count: int = 3, size: int = 48
) -> Path:
    """Make class folders of JPEGs, no two alike."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(count):
            pixels = photo(size, size + 8 * index, 3, seed=100 * number + index)
            (root / name / f"{index}.jpg").write_bytes(pil_encode(pixels, "JPEG"))
    return root
