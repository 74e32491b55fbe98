"""Feed a training loop from the same photographs with fastdata and with its peers, in turns.

    python scripts/bench/load.py --images DIR --output load.jsonl
    python scripts/bench/load.py --only jpeg --only FFCV --rounds 3
    python scripts/bench/load.py --only files --only "fastdata jpeg lmdb thread"

The last one compares what needs no packing: files as they lie.

All contenders make 224 px random resized crops with a flip, uint8, in batches of
256 with labels, in random order without the short last batch, with two workers,
from files that are warm in the page cache.  `contenders/epochs.py` tells how epochs are
timed, `bench_data.py` from what each contender reads.

What is not the same, beside each line of the table: the resize filter (area
and linear without antialiasing cost less or more than PIL's antialiased
bilinear, and give other pixels), how random the order is, and the memory layout,
which is the loader's own: nobody is asked to transpose, and the JSON lines tell the
shape and strides of a batch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench_data import QUALITY, SIZE, Datasets, find_images
from harness import Contender, ContenderFailedError, command_line
from peers import contender
from table import FILTER, Bar, compare

FASTDATA = {FILTER: "bilinear, antialiased (default)"}
CV2_LINEAR = {FILTER: "cv2 INTER_LINEAR, not antialiased"}
PIL_BILINEAR = {FILTER: "PIL bilinear, antialiased"}
AREA = {FILTER: "cv2 INTER_AREA"}
DALI_LINEAR = {FILTER: "DALI linear, antialiased"}

JPEG_OVER_FFCV, JPEG_OVER_FILES, RAW_OVER_FFCV = 2.5, 3.0, 5.0
UNPACKED_OVER_FILES, PACKED_OVER_UNPACKED = 1.8, 1.0
UNPACKED = "fastdata, original files, {}"
METHODS = ("thread", "process")


def fastdata_contender(
    codec: str, suffix: str, method: str, options: dict[str, Any], data: Datasets
) -> Contender:
    """Return fastdata's loader of one codec and container, with one kind of worker."""
    path = data.packed(suffix) if codec == "jpeg" else data.raw(suffix)
    return contender(
        fastdata_name(codec, suffix, method),
        "load_fastdata.py",
        {**options, "data": str(path), "worker_method": method},
        modules=["fastdata"],
        notes={**FASTDATA, "reads": described(path)},
    )


def fastdata_name(codec: str, suffix: str, method: str) -> str:
    """Return what the table calls it."""
    return f"fastdata {codec} {suffix[1:]} {method}"


def unpacked_contender(method: str, options: dict[str, Any], data: Datasets) -> Contender:
    """Return fastdata's loader of the original files, which are not packed."""
    path = data.originals()
    return contender(
        UNPACKED.format(method),
        "load_fastdata.py",
        {**options, "data": str(path), "worker_method": method},
        modules=["fastdata"],
        notes={**FASTDATA, "reads": f"the original files, large: {described(path)}"},
    )


def peer_contender(name: str, options: dict[str, Any], data: Datasets) -> Contender:
    """Return the contender of a peer; its data is made here, where it can be."""
    script, peer, modules, source, notes = PEERS[name]
    absent = contender(name, script, {}, peer=peer, modules=modules, notes=notes)
    if absent.why_absent():
        return absent
    try:
        path = source(data)
    except ContenderFailedError as error:
        return Contender(name, missing=str(error), notes=notes)
    return contender(
        name,
        script,
        {**options, "data": str(path)},
        peer=peer,
        modules=modules,
        notes={**notes, "reads": f"{notes['reads']}: {described(path)}"},
    )


