"""What is nearly right on a command line is answered with what is."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fastdata.cli import main


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("pakc a b", "Did you mean 'pack'?"),
        ("tune a", "Did you mean 'tune-workers'?"),
        ("cache lst", "Did you mean 'list'?"),
        ("pack a b --split train", "Did you mean --option split=train?"),
        ("pack a b --split=train", "Did you mean --option split=train?"),
        ("append a b --split", "Did you mean --option split=VALUE?"),
        ("pack a b --codec jpg", "Did you mean 'jpeg'?"),
        ("pack . b --format foldr", "Did you mean 'folder'?"),
        ("pack . b --format folder --option splt=train", "Did you mean 'split'?"),
        ("export a b --format webdatset", "Did you mean 'webdataset'?"),
        ("pack . x.lmbd", "Did you mean '.lmdb'?"),
    ],
)
def test_what_was_probably_meant_is_suggested(line: str, meant: str) -> None:
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 2
    assert meant in result.stderr


def test_what_is_near_nothing_is_suggested_nothing() -> None:
    result = CliRunner().invoke(main, ["pack", "a", "b", "--codec", "xyzzy"])
    assert "Did you mean" not in result.stderr
