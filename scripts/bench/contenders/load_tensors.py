"""Epochs of images of 32 x 32 in one array, cut whole batches at once; run by `load.py`.

What fast CIFAR scripts do without a library: the padded images lie in memory, and each worker of a
stock DataLoader cuts all crops of a batch by one indexing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from epochs import options, print_report, time_epochs
from numpy.lib.stride_tricks import sliding_window_view
from stored_epochs import labelled
from torch.utils.data import DataLoader, Dataset, default_convert

SIDE, PADDING = 32, 4


class Batches(Dataset[Any]):
    """Returns whole batches of random crops with flips."""

    def __init__(self, folder: str) -> None:
        paths, labels = zip(*labelled(folder), strict=True)
        pixels = np.stack([np.fromfile(path, np.uint8) for path in paths])
        images = pixels.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2)
        padded = np.pad(images, [(0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)])
        windows = sliding_window_view(padded, (SIDE, SIDE), (2, 3))  # N, 3, top, left, row, column
        self.windows = windows.transpose(0, 2, 3, 1, 4, 5)
        self.labels = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        top, left = torch.randint(2 * PADDING + 1, (2, len(indices))).numpy()
        crops = self.windows[indices, top, left]
        flipped = (torch.rand(len(indices)) < 0.5).numpy()
        crops[flipped] = crops[flipped][..., ::-1]
        return torch.from_numpy(crops), self.labels[indices]


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
