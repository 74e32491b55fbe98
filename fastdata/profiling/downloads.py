"""What a loop waits for while images come out of a store."""

from __future__ import annotations

import time
from typing import Any

from fastdata.engine.loader import Loader
from fastdata.measuring.downloads import StoreInfo, fetched_bytes, in_cache, store_info
from fastdata.measuring.loaders import inner_loader
from fastdata.remote.supply import Supply
from fastdata.sampling import Batches

__all__ = ["DownloadWatch"]


class DownloadWatch:
    """Tells how much of a loop's waiting was for images that had not come yet; for its thread.

    Workers make a batch once its images are there, and make later ones meanwhile.  So if images of
    the requested batch are missing, the whole wait is for them; else only the time that the loop
    itself waited for images of a batch that it planned.  Without workers it waits for all images.

    The look at missing images takes some 50 us for a batch of 256, and is part of the loop's rate.

    `before` is the state of the cache when this was made, `after` when it was stopped.  Meanwhile
    `bytes_per_second` came for all users of the cache.
    """

    def __init__(self, loader: Loader, before: StoreInfo) -> None:
        self.before = self.after = before
        self.bytes_per_second = 0.0
        self._loader = loader
        supplied = getattr(loader.dataset, "_supplied", ())
        self._supplies: list[Supply] = [one.supply for one in supplied]
        self._epoch: tuple[int, Any] = -1, ()
        self._absent, self._waited = False, 0.0
        self._began, self._fetched = time.monotonic(), fetched_bytes(self._supplies)

    @classmethod
    def of(cls, loader: Any) -> DownloadWatch | None:
        """Return one for a loader; None if all its images are here, or its order is unknown."""
        loader = inner_loader(loader)
        known = isinstance(loader, Loader) and isinstance(loader.batches, Batches)
        if not (known and loader.batches.joins):
            return None
        info = store_info(loader.dataset)
        return None if info is None or info.present == 1 else cls(loader, info)

    def requested(self) -> None:
        """Note that the loop requests a batch now."""
        self._waited, self._absent = self._waited_by_loop(), False
        if self._loader.num_workers:
            state = self._loader.state_dict()
            if state["epoch"] != self._epoch[0]:
                self._epoch = state["epoch"], self._loader.batches.in_epoch(state["epoch"])
            batches, place = self._epoch[1], state["batch"]
            if place < len(batches):
                self._absent = not in_cache(self._loader.dataset, batches[place]).all()

    def waited(self, seconds: float) -> float:
        """Return how many of the seconds that the loop waited for the batch were for its images."""
        return seconds if self._absent else min(seconds, self._waited_by_loop() - self._waited)

    def stop(self) -> None:
        """Note the downloads so far, and the present state of the cache."""
        fetched = fetched_bytes(self._supplies) - self._fetched
        self.bytes_per_second = max(fetched, 0) / max(time.monotonic() - self._began, 1e-9)
        self.after = store_info(self._loader.dataset) or self.before

    def _waited_by_loop(self) -> float:
        if not self._loader.num_workers:  # a prefetcher's thread, perhaps
            return self._loader.backend.download_wait_seconds
        return sum(supply.waited_here for supply in self._supplies)
