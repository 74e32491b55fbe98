"""The figures that are asked of the loader: what to run, and how a row comes of it.

Each function returns the `Plan` of one figure.  Its docstring is what
``figures.py --help`` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench_data import QUALITY, SIZE, Datasets
from harness import MEMORY_SAMPLE_SECONDS, Contender, Run
from peers import contender

METHODS = ("thread", "process")
CONTAINERS = (".lmdb", ".h5")


def value(run: Run) -> float:
    """Return what the contender reported as its value."""
    return run.value


def reported(name: str) -> Callable[[Run], float]:
    """Return a function that takes another number from a report."""
    return lambda run: float(run.report[name])


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a contender's median, or its ratio to another's.

    Parameters
    ----------
    what : str
    contender, over : str
        Names; without `over` it is no ratio.
    unit : str
    bar : float, optional
        What is asked for: at least, or with `at_most` at most.
    measure : callable
        What is taken of each run.
    """

    what: str
    contender: str
    over: str = ""
    unit: str = "x"
    bar: float | None = None
    at_most: bool = False
    measure: Callable[[Run], float] = value


@dataclass(frozen=True, slots=True)
class Plan:
    """What one figure runs, and its rows."""

    contenders: Sequence[Contender]
    rows: Sequence[Row]
    memory_sample_seconds: float = MEMORY_SAMPLE_SECONDS


def ours(name: str, script: str, **options: object) -> Contender:
    """Return a contender that runs fastdata."""
    return contender(name, script, options, modules=["fastdata"])


def jpeg(data: Datasets, workers: int) -> Plan:
    """JPEG, random resized crop and flip: images/s"""
    return loading("JPEG", str(data.packed(".lmdb")), {"workers": workers, "epochs": 5})


def pixels(data: Datasets, workers: int) -> Plan:
    """raw images, random resized crop and flip: images/s"""
    return loading("raw", str(data.raw(".lmdb")), {"workers": workers, "epochs": 5})


def unpacked(data: Datasets, workers: int) -> Plan:
    """the original files, not packed, random resized crop and flip: images/s"""
    return loading("unpacked", str(data.originals()), {"workers": workers, "epochs": 3})


def cifar(data: Datasets, workers: int) -> Plan:
    """raw 32 x 32, random crop with padding and flip, batches of 512: images/s"""
    small = {"transform": "crop 32", "batch_size": 512, "epochs": 5, "joined_epochs": 10}
    plans = [
        loading(
            f"32 x 32 {suffix[1:]}",
            str(data.noise(suffix)),
            {"workers": workers, **small},
            bar=400_000,
        )
        for suffix in CONTAINERS
    ]
    return Plan([c for p in plans for c in p.contenders], [r for p in plans for r in p.rows])


def loading(name: str, path: str, options: dict[str, Any], bar: float | None = None) -> Plan:
    """Return the plan of loading a dataset with threads and with processes."""
    names = {method: f"{name} {method}" for method in METHODS}
    return Plan(
        [
            ours(name, "load_fastdata.py", data=path, worker_method=method, **options)
            for method, name in names.items()
        ],
        [Row(name, name, unit="images/s", bar=bar) for name in names.values()],
    )


def packing(data: Datasets, workers: int) -> Plan:
    """packing JPEG files to short side 256: images/s"""
    images = data.originals()
    contenders = []
    for suffix in CONTAINERS:
        options = {"destination": str(data.work / f"measured{suffix}"), "pack": {"size": SIZE}}
        contenders.append(
            ours(
                f"packing to {suffix[1:]}",
                "pack_fastdata.py",
                images=str(images),
                workers=workers,
                quality=QUALITY,
                **options,
            )
        )
    return Plan(contenders, [Row(c.name, c.name, unit="images/s") for c in contenders])


def opening(data: Datasets, workers: int) -> Plan:
    """seconds to open a shard, and a folder of image files, in a warm interpreter"""
    contenders = [
        ours("opening a shard", "figure_opening.py", data=str(data.packed(".lmdb"))),
        ours("opening a folder", "figure_opening.py", data=str(data.originals())),
    ]
    return Plan(contenders, [Row(c.name, c.name, unit="s", at_most=True) for c in contenders])


def starting(data: Datasets, workers: int) -> Plan:
    """seconds that `fastdata --help` takes"""
    shown = ours("fastdata --help", "figure_help.py")
    return Plan([shown], [Row(shown.name, shown.name, unit="s", at_most=True)])


def scaling(data: Datasets, workers: int) -> Plan:
    """JPEG: images/s of 2, 4, 8 ... and all workers over one"""
    path, contenders, rows = str(data.packed(".lmdb")), [], []
    doubled = [1 << power for power in range(workers.bit_length()) if 1 << power < workers]
    for method in METHODS:
        names = {count: f"{method}, workers: {count}" for count in (*doubled, workers)}
        contenders += [
            ours(name, "load_fastdata.py", data=path, workers=count, epochs=5, worker_method=method)
            for count, name in names.items()
        ]
        rows += [
            Row(
                f"JPEG, {method}: {count} workers over one",
                names[count],
                names[1],
                bar=0.95 * count,
            )
            for count in names
            if count > 1
        ]
    return Plan(contenders, rows)


def raw(data: Datasets, workers: int) -> Plan:
    """raw images of one size, no transform: whole epochs over memcpy of the same bytes"""
    contenders, rows = [], []
    for suffix in CONTAINERS:
        path = str(data.squares(suffix, 224))
        for check in (True, False):
            name = f"raw {suffix[1:]}, " + ("as opened by default" if check else "check=False")
            options = {"data": path, "check": check, "workers": workers, "transform": "none"}
            options["drop_last"] = False
            contenders.append(ours(name, "figure_raw.py", turns=9, **options))
            rows.append(Row(name, name, unit="of memcpy in one thread", bar=0.8))
    return Plan(contenders, rows)


