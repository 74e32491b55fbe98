"""Training steps to measure with: those of reference models, and one of a given length.

Every machine trains the same models, with or without torchvision.

ResNet-18 and ResNet-50: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition",
2015, table 1.  The stride of a bottleneck is in its 3 x 3 convolution, which is called v1.5, as in
torchvision, whose numbers of parameters these have too: 11,689,512 and 25,557,032 for 1000
classes.

ViT-S/16, a vision transformer of the size that is trained most: Dosovitskiy and others, "An Image
is Worth 16x16 Words", 2021; the width, depth and heads of its small model are those of Touvron and
others, "Training data-efficient image transformers", 2021, table 1.  With 224 x 224 images and
1000 classes it has their 22,050,664 parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fastdata.errors import OptionError

__all__ = [
    "LEAST_SIDES",
    "MODELS",
    "ReferenceStep",
    "ResNet",
    "SleepStep",
    "ViT",
    "images_of",
    "resnet18",
    "resnet50",
    "vit_s",
]

CLASSES = 1000

PATCH = 16
"""Pixels a side."""


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, and the normalisation after it."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """A residual block: `body`, and a short cut that is projected where the shape changes."""

    def __init__(self, body: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        result: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return result


def basic(inputs: int, width: int, stride: int) -> Block:
    """Return a block of two 3 x 3 convolutions."""
    body = nn.Sequential(
        convolution(inputs, width, 3, stride), nn.ReLU(inplace=True), convolution(width, width, 3)
    )
    return Block(body, inputs, width, stride)


def bottleneck(inputs: int, width: int, stride: int) -> Block:
    """Return a block of 1 x 1, 3 x 3 and 1 x 1 convolutions, four times as wide at its end."""
    body = nn.Sequential(
        convolution(inputs, width, 1),
        nn.ReLU(inplace=True),
        convolution(width, width, 3, stride),
        nn.ReLU(inplace=True),
        convolution(width, 4 * width, 1),
    )
    return Block(body, inputs, 4 * width, stride)


class ResNet(nn.Module):
    """A residual network for images of any size from 32 up.

    `block` makes a block from its inputs, its width and its stride; `depths` are the blocks of
    each of the four stages, `expansion` the outputs of a block over its width.
    """

    def __init__(
        self,
        block: Callable[[int, int, int], Block],
        depths: tuple[int, int, int, int],
        expansion: int,
        classes: int = CLASSES,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        stages: list[nn.Module] = []
        inputs = 64
        for number, depth in enumerate(depths):
            width = 64 << number
            for place in range(depth):
                stages.append(block(inputs, width, 2 if number and not place else 1))
                inputs = expansion * width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape [N, classes]."""
        logits: torch.Tensor = self.head(self.stages(self.stem(x)))
        return logits


def resnet18(classes: int = CLASSES) -> ResNet:
    """Return a ResNet-18."""
    return ResNet(basic, (2, 2, 2, 2), 1, classes)


def resnet50(classes: int = CLASSES) -> ResNet:
    """Return a ResNet-50."""
    return ResNet(bottleneck, (3, 4, 6, 3), 4, classes)


class ViT(nn.Module):
    """A vision transformer for images of one size.

    Sides are 16 pixels or more; what is over a multiple of 16 is not looked at.  `dim` is the
    width of a token, `depth` the number of blocks, `heads` those of attention.
    """

    def __init__(
        self, height: int, width: int, dim: int, depth: int, heads: int, classes: int = CLASSES
    ) -> None:
        super().__init__()
        patches = (height // PATCH) * (width // PATCH)
        self.patches = nn.Conv2d(3, dim, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.places = nn.Parameter(torch.empty(1, patches + 1, dim))
        nn.init.trunc_normal_(self.places, std=0.02)
        block = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            block, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape [N, classes], of images [N, 3, height, width]."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        logits: torch.Tensor = self.head(self.blocks(tokens)[:, 0])
        return logits


def vit_s(height: int = 224, width: int = 224, classes: int = CLASSES) -> ViT:
    """Return a ViT-S/16."""
    return ViT(height, width, 384, 12, 6, classes)


MODELS: dict[str, tuple[str, Callable[[int, int], nn.Module]]] = {
    "resnet18": ("ResNet-18", lambda height, width: resnet18()),
    "resnet50": ("ResNet-50", lambda height, width: resnet50()),
    "vit_s": ("ViT-S/16", lambda height, width: vit_s(height, width)),
}
"""What a model is called, and what makes it for images of a height and width."""

LEAST_SIDES: dict[str, int] = {"resnet18": 32, "resnet50": 32, "vit_s": PATCH}
"""The smallest side of an image that a model takes."""


class ReferenceStep:
    """Trains a model on batches as they come.

    Images are the first tensor of four dimensions in a batch.  uint8 ones are divided by 255;
    one channel is taken three times.  Labels are drawn, as classes need not be: a step takes as
    long with any.  On a GPU it computes in bfloat16 by autocast; images and weights are
    channels-last; the optimiser is SGD with momentum for ResNets, AdamW for transformers.

    The model is made with the first batch, whose image size it takes.  For one thread at a
    time.

    `name` is one of `MODELS`, and `device` where batches are.  Raises `OptionError` if there is no
    such model; with the first batch, if it has no images, or too small ones.
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

    Raises `OptionError` if there is none.
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
