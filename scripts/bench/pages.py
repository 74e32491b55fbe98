"""The measured tables and figures of README.md and docs/, made of the results that are kept.

A table stands between ``<!-- table: NAME -->`` and ``<!-- /table -->``; what is there is written
anew.  Under it stand command, date, machine and what was measured with.

A single figure stands in a sentence, between ``<!-- figure: NAME -->`` and ``<!-- /figure -->``.
No line may begin with these marks: in Markdown, such a line is HTML up to its end.

The bars of README's picture are written too (`chart.py`).  `results.py` keeps the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import chart
import load_tables
import transform_tables
from cells import between, markdown, over, version, whole
from harness import REPOSITORY
from load_tables import FASTDATA, FFCV, ORIGINALS, TORCHVISION, UNPACKED
from remote_tables import asked_of_stores, stores
from results import Figure, Measured, Run

BETWEEN = re.compile(r"(?<=<!-- table: ).*?(?=<!-- /table -->)", re.DOTALL)
FIGURE = re.compile(r"(?<=<!-- figure: )(\S+) -->.*?(?=<!-- /figure -->)", re.DOTALL)
PICTURE = "docs/images/loading.svg"


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes
    ----------
    page : str
        From the repository's folder.
    sources : sequence of str
        Names of the measurements that it is made of, as `lines` takes them.
    lines : callable
        Returns the table in Markdown.
    origins : bool
        Whether commands, dates and machines stand under it.
    """

    page: str
    sources: Sequence[str]
    lines: Callable[..., list[str]]
    origins: bool = True


def text_of(name: str) -> str:
    """Return what stands between the marks of a table, its name included."""
    table = TABLES[name]
    found = [Measured.load(source) for source in table.sources]
    if not any(one.runs for one in found):
        return f"{name} -->\n\nNot measured yet.\n\n"
    lines = table.lines(*found)
    if table.origins:
        lines += ["", " ".join(map(origin, found))]
    return f"{name} -->\n\n" + "\n".join(lines) + "\n\n"


def figure_of(name: str) -> str:
    """Return what stands between the marks of a figure, its name included."""
    source, text = FIGURES[name]
    return f"{name} -->{text(Measured.load(source))}"


def renewed(page: Path) -> str:
    """Return the text of a page with its tables and figures made anew."""
    text = BETWEEN.sub(
        lambda found: text_of(found[0].split(maxsplit=1)[0]), page.read_text("utf-8")
    )
    return FIGURE.sub(lambda found: figure_of(found[1]), text)


def all_pages() -> Iterator[Path]:
    """Yield the pages that may have tables and figures."""
    yield REPOSITORY / "README.md"
    yield from sorted((REPOSITORY / "docs").rglob("*.md"))


def write_all() -> None:
    """Write the tables and figures into their pages, and the picture."""
    texts = {page: renewed(page) for page in all_pages()}
    texts[REPOSITORY / PICTURE] = chart.svg(Measured.load("load"))
    for path, text in texts.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def origin(measured: Measured) -> str:
    """Return how the figures were made, and when."""
    parts = []
    for number, (run, names) in enumerate(measured.news()):
        earlier, about = ("Earlier, ", f" ({', '.join(names)})") if number else ("", "")
        parts.append(f"{earlier}`{run['command']}`, {run['date']}{about}: {_with(run)}.")
    return " ".join(parts) or "Not measured yet."


def _with(run: Run) -> str:
    machine, photographs, samples = run["machine"], run.get("photographs"), run.get("samples")
    words = [f"{machine['cpu']}, {machine['cores']} cores"]
    if photographs:
        repeated = f", repeated to {samples:,} samples" if samples and samples > photographs else ""
        words.append(f"{min(photographs, samples or photographs):,} photographs{repeated}")
    if run.get("taken_over"):
        words.append("measured before results were kept")
    return "; ".join(words)


# -- tables ------------------------------------------------------------------------------------


