"""`scripts/bench/accuracy.py`: the same samples, order and pixels from files and from packs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from samples import photo

REPOSITORY = Path(__file__).parents[1]
sys.path.append(str(REPOSITORY / "scripts" / "bench"))

import accuracy  # noqa: E402
import pil_files  # noqa: E402
from bench_data import Datasets  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "same_random_state")

TRAINING, VALIDATION = 36, 9
"""Images of each of the two classes."""


@pytest.fixture
def same_random_state() -> Iterator[None]:
    """Leave torch's generator as it was."""
    state = torch.random.get_rng_state()
    yield
    torch.random.set_rng_state(state)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of pictures, 300 high and 400 to 440 wide; most are links."""
    root = tmp_path_factory.mktemp("images")
    for number, name in enumerate(("cat", "dog")):
        (root / name).mkdir()
        for index in range(TRAINING + VALIDATION):
            path = root / name / f"{index:02}.jpg"
            if index < 5:
                pixels = photo(300, 400 + 10 * index, 3, seed=10 * number + index)
                Image.fromarray(pixels).save(path, quality=95)
            else:
                path.symlink_to(f"{index % 5:02}.jpg")
    return root


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where packs and runs are kept."""
    return tmp_path_factory.mktemp("work")


def source(pipeline: str, images: Path, work: Path) -> accuracy.Source:
    samples = accuracy.find_samples(images)
    return accuracy.Source(pipeline, samples, Datasets(images, work / "accuracy", 90))


def reference(path: Path) -> Any:
    """Return PIL's Resize(32) and CenterCrop(28) of a picture that is 300 high."""
    image = Image.open(path)
    width = image.width * 32 // 300
    left = round((width - 28) / 2)
    resized = image.resize((width, 32), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, 2, left + 28, 30)), np.int16)


@pytest.mark.parametrize(("pipeline", "tolerance"), [("original", 0), ("jpeg", 2), ("raw", 1)])
def test_validation_images_are_those_of_pil(
    pipeline: str, tolerance: float, images: Path, work: Path
) -> None:
    one = source(pipeline, images, work)
    with one.batches(training=False, side=28, seed=0) as loader:
        batches = [(pixels.permute(0, 2, 3, 1).numpy(), labels) for pixels, labels in loader]
    made = np.concatenate([pixels for pixels, _ in batches])
    assert made.shape == (2 * VALIDATION, 28, 28, 3)
    assert torch.cat([labels for _, labels in batches]).tolist() == [0] * 9 + [1] * 9
    expected = np.stack([reference(path) for path, _ in one.samples[False]])
    assert np.abs(made - expected).mean() <= tolerance


def test_all_pipelines_have_one_order_in_each_epoch(images: Path, work: Path) -> None:
    orders = []
    for pipeline in accuracy.PIPELINES:
        with source(pipeline, images, work).batches(training=True, side=16, seed=3) as loader:
            for epoch in (0, 1):
                loader.sampler.set_epoch(epoch)
                ((pixels, labels),) = loader  # 64 of 72: the incomplete batch is dropped
                assert pixels.shape == (64, 3, 16, 16)
                assert pixels.dtype == torch.uint8
                orders.append(labels.tolist())
    assert orders[0] == orders[2] == orders[4] != orders[1] == orders[3] == orders[5]


def test_random_windows_are_those_of_torchvision() -> None:
    torch.manual_seed(0)
    # From RandomResizedCrop.get_params of torchvision 0.28, of the same seed.
    expected = [(47, 23, 321, 258), (183, 27, 400, 228), (140, 51, 394, 287), (39, 118, 139, 239)]
    assert [pil_files.random_window(400, 300) for _ in expected] == expected
    # Where no window fits, the largest one of an allowed ratio, in the centre.
    assert pil_files.random_window(1000, 30) == (480, 0, 520, 30)
    assert pil_files.random_window(30, 1000) == (0, 480, 30, 520)


def run(images: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    words = ["--images", images, "--work", work, "--side", 16, "--epochs", 1, "--seeds", 2]
    monkeypatch.setattr(sys, "argv", ["accuracy", *map(str, words)])
    return accuracy.main()


def test_a_finished_run_is_not_trained_again(
    images: Path, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(images, work, monkeypatch) == 0
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines() if line.startswith("{")]
    rows = {line["row"]: line["values"] for line in lines if "row" in line}
    assert [line["seed"] for line in lines if "seed" in line] == [0, 0, 0, 1, 1, 1]
    assert list(rows) == ["original", "jpeg", "raw"]
    assert all(len(values["top1"]) == 2 and values["train"] == 72 for values in rows.values())
    assert "| top-1 of each seed, % |" in said.out
    assert "jpeg, seed 1" in said.err
    assert run(images, work, monkeypatch) == 0
    again = capsys.readouterr()
    assert again.out == said.out
    assert again.err == ""


def test_an_interrupted_command_goes_on_from_the_finished_runs(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = []

    def train(one: accuracy.Source, side: int, epochs: int, seed: int) -> float:
        if len(trained) == 4:
            trained.append(("stopped", seed))
            raise KeyboardInterrupt
        trained.append((one.pipeline, seed))
        return {"original": 0.5, "jpeg": 0.52, "raw": 0.49}[one.pipeline] + seed / 10

    monkeypatch.setattr(accuracy, "train", train)
    assert run(images, tmp_path, monkeypatch) == 130
    assert "The same command goes on" in capsys.readouterr().err
    assert run(images, tmp_path, monkeypatch) == 0
    assert trained[3:] == [("original", 1), ("stopped", 1), ("jpeg", 1), ("raw", 1)]
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"row"' in line]
    jpeg = rows[1]["values"]
    # t of one degree of freedom, times the deviation, over the root of two.
    assert jpeg["mean"] == 0.57
    assert jpeg["interval"] == pytest.approx([0.57 - 0.6353, 0.57 + 0.6353], abs=2e-4)
    assert jpeg["difference"] == {"mean": 0.02, "interval": [0.02, 0.02]}


def test_a_folder_with_splits_is_taken_as_it_is_divided(tmp_path: Path) -> None:
    wanted = {"train/a": 33, "train/b": 33, "validation/b": 2, "test/a": 1, "other/c": 1}
    for name, count in wanted.items():
        (tmp_path / name).mkdir(parents=True)
        for index in range(count):
            (tmp_path / name / f"{index}.jpg").touch()
    samples = accuracy.find_samples(tmp_path)
    assert [label for _, label in samples[True]] == [0] * 33 + [1] * 33
    held_out = [path.relative_to(tmp_path).as_posix() for path, _ in samples[False]]
    assert held_out == ["test/a/0.jpg", "validation/b/0.jpg", "validation/b/1.jpg"]


def test_a_folder_without_enough_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "0.jpg").touch()
    with pytest.raises(SystemExit, match="has 1 classes, 1 images to train on and 0 for valid"):
        accuracy.find_samples(tmp_path)
