"""Layouts as data: write them to disk or into an archive, pack them, and check the result.

A `Layout` is a tree of files and the right result.  The classes are read from the tree here, not by
the product, and each packed image is found by its bytes.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import tarfile
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from layout_pictures import MASKS, Pic, encoded
from PIL import Image

import fastdata
from fastdata.errors import FastdataError

__all__ = ["Layout", "Outcome", "Tree", "outcome", "write"]

Tree = Mapping[str, "Pic | str | bytes"]
"""Files by name; a name that ends in a slash is an empty folder."""

_JUNK = re.compile(
    r"(^|/)(\.[^/]*|__MACOSX|@eaDir|lost\+found|Thumbs\.db|desktop\.ini)(/|$)", re.IGNORECASE
)
_IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
_SHOWN = 4
"""So deep a refusal shows the tree at least."""
_COMMAND = re.compile(r"^\s*\W?fastdata (\w+) .*$", re.MULTILINE)


@dataclass(frozen=True)
class Layout:
    """A tree of files and the right result of packing it.

    Attributes
    ----------
    group : str
        Its kind, such as "pairs" or "classes".
    tree : Tree, or callable that returns one
    expected : str
        A format or "refused"; a slash separates several right results.
    says : str
        What a refusal must contain, a regular expression.
    level : int
        Which folder in an image's path is its class, if these are class folders.
    split : int, optional
        Which folder in an image's path is its split.
    unused : str
        A regular expression for images that are left out, in addition to hidden ones.
    count : int
        The samples of another format than ``folder``; -1 if any number is right.
    rejects : int
        Images that are rejected.
    labels : mapping
        Of some images the class, by the end of their names, if a list has the labels.
    note : str
        What a note of the pack must contain, a regular expression.
    archive : str
        "zip", "tar" or "tar.gz" if the tree is in one; "zip gbk" and "zip backslash" are zip files
        as some programs for Windows write them.
    """

    group: str
    tree: Tree | Callable[[], Tree]
    expected: str
    says: str = ""
    level: int = -2
    split: int | None = None
    unused: str = ""
    count: int = -1
    rejects: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    archive: str = ""

    def files(self) -> Tree:
        return self.tree() if callable(self.tree) else self.tree


class Outcome(NamedTuple):
    """The result for a layout, its faults, and whether data was misread."""

    got: str
    faults: tuple[str, ...]
    wrong: bool


def write(layout: Layout, root: Path) -> Path:
    """Write a layout's files; return the location to pack."""
    root.mkdir(parents=True, exist_ok=True)
    contents = {name: _content(name, content) for name, content in layout.files().items()}
    if layout.archive.startswith("zip"):
        return _zipped(contents, root / "data.zip", layout.archive)
    if layout.archive:
        mode = "w:gz" if layout.archive == "tar.gz" else "w"
        with tarfile.open(root / f"data.{layout.archive}", mode) as tar:
            for name, data in contents.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return root / f"data.{layout.archive}"
    folder = root / "data"
    folder.mkdir()
    for name, data in contents.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def _zipped(contents: Mapping[str, bytes], path: Path, kind: str) -> Path:
    stored: dict[bytes, bytes] = {}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            if kind == "zip gbk":  # ASCII of the same length first, as zipfile would write UTF-8
                encoded_name = name.encode("gbk")
                name = f"{len(stored):0{len(encoded_name)}}"
                stored[name.encode()] = encoded_name
            info = zipfile.ZipInfo(name)
            if kind == "zip backslash":
                info.filename = name.replace("/", "\\")
            archive.writestr(info, data)
    if stored:
        data = path.read_bytes()
        for name, other in stored.items():
            data = data.replace(name, other)
        path.write_bytes(data)
    return path


def _content(name: str, content: Pic | str | bytes) -> bytes:
    if isinstance(content, Pic):
        return encoded(content, name.rpartition(".")[2])
    return content.encode() if isinstance(content, str) else content


