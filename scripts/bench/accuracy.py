"""Whether training from packs is as accurate as training from the original files.

    python scripts/bench/accuracy.py --images DIR

A small residual network is trained on the same photographs in three ways:

original    files decoded and cut by PIL with torchvision's formulas, in a stock `DataLoader`
jpeg        `fastdata.pack` at short side 256, JPEG quality 90, in `fastdata.loader`
raw         `fastdata.pack` at short side 256, raw pixels, in `fastdata.loader`

Network, first weights, order of the samples, batches, optimiser and schedule are the same; only the
pixels differ, and the random numbers of crops and flips.  Each network is validated on pixels of
its own pipeline, after the last epoch, not after the best one.

DIR has class folders: a fifth of each class, drawn by a fixed seed, is for validation.  Or DIR has
``train/`` and, for validation, one or more of ``val/``, ``validation/`` and ``test/``, each with
class folders.

Prints a JSON line for each run, one for each pipeline, and a table: top-1 of each seed, the mean
with Student's 95% t-interval over the seeds, and the same for the differences from "original" of
the same seed.  Finished runs are kept in WORK/accuracy and not repeated: after Ctrl-C the same
command goes on.  To repeat the runs, remove that folder.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler

import fastdata
import pages
from bench_data import QUALITY, SIZE, Datasets, list_images
from fastdata import transforms as T  # noqa: N812 - as users write it
from fastdata.installing import DISTRIBUTION
from harness import REPOSITORY, hardware, say
from pil_files import RATIO, SCALE, Files, short_side
from results import Measured

PACKS: dict[str, dict[str, Any]] = {
    "jpeg": {"size": SIZE, "codec": "jpeg", "quality": QUALITY},
    "raw": {"size": SIZE, "codec": "raw"},
}
PIPELINES = ("original", *PACKS)
HELD_OUT, HELD_OUT_PART = ("val", "validation", "test"), 0.2
BATCH_SIZE, WORKERS, WIDTH = 64, 2, 24
LEARNING_RATE, WEIGHT_DECAY, SMOOTHING = 0.1, 5e-4, 0.1
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom."""

Sample = tuple[Path, int]


def find_samples(images: Path) -> dict[bool, list[Sample]]:
    """Return the samples to train on (True) and to validate on (False), class by class."""
    files = [path.relative_to(images) for path in list_images(images)]
    split = any(path.parts[0] == "train" for path in files)
    classes: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        if not split:
            classes[path.parts[0]].append(path)
        elif path.parts[0] in ("train", *HELD_OUT) and len(path.parts) > 2:
            classes[path.parts[1]].append(path)
    found: dict[bool, list[Sample]] = {True: [], False: []}
    choice = random.Random(0)
    for label, name in enumerate(sorted(classes)):
        of_class = classes[name]
        if split:
            held_out = {path for path in of_class if path.parts[0] != "train"}
        else:
            held_out = {*choice.sample(of_class, round(len(of_class) * HELD_OUT_PART))}
        for path in of_class:
            found[path not in held_out].append((images / path, label))
    if len(classes) < 2 or not found[False] or len(found[True]) < BATCH_SIZE:
        raise SystemExit(
            f"{images} has {len(classes)} classes, {len(found[True])} images to train on and "
            f"{len(found[False])} for validation. Give a folder with two classes or more, "
            f"{BATCH_SIZE} images to train on, and some for validation."
        )
    return found


# -- the pipelines -------------------------------------------------------------------------------


class Order(Sampler[int]):
    """Every sample once, in an order drawn from seed and epoch."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self.seed, self.epoch = samples, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch from now on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.samples)
        return iter(order.tolist())


@dataclass(frozen=True)
class Source:
    """The samples of a pipeline: its original files or its packs."""

    pipeline: str
    samples: dict[bool, list[Sample]]
    data: Datasets

    def pack(self, training: bool) -> Path:
        """Return the packed samples, in the order of `samples`."""
        settings, samples = PACKS[self.pipeline], self.samples[training]
        rows = [{"image": path, "label": label} for path, label in samples]
        name = f"{'train' if training else 'val'}-{self.pipeline}.lmdb"
        return self.data.made(name, settings, lambda to: fastdata.pack(rows, to, **settings))

    @contextmanager
    def batches(self, training: bool, side: int, seed: int) -> Iterator[Any]:
        """Open a loader of uint8 images [n, 3, side, side] and labels."""
        options: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": WORKERS}
        if training:
            options |= {"sampler": Order(len(self.samples[True]), seed), "drop_last": True}
        if self.pipeline == "original":
            files = Files(self.samples[training], side, training)
            draws = torch.Generator().manual_seed(seed)
            yield DataLoader(files, **options, generator=draws, persistent_workers=training)
            return
        crop: list[Any] = [T.Resize(short_side(side)), T.CenterCrop(side)]
        if training:
            crop = [T.RandomResizedCrop(side, SCALE, RATIO), T.RandomHorizontalFlip()]
        path = self.pack(training)
        with fastdata.loader(path, seed=seed, transform=crop, **options) as loader:
            yield loader


# -- the training --------------------------------------------------------------------------------


def convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    """Return a convolution with batch normalisation."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions of 3 x 3, plus a projection of the input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        first, second = convolution(inputs, outputs, 3, 2), convolution(outputs, outputs, 3, 1)
        self.residual = nn.Sequential(first, nn.ReLU(inplace=True), second)
        self.projection = convolution(inputs, outputs, 1, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return half the height and width."""
        return functional.relu(self.residual(images) + self.projection(images))


def new_network(classes: int) -> nn.Module:
    """Return a residual network that takes uint8 images [n, 3, height, width]."""
    stem = nn.Sequential(convolution(3, WIDTH, 7, 4), nn.ReLU(inplace=True))
    blocks = [Block(WIDTH << step, WIDTH << step + 1) for step in range(3)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH << 3, classes)]
    network = nn.Sequential(stem, *blocks, *head)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def prepared(images: torch.Tensor) -> torch.Tensor:
    """Return the network's input: normalised, in channels-last memory."""
    mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, DEVIATION))
    made = (images.float() / 255 - mean) / deviation
    return made.contiguous(memory_format=torch.channels_last)


