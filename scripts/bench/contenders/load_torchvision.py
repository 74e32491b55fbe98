"""Epochs of torchvision's ImageFolder in a stock DataLoader; run by `load.py`."""

from __future__ import annotations

from epochs import options, print_report, time_epochs
from torch.utils.data import DataLoader
from torchvision import transforms as T  # noqa: N812
from torchvision.datasets import ImageFolder


def main() -> None:
    """Time epochs."""
    given = options()
    transform = T.Compose(
        [T.RandomResizedCrop(224, antialias=True), T.RandomHorizontalFlip(), T.PILToTensor()]
    )
    loader = DataLoader(
        ImageFolder(given["data"], transform),
        batch_size=256,
        shuffle=True,
        drop_last=True,
        num_workers=given["workers"],
        persistent_workers=True,
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "torch", "torchvision", "pillow")


if __name__ == "__main__":
    main()
