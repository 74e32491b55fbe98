"""Settings of a loader that change how fast batches come, and not which."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Workers of a loader, and what is made ahead.

    Attributes
    ----------
    num_workers : int
    worker_method : {"thread", "process"}
        A stock `DataLoader` has processes only.
    prefetch_factor : int
    pin_memory : bool
    persistent_workers : bool
    backend : {"cpu", "dali", "torch"}
        What makes the batches; given by the user and never chosen.  "torch" is a stock
        `DataLoader`, of a dataset that is not packed.
    """

    num_workers: int
    worker_method: Literal["thread", "process"] = "thread"
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent_workers: bool = True
    backend: Literal["cpu", "dali", "torch"] = "cpu"

    @property
    def batches_ahead(self) -> int:
        """Batches that workers make behind the one that is waited for."""
        if not self.num_workers:
            return 0
        # A stock DataLoader counts for each worker.
        return self.prefetch_factor * (self.num_workers if self.backend == "torch" else 1)

    @property
    def batches_at_once(self) -> int:
        """Batches that arrive together: the workers of a stock DataLoader deliver in waves."""
        return max(1, self.num_workers) if self.backend == "torch" else 1

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Any) -> Settings:
        """Build it from `to_json`'s result.

        Raises
        ------
        ValueError
            If these are not settings, or out of any range.
        """
        names = {item.name for item in fields(cls)}
        if not isinstance(entry, dict) or set(entry) != names:
            raise ValueError(f"these are not settings: {entry!r:.200}")
        for name, least in (("num_workers", 0), ("prefetch_factor", 1)):
            if type(entry[name]) is not int or entry[name] < least:
                raise ValueError(f"{name} is an int from {least} up, not {entry[name]!r}")
        for name in ("pin_memory", "persistent_workers"):
            if type(entry[name]) is not bool:
                raise ValueError(f"{name} is true or false, not {entry[name]!r}")
        for name, choices in (
            ("worker_method", ("thread", "process")),
            ("backend", ("cpu", "dali", "torch")),
        ):
            if entry[name] not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {entry[name]!r}")
        return cls(**entry)

    def __str__(self) -> str:
        kind = {"thread": "thread", "process": "process"}[self.worker_method]
        many = "es" if kind == "process" else "s"
        workers = f"{self.num_workers} {kind}{many if self.num_workers != 1 else ''}"
        parts = [
            "no workers" if not self.num_workers else workers,
            f"prefetch {self.prefetch_factor}" if self.num_workers else "",
            "pinned" if self.pin_memory else "",
            "DALI" if self.backend == "dali" else "",
            "" if self.persistent_workers or not self.num_workers else "not persistent",
        ]
        return ", ".join(filter(None, parts))
