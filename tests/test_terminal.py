"""Names of somebody's data are shown, never carried out: by a terminal, or by a spreadsheet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pack_helpers import QUICK, image_folder

import fastdata
from fastdata.cli import main
from fastdata.errors import ShardCorruptError

RED = "\x1b[31mred"
"""A name that would colour what follows it; with C1's short form of the same, and a bell."""
EVIL = f"{RED}\x9b0m\a"
SHOWN = r"\x1b[31mred\x9b0m\x07"


def run(*arguments: Any) -> str:
    """Return all that a command prints; a terminal that takes colours would get it so."""
    result = CliRunner().invoke(main, list(map(str, arguments)), color=True)
    return result.stdout + result.stderr


def has_controls(text: str) -> bool:
    return any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text.replace("\n", ""))


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A dataset with such a class, key and name, and with such a reject."""
    root = image_folder(tmp_path / "images", 8, classes=[EVIL, "plain\nnot a line"])
    (root / EVIL / f"bad{EVIL}.jpg").write_bytes(b"no image")
    path = tmp_path / f"{EVIL}.lmdb"
    fastdata.pack(root, path, **QUICK)
    return path


def test_what_commands_print_moves_no_cursor(evil: Path, tmp_path: Path) -> None:
    packed = run(
        "pack", evil.parent / "images", tmp_path / f"again{EVIL}.lmdb", "--workers", 0, "--size", 24
    )
    said = {
        "pack": packed,
        "info": run("info", evil),
        "verify": run("verify", evil),
        "view": run("view", evil, "--html", tmp_path / f"{EVIL}.html"),
        "export": run("export", evil, tmp_path / f"out{EVIL}"),
        "error": run("info", tmp_path / f"none{EVIL}"),
        "traceback": run("info", tmp_path / f"none{EVIL}", "--traceback"),
        "usage": run(EVIL),
    }
    for command, text in said.items():
        assert not has_controls(text), command
        assert SHOWN in text, (command, text)


def test_a_class_name_makes_no_line_of_its_own(evil: Path) -> None:
    lines = run("info", evil).splitlines()
    assert any("plain not a line" in line for line in lines)
    assert not any(line.startswith("not a line") for line in lines)


def test_what_an_error_says_can_be_printed() -> None:
    with pytest.raises(ShardCorruptError) as caught:
        raise ShardCorruptError(f"{EVIL}\nsecond line")
    assert str(caught.value) == f"{SHOWN}\nsecond line"


def test_keys_and_classes_are_kept_as_they_are(evil: Path) -> None:
    dataset = fastdata.open(evil)
    assert EVIL in dataset.classes
    assert any(EVIL in key for key in map(str, dataset.keys))


@pytest.mark.parametrize("key", ["=1+1", "+1", "-1", "@x", "\tx", "'=x", "''=x", "'x", "x=1"])
def test_cells_of_rejects_are_no_formulas(tmp_path: Path, key: str) -> None:
    """A cell that a spreadsheet would compute begins with an apostrophe, and reads as it was."""
    root = image_folder(tmp_path / "images", 4, classes=[key, "plain"])
    (root / key / "bad.jpg").write_bytes(b"no image")
    report = fastdata.pack(root, tmp_path / "x.lmdb", **QUICK)
    assert report.rejects_path is not None
    with open(report.rejects_path, newline="", encoding="utf-8") as file:
        [row] = csv.DictReader(file)
    assert row["key"][0] not in "=+-@\t\r"
    assert row["key"] in (f"{key}/bad.jpg", f"'{key}/bad.jpg")
    assert [reject.key for reject in report.rejects] == [f"{key}/bad.jpg"]


def test_lists_of_rejects_move_no_cursor(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images", 4, classes=["cat", "dog"])
    (root / "cat" / f"bad{EVIL}\r.jpg").write_bytes(b"no image")
    report = fastdata.pack(root, tmp_path / "x.lmdb", **QUICK)
    assert report.rejects_path is not None
    assert not has_controls(report.rejects_path.read_text(encoding="utf-8"))
    assert [reject.key for reject in report.rejects] == [f"cat/bad{SHOWN} .jpg"]


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\0key", b"a,b\n1,2\n", b"key\n1\n", b"key,reason\n" + b"x" * 200_000]
)
def test_a_list_of_rejects_may_be_anything(evil: Path, tmp_path: Path, data: bytes) -> None:
    evil.with_name(f"{evil.name}.rejects.csv").write_bytes(data)
    assert "likely a bug" not in run("view", evil, "--html", tmp_path / "v.html")
    assert (tmp_path / "v.html").exists()
