"""From tuning to training: a result that was measured is used by loaders that it fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import run, run_json
from samples import write_shard
from tune_helpers import Sleepy
from worker_helpers import PICTURES, pictures

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.loading import options_of
from fastdata.tuning import listing, store
from fastdata.tuning.key import key_of
from fastdata.tuning.results import TuningResult
from fastdata.tuning.settings import Settings

QUICK: dict[str, Any] = {"seconds": 1, "max_workers": 1, "progress": False}

TRAIN = """
import logging, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
import fastdata
from fastdata import transforms as T

class Mine(Dataset):
    def __init__(self, count):
        self.numbers = list(range(count))

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.zeros(4), self.numbers[index]

def build():
    return Mine(400), lambda batch: time.sleep(0.02)

def build_loader():
    return DataLoader(Mine(400), batch_size=8, shuffle=True)

def train(batch_size):
    loader = fastdata.loader(Mine(400), batch_size=batch_size, shuffle=True)
    print(loader.num_workers, loader.prefetch_factor)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    train(int(sys.argv[1]))
"""

PACKED = """
import logging, sys
import fastdata
from fastdata import transforms as T
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
path, batch_size = sys.argv[1], int(sys.argv[2])
fastdata.loader(path, batch_size=batch_size, shuffle=True, drop_last=True,
    transform=[T.RandomResizedCrop(24), T.RandomHorizontalFlip()])
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each test."""
    folder = tmp_path / "tuned"
    monkeypatch.setenv("FASTDATA_TUNED_DIR", str(folder))
    return folder


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A packed dataset of a test's own."""
    return write_shard(tmp_path / "train.lmdb", pictures(60, size=(40, 40)), PICTURES)


def output(*command: object) -> str:
    """Return what a new Python prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_command_measured_is_used_in_a_new_process(packed: Path) -> None:
    found = run("tune-workers", packed, "--batch-size", 20, "--crop", 24, "--seconds", 1,
                "--max-workers", 1, "--step-ms", 60)  # fmt: skip
    assert found.exit_code in (0, 3), found.stderr  # busy cores may not keep it busy
    (row,) = listing.show()
    line = f"tuned settings for {packed}: {row['settings']} (measured "
    assert line in output("-c", PACKED, packed, 20)
    assert "tuned" not in output("-c", PACKED, packed, 30)
    write_shard(packed, pictures(61, size=(40, 40)), PICTURES)
    assert "tuned" not in output("-c", PACKED, packed, 20)


@pytest.mark.parametrize("function", ["build", "build_loader"])
def test_what_a_script_has_is_tuned_for_the_script_itself(tmp_path: Path, function: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    options = {"batch_size": 8} if function == "build" else {}
    result = fastdata.tune_workers(f"{script}:{function}", **options, **QUICK)
    assert result.machine["cores"] >= 1
    (row,) = listing.show()
    said, chosen = output(script, 8).splitlines()
    assert said.startswith("tuned settings for ")
    assert f": {row['settings']} (measured" in said
    assert chosen.split()[0] == str(result.settings.num_workers)
    assert "tuned" not in output(script, 9)


def test_what_is_not_to_be_kept_is_not(packed: Path) -> None:
    fastdata.tune_workers(packed, batch_size=20, keep=False, **QUICK)
    assert run("tune-workers", packed, "--batch-size", 20, "--seconds", 1, "--max-workers", 1,
               "--no-keep").exit_code == 0  # fmt: skip
    assert store.is_empty()


def test_what_has_no_name_is_not_kept_and_that_is_said(tmp_path: Path) -> None:
    script = tmp_path / "stream.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from torch.utils.data import IterableDataset

            class Stream(IterableDataset):
                def __iter__(self):
                    return iter(torch.zeros(100_000, 2))

            def build():
                return Stream()
            """
        )
    )
    result = fastdata.tune_workers(f"{script}:build", batch_size=8, **QUICK)
    assert any(note.startswith("not kept: ") for note in result.notes)
    assert store.is_empty()


def test_the_command_lists_and_forgets(packed: Path, tmp_path: Path, place: Path) -> None:
    assert run_json("tune-workers", "--show") == []
    other = write_shard(tmp_path / "other.lmdb", pictures(61, size=(40, 40)), PICTURES)
    for path in (packed, other):
        fastdata.tune_workers(path, batch_size=20, **QUICK)
    rows = run_json("tune-workers", "--show")
    assert {row["dataset"] for row in rows} == {str(packed), str(other)}
    shown = run("tune-workers", "--show", packed)
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"{packed}, batches of 20: {rows[-1]['settings']}")
    assert shown.stderr == f"fastdata: 1 result kept in {place}\n"
    assert run_json("tune-workers", "--forget", packed) == {"forgotten": 1}
    assert run("tune-workers", "--forget").stdout == "1 result forgotten\n"
    assert store.is_empty()
    json.dumps(rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Missing argument 'TARGET'"),
        (("--show", "--forget"), "give one of them"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], message: str) -> None:
    found = run("tune-workers", *words)
    assert found.exit_code == 2
    assert message in found.stderr


def test_keys_of_a_scripts_datasets_are_those_of_the_process_that_measures() -> None:
    assert output(Path(__file__).with_name("key_cases.py")) == "all compared\n"


def test_one_transform_a_list_or_a_tuple_are_one_key(packed: Path) -> None:
    crop, flip = T.RandomResizedCrop(24), T.RandomHorizontalFlip()
    data = fastdata.open(packed)

    def key(transform: Any) -> Any:
        return key_of(data, options_of({"batch_size": 4, "transform": transform}))

    assert key([crop, flip]) == key((crop, flip)) != key([flip, crop])
    assert key(crop) == key([crop])
    assert key(None) == key([])


def test_a_global_that_a_transform_names_is_part_of_the_key(tmp_path: Path) -> None:
    script = tmp_path / "globals.py"
    text = """
import functools, torch
from torch.utils.data import Dataset
from fastdata.loading import options_of
from fastdata.tuning.key import key_of

def sized(n):
    return torch.zeros(n)

TRANSFORM = functools.partial(sized, n=3)

class Mine(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return TRANSFORM()

if __name__ == "__main__":
    print(key_of(Mine(), options_of({})).digest)
"""
    script.write_text(text)
    first = output(script)
    assert output(script) == first
    script.write_text(text.replace("n=3", "n=5000"))
    assert output(script) != first


@pytest.mark.parametrize("options", [{"timeout": 5}, {"multiprocessing_context": "spawn"}])
def test_no_workers_as_tuned_do_without_what_is_for_workers(options: dict[str, Any]) -> None:
    data = Sleepy(16, 0.0)
    key = key_of(data, options_of({"batch_size": 4, **options}))
    assert key is not None
    tuned = Settings(0, "process", backend="torch")
    store.save(key, TuningResult(tuned, "keeps the step busy", True, 4))
    loader = fastdata.loader(data, batch_size=4, **options)
    assert loader.num_workers == 0
    assert len(list(loader)) == 4


def test_what_was_not_swept_whole_is_not_kept() -> None:
    result = fastdata.tune_workers(
        Sleepy(64, 0.1), batch_size=4, seconds=1, max_workers=8, progress=False
    )
    assert any("the time was up" in note for note in result.notes)
    assert store.is_empty()
