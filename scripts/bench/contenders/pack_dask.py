"""Pack with fastdata on a local Dask cluster, once, and report; run by `bench/pack.py`.

The cluster has started, and its workers have imported fastdata, before the clock starts: a cluster
is there already.
"""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import time
from multiprocessing.connection import Connection
from pathlib import Path

from epochs import options, print_report

import fastdata
from fastdata.installing import DISTRIBUTION


def ready() -> str:
    """Import in a worker what a part needs."""
    return fastdata.pack.__module__


def hold_cluster(workers: int, told: Connection) -> None:
    """Run a cluster until something is said; tell its address.

    In a process of its own, whose scheduler's memory is not the driver's.
    """
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            client.run(ready)
        told.send(cluster.scheduler_address)
        told.recv()


def main() -> None:
    """Pack as the JSON in the first argument says."""
    given = options()
    destination = Path(given["destination"])
    shutil.rmtree(destination, ignore_errors=True)
    spawn = multiprocessing.get_context("spawn")
    told, theirs = spawn.Pipe()
    cluster = spawn.Process(target=hold_cluster, args=(given["workers"], theirs))
    cluster.start()
    try:
        import distributed  # noqa: F401  (imports are not timed)

        address = told.recv()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        packed = fastdata.pack(
            given["images"],
            destination,
            **{"codec": "jpeg", **given.get("pack", {})},
            quality=given["quality"],
            progress=False,
            executor=f"dask:{address}",
        )
        seconds = time.perf_counter() - started
    finally:
        told.send(None)
        cluster.join()
    report = {
        "images": packed.num_samples,
        "seconds": seconds,
        "bytes_out": packed.file_bytes,
        "driver_mb_before": before / 1024,
        "driver_mb_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print_report(report, DISTRIBUTION, "distributed")


if __name__ == "__main__":
    main()