def outcome(layout: Layout, root: Path, thorough: bool = False) -> Outcome:
    """Pack a layout and compare the result with the right one.

    thorough: whether it is opened as it lies, too, and the commands of a refusal are run.
    """
    location, packed = write(layout, root), root / "out.lmdb"
    wanted = layout.expected.split("/")
    try:
        report = fastdata.pack(
            location, packed, progress=False, num_workers=0, codec="keep", resize="none"
        )
    except FastdataError as error:
        faults = [*_refusal_faults(layout, location, str(error))] if "refused" in wanted else []
        if "refused" not in wanted:
            faults = [f"not {layout.expected}: {str(error).splitlines()[0]}"]
        if [path for path in root.iterdir() if path != location]:
            faults.append("something was written")
        if thorough and not layout.archive and (opened := _opened(location)) is not None:
            faults.append(f"fastdata.open reads {opened}")
        if thorough and not layout.archive:
            faults += _command_faults(str(error), root / "commands")
        return Outcome("refused", tuple(faults), False)
    found = re.match(r"read as (\w+)", report.read_as)
    name = found[1] if found else report.read_as
    name = "folder" if name == "archive" else name
    dataset = fastdata.open(packed)
    classes = dataset.classes if "label" in dataset.schema else None
    shown = f"{name} {len(dataset)}" + (f" of {len(classes)} classes" if classes else "")
    if name not in wanted:
        return Outcome(shown, (f"not {layout.expected}",), True)
    rejected = report.num_rejected
    faults = [f"{rejected} rejects"] if rejected not in (0, layout.rejects) else []
    faults += _sample_faults(layout, name, dataset)
    if thorough and name in ("folder", "flat") and not layout.archive:
        opened, same = _opened(location), f"{len(dataset)} images, classes {dataset.classes}"
        if opened != same:
            faults.append(f"fastdata.open reads {opened}, not {same}")
    wrong = bool(faults)
    if layout.note and not any(re.search(layout.note, note) for note in report.notes):
        faults.append(f"no note has {layout.note!r}")
    return Outcome(shown, tuple(faults), wrong)


def _opened(location: Path) -> str | None:
    """Return what `fastdata.open` reads of files as they lie; None if it refuses them."""
    try:
        dataset = fastdata.open(location)
    except FastdataError:
        return None
    return f"{len(dataset)} images, classes {dataset.classes}"


# -- faults of a refusal ----------------------------------------------------------


def _refusal_faults(layout: Layout, location: Path, message: str) -> list[str]:
    faults = []
    if not re.search(layout.says, message.replace(str(location), "")):
        faults.append(f"the message has no {layout.says!r}")
    if "docs/recipes/" in message:  # which shows the way on
        return faults
    missing = [name for name in _top(layout) if name not in message]
    if missing:
        faults.append(f"the tree in the message has no {missing[0]}")
    commands = [match[0] for match in _COMMAND.finditer(message)]
    if not commands:
        faults.append("no command")
    elif commands == ["  fastdata formats  # what pack reads"]:
        return faults  # nothing there can be packed
    elif _top(layout) and not any(str(location.with_name("data")) in one for one in commands):
        faults.append("no command names the source")
    return faults


def _command_faults(message: str, folder: Path) -> list[str]:
    """Return which of a message's commands fail, run in an empty folder."""
    from click.testing import CliRunner

    from fastdata.cli import main

    faults = []
    folder.mkdir()
    here = os.getcwd()
    os.chdir(folder)
    for match in _COMMAND.finditer(message):
        words = shlex.split(match[0], comments=True)[1:]
        if words[0] != "pack" or "--explain" in words:
            continue
        done = CliRunner().invoke(main, [*words, "--num-workers", "0", "--overwrite"])
        if done.exit_code:
            faults.append(f"exit code {done.exit_code} of {match[0].strip()}")
    os.chdir(here)
    return faults


def _top(layout: Layout) -> list[str]:
    """Return the first three names in the highest folder that has more than one."""
    names = [PurePosixPath(name).parts for name in layout.files() if not _JUNK.search(name)]
    depth = 0
    while names and len({parts[: depth + 1] for parts in names}) == 1 and len(names[0]) > depth + 1:
        depth += 1
    folders = {parts[depth] for parts in names if len(parts) > depth + 1}
    return sorted(folders)[:3] if depth < _SHOWN else []


# -- faults of samples ------------------------------------------------------------