def asked(loaded: Measured, figures: Measured, raw: Measured) -> list[str]:
    """What is asked of the loader, and what is reached."""

    def ratios(codec: str, other: str) -> list[str]:
        names = [f"fastdata {codec} lmdb {method}" for method in ("thread", "process")]
        return [f"{r:.2f}" if (r := loaded.ratio(name, other)) else "" for name in names]

    def reached(form: str, *names: str) -> list[str]:
        found = [figures.figure(name) for name in names]
        return [format(figure["median"], form) if figure else "" for figure in found]

    def methods(form: str, what: str) -> list[str]:
        return reached(form, *(what.format(method) for method in ("thread", "process")))

    memcpy = [raw.figure(f"raw {kind}, as opened by default") for kind in ("lmdb", "h5")]
    over_memcpy = ", ".join(f"{figure['median']:.2f}" for figure in memcpy if figure)
    cold = "cold, reading: fastdata over py-lmdb, readahead=False"
    psnr, lowest = reached(".1f", "PSNR against PIL, mean", "PSNR against PIL, lowest")
    rows = [
        ["JPEG over FFCV's", "2.5", *ratios("jpeg", FFCV)],
        ["JPEG over torchvision, the same pre-resized files", "3", *ratios("jpeg", TORCHVISION)],
        [
            "JPEG, two workers over one",
            "1.9",
            *methods(".2f", "JPEG, {}: 2 workers over one"),
        ],
        ["raw 256 px, random resized crop, over FFCV's raw", "5", *ratios("raw", "FFCV raw")],
        [
            "raw 224 px without transforms, whole epochs over `memcpy` in one thread (LMDB, HDF5)",
            "0.8",
            over_memcpy,
            "",
        ],
        [
            "raw 32 x 32, padded crop and flip, images/s",
            "400,000",
            *methods(",.0f", "32 x 32 lmdb {}"),
        ],
        [
            "pause between epochs, in batch intervals",
            "1.2",
            *methods(".2f", "gap, {}, consumer only takes"),
        ],
        ["first batch, s", "0.25", *methods(".3f", "first batch, {}")],
        ["cold reading over LMDB with `readahead=False`", "8", *reached(".1f", cold), ""],
        [
            "peak memory, 50 epochs over 2",
            "1.02",
            *methods(".3f", "peak memory, {}: 50 epochs over 2"),
        ],
        ["PSNR of crops against PIL, dB", "45", f"{psnr} (lowest {lowest})" if psnr else "", ""],
    ]
    return markdown(["", "asked", "threads (the default)", "processes"], "lrrr", rows)


def dct_scale(found: Measured) -> list[str]:
    """Accuracy of reduced DCT scale."""
    heads = ["scale", "margin", "photographs", "all pixels", "without last row and column"]
    kinds = ("whole", "inside", "rough")
    rows = [
        [
            figure["scale"],
            f"{figure['margin']}",
            f"{figure['images']}",
            *(f"{figure[kind][0]} / {figure[kind][1]}" for kind in kinds),
        ]
        for run, names in found.news()
        for figure in map(run["figures"].__getitem__, names)
    ]
    return markdown([*heads, "partly covered pixels ignored"], "lrrrrr", rows)


def read_blobs(found: Measured) -> list[str]:
    """Reading images out of shards."""
    base = "py-lmdb"
    labels = {
        "fastdata lmdb": "fastdata, LMDB, checksum of every image compared",
        "fastdata hdf5": "fastdata, HDF5, checksum of every image compared",
        "fastdata lmdb, no check": "fastdata, LMDB, `check=False`",
        "fastdata hdf5, no check": "fastdata, HDF5, `check=False`",
        base: f"py-lmdb{version(found, base, 'lmdb')}, one long transaction, `buffers=True`",
        "h5py": f"h5py{version(found, 'h5py', 'h5py')}, slices of a flat dataset",
    }
    rows = [
        [label, whole(figure), between(figure), over(found, name, base, 2).rstrip("x")]
        for name, label in labels.items()
        if (figure := found.figure(name))
    ]
    return markdown(
        ["reader", "images/s, median", "lowest-highest", "ratio to py-lmdb"], "lrrr", rows
    )


def open_shard(found: Measured) -> list[str]:
    """Opening a shard of a million samples."""
    labels = {".lmdb": "LMDB", ".h5": "HDF5"}
    checks = {"check": "compared", "no check": "`check=False`"}
    rows = [
        [label, said, f"{figure['open_ms']}", f"{figure['first_image_ms']}"]
        for suffix, label in labels.items()
        for check, said in checks.items()
        if (figure := found.figure(f"opening {suffix}, {check}"))
    ]
    return markdown(["shard", "checksums", "open, ms", "first image, ms"], "llrr", rows)


def tune_check(found: Measured) -> list[str]:
    """Whether tuning chooses right."""
    rows = []
    for run, names in found.news():
        for name in names:
            row = run["figures"][name]
            best = row["best_text"]
            same = "the same" if best == row["chosen_text"] else best
            rows.append(
                [
                    name,
                    row["chosen_text"],
                    f"{row['chosen_share']:.1%}",
                    same if row["fed"] else f"none; {same}",
                    f"{row['best_share']:.1%}",
                    "yes" if row["feeds"] and row["smallest"] else "NO",
                ]
            )
    heads = ["dataset/step ms", "chosen", "of the ceiling"]
    smallest = "smallest that feeds, or none: the best"
    return markdown([*heads, smallest, "of the ceiling", "right"], "llllll", rows)


