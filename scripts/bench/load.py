"""Feed a training loop from the same images with fastdata and with its peers, in turns.

    python scripts/bench/load.py --images DIR --output load.jsonl
    python scripts/bench/load.py --only jpeg --only FFCV --rounds 3
    python scripts/bench/load.py evaluation --images DIR
    python scripts/bench/load.py cifar

The workloads:

training    224 px random resized crops with a flip of JPEGs of short side 256, batches of 256
evaluation  the centre, 224 px, of the same images in order
unpacked    as training, from the original files, which are larger and not packed
cifar       50,000 raw images of 32 x 32: random crops with 4 px of padding, flip, batches of 512

All contenders make uint8 batches with labels, without the short last batch, in random order except
for evaluation, with two workers, from files that are warm in the page cache.
`contenders/epochs.py` tells how epochs are timed, `bench_data.py` what each contender reads.

What is not the same, beside each line of the table: the resize filter (area
and linear without antialiasing cost less or more than PIL's antialiased
bilinear, and give other pixels), how random the order is, and the memory layout,
which is the loader's own: no loader has to transpose, and the JSON lines have the
shape and strides of a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_data import NOISE_SAMPLES, QUALITY, SIZE, Datasets, find_images, pixel_files
from harness import Contender, ContenderFailedError, command_line
from peers import contender
from table import FILTER, Bar, compare


@dataclass(frozen=True)
class Known:
    """How a contender is run."""

    script: str
    peer: str
    modules: Sequence[str]
    source: Callable[[Datasets], Path]
    notes: Mapping[str, str]
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """A kind of epochs: its contenders and their options."""

    contenders: Sequence[str]
    options: Mapping[str, object] = field(default_factory=dict)
    """What is not as in `USUAL` of contenders/epochs.py."""


ANTIALIASED = {FILTER: "bilinear, antialiased (default)"}
PIL_BILINEAR = {FILTER: "PIL bilinear, antialiased", "decoder": "PIL"}
CV2_LINEAR = {FILTER: "cv2 INTER_LINEAR, not antialiased", "decoder": "OpenCV"}
AREA = {FILTER: "cv2 INTER_AREA"}
SAME_FILES = "the JPEG files that fastdata packed, as files"
THEIR_FILE = "the same files, as they are in its own file"
SHARD_MB = 64


def _fastdata(source: Callable[[Datasets], Path], method: str, reads: str = "") -> Known:
    notes = {**ANTIALIASED, "reads": reads} if reads else ANTIALIASED
    options: dict[str, object] = {"worker_method": method}
    return Known("load_fastdata.py", "", ["fastdata"], source, notes, options)


def _packed(data: Datasets) -> Path:
    return data.packed(".lmdb")


def _raw(data: Datasets) -> Path:
    return data.raw(".lmdb")


ORIGINAL = "the original files, large"
METHODS = ("thread", "process")
UNPACKED = "fastdata, original files, {}"
KNOWN: Mapping[str, Known] = {
    **{f"fastdata jpeg lmdb {method}": _fastdata(_packed, method) for method in METHODS},
    **{f"fastdata raw lmdb {method}": _fastdata(_raw, method) for method in METHODS},
    **{
        UNPACKED.format(method): _fastdata(Datasets.originals, method, ORIGINAL)
        for method in METHODS
    },
    "torchvision, original files": Known(
        "load_torchvision.py",
        "torchvision",
        ["torchvision"],
        Datasets.originals,
        {**PIL_BILINEAR, "reads": ORIGINAL},
    ),
    "torchvision, pre-resized files": Known(
        "load_torchvision.py",
        "torchvision",
        ["torchvision"],
        Datasets.files,
        {**PIL_BILINEAR, "reads": SAME_FILES},
    ),
    "torchvision, images in memory": Known(
        "load_torchvision.py",
        "torchvision",
        ["torchvision"],
        Datasets.files,
        {"reads": "one array in memory, as its CIFAR10 does; each image becomes one of PIL"},
    ),
    "torch, whole batches in memory": Known(
        "load_tensors.py",
        "torchvision",
        ["torch"],
        Datasets.files,
        {"reads": "one padded array in memory; a batch's crops are one indexing"},
    ),
    "Hugging Face datasets": Known(
        "load_datasets.py",
        "datasets",
        ["datasets", "torchvision"],
        Datasets.files,
        {**PIL_BILINEAR, "reads": SAME_FILES},
    ),
    "LMDB + cv2 + DataLoader": Known(
        "load_lmdb_cv2.py",
        "",
        ["lmdb", "cv2", "torch"],
        Datasets.plain_lmdb,
        {**CV2_LINEAR, "reads": "the same files, through py-lmdb; fastdata's own LMDB if JPEGs"},
    ),
    "WebDataset": Known(
        "load_webdataset.py",
        "webdataset",
        ["webdataset", "cv2"],
        Datasets.tars,
        {
            **CV2_LINEAR,
            "reads": "the same files, in tars",
            "order": "tars in random order through a buffer of 1,000, not a full shuffle",
        },
    ),
    "LitData": Known(
        "load_litdata.py",
        "litdata",
        ["litdata", "cv2"],
        lambda data: data.stored("litdata", SHARD_MB),
        {**CV2_LINEAR, "reads": THEIR_FILE, "order": "by chunks, not a full shuffle"},
    ),
    "MosaicML Streaming": Known(
        "load_mds.py",
        "mds",
        ["streaming", "cv2"],
        lambda data: data.stored("mds", SHARD_MB),
        {**CV2_LINEAR, "reads": THEIR_FILE, "order": "by shards, not a full shuffle"},
    ),
    "Lance": Known(
        "load_lance.py",
        "lance",
        ["lance", "cv2"],
        lambda data: data.written("images.lance", "lance", "load_lance.py"),
        {**CV2_LINEAR, "reads": THEIR_FILE},
    ),
    "grain": Known(
        "load_grain.py",
        "grain",
        ["grain", "cv2"],
        lambda data: data.written("images.array_record", "grain", "load_grain.py"),
        {**CV2_LINEAR, "reads": THEIR_FILE},
    ),
    "SPDL": Known(
        "load_spdl.py",
        "spdl",
        ["spdl.io"],
        Datasets.files,
        {FILTER: "FFmpeg bilinear", "decoder": "FFmpeg", "reads": SAME_FILES},
    ),
    "DALI CPU": Known(
        "load_dali.py",
        "dali",
        ["nvidia.dali"],
        Datasets.files,
        {
            FILTER: "DALI linear, antialiased",
            "reads": SAME_FILES,
            "order": "through a buffer of 1,024, not a full shuffle",
            "memory": "a batch is DALI's own and valid until the next one",
        },
    ),
    "FFCV jpeg": Known(
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
    "FFCV raw": Known(
        "load_ffcv.py",
        "ffcv",
        ["ffcv"],
        lambda data: data.beton("raw"),
        {**AREA, "reads": "the same pixels as fastdata raw"},
    ),
}

STORED = [
    "LMDB + cv2 + DataLoader",
    "WebDataset",
    "LitData",
    "MosaicML Streaming",
    "Lance",
    "grain",
]
JPEGS = ["torchvision, pre-resized files", "Hugging Face datasets", *STORED]
JPEGS += ["SPDL", "DALI CPU", "FFCV jpeg"]
OURS = [f"fastdata {codec} lmdb {method}" for codec in ("jpeg", "raw") for method in METHODS]
UNPACKED_NAMES = [UNPACKED.format(method) for method in METHODS]
IN_MEMORY = ["torchvision, images in memory", "torch, whole batches in memory"]
WORKLOADS = {
    "training": Workload([*OURS, *JPEGS, "FFCV raw"]),
    "evaluation": Workload([OURS[0], *JPEGS], {"transform": "centre 224", "shuffle": False}),
    "unpacked": Workload([OURS[0], *UNPACKED_NAMES, "torchvision, original files"]),
    "cifar": Workload(
        [OURS[2], *IN_MEMORY, *STORED, "FFCV raw"],
        # fastdata only: an epoch is too short for the clock.  Pauses between its epochs count.
        {"transform": "crop 32", "batch_size": 512, "joined_epochs": 10},
    ),
}

BARS = (  # contenders of fastdata by the start of their names, peer, ratio
    ("fastdata jpeg", "FFCV jpeg", 2.5),
    ("fastdata jpeg", "torchvision, pre-resized files", 3.0),
    ("fastdata raw", "FFCV raw", 5.0),
    ("fastdata jpeg", UNPACKED_NAMES[0], 1.0),
    ("fastdata, original files", "torchvision, original files", 1.8),
)


def make(name: str, options: Mapping[str, object], data: Datasets) -> Contender:
    """Return the contender of this name, with its data, which is made if it is not there."""
    known = KNOWN[name]
    notes = dict(known.notes)
    if options.get("transform", "crop 224") != "crop 224":
        notes.pop(FILTER, None)  # nothing is resized
    absent = contender(name, known.script, {}, peer=known.peer, modules=known.modules, notes=notes)
    if absent.why_absent():
        return absent
    try:
        path = known.source(data)
    except ContenderFailedError as error:
        return Contender(name, missing=str(error), notes=notes)
    reads = [notes["reads"]] if "reads" in notes else []
    return contender(
        name,
        known.script,
        {**options, **known.options, "data": str(path)},
        peer=known.peer,
        modules=known.modules,
        notes={**notes, "reads": ": ".join([*reads, described(path)])},
    )


def described(path: Path) -> str:
    """Return name and size of a file or folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{path.name}, {sum(file.stat().st_size for file in files) / 1e6:,.0f} MB"


