"""Tables and figures of packing and loading, made of the results that are kept; see `pages.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from cells import between, markdown, over, times, version, whole
from results import Figure, Measured, Run

FASTDATA, FFCV = "fastdata jpeg lmdb thread", "FFCV jpeg"
TORCHVISION, ORIGINALS = "torchvision, pre-resized files", "torchvision, original files"
UNPACKED = "fastdata, original files, {}"

LABELS: Mapping[str, tuple[str, str]] = {
    FASTDATA: ("`fastdata.loader`, JPEG", ""),
    "fastdata jpeg lmdb process": ("`fastdata.loader`, JPEG, worker processes", ""),
    FFCV: ("FFCV{}, JPEG", "ffcv"),
    "DALI CPU": ("DALI{}, CPU", "nvidia-dali-cuda120"),
    "SPDL": ("SPDL{}", "spdl"),
    "LMDB + cv2 + DataLoader": ("LMDB{} + OpenCV + `DataLoader`", "lmdb"),
    "WebDataset": ("WebDataset{}", "webdataset"),
    "LitData": ("LitData{}", "litdata"),
    "MosaicML Streaming": ("MosaicML Streaming{}", "mosaicml-streaming"),
    "Lance": ("Lance{}", "pylance"),
    "grain": ("grain{}", "grain"),
    "Hugging Face datasets": ("Hugging Face datasets{}", "datasets"),
    TORCHVISION: ("torchvision{} `ImageFolder` + `DataLoader`, the same files", "torchvision"),
    "fastdata raw lmdb thread": ("`fastdata.loader`, raw pixels", ""),
    "fastdata raw lmdb process": ("`fastdata.loader`, raw pixels, worker processes", ""),
    "FFCV raw": ("FFCV{}, raw pixels", "ffcv"),
    "torch, whole batches in memory": (
        "stock `DataLoader`, whole batches from one array in memory",
        "",
    ),
    "torchvision, images in memory": (
        "torchvision{}, images in memory + `DataLoader`",
        "torchvision",
    ),
}
"""Contenders as the tables call them, with the package whose version goes into the braces."""

OPENCV = "OpenCV", "`INTER_LINEAR`, not antialiased"
PILLOW = "PIL", "bilinear, antialiased"
DECODES: Mapping[str, tuple[str, str]] = {
    FASTDATA: ("fastdata", "bilinear, antialiased"),
    "fastdata jpeg lmdb process": ("fastdata", "bilinear, antialiased"),
    "fastdata raw lmdb thread": ("", "bilinear, antialiased"),
    "fastdata raw lmdb process": ("", "bilinear, antialiased"),
    FFCV: ("libjpeg-turbo", "OpenCV `INTER_AREA`"),
    "FFCV raw": ("", "OpenCV `INTER_AREA`"),
    "DALI CPU": ("DALI", "linear, antialiased"),
    "SPDL": ("FFmpeg", "FFmpeg bilinear"),
    "Hugging Face datasets": PILLOW,
    TORCHVISION: PILLOW,
}
"""Decoder and resize filter; those of the others are OpenCV's."""

README = (FASTDATA, FFCV, "DALI CPU", "Hugging Face datasets", "WebDataset", TORCHVISION)
"""The contenders of README's table and picture."""


def label(found: Measured, name: str) -> str:
    """Return the name of a contender in a table, with its version."""
    text, package = LABELS[name]
    return text.format(version(found, name, package) if package else "")


def short(found: Measured, name: str) -> str:
    """Return the name of a contender in the picture, with its version."""
    if name == FASTDATA:
        return "fastdata"
    return label(found, name).partition(" `")[0].partition(",")[0]


def of_readme(found: Measured) -> dict[str, Figure]:
    """Return the figures of README's contenders that fastdata's newest run has."""
    figures = _run(found)["figures"]
    return {name: figures[name] for name in README if name in figures}


def _rows(found: Measured, names: Iterable[str], base: str) -> list[list[str]]:
    return [
        [label(found, name), whole(figure), between(figure), over(found, name, base)]
        for name in names
        if (figure := found.figure(name))
    ]


HEADS = ["", "images/s, median", "lowest-highest"]