MNIST_WORKERS, RULE_OF_THUMB = (0, 1, 2, 4, 8), 4
MNIST_LOADERS = {"stock": "stock DataLoader", "fastdata": "fastdata"}


def mnist_name(loader: str, workers: int, pinned: bool) -> str:
    """Return what a cell's contender is called."""
    return f"{MNIST_LOADERS[loader]}, workers: {workers}, pin_memory={pinned}"


def mnist(found: Measured) -> list[str]:
    """Seconds an epoch of MNIST-size data."""
    columns = [(loader, pinned) for loader in MNIST_LOADERS for pinned in (False, True)]
    heads = [f"{MNIST_LOADERS[loader]}, `pin_memory={pinned}`" for loader, pinned in columns]
    rows = []
    for count in MNIST_WORKERS:
        mark = " (the rule of thumb)" if count == RULE_OF_THUMB else ""
        names = [mnist_name(loader, count, pinned) for loader, pinned in columns]
        rows.append([f"{count}{mark}", *(_seconds(found.figure(name)) for name in names)])
    return markdown(["workers", *heads], "r" * (1 + len(heads)), rows)


def _seconds(figure: Figure | None) -> str:
    if figure is None:
        return "not measured"
    wide = f" ({figure['lowest']:.3g}-{figure['highest']:.3g})" if "lowest" in figure else ""
    return f"{figure['median']:.3g} s{wide}"


def converters(found: Measured) -> list[str]:
    """Packing from each format."""
    bases = {"photographs": "folder", "squares": "folder", "masks": "manifest"}
    formats = sorted(
        {name.partition(": ")[2] for run in found.runs for name in run["figures"]},
        key=lambda name: (name not in bases.values(), name),
    )
    rows = []
    for name in formats:
        cells = [f"`{name}`"]
        for kind, base in bases.items():
            ratio = over(found, f"{kind}: {name}", f"{kind}: {base}", 2).rstrip("x")
            figure = found.figure(f"{kind}: {name}")
            cells.append(f"{whole(figure)} ({ratio})" if figure else "")
        small = found.figure(f"small: {name}") or found.figure(f"small, pixels: {name}")
        rows.append([*cells, whole(small)])
    heads = ["format", "photographs/s", "squares of pixels/s", "with masks/s", "small pictures/s"]
    return markdown(heads, "lrrrr", rows)


def doctor(found: Measured) -> list[str]:
    """Gains that doctor reports beside those of advice that is followed by hand."""
    rows = []
    for run, names in found.news():
        for name in names:
            row = run["figures"][name]
            if "failed" in row:
                rows.append([name, row["failed"], "", "", "", "", "NO"])
                continue
            keys = "gain", row["clock"], "ratio"
            gain, real, ratio = ("{:.2f} ({:.2f}-{:.2f})".format(*row[key]) for key in keys)
            half, agrees = f"{row['half_width_percent']:.1f}%", "yes" if row["agrees"] else "NO"
            rows.append(
                [name, f"{gain}, {row['verdict']}", half, real, row["clock"], ratio, agrees]
            )
    heads = ["advice", "doctor (95%)", "half-width", "by hand (95%)", "clock", "ratio", "agree"]
    return markdown(heads, "llrllll", sorted(rows))


def doctor_nothing(found: Measured) -> list[str]:
    """How often doctor reports a gain if there is none."""
    row = found.figure("nothing") or {}
    counts = [
        row["runs"],
        row["not_judged"],
        row["pieces"],
        row["with_a_gain"],
        row["with_a_slower"],
    ]
    ranges = ["-".join(f"{one:.2f}" for one in row[key]) for key in ("itself", "smallest_gain")]
    heads = ["runs", "runs without a result", "pieces tried", "runs with a gain"]
    heads += ["runs with a slowdown", "the script compared with itself", "smallest gain that shows"]
    return markdown(heads, "rrrrrrr", [[*map(str, counts), *ranges]])