def described(path: Path) -> str:
    """Return name and size of a file or folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{path.name}, {sum(file.stat().st_size for file in files) / 1e6:,.0f} MB"


SAME_FILES = "the JPEG files that fastdata packed, as files"
PEERS: dict[str, tuple[str, str, list[str], Any, dict[str, str]]] = {
    "torchvision, original files": (
        "load_torchvision.py",
        "torchvision",
        ["torchvision"],
        Datasets.originals,
        {**PIL_BILINEAR, "reads": "the original files, large", "decoder": "PIL"},
    ),
    "torchvision, pre-resized files": (
        "load_torchvision.py",
        "torchvision",
        ["torchvision"],
        Datasets.files,
        {**PIL_BILINEAR, "reads": SAME_FILES, "decoder": "PIL"},
    ),
    "LMDB + cv2 + DataLoader": (
        "load_lmdb_cv2.py",
        "",
        ["lmdb", "cv2", "torch"],
        lambda data: data.packed(".lmdb"),
        {**CV2_LINEAR, "reads": "fastdata's own file, through py-lmdb"},
    ),
    "WebDataset": (
        "load_webdataset.py",
        "webdataset",
        ["webdataset", "cv2"],
        Datasets.tars,
        {
            **CV2_LINEAR,
            "reads": "the same JPEG files, in tars",
            "order": "tars in random order through a buffer of 1,000, not a full shuffle",
        },
    ),
    "DALI CPU": (
        "load_dali.py",
        "dali",
        ["nvidia.dali"],
        Datasets.files,
        {
            **DALI_LINEAR,
            "reads": SAME_FILES,
            "order": "through a buffer of 1,024, not a full shuffle",
            "memory": "a batch is DALI's own and valid until the next one",
        },
    ),
    "FFCV jpeg": (
        "load_ffcv.py",
        "ffcv",
        ["ffcv"],
        lambda data: data.beton("jpg"),
        {
            **AREA,
            "reads": "those files in their size, JPEG encoded a second time (quality 90)",
            "memory": "batches are FFCV's own buffers, written again later",
        },
    ),
    "FFCV raw": (
        "load_ffcv.py",
        "ffcv",
        ["ffcv"],
        lambda data: data.beton("raw"),
        {**AREA, "reads": "the same pixels as fastdata raw"},
    ),
}


def names() -> list[str]:
    """Return all contenders, in the order of the table."""
    packed = [
        fastdata_name(codec, suffix, method)
        for codec in ("jpeg", "raw")
        for suffix in (".lmdb", ".h5")
        for method in METHODS
    ]
    unpacked = [UNPACKED.format(method) for method in METHODS]
    peers = list(PEERS)
    return [*packed[:4], *unpacked, *peers[:-1], *packed[4:], peers[-1]]


def make(name: str, options: dict[str, Any], data: Datasets) -> Contender:
    """Return the contender of this name."""
    if name in PEERS:
        return peer_contender(name, options, data)
    if name in map(UNPACKED.format, METHODS):
        return unpacked_contender(name.split()[-1], options, data)
    _, codec, container, method = name.split()
    return fastdata_contender(codec, f".{container}", method, options, data)


def bars(chosen: list[str]) -> list[Bar]:
    """Return what is asked of fastdata over its peers."""
    asked = []
    for name in chosen:
        if name.startswith("fastdata jpeg"):
            asked.append(Bar(name, "FFCV jpeg", JPEG_OVER_FFCV))
            asked.append(Bar(name, "torchvision, pre-resized files", JPEG_OVER_FILES))
            same = UNPACKED.format(name.split()[-1])
            asked.append(Bar(name, same, PACKED_OVER_UNPACKED))
        elif name in map(UNPACKED.format, METHODS):
            asked.append(Bar(name, "torchvision, original files", UNPACKED_OVER_FILES))
        elif name.startswith("fastdata raw"):
            asked.append(Bar(name, "FFCV raw", RAW_OVER_FFCV))
    return [bar for bar in asked if bar.other in chosen]


def main() -> int:
    """Read the command line and compare."""
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("--images", type=Path, help="folder of class folders of JPEG files")
    parser.add_argument("--against", metavar="PYTHON", help="compare with fastdata as it has it")
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5, help="in a process; the best one counts")
    parser.add_argument(
        "--only", action="append", help="contenders whose name has this in it; may be repeated"
    )
    given = parser.parse_args()

    data = Datasets(find_images(given.images), given.work.resolve() / "load", given.samples)
    chosen = [
        name for name in names() if not given.only or any(part in name for part in given.only)
    ]
    options = {"workers": given.workers, "epochs": given.epochs}
    contenders = [make(name, options, data) for name in chosen]
    settings = {"samples": given.samples, "size": SIZE, "quality": QUALITY, **options}
    return compare(
        "load",
        contenders,
        rounds=given.rounds,
        settings=settings,
        output=given.output,
        bars=bars(chosen),
        against=given.against,
    )


if __name__ == "__main__":
    sys.exit(main())
