"""The types of the public interface, as mypy finds them in a user's script."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

SCRIPT = """
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, TensorDataset, random_split
from typing_extensions import assert_type

import fastdata
from fastdata import transforms as T

Unsure = fastdata.Loader | DataLoader[Any] | fastdata.CUDAPrefetcher


def packed() -> None:
    with fastdata.loader("x.lmdb", batch_size=2, transform=[T.CenterCrop(8)]) as loader:
        assert_type(loader, fastdata.Loader)
        loader.load_state_dict(loader.state_dict())
        loader.set_epoch(loader.stats().batches)
        for images, labels in loader:
            print(images, labels)
    dataset = fastdata.open("x.lmdb")
    assert_type(fastdata.loader(dataset[:3], 2, True, device="cuda"), fastdata.Loader)
    assert_type(fastdata.loader(dataset=[Path("a"), Path("b")], batch_size=2), fastdata.Loader)


def others(tensors: TensorDataset, stream: IterableDataset[int], found: object) -> None:
    assert_type(fastdata.loader(tensors, 2, shuffle=True), DataLoader[Any])
    assert_type(fastdata.loader(stream, 2, collate_fn=list), DataLoader[Any])
    assert_type(fastdata.loader(tensors, 2, device="cuda"), Unsure)
    assert_type(fastdata.loader(random_split(tensors, [1])[0]), Unsure)
    assert_type(fastdata.loader(found), Unsure)


def wrong() -> None:
    fastdata.loader("x.lmdb", batch_size="2")  # type: ignore[call-overload]
    fastdata.loader("x.lmdb", cache="disk")  # type: ignore[call-overload]
"""


@pytest.mark.build
def test_a_loader_has_the_type_of_what_it_is_made_of(linked_package: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ["--strict", "--follow-imports=silent", "--config-file="]
    # Kept: reading torch's types takes seconds.
    cache = ["--cache-dir", str(REPOSITORY / ".cache" / "mypy_of_tests")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *cache, str(script)],
        env={**os.environ, "MYPYPATH": str(linked_package)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
