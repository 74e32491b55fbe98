"""Pack the same image files with fastdata and with its peers, in turns, and compare.

    python scripts/bench/pack.py --images DIR --ffcv-python .peers/ffcv/bin/python

All contenders read one folder of class folders: links to the given files,
repeated until there are `--samples` of them.  Each writes JPEG of quality 90
with the short side near 256, with two workers.  The time is that of the pack
call, listing included and imports not.  What FFCV does otherwise is told in
`contenders/pack_ffcv.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from bench_data import find_images, link_samples
from harness import Contender, command_line
from peers import peer_python
from table import compare

HERE = Path(__file__).resolve().parent
SIZE, MAX_RESOLUTION, QUALITY = 256, 341, 90
SHARD_SAMPLES = 500
"""Of a pack by an engine, as a shard is a task."""


def contenders(options: argparse.Namespace, images: Path, work: Path) -> list[Contender]:
    """Return what is compared; the first is what the others are seen beside."""
    common: dict[str, Any] = {
        "images": str(images),
        "workers": options.workers,
        "quality": QUALITY,
    }

    def command(python: str, script: str, **more: object) -> list[str]:
        return [python, str(HERE / "contenders" / script), json.dumps(common | more)]

    if options.dask:
        shards = {"size": SIZE, "shard_size": SHARD_SAMPLES}
        scripts = {"fastdata shards": "pack_fastdata.py", "fastdata shards, Dask": "pack_dask.py"}
        return [
            Contender(
                name,
                command(sys.executable, script, destination=str(work / "shards"), pack=shards),
                modules=["fastdata"],
            )
            for name, script in scripts.items()
        ]
    listed = []
    for name, suffix in (("fastdata lmdb", "lmdb"), ("fastdata hdf5", "h5")):
        destination = str(work / f"packed.{suffix}")
        listed.append(
            Contender(
                name,
                command(
                    sys.executable, "pack_fastdata.py", destination=destination, pack={"size": SIZE}
                ),
                modules=["fastdata"],
            )
        )
    ffcv = Contender(
        "FFCV DatasetWriter",
        command(
            options.ffcv_python,
            "pack_ffcv.py",
            destination=str(work / "packed.beton"),
            max_resolution=MAX_RESOLUTION,
            write_mode="jpg",
            chunk=options.ffcv_chunk,
        ),
        modules=["ffcv"],
    )
    return [*listed, ffcv]


def main() -> int:
    """Read the command line and compare."""
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("--images", type=Path, help="folder of class folders of JPEG files")
    parser.add_argument("--against", metavar="PYTHON", help="compare with fastdata as it has it")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ffcv-python", default=peer_python("ffcv"))
    parser.add_argument("--ffcv-chunk", type=int, default=100, help="FFCV's own default is 100")
    parser.add_argument(
        "--dask", action="store_true", help="compare a local Dask cluster with worker processes"
    )
    parser.add_argument("--only", help="only contenders whose name has this in it")
    options = parser.parse_args()

    images = find_images(options.images)
    work = options.work.resolve() / "pack"
    bytes_in = link_samples(images, work / "images", options.samples)
    settings = {
        "samples": options.samples,
        "bytes_in": bytes_in,
        "workers": options.workers,
        "size": SIZE,
        "max_resolution": MAX_RESOLUTION,
        "quality": QUALITY,
    }
    chosen = [
        contender
        for contender in contenders(options, work / "images", work)
        if not options.only or options.only in contender.name
    ]
    try:
        return compare(
            "pack",
            chosen,
            rounds=options.rounds,
            settings=settings,
            output=options.output,
            against=options.against,
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