def bars(chosen: Sequence[str]) -> list[Bar]:
    """Return the ratios that fastdata should reach over its peers."""
    return [
        Bar(name, other, ratio)
        for name in chosen
        for start, other, ratio in BARS
        if name.startswith(start) and other in chosen
    ]


def main() -> int:
    """Read the command line and compare."""
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("workload", nargs="?", default="training", choices=WORKLOADS)
    parser.add_argument("--images", type=Path, help="folder of class folders of JPEG files")
    parser.add_argument("--against", metavar="PYTHON", help="compare with fastdata as it has it")
    parser.add_argument("--samples", type=int, default=8000, help="cifar has 50,000")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5, help="in a process; the best one counts")
    parser.add_argument(
        "--only", action="append", help="contenders whose name has this in it; may be repeated"
    )
    given = parser.parse_args()

    work = given.work.resolve() / "load"
    if given.workload == "cifar":
        data = Datasets(pixel_files(work), work / "small", NOISE_SAMPLES, small=True)
    else:
        data = Datasets(find_images(given.images), work, given.samples)
    workload = WORKLOADS[given.workload]
    chosen = [
        name
        for name in workload.contenders
        if not given.only or any(part in name for part in given.only)
    ]
    options: dict[str, Any] = {"workers": given.workers, "epochs": given.epochs, **workload.options}
    contenders = [make(name, options, data) for name in chosen]
    settings = {"workload": given.workload, "samples": data.samples, **options}
    if not data.small:
        settings |= {"size": SIZE, "quality": QUALITY}
    return compare(
        "load",
        contenders,
        rounds=given.rounds,
        settings=settings,
        output=given.output,
        bars=bars(chosen) if given.workload in ("training", "unpacked") else (),
        against=given.against,
    )


if __name__ == "__main__":
    sys.exit(main())