def load(found: Measured) -> list[str]:
    """Random crops of JPEGs and of raw pixels."""
    names = [name for name in LABELS if found.figure(name)]
    cells = [DECODES.get(name, OPENCV) for name in names]
    rows = zip(_rows(found, names, TORCHVISION), cells, strict=True)
    heads = [*HEADS, "over torchvision", "decoder", "resize filter"]
    return markdown(heads, "lrrrll", [[*row, *more] for row, more in rows])


def evaluation(found: Measured) -> list[str]:
    """The centre of JPEGs, in order."""
    return markdown([*HEADS, "over torchvision"], "lrrr", _rows(found, LABELS, TORCHVISION))


def cifar(found: Measured) -> list[str]:
    """Raw images of 32 x 32, those of files for raw images first."""
    names = sorted(LABELS, key=lambda name: "raw" not in name)
    rows = _rows(found, names, "torchvision, images in memory")
    return markdown([*HEADS, "over torchvision"], "lrrr", rows)


def unpacked(found: Measured) -> list[str]:
    """Files as they lie."""
    as_they_lie = "`fastdata.loader`, the original files, two {}"
    labels = {
        FASTDATA: "`fastdata.loader`, packed at short side 256",
        UNPACKED.format("process"): as_they_lie.format("processes"),
        UNPACKED.format("thread"): as_they_lie.format("threads"),
        ORIGINALS: "torchvision `ImageFolder` + `DataLoader`, the original files",
    }
    rows = [
        [said, whole(figure), between(figure), over(found, name, ORIGINALS)]
        for name, said in labels.items()
        if (figure := found.figure(name))
    ]
    return markdown([*HEADS, "over torchvision"], "lrrr", rows)


PACKED, FFCV_WRITER = "fastdata lmdb", "FFCV DatasetWriter"


def pack(found: Measured) -> list[str]:
    """Packing, beside FFCV."""
    writer = f"FFCV{version(found, FFCV_WRITER, 'ffcv')} `DatasetWriter`"
    labels = {
        PACKED: "`fastdata.pack` to LMDB",
        "fastdata hdf5": "`fastdata.pack` to HDF5",
        FFCV_WRITER: f"{writer} (jpg, `max_resolution=341`)",
    }
    rows = [
        [said, whole(figure), between(figure), over(found, name, FFCV_WRITER, 2)]
        for name, said in labels.items()
        if (figure := found.figure(name))
    ]
    return markdown([*HEADS, "over FFCV"], "lrrr", rows)


def readme(loaded: Measured, packed: Measured, accuracy: Measured) -> list[str]:
    """The short table: loading first, then a row each for packing and accuracy."""
    rows = [
        [label(loaded, name), whole(figure), over(loaded, name, TORCHVISION)]
        for name, figure in of_readme(loaded).items()
    ]
    both = packed.figure(PACKED), packed.figure(FFCV_WRITER)
    if all(both):
        ratio = f"{over(packed, PACKED, FFCV_WRITER)} FFCV's"
        rows.append(["packing with fastdata / with FFCV", " / ".join(map(whole, both)), ratio])
    top1 = [accuracy.figure(name) for name in ("jpeg", "original")]
    if all(top1):
        shares = [f"{fmean(figure['top1']):.1%}" for figure in top1 if figure]
        what = "accuracy (top-1) of training from packs / from original files"
        rows.append([what, " / ".join(shares), ""])
    machine = f"{cores(loaded)} shared cores, {cpu(loaded)}, {date(loaded)}"
    return markdown([machine, "images/s", "over torchvision"], "lrr", rows)


# -- single figures ----------------------------------------------------------------------------


def _run(found: Measured) -> Run:
    return found.run_of(FASTDATA) or found.runs[0]


def date(found: Measured) -> str:
    """Return the day on which fastdata was measured last."""
    return str(_run(found)["date"])


def cpu(found: Measured) -> str:
    """Return the processor of that run."""
    return str(_run(found)["machine"]["cpu"])


def cores(found: Measured) -> str:
    """Return the cores of that run."""
    return str(_run(found)["machine"]["cores"])


def ratio(found: Measured, name: str, base: str) -> str:
    """Return how many times the base's a figure is, without "x"."""
    return times(found.ratio(name, base)).rstrip("x") or "(not measured)"


def picture(found: Measured) -> str:
    """Return README's picture with its text for those who do not see it."""
    bars = [f"{short(found, name)}: {whole(figure)}" for name, figure in of_readme(found).items()]
    return f"![Images per second. {'; '.join(bars)}](docs/images/loading.svg)"
