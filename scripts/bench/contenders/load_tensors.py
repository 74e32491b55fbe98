"""Epochs of images of 32 x 32 in one tensor, cut whole batches at once; run by `load.py`.

What fast CIFAR scripts do without a library: the padded images lie in memory, and each worker of a
stock DataLoader takes the pixels of a batch's crops by one indexing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from epochs import options, print_report, time_epochs
from stored_epochs import labelled
from torch.utils.data import DataLoader, Dataset, default_convert

SIDE, PADDING = 32, 4


class Batches(Dataset[Any]):
    """Returns whole batches of random crops with flips."""

    def __init__(self, folder: str) -> None:
        paths, labels = zip(*labelled(folder), strict=True)
        pixels = torch.from_numpy(np.stack([np.fromfile(path, np.uint8) for path in paths]))
        images = pixels.view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2)
        self.images = torch.nn.functional.pad(images, [PADDING] * 4)
        self.labels = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.tensor(indices)[:, None, None, None]
        places = torch.arange(SIDE) + torch.randint(2 * PADDING + 1, (2, len(indices), 1))
        flipped = torch.rand(len(indices)) < 0.5
        places[1, flipped] = places[1, flipped].flip(-1)
        rows, columns = places[0][:, None, :, None], places[1][:, None, None, :]
        channels = torch.arange(3)[:, None, None]
        return self.images[chosen, channels, rows, columns], self.labels[indices]


def main() -> None:
    """Time epochs."""
    given = options()
    loader = DataLoader(
        Batches(given["data"]),
        batch_size=given["batch_size"],
        shuffle=given["shuffle"],
        drop_last=True,
        num_workers=given["workers"],
        persistent_workers=True,
        collate_fn=default_convert,
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "torch", "numpy")


if __name__ == "__main__":
    main()