def gap(data: Datasets, workers: int) -> Plan:
    """pause between two epochs, in mean batch intervals"""
    path, contenders, rows = str(data.packed(".lmdb")), [], []
    for method in METHODS:
        contenders.append(
            ours(
                method,
                "figure_gap.py",
                data=path,
                workers=workers,
                worker_method=method,
                epochs=6,
            )
        )
        asked: dict[str, Any] = {"unit": "intervals", "bar": 1.2, "at_most": True}
        rows += [
            Row(f"gap, {method}, consumer only takes", method, **asked),
            Row(f"gap, {method}, with steps", method, measure=reported("with_step"), **asked),
        ]
    return Plan(contenders, rows)


def first_batch(data: Datasets, workers: int) -> Plan:
    """seconds to the first batch in a warm interpreter"""
    path, contenders, rows = str(data.packed(".lmdb")), [], []
    for method in METHODS:
        options = {"data": path, "workers": workers, "worker_method": method}
        contenders.append(ours(method, "figure_first_batch.py", **options))
        asked: dict[str, Any] = {"unit": "s", "bar": 0.25, "at_most": True}
        rows += [
            Row(f"first batch, {method}", method, **asked),
            Row(
                f"first batch, {method}, of a second loader",
                method,
                measure=reported("again"),
                **asked,
            ),
        ]
    return Plan(contenders, rows)


def cold(data: Datasets, workers: int) -> Plan:
    """cold page cache, random order: bytes/s and images/s over LMDB with readahead=False"""
    path = str(data.packed(".lmdb"))
    contenders = [
        ours(
            f"reading, {reader}",
            "figure_cold_reads.py",
            data=path,
            samples=data.samples,
            reader=reader,
        )
        for reader in ("fastdata", "py-lmdb")
    ]
    options = {"data": path, "workers": workers, "epochs": 1, "cold": True}
    contenders += [
        ours(f"loading, {method}", "load_fastdata.py", worker_method=method, **options)
        for method in METHODS
    ]
    stock = contender("loading, LMDB + cv2", "load_lmdb_cv2.py", options, modules=["lmdb", "cv2"])
    rows = [
        Row("cold, reading: fastdata", "reading, fastdata", unit="MB/s"),
        Row("cold, reading: py-lmdb, readahead=False", "reading, py-lmdb", unit="MB/s"),
        Row(
            "cold, reading: fastdata over py-lmdb, readahead=False",
            "reading, fastdata",
            "reading, py-lmdb",
            bar=8,
        ),
        *(
            Row(
                f"cold, whole loader, {method}: over LMDB + cv2 + DataLoader",
                f"loading, {method}",
                stock.name,
            )
            for method in METHODS
        ),
    ]
    return Plan([*contenders, stock], rows)


def memory(data: Datasets, workers: int) -> Plan:
    """peak memory over 50 epochs against 2"""
    path, contenders, rows = str(data.packed(".lmdb")), [], []
    for method in METHODS:
        names = {epochs: f"{method}, {epochs} epochs" for epochs in (2, 50)}
        contenders += [
            ours(
                name,
                "load_fastdata.py",
                data=path,
                samples=min(2048, data.samples),
                workers=workers,
                worker_method=method,
                epochs=epochs,
                linger_seconds=1.0,
            )
            for epochs, name in names.items()
        ]
        rows.append(
            Row(
                f"peak memory, {method}: 50 epochs over 2",
                names[50],
                names[2],
                bar=1.02,
                at_most=True,
                measure=lambda run: float(run.peak_memory_bytes),
            )
        )
    # Two epochs are over in a second: look more often.
    return Plan(contenders, rows, memory_sample_seconds=0.05)


def psnr(data: Datasets, workers: int) -> Plan:
    """PSNR of crops against PIL's antialiased bilinear of the whole picture"""
    path = str(data.packed(".lmdb"))
    run = ours("crops", "figure_psnr.py", data=path, workers=workers, epochs=5)
    return Plan(
        [run],
        [
            Row("PSNR against PIL, mean", run.name, unit="dB", bar=45),
            Row(
                "PSNR against PIL, lowest",
                run.name,
                unit="dB",
                measure=reported("crop 224, lowest"),
            ),
        ],
    )


def shrinking(data: Datasets, workers: int) -> Plan:
    """PSNR of crops of 64 to 224 against PIL's, random and central, of packs and original files"""
    names = [f"{kind} {size}" for kind in ("crop", "centre") for size in (64, 96, 112, 160, 224)]
    pictures = data.distinct()
    sources = {
        "packed at 256": (pictures.packed(".lmdb"), 1),
        "original files": (pictures.originals(), 1),
        "files of 3 megapixels": (data.sheets(), 20),
    }
    runs = [
        ours(what, "figure_psnr.py", data=str(path), workers=workers, epochs=n, transforms=names)
        for what, (path, n) in sources.items()
    ]
    rows = [
        Row(
            f"{run.name}, {name}, {kind}",
            run.name,
            unit="dB",
            bar=45 if kind == "mean" else 38,
            measure=reported(f"{name}, {kind}"),
        )
        for run in runs
        for name in names
        for kind in ("mean", "lowest")
    ]
    return Plan(runs, rows)


FIGURES: dict[str, Callable[[Datasets, int], Plan]] = {
    "jpeg": jpeg,
    "pixels": pixels,
    "unpacked": unpacked,
    "cifar": cifar,
    "packing": packing,
    "opening": opening,
    "help": starting,
    "workers": scaling,
    "raw": raw,
    "gap": gap,
    "first-batch": first_batch,
    "cold": cold,
    "memory": memory,
    "psnr": psnr,
    "shrinking": shrinking,
}
