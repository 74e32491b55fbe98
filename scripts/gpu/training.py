"""ResNets in training: images a second from each path, beside the same step on data of the device.

A step is bfloat16 autocast, channels-last, cross entropy, SGD with momentum; nothing in the loop
waits for the GPU.  `synthetic` is the ceiling: batches that lie on the device already.  Each
path's share of it, round by round, tells what loading costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import torch
from torch import nn

from bench_parts import say
from budget import Budget
from fastdata.steps.meter import Meter
from fastdata.steps.models import MODELS
from feeds import CPU_PATH, PATHS, Feed, datasets_of
from report import Bar, Report, Row
from rounds import Measurement, excuse, excused, in_turns, put_ratio
from settings import Settings
from utilisation import Utilisation, gpu_address

__all__ = ["Trainer", "measure_training"]

PART = "training"
LEAD = 8
"""Steps right before a window: they use up what was made ahead while others had their turn."""
COMPILING_SECONDS = {"resnet18": 45.0, "resnet50": 100.0}
"""About how long torch.compile takes, on an unloaded core: none is begun with less time left."""

Next = Callable[[], Any]


def bar_of(model: str, path: str, compiled: bool) -> Bar | None:
    """Return what is asked of a path."""
    if model != "resnet50" or path != CPU_PATH:
        return None
    how = "compiled" if compiled else "eager"
    return Bar(f"ResNet-50 bf16 training from packed JPEG over synthetic data, {how}", 0.98)


class Trainer:
    """A model and its training step.

    Parameters
    ----------
    name : str
        Of `MODELS`.
    settings : Settings
    compiled : bool
    """

    def __init__(self, name: str, settings: Settings, compiled: bool) -> None:
        torch.manual_seed(0)
        _, make = MODELS[name]
        model: nn.Module = make(settings.side, settings.side).to(
            settings.device, memory_format=torch.channels_last
        )  # type: ignore[call-overload]
        self._device = settings.device
        self._optimizer = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4
        )
        self._loss = nn.CrossEntropyLoss()
        self._model: Callable[..., Any] = model
        if compiled:
            self._model = torch.compile(model, backend=settings.compile_backend)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on a batch; return the loss, on the device."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            loss: torch.Tensor = self._loss(self._model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def steps(self, take: Next, count: int) -> None:
        """Train on so many batches."""
        for _ in range(count):
            self.step(*take())


def synthetic_batches(settings: Settings, count: int = 4) -> Iterator[Any]:
    """Return batches of the device, over and over, as the loaders' are."""
    generator = torch.Generator(settings.device).manual_seed(0)
    batches = []
    for _ in range(count):
        shape = (settings.batch_size, 3, settings.side, settings.side)
        images = torch.randn(shape, device=settings.device, generator=generator)
        labels = torch.randint(
            0, 1000, shape[:1], device=settings.device, generator=generator, dtype=torch.int64
        )
        batches.append(
            (images.to(torch.bfloat16).contiguous(memory_format=torch.channels_last), labels)
        )
    return cycle(batches)


@dataclass
class Window:
    """Measures images a second of one source of batches, and how busy the GPU was."""

    trainer: Trainer
    take: Next
    settings: Settings
    meter: Meter
    steps: int
    address: str
    busy: list[float] = field(default_factory=list)
    source: str = ""

    def __call__(self) -> float:
        """Return images a second."""
        with Utilisation(self.address) as utilisation:
            took = self.meter.seconds(
                lambda: self.trainer.steps(self.take, self.steps),
                lead=lambda: self.trainer.steps(self.take, min(LEAD, self.steps)),
            )
        if utilisation.percent is not None:
            self.busy.append(utilisation.percent)
            self.source = utilisation.source
        return self.settings.batch_size * self.steps / took

    def note(self) -> str:
        """Return how busy the GPU was in the mean of all windows."""
        if not self.busy:
            return ""
        return f"GPU {sum(self.busy) / len(self.busy):.0f}% busy, says {self.source}"


def measure_model(
    name: str,
    compiled: bool,
    feeds: list[Feed],
    settings: Settings,
    report: Report,
    budget: Budget,
) -> None:
    """Put the rows of one model."""
    title = title_of(name, compiled)
    say(f"  {title}")
    meter = Meter(settings.device)
    address = gpu_address(settings.device) if meter.on_gpu else ""
    trainer = Trainer(name, settings, compiled)
    batches = synthetic_batches(settings)

    def take_synthetic() -> Any:
        return next(batches)

    # Compiles, and lets cuDNN choose, before anything is timed.
    trainer.steps(take_synthetic, 3)
    count = meter.repeats(
        lambda n: trainer.steps(take_synthetic, n), settings.training_seconds, least=4
    )

    def window(label: str, take: Next) -> Measurement:
        measured = Window(trainer, take, settings, meter, count, address)
        return Measurement(f"{title}, {label}", measured, "images/s", note=measured.note)

    ceiling = window("synthetic", take_synthetic)
    paths = {feed.name: window(feed.name, feed.__next__) for feed in feeds}
    try:
        in_turns(report, PART, [ceiling, *paths.values()], settings.rounds, budget)
    finally:
        for path, measured in paths.items():
            put_ratio(
                report,
                PART,
                share_name(title, path),
                measured,
                ceiling,
                bar=bar_of(name, path, compiled),
                unit="of synthetic",
            )


def title_of(name: str, compiled: bool) -> str:
    """Return what a model is called in the table."""
    return f"{MODELS[name][0]} {'compiled' if compiled else 'eager'}"


def share_name(title: str, path: str) -> str:
    """Return the name of the row of a path's share."""
    return f"{title}, {path}: share"


def measure_training(settings: Settings, report: Report, budget: Budget) -> None:
    """Put the rows of this part."""
    packed = datasets_of(settings).packed(".lmdb")
    plans = [(name, compiled) for name in settings.models for compiled in (False, True)]
    with ExitStack() as stack, fastest_convolutions():
        feeds = []
        for path, options in PATHS.items():
            try:
                feeds.append(stack.enter_context(closing(Feed(path, packed, settings, options))))
            except Exception as error:
                put_excuses(report, path, plans, error)
        for place, (name, compiled) in enumerate(plans):
            title = title_of(name, compiled)
            bar = bar_of(name, CPU_PATH, compiled)
            row = share_name(title, CPU_PATH) if bar else f"{title}, synthetic"
            needs = COMPILING_SECONDS[name] if compiled and not settings.dry else 0.0
            if budget.remaining <= needs:
                why = f"{budget.remaining:.0f} s of this part's time were left: more --minutes"
                report.put(Row(PART, row, status="not available", why=why, bar=bar))
                continue
            with excused(report, PART, row, bar):
                own = budget.share(1 / (len(plans) - place))
                measure_model(name, compiled, feeds, settings, report, own)
            # One model at a time: its memory, and what was compiled for it.
            torch.compiler.reset()
            if settings.device.type == "cuda":
                torch.cuda.empty_cache()


def put_excuses(report: Report, path: str, plans: list[tuple[str, bool]], error: Exception) -> None:
    """Report why a path has no rows of its own."""
    excuse(report, PART, path, error)
    for name, compiled in plans:
        if (bar := bar_of(name, path, compiled)) is not None:
            excuse(report, PART, share_name(title_of(name, compiled), path), error, bar)


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms for shapes that stay the same."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def run(settings: Settings, report: Report, budget: Budget) -> None:
    """Measure, and report what cannot be."""
    with excused(report, PART, "all models"):
        measure_training(settings, report, budget)
