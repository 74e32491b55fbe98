"""Pack with fastdata on a local Dask cluster, once, and report; run by `bench/pack.py`.

The cluster has started, and its workers have imported fastdata, before the clock starts: a cluster
is there already.
"""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path

from epochs import options, print_report

import fastdata
from fastdata.installing import DISTRIBUTION


def ready() -> str:
    """Import in a worker what a part needs."""
    return fastdata.pack.__module__


def main() -> None:
    """Pack as the JSON in the first argument says."""
    from distributed import Client, LocalCluster

    given = options()
    destination = Path(given["destination"])
    shutil.rmtree(destination, ignore_errors=True)
    workers = given["workers"]
    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            client.run(ready)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        packed = fastdata.pack(
            given["images"],
            destination,
            **{"codec": "jpeg", **given.get("pack", {})},
            quality=given["quality"],
            progress=False,
            executor=f"dask:{cluster.scheduler_address}",
        )
        seconds = time.perf_counter() - started
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
