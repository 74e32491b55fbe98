"""Epochs of a plain LMDB and OpenCV Dataset in a stock DataLoader; run by `load.py`.

What many training repositories have: one sample at a time, `readahead=False`.
It reads fastdata's own file through py-lmdb.
"""

from __future__ import annotations

from typing import Any

import lmdb
import numpy as np
import torch
from cv2_crop import CROPS
from epochs import options, print_report, time_epochs
from page_cache import evict
from torch.utils.data import DataLoader, Dataset


class LmdbDataset(Dataset[Any]):
    """Opens its file when first read, so in each worker."""

    def __init__(self, path: str, transform: str) -> None:
        self.path = path
        self.crop = CROPS[transform]
        self._transaction: Any = None
        labels = self.transaction.get(b"column/label")
        self.labels = np.frombuffer(labels, "<i8").copy()
        self._transaction = None

    @property
    def transaction(self) -> Any:
        if self._transaction is None:
            environment = lmdb.open(
                self.path, subdir=False, readonly=True, lock=False, readahead=False, lib_version=0
            )
            self._transaction = environment.begin(buffers=True)
        return self._transaction

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.crop(self.transaction.get(b"image/%010d" % index))
        return torch.from_numpy(image), int(self.labels[index])


def main() -> None:
    """Time epochs."""
    given = options()
    if given.get("cold"):
        evict(given["data"])
    loader = DataLoader(
        LmdbDataset(given["data"], given["transform"]),
        batch_size=given["batch_size"],
        shuffle=given["shuffle"],
        drop_last=True,
        num_workers=given["workers"],
        persistent_workers=True,
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "torch", "opencv-python-headless", "lmdb", "numpy")


if __name__ == "__main__":
    main()
