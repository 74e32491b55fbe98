"""From tuning to training: a result that was measured is used by loaders that it fits."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import run, run_json
from samples import write_shard
from tune_helpers import Sleepy
from worker_helpers import PICTURES, pictures

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.loading import options_of
from fastdata.steps import run_script
from fastdata.tuned_settings import store
from fastdata.tuned_settings.key import key_of
from fastdata.tuned_settings.settings import Settings
from fastdata.tuned_settings.store import TunedSettings
from fastdata.tuning import listing, runner
from fastdata.tuning.runner import LocalRunner

QUICK: dict[str, Any] = {"seconds": 3, "max_workers": 1, "progress": False}

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
    for batch_size in sys.argv[1:]:
        train(int(batch_size))
"""

PACKED = """
import logging, os, sys
import fastdata
from fastdata import transforms as T
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
path, other = sys.argv[1:]

def train(batch_size):
    print("batches of", batch_size)
    fastdata.loader(path, batch_size=batch_size, shuffle=True, drop_last=True,
        transform=[T.RandomResizedCrop(24), T.RandomHorizontalFlip()])

train(30)
train(20)
os.replace(other, path)
train(20)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each test."""
    folder = tmp_path / "tuned"
    monkeypatch.setenv("FASTDATA_TUNED_DIR", str(folder))
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, where that it is another one is not what is tested."""
    monkeypatch.setattr(runner, "ProcessRunner", LocalRunner)


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
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("here")
def test_what_the_command_measured_is_used_in_a_new_process(packed: Path) -> None:
    found = run("tune-workers", packed, "--batch-size", 20, "--crop", 24, "--seconds", 3,
                "--max-workers", 1, "--step-ms", 20)  # fmt: skip
    assert found.exit_code in (0, 3), found.stderr  # busy cores may not keep it busy
    (row,) = listing.show()
    other = write_shard(packed.with_name("other.lmdb"), pictures(61, size=(40, 40)), PICTURES)
    lines = output("-c", PACKED, packed, other).splitlines()
    # Neither for another batch size, nor once the dataset has changed.
    assert lines[:2] == ["batches of 30", "batches of 20"]
    assert lines[2].startswith(f"tuned settings for {packed}: {row['settings']} (measured ")
    assert lines[3:] == ["batches of 20"]


@pytest.mark.timing
def test_what_a_script_has_is_tuned_for_the_script_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    fastdata.tune_workers(f"{script}:build", batch_size=8, **QUICK)
    (row,) = listing.show()
    monkeypatch.setattr(runner, "ProcessRunner", LocalRunner)
    result = fastdata.tune_workers(f"{script}:build_loader", **QUICK)
    assert result.machine["cores"] >= 1
    (again,) = listing.show()
    assert again["file"] == row["file"]  # the same data, in both ways
    lines = output(script, 8, 9).splitlines()
    assert lines[0].startswith("tuned settings for ")
    assert f": {again['settings']} (measured" in lines[0]
    assert lines[1].split()[0] == str(result.settings.num_workers)
    assert "tuned" not in lines[2]


def keep(data: Any, **options: Any) -> None:
    """Keep a result, of figures that are made up."""
    key = key_of(data, options_of(options))
    assert key is not None
    tuned = Settings(1, "process", backend="torch", persistent_workers=False)
    settings = TunedSettings(tuned, options["batch_size"], "keeps the step busy", True)
    assert store.save(key, settings) is not None


@pytest.mark.parametrize("function", ["build", "build_loader"])
def test_what_is_kept_for_a_scripts_data_is_shown_and_forgotten(
    tmp_path: Path, function: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN + "\nprint('imported')\n")
    target = f"{script}:{function}"
    data, _ = run_script(f"{script}:build")
    keep(data, batch_size=8)
    keep(data, batch_size=16)
    keep(Sleepy(16, 0.0), batch_size=8)
    rows = run_json("tune-workers", "--show", target)  # the script's own output is not in it
    assert {row["batch_size"] for row in rows} == {8, 16}
    assert len(rows) == 2
    assert len(listing.show(data)) == 2
    assert run_json("tune-workers", "--forget", target) == {"forgotten": 2}
    assert [row["dataset"] for row in listing.show()] == ["tune_helpers.Sleepy"]
    assert listing.forget(torch.utils.data.DataLoader(Sleepy(16, 0.0))) == 1


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("absent.py:build", 2, "absent.py: no such file"),
        ("broken.py:nothing", 2, "has no function 'nothing'"),
        ("broken.py:build", 1, "broken.py:build raised ValueError: no data"),
    ],
)
@pytest.mark.parametrize("option", ["--show", "--forget"])
def test_a_script_whose_data_cannot_be_had_is_said(
    tmp_path: Path, option: str, target: str, code: int, message: str
) -> None:
    (tmp_path / "broken.py").write_text("def build():\n    raise ValueError('no data')\n")
    found = run("tune-workers", option, tmp_path / target)
    assert found.exit_code == code
    assert message in found.stderr


def test_workers_that_need_not_persist_do_not() -> None:
    data = Sleepy(16, 0.0)
    keep(data, batch_size=4)
    tuned = fastdata.loader(data, batch_size=4)
    assert (tuned.num_workers, tuned.persistent_workers) == (1, False)  # type: ignore[union-attr]
    assert fastdata.loader(data, batch_size=8).persistent_workers  # type: ignore[union-attr]
    given = fastdata.loader(data, batch_size=4, persistent_workers=True)
    assert (given.num_workers, given.persistent_workers) == (1, True)  # type: ignore[union-attr]
    with pytest.raises(OptionError, match="persistent_workers is one of 'auto', True, False"):
        fastdata.loader(data, persistent_workers="no")  # type: ignore[arg-type]


@pytest.mark.usefixtures("here")
def test_what_is_not_to_be_kept_is_not(packed: Path) -> None:
    assert run("tune-workers", packed, "--batch-size", 20, "--seconds", 1, "--max-workers", 1,
               "--no-keep").exit_code == 0  # fmt: skip
    assert store.is_empty()


@pytest.mark.timing
@pytest.mark.usefixtures("here")
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


@pytest.mark.timing
@pytest.mark.usefixtures("here")
def test_a_dataset_whose_repr_raises_is_tuned_and_not_kept() -> None:
    class Shy(Sleepy):
        def __repr__(self) -> str:
            raise RuntimeError("no name")

    result = fastdata.tune_workers(Shy(64, 0.0), batch_size=8, **QUICK)
    assert any("naming the data failed (RuntimeError: no name)" in note for note in result.notes)
    assert store.is_empty()


def test_the_command_lists_and_forgets(packed: Path, tmp_path: Path, place: Path) -> None:
    assert run_json("tune-workers", "--show") == []
    other = write_shard(tmp_path / "other.lmdb", pictures(61, size=(40, 40)), PICTURES)
    for path in (packed, other):
        keep(fastdata.open(path), batch_size=20)
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


@pytest.mark.timing
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
    with_transform = key((crop, flip))
    data.transform = [crop, flip]
    assert key(None) == with_transform, "the transform of the dataset is the loader's"


def test_the_source_of_a_dataset_is_part_of_the_key(tmp_path: Path) -> None:
    script = tmp_path / "sources.py"
    text = """
