"""Training steps to measure with: that of a reference model, and one of a given length."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fastdata.errors import OptionError
from fastdata.steps.models import LEAST_SIDES, MODELS

__all__ = ["ReferenceStep", "SleepStep", "images_of"]

CLASSES = 1000


class ReferenceStep:
    """Trains a model on batches as they come.

    Images are the first tensor of four dimensions in a batch.  uint8 ones are divided by 255;
    one channel is taken three times.  Labels are drawn, as classes need not be: a step takes as
    long with any.  On a GPU it computes in bfloat16 by autocast; images and weights are
    channels-last; the optimiser is SGD with momentum for ResNets, AdamW for transformers.

    The model is made with the first batch, whose image size it takes.  For one thread at a
    time.

    Parameters
    ----------
    name : {"resnet18", "resnet50", "vit_s"}
    device : torch.device or str
        Where batches are.

    Raises
    ------
    OptionError
        If there is no such model; with the first batch, if it has no images, or too small ones.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        if name not in MODELS:
            raise OptionError(f"model is one of {', '.join(MODELS)}, not {name!r}")
        self.name = name
        self.device = torch.device(device)
        self._loss = nn.CrossEntropyLoss()
        self._labels = torch.empty(0, dtype=torch.int64)
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def __call__(self, batch: Any) -> torch.Tensor:
        """Train on a batch; return the loss, on the device."""
        images = images_of(batch)
        if self._model is None or self._optimizer is None:
            self._model, self._optimizer = self._make(*images.shape[2:])
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if not images.dtype.is_floating_point:
            images = images.float() / 255
        images = images.to(
            self.device, torch.float32, memory_format=torch.channels_last, non_blocking=True
        )
        if len(self._labels) < len(images):
            generator = torch.Generator(self.device).manual_seed(0)
            self._labels = torch.randint(
                CLASSES, (len(images),), generator=generator, device=self.device
            )
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type != "cpu"):
            loss: torch.Tensor = self._loss(self._model(images), self._labels[: len(images)])
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def _make(self, height: int, width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model for images of a size, on the device, and its optimiser."""
        least = LEAST_SIDES[self.name]
        if min(height, width) < least:
            raise OptionError(
                f"images are {height}x{width}, but {self.name} takes {least}x{least} or more: "
                "resize them, or give the step's length"
            )
        _, make = MODELS[self.name]
        model = make(height, width)
        model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = model.parameters()
        if self.name.startswith("vit"):
            return model, torch.optim.AdamW(weights, lr=1e-3)
        return model, torch.optim.SGD(weights, lr=0.01, momentum=0.9, weight_decay=1e-4)

    def __str__(self) -> str:
        kind = "bfloat16" if self.device.type != "cpu" else "float32"
        return f"a training step of {MODELS[self.name][0]} in {kind} on {self.device}"


def images_of(batch: Any) -> torch.Tensor:
    """Return the first tensor [N, C, H, W] with 1 or 3 channels in a batch, however it is nested.

    Raises
    ------
    OptionError
        If there is none.
    """
    images = _first_images(batch)
    if images is None:
        raise OptionError(
            "batches have no images: no tensor of shape [N, C, H, W] with 1 or 3 channels; give "
            "a step of your own, or the step's length"
        )
    return images


def _first_images(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value if value.ndim == 4 and value.shape[1] in (1, 3) else None
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    return next((one for part in parts if (one := _first_images(part)) is not None), None)


class SleepStep:
    """Sleeps, whatever batch it gets: it takes no core, as a step on a GPU seen from the CPU.

    Picklable; for any number of threads.

    Parameters
    ----------
    seconds : float
        Above 0.
    """

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds < 3600:
            raise OptionError(f"a step takes more than 0 seconds and less than 3600, not {seconds}")
        self.seconds = seconds

    def __call__(self, batch: Any) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    def __str__(self) -> str:
        return f"a simulated step of {self.seconds * 1e3:g} ms"