def train(source: Source, side: int, epochs: int, seed: int) -> float:
    """Train a network and return its top-1 on the validation images."""
    torch.manual_seed(seed)
    network = new_network(1 + max(label for _, label in source.samples[True]))
    optimiser = torch.optim.SGD(
        network.parameters(), LEARNING_RATE, momentum=0.9, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    with source.batches(True, side, seed) as loader:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, LEARNING_RATE, total_steps=epochs * len(loader)
        )
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            started, losses = time.perf_counter(), []
            for images, labels in loader:
                scores = network(prepared(images))
                loss = functional.cross_entropy(scores, labels, label_smoothing=SMOOTHING)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
                losses.append(loss.item())
            seconds = time.perf_counter() - started
            mean = statistics.fmean(losses)
            say(f"  epoch {epoch + 1} of {epochs}: loss {mean:.3f}, {seconds:.1f} s")
    network.eval()
    with source.batches(False, side, seed) as loader, torch.inference_mode():
        right = [network(prepared(images)).argmax(1) == labels for images, labels in loader]
    return float(torch.cat(right).float().mean())


# -- the figures ---------------------------------------------------------------------------------


def interval(values: list[float]) -> dict[str, Any]:
    """Return the mean and Student's 95% t-interval of the mean."""
    mean = statistics.fmean(values)
    half = T_95[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": round(mean, 4), "interval": [round(mean - half, 4), round(mean + half, 4)]}


def kept_run(source: Source, inputs: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the run that is kept for these inputs; train where there is none."""
    path = source.data.work / f"run-{source.pipeline}-{seed}.json"
    if path.exists() and (run := json.loads(path.read_text())).items() >= inputs.items():
        return dict(run)
    say(f"{source.pipeline}, seed {seed}")
    started = time.perf_counter()
    top1 = train(source, inputs["settings"]["side"], inputs["settings"]["epochs"], seed)
    seconds = round(time.perf_counter() - started, 1)
    run = {"benchmark": "accuracy", "contender": source.pipeline, "seed": seed}
    run |= {"top1": round(top1, 4), "seconds": seconds}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".new")
    part.write_text(json.dumps(run := run | inputs | {"hardware": hardware()}))
    part.replace(path)
    return run


def main() -> int:
    """Train the networks, print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True, help="class folders, or train/, val/")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--side", type=int, default=96, help="of the crops, in pixels")
    parser.add_argument("--seeds", type=int, default=3, choices=range(2, len(T_95) + 2))
    parser.add_argument("--work", type=Path, default=REPOSITORY / ".bench", help="kept packs, runs")
    given = parser.parse_args()
    images = given.images.resolve()
    samples = find_samples(images)
    torch.set_num_threads(1)  # the workers have the other core
    counts = {"train": len(samples[True]), "validation": len(samples[False])}
    data = Datasets(images, given.work.resolve() / "accuracy", sum(counts.values()))
    settings = {
        **{"images": str(images), "side": given.side, "epochs": given.epochs, "width": WIDTH},
        **{"batch_size": BATCH_SIZE, "samples": data.samples, **counts},
        "classes": len({label for _, label in samples[True]}),
        "file_bytes": sum(path.stat().st_size for path, _ in samples[True] + samples[False]),
    }
    versions = {name: version(name) for name in (DISTRIBUTION, "torch", "pillow")}
    inputs = {"settings": settings, "versions": versions}
    top1: dict[str, list[float]] = {name: [] for name in PIPELINES}
    try:
        for seed in range(given.seeds):
            for name in PIPELINES:
                run = kept_run(Source(name, samples, data), inputs, seed)
                top1[name].append(run["top1"])
                print(json.dumps(run), flush=True)
    except KeyboardInterrupt:
        say("Stopped. The same command goes on from the finished runs.")
        return 130
    rows = []
    for name, of_seeds in top1.items():
        values: dict[str, Any] = {"top1": of_seeds, **interval(of_seeds)}
        if name != "original":
            pairs = zip(of_seeds, top1["original"], strict=True)
            values["difference"] = interval([mine - theirs for mine, theirs in pairs])
        rows.append({"benchmark": "accuracy", "row": name, "values": values | counts})
        print(json.dumps(rows[-1]), flush=True)
    print("\n" + "\n".join(pages.accuracy(Measured.of(rows))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