def accuracy(found: Measured) -> list[str]:
    """Top-1 of a network trained from the original files and from packs."""

    def percent(share: float) -> str:
        return f"{round(100 * share, 1) + 0.0:.1f}"  # 0.0, not -0.0

    def mean(figure: Figure) -> str:
        return f"{percent(figure['mean'])} ({' to '.join(map(percent, figure['interval']))})"

    labels = {
        "original": "original files, PIL, stock `DataLoader`",
        "jpeg": "`fastdata.pack(size=256, quality=90)`, `fastdata.loader`",
        "raw": '`fastdata.pack(size=256, codec="raw")`, `fastdata.loader`',
    }
    rows = [
        [
            label,
            ", ".join(map(percent, figure["top1"])),
            mean(figure),
            mean(figure["difference"]) if "difference" in figure else "",
        ]
        for name, label in labels.items()
        if (figure := found.figure(name))
    ]
    heads = ["pixels from", "top-1 of each seed, %", "mean (95% interval)"]
    return markdown([*heads, "difference from the first row"], "lrrr", rows)


TABLES: Mapping[str, Table] = {
    "readme": Table("README.md", ["load", "pack", "accuracy"], load_tables.readme, origins=False),
    "load": Table("docs/benchmarks.md", ["load"], load_tables.load),
    "evaluation": Table("docs/benchmarks.md", ["evaluation"], load_tables.evaluation),
    "cifar": Table("docs/benchmarks.md", ["cifar"], load_tables.cifar),
    "unpacked": Table("docs/benchmarks.md", ["unpacked"], load_tables.unpacked),
    "pack": Table("docs/benchmarks.md", ["pack"], load_tables.pack),
    "accuracy": Table("docs/benchmarks.md", ["accuracy"], accuracy),
    "transforms": Table("docs/benchmarks.md", ["transforms"], transform_tables.transforms),
    "asked": Table("docs/design/loading.md", ["load", "figures", "raw"], asked),
    "dct-scale": Table("docs/design/packing.md", ["dct-scale"], dct_scale),
    "read-blobs": Table("docs/design/format.md", ["read-blobs"], read_blobs),
    "open-shard": Table("docs/design/format.md", ["read-blobs"], open_shard),
    "tune-check": Table("docs/tune.md", ["tune-check"], tune_check),
    "mnist": Table("docs/tune.md", ["mnist"], mnist),
    "converters": Table("docs/converters/README.md", ["converters"], converters),
    "stores-asked": Table("docs/stores.md", ["remote"], asked_of_stores),
    "stores": Table("docs/stores.md", ["remote"], stores),
    "doctor": Table("docs/doctor.md", ["doctor"], doctor),
    "doctor-nothing": Table("docs/doctor.md", ["doctor-nothing"], doctor_nothing),
}


def _ratio(source: str, name: str, base: str) -> tuple[str, Callable[[Measured], str]]:
    return source, lambda found: load_tables.ratio(found, name, base)


def _rate(name: str) -> tuple[str, Callable[[Measured], str]]:
    return "load", lambda found: whole(found.figure(name)) or "(not measured)"


FIGURES: Mapping[str, tuple[str, Callable[[Measured], str]]] = {
    "load_picture": ("load", load_tables.picture),
    "date": ("load", load_tables.date),
    "cpu": ("load", load_tables.cpu),
    "cores": ("load", load_tables.cores),
    "load_fastdata": _rate(FASTDATA),
    "load_ffcv": _rate(FFCV),
    "load_dali": _rate("DALI CPU"),
    "load_hf": _rate("Hugging Face datasets"),
    "load_wds": _rate("WebDataset"),
    "load_torchvision": _rate(TORCHVISION),
    "load_vs_torchvision": _ratio("load", FASTDATA, TORCHVISION),
    "load_vs_ffcv": _ratio("load", FASTDATA, FFCV),
    "load_vs_dali": _ratio("load", FASTDATA, "DALI CPU"),
    "raw_vs_ffcv": _ratio("load", "fastdata raw lmdb thread", "FFCV raw"),
    "evaluation_vs_torchvision": _ratio("evaluation", FASTDATA, TORCHVISION),
    "evaluation_vs_ffcv": _ratio("evaluation", FASTDATA, FFCV),
    "cifar_vs_ffcv": _ratio("cifar", "fastdata raw lmdb thread", "FFCV raw"),
    "pack_vs_ffcv": _ratio("pack", load_tables.PACKED, load_tables.FFCV_WRITER),
    # Of the default worker method.
    "unpacked_vs_torchvision": _ratio("unpacked", UNPACKED.format("thread"), ORIGINALS),
    "packed_vs_unpacked": _ratio("unpacked", FASTDATA, UNPACKED.format("thread")),
    "packed_vs_originals": _ratio("unpacked", FASTDATA, ORIGINALS),
}
"""The source and the text of each figure."""
