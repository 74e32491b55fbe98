"""How large everything is that is measured: on a GPU, at a quick look, on a dry run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes and lengths of all parts.

    Parameters
    ----------
    device : torch.device
        With an index, if it is a GPU.
    work : Path
        Where datasets are kept.
    images : Path, optional
        Folder of class folders of photographs.
    quick : bool
        Fewer and shorter rounds.
    samples, batch_size : int
        Of the datasets; of copies, loaders and training.
    side : int
        Images are side x side pixels.
    rounds : int
        Counted ones; each figure is the median of so many windows.
    window_seconds, training_seconds : float
        How long one window is.
    host_batches : int
        Different batches that copies go through, so that no cache holds them all.
    lengths : tuple of float
        Steps of the overlap, in copies.
    pictures : int
        Made, where no photographs are given.
    models : tuple of str
        The one that something is asked of first: what comes later may lack the time.
    compile_backend : str
        Of `torch.compile`.
    cache_batch, copy_bytes : int
        Images of a large batch out of the device's memory; size of a copy within the device.
    """

    device: torch.device
    work: Path
    images: Path | None = None
    quick: bool = False
    samples: int = 8000
    batch_size: int = 256
    side: int = 224
    rounds: int = 5
    window_seconds: float = 0.4
    training_seconds: float = 2.5
    host_batches: int = 8
    lengths: tuple[float, ...] = (1.0, 1.5, 2.0, 5.0)
    pictures: int = 400
    models: tuple[str, ...] = ("resnet50", "resnet18")
    compile_backend: str = "inductor"
    cache_batch: int = 2048
    copy_bytes: int = 1 << 30

    @property
    def dry(self) -> bool:
        """Whether there is no GPU, so that figures say nothing."""
        return self.device.type == "cpu"

    @classmethod
    def of(
        cls,
        device: torch.device,
        work: Path,
        *,
        images: Path | None = None,
        quick: bool = False,
        samples: int | None = None,
        batch_size: int | None = None,
    ) -> Settings:
        """Return the settings that suit a device; None is what suits."""
        if device.type == "cpu":
            # Everything runs, nothing takes long; torch.compile without its compiler, which
            # takes a minute a model.
            sizes = cls(
                device,
                work,
                samples=64,
                batch_size=8,
                side=32,
                rounds=2 if quick else 3,
                window_seconds=0.02 if quick else 0.2,
                training_seconds=0.05 if quick else 1.0,
                host_batches=4,
                pictures=20,
                compile_backend="eager",
                cache_batch=16,
                copy_bytes=1 << 22,
            )
        elif quick:
            sizes = cls(
                device,
                work,
                samples=4096,
                rounds=3,
                window_seconds=0.15,
                training_seconds=1.0,
                pictures=100,
            )
        else:
            sizes = cls(device, work)
        return replace(
            sizes,
            images=images,
            quick=quick,
            samples=samples or sizes.samples,
            batch_size=batch_size or sizes.batch_size,
        )

    def as_json(self) -> dict[str, object]:
        """Return them as JSON has them."""
        plain: dict[str, object] = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            numbers = isinstance(value, (int, float, tuple)) or value is None
            plain[name] = value if numbers else str(value)
        return plain
