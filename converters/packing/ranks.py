"""A pack that all ranks of a training call: one rank packs, the others wait for the dataset.

Under torchrun every rank runs the same script.  The first rank to lock the destination packs.  The
others wait for the lock, and then find the dataset; if the packing rank fails, the next continues.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil

from fastdata.errors import DestinationLockedError
from fastdata.formats.manifest import MANIFEST, Manifest
from fastdata.processes.ranks import world_size
from fastdata.waits import wait_until

from .job import Job, entry_of, read_rejects, rejects_path
from .packer import Packer, dataset_at
from .report import PackReport

__all__ = ["job_of", "note_end", "packed_by_another_rank"]


def job_of(destination: Path) -> Job:
    """Return the locked job of a destination; a rank waits while another one holds the lock.

    `DestinationLockedError` if another process holds it and this process is not a rank.
    """
    jobs: list[Job] = []

    def attempt(seconds: float) -> bool:
        try:
            jobs.append(Job(destination))
        except DestinationLockedError:
            if world_size() == 1:
                raise
            time.sleep(min(seconds, 0.2))
        return bool(jobs)

    wait_until(attempt, f"{destination}, which another rank packs")
    return jobs[0]


def packed_by_another_rank(packer: Packer) -> PackReport | None:
    """Return the report of the dataset if another rank has packed it for this call.

    None if there is no dataset, if it is older than this process or its last call for this
    destination, or if it has other options.
    """
    destination, many = packer.job.destination, packer.options.many
    first = destination / MANIFEST if many else destination
    last_call = _ends.get(os.path.realpath(destination), psutil.Process().create_time())
    if world_size() == 1 or not first.exists() or first.stat().st_mtime < last_call:
        return None
    found = dataset_at(destination, many)
    if found is None or found.options != json.loads(json.dumps(packer.packed_with)):
        return None
    shards = found.shards if isinstance(found, Manifest) else (entry_of(destination),)
    rejects = rejects_path(destination)
    num_rejected = len(read_rejects(rejects))
    return PackReport.of(
        destination,
        packer.source,
        shards,
        [*packer.source.notes, "another rank has packed it"],
        digest=found.digest,
        num_rejected=num_rejected,
        rejects_path=rejects if num_rejected else None,
    )


def note_end(destination: Path) -> None:
    """Record the end of this process's call for a destination; see `packed_by_another_rank`."""
    _ends[os.path.realpath(destination)] = time.time()


_ends: dict[str, float] = {}