import torch
from torch.utils.data import Dataset

class Mine(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.zeros(3)

def build():
    return Mine()
"""

    def digest(text: str) -> str:
        script.write_text(text)
        linecache.checkcache()
        key = key_of(run_script(f"{script}:build")[0], options_of({}))
        assert key is not None
        return key.digest

    first = digest(text)
    assert digest(f"# elsewhere in the file\n{text}") == first
    assert digest(text.replace("zeros(3)", "zeros(5000)")) != first


@pytest.mark.parametrize("options", [{"timeout": 5}, {"multiprocessing_context": "spawn"}])
def test_no_workers_as_tuned_do_without_what_is_for_workers(options: dict[str, Any]) -> None:
    data = Sleepy(16, 0.0)
    key = key_of(data, options_of({"batch_size": 4, **options}))
    assert key is not None
    tuned = Settings(0, "process", backend="torch")
    store.save(key, TunedSettings(tuned, 4, "keeps the step busy", True))
    loader = fastdata.loader(data, batch_size=4, **options)
    assert loader.num_workers == 0
    assert len(list(loader)) == 4


@pytest.mark.usefixtures("here")
def test_what_was_not_swept_whole_is_not_kept() -> None:
    result = fastdata.tune_workers(
        Sleepy(64, 0.03), batch_size=4, seconds=1, max_workers=8, progress=False
    )
    assert any("the time was up" in note for note in result.notes)
    assert store.is_empty()


def test_what_only_failed_with_workers_is_not_kept() -> None:
    from fastdata.measuring.windows import Rate
    from fastdata.tuning.report import Trial
    from fastdata.tuning.tuner import _only_failed_with_workers

    class Result:
        trials = (
            Trial(Settings(0), Rate(9.0, 8.0, 10.0, 5)),
            Trial(Settings(1), None, "killed"),
            Trial(Settings(2), None, "killed"),
        )

    assert _only_failed_with_workers(Result())  # type: ignore[arg-type]
    Result.trials = (*Result.trials, Trial(Settings(4), Rate(9.0, 8.0, 10.0, 5)))
    assert not _only_failed_with_workers(Result())  # type: ignore[arg-type]
