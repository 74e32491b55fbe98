"""Class folders are taken for class folders, whatever they are called and whatever lies beside."""

from __future__ import annotations

import errno
import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from cases import all_cases, make_pictures
from PIL import Image

from fastdata.converters.finding import find_source, format_of
from fastdata.converters.signs import FORMATS

tfrecord = pytest.importorskip("google_crc32c")


def class_folders(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(root / name / "0.png")
    return root


def weights(path: Path) -> None:
    torch.save({"weight": torch.zeros(3, 3), "bias": torch.zeros(3)}, path)


def tensors(path: Path) -> None:
    torch.save({"images": torch.zeros(4, 8, 8, 3, dtype=torch.uint8)}, path)


def arrays(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((4, 8, 8, 3), np.uint8)


def record(path: Path) -> None:
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    data = struct.pack("<IfQQ", 0, 0.0, 1, 0) + image.getvalue()
    head = struct.pack("<II", 0xCED7230A, len(data))
    path.write_bytes(head + data + bytes(-len(data) % 4))


def frame(path: Path) -> None:
    def masked(data: bytes) -> bytes:
        value: int = tfrecord.value(data)
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length, data = struct.pack("<Q", 2), b"\n\0"
    path.write_bytes(length + masked(length) + data + masked(data))


def refuse_to_list(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder one that only its owner may list, whoever runs this."""
    scandir = os.scandir

    def refusing(path: str | Path = ".") -> Any:
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)


def test_a_folder_that_cannot_be_listed_is_no_folder_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays(tmp_path / "a.h5")
    (tmp_path / "lost+found").mkdir()
    refuse_to_list(tmp_path / "lost+found", monkeypatch)
    source = find_source(tmp_path)
    assert (source.name, source.num_samples) == ("hdf5", 4)


def test_images_in_a_folder_that_cannot_be_listed_are_not_left_out_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = class_folders(tmp_path / "images", "cat", "cat/kitten")
    refuse_to_list(root / "cat" / "kitten", monkeypatch)
    with pytest.raises(PermissionError, match="kitten"):
        find_source(root)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("model.pth", weights),
        ("data.pt", tensors),
        ("features.h5", arrays),
        ("train.rec", record),
        ("train.tfrecord", frame),
    ],
)
def test_a_file_beside_class_folders_is_not_taken_for_the_dataset(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    root = class_folders(tmp_path / "images", "cat", "dog")
    write(root / name)
    source = find_source(root)
    assert (source.name, source.num_samples) == ("folder", 2)
    alone = tmp_path / "alone"
    alone.mkdir()
    write(alone / name)
    (alone / "logs").mkdir()
    if write is not frame and write is not weights:  # these are none that can be opened
        assert find_source(alone).name != "folder"


@pytest.mark.parametrize("other", ["Annotations", "ImageSets"])
def test_classes_may_be_called_like_folders_of_voc(other: str, tmp_path: Path) -> None:
    root = class_folders(tmp_path, "JPEGImages", other)
    source = find_source(root, format="folder" if other == "Annotations" else None)
    assert (source.name, source.num_samples) == ("folder", 2)


def test_folders_beside_mvtecs_categories_are_named(tmp_path: Path) -> None:
    for name in ("bottle/train/good", "bottle/test/bad", "bottle/ground_truth/bad", "screw/train"):
        (tmp_path / name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "bottle/train/good/0.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "screw/train/0.png")
    notes = find_source(tmp_path).notes
    assert any(note.endswith("left out: screw") for note in notes), notes


def test_folders_of_images_beside_another_dataset_are_named(tmp_path: Path) -> None:
    root = class_folders(tmp_path, "cat", "dog")
    shape = struct.pack(">4i", 0x803, 2, 3, 3)
    (root / "train-images-idx3-ubyte").write_bytes(shape + bytes(18))
    source = find_source(root)
    assert source.name == "idx"
    assert any("--format folder" in note for note in source.notes), source.notes
    assert find_source(root, format="folder").num_samples == 2


def test_files_of_several_splits_that_are_packed_as_one_are_told_of(tmp_path: Path) -> None:
    for name in ("train.h5", "val.h5", "train-2.h5"):
        arrays(tmp_path / name)
    notes = find_source(tmp_path).notes
    assert any(note.startswith("files of train, validation are packed as one") for note in notes)
    assert not any("as one" in note for note in find_source(str(tmp_path / "train*.h5")).notes)


def own_formats() -> dict[str, EntryPoint]:
    points = entry_points(group="fastdata.converters")
    return {point.name: point for point in points if point.value.startswith("fastdata.")}


def test_every_format_has_signs_and_general_ones_are_asked_last() -> None:
    assert set(FORMATS) == set(own_formats())
    general = [own_formats()[name].load().general for name in FORMATS]
    assert general == sorted(general)


def test_only_formats_that_a_folder_may_be_in_are_imported(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "images", "cat", "dog")
    code = (
        "import sys; from fastdata.converters.finding import find_source\n"
        f"print(find_source({str(root)!r}).name, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, *modules = done.stdout.split()
    imported = {n for n, point in own_formats().items() if point.module in modules}
    assert name == "folder"
    assert imported == {"flat", "folder", "masks"}


CASES = {case.name: case for case in all_cases()}
MOVED = [
    ("archive-zip", "a.zip", "A.ZIP"),
    ("archive-tar", "*.tar", "b.tgz"),
    ("arrow-dictionary", "a.arrow", "x/y/a.feather"),
    ("arrow-dictionary", "a.arrow", "x/A.IPC"),
    ("cifar", "*", "cifar-10-batches-py/"),
    ("hdf5-planes", "a.h5", "A.HDF"),
    ("hdf5-planes", "a.h5", "a.he5-00000-of-00001"),
    ("hf_folder-csv", "*", "data/train/"),
    ("idx", "*", "raw/"),
    ("ilsvrc", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"),
    ("ilsvrc", "ILSVRC/Data/CLS-LOC", "CLS-LOC"),
    ("mvtec", "*", "bottle/"),
    ("numpy-keras", "*.npz", "A.NPZ"),
    ("parquet-binary", "a.parquet", "x/y/A.PQ"),
    ("recordio-idx", "*.rec", "A.REC"),
    ("torch-pair", "a.pt", "A.PTH"),
    ("voc", "*", "VOCdevkit/VOC2012/"),
    ("voc", "*", "VOC2012/"),
    ("voc-two-folders", "*", "Val/"),
    ("voc-beside", "*", "testing/"),
    ("webdataset-gnu", "a.tar", "A.TGZ"),
    ("yolo-bare", "*", "Valid/"),
    ("yolo-roboflow", "*.yaml", "a.yml"),
    ("zarr-alone", "images", "a/"),
]
"""Of a case some files, and another place or name (a folder, where it ends in a slash) for them."""


@pytest.mark.parametrize(("case", "files", "to"), MOVED)
def test_a_format_is_found_by_each_of_its_signs(
    case: str, files: str, to: str, tmp_path: Path
) -> None:
    CASES[case].write(tmp_path, make_pictures(12))
    for path in sorted(tmp_path.glob(files)):
        target = tmp_path / to / path.name if to.endswith("/") else tmp_path / to
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    assert format_of(tmp_path).name == CASES[case].format


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "path,label\n0.png,1\n"),
        ("A.TSV", "path\tlabel\n0.png\t1\n"),
        ("a.txt", "0.png 1\n"),
        ("a.json", '[{"path": "0.png"}]'),
        ("a.jsonl", '{"path": "0.png"}\n'),
        ("a.ndjson", '{"path": "0.png"}\n'),
    ],
)
def test_a_list_is_found_beside_its_images(name: str, text: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    (tmp_path / name).write_text(text)
    assert format_of(tmp_path).name == "manifest"