def _sample_faults(layout: Layout, format: str, dataset: Any) -> list[str]:
    if format == "folder":
        return _class_faults(layout, dataset)
    faults = []
    if layout.count >= 0 and len(dataset) != layout.count:
        faults.append(f"{len(dataset)} samples, not {layout.count}")
    if format == "masks":
        faults += _mask_faults(layout, dataset)
    for end, label in layout.labels.items():
        places = [k for k, key in enumerate(dataset.keys) if Path(key).with_suffix("").name == end]
        names = [dataset.classes[int(dataset[k].label)] for k in places if dataset.classes]
        if names != [label]:
            faults.append(f"the class of {end} is {names}, not {label!r}")
    return faults


def _class_faults(layout: Layout, dataset: Any) -> list[str]:
    """Return how the classes of images differ from those that the tree gives them."""
    class_of: dict[bytes, set[str]] = {}
    split_of: dict[bytes, str] = {}
    counts: Counter[str] = Counter()
    files = layout.files()
    for name, content in files.items():
        if _is_sample(layout, name):
            label = PurePosixPath(name).parts[layout.level]
            class_of.setdefault(_content(name, content), set()).add(label)
            if layout.split is not None:
                split_of[_content(name, content)] = PurePosixPath(name).parts[layout.split]
            counts[label] += 1
    if dataset.classes is None or "label" not in dataset.schema:
        return ["no classes"]
    if list(map(_plain, dataset.classes)) != sorted(map(_plain, counts)):
        return [f"classes {', '.join(dataset.classes[:6])}, not {', '.join(sorted(counts)[:6])}"]
    packed: Counter[str] = Counter()
    pairs: set[tuple[str, int]] = set()
    for index, stored in enumerate(_stored(dataset)):
        label = dataset.classes[int(dataset[index].label)]
        packed[label] += 1
        if layout.split is not None:
            if "split" not in dataset.schema:
                return ["no field 'split'"]
            pairs.add((split_of.get(stored, ""), int(dataset[index].split)))
        if stored in class_of and label not in class_of[stored]:
            return [f"{dataset.keys[index]} is {label}, not {', '.join(class_of[stored])}"]
    if len(pairs) != len(set(split_of.values())) or len(pairs) != len({one for _, one in pairs}):
        return [f"the splits of folders are {sorted(pairs)}"]
    wanted = Counter({_plain(label): count for label, count in counts.items()})
    found = Counter({_plain(label): count for label, count in packed.items()})
    return [] if found == wanted else [f"{sum(found.values())} images, not {sum(wanted.values())}"]


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _is_sample(layout: Layout, name: str) -> bool:
    image = name.lower().endswith(_IMAGES) and not _JUNK.search(name)
    return image and not (layout.unused and re.search(layout.unused, name))


def _stored(dataset: Any) -> list[bytes]:
    return [bytes(shard.blob("image", k)) for shard in dataset.shards for k in range(len(shard))]


def _mask_faults(layout: Layout, dataset: Any) -> list[str]:
    """Return how masks differ from those of the scenes that the images show."""
    files = layout.files()
    scene_of = {
        _content(name, pic): pic.scene
        for name, pic in files.items()
        if isinstance(pic, Pic) and pic.kind not in (*MASKS, "depth")
    }
    masks: dict[int, list[Any]] = {}
    for name, pic in files.items():
        if isinstance(pic, Pic) and pic.kind in MASKS and pic.kind != "fov":
            data = np.asarray(Image.open(io.BytesIO(_content(name, pic))))
            masks.setdefault(pic.scene, []).append(_foreground(data))
    everything = [mask for found in masks.values() for mask in found]
    for index, stored in enumerate(_stored(dataset)):
        got = np.asarray(dataset[index].mask)[0] != 0
        known = masks.get(scene_of[stored], []) if stored in scene_of else everything
        if not any(got.shape == mask.shape and (got == mask).all() for mask in known):
            return [f"the mask of {dataset.keys[index]} is another picture's"]
    return []


def _foreground(pixels: Any) -> Any:
    flat = pixels.reshape(*pixels.shape[:2], -1).astype(int)
    return (flat != 0).any(axis=2)
