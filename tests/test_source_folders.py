"""Class folders are read as torchvision reads them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from pack_helpers import image_folder, jpegs, pil_file
from samples import photo

import fastdata
from fastdata.converters.base import (
    hash_fields,
)
from fastdata.converters.folder import FolderSource
from fastdata.converters.reading.locations import printable
from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    ScalarField,
)

EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")


def as_torchvision_lists(root: str) -> tuple[list[str], list[tuple[str, int]]]:
    """Do what ``torchvision.datasets.DatasetFolder`` is documented to do, without hidden names."""
    classes = []
    for name in os.listdir(root):
        if os.path.isdir(os.path.join(root, name)) and name[0] != ".":
            classes.append(name)
    classes.sort()
    samples = []
    for number, name in enumerate(classes):
        folders = []
        for folder, inner, files in os.walk(os.path.join(root, name), followlinks=True):
            inner[:] = [one for one in inner if one[0] != "."]
            folders.append((folder, [file for file in files if file[0] != "."]))
        folders.sort(key=lambda pair: pair[0])
        for folder, files in folders:
            for file in sorted(files):
                if file.rsplit(".", 1)[-1].lower() in EXTENSIONS and "." in file:
                    samples.append((os.path.join(folder, file), number))
    return classes, samples


TREES: dict[str, list[str]] = {
    "plain": ["b/1.jpg", "b/0.png", "a/x.JPG", "a/y.jpeg", "c/z.webp"],
    "nested": ["a/n/2.jpg", "a/n-1/1.jpg", "a/n/m/0.jpg", "a/n.jpg", "a/o.jpg", "b/q/0.jpg"],
    "capitals and digits": ["Z/1.jpg", "a/10.jpg", "a/9.jpg", "10/0.jpg", "9/0.jpg", "_/0.jpg"],
    "hidden": ["a/1.jpg", ".hidden/0.jpg", "a/.secret.jpg", "a/.deep/2.jpg"],
    "spaces and accents": ["un chat/0.jpg", "été/1.jpg", "été/à.jpg", "日本/2.jpg"],
    "every suffix": [f"a/{k}.{suffix}" for k, suffix in enumerate(EXTENSIONS)],
    "dots": ["a/b.c.jpg", "a/jpg.jpg", "a.jpg/0.jpg"],
}


@pytest.mark.parametrize("name", TREES)
def test_class_folders_are_read_as_torchvision_reads_them(tmp_path: Path, name: str) -> None:
    for file in TREES[name]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"x")
    first = (tmp_path / TREES[name][0]).parent
    for other in ("notes.txt", "x.mp4", "jpg", "0.jpg.bak"):
        (first / other).write_bytes(b"y")
    (tmp_path / "in-the-root.jpg").write_bytes(b"z")
    classes, samples = as_torchvision_lists(str(tmp_path))
    source = FolderSource(tmp_path)
    assert source.schema["label"] == ScalarField(classes=tuple(classes))
    assert [tuple(map(str, sample.values)) for sample in source] == [
        (path, str(number)) for path, number in samples
    ]
    assert [sample.key for sample in source] == [
        os.path.relpath(path, tmp_path) for path, _ in samples
    ]
    notes = source.notes
    assert notes[0] == "1 images (in-the-root.jpg) in no class folder left out"
    hidden = name == "hidden"
    assert notes[-2 if hidden else -1] == (
        "4 files without an image suffix left out: 1 .bak, 1 jpg, 1 .txt, 1 .mp4"
    )
    assert not hidden or notes[-1].startswith("3 hidden files and folders left out (.")


def test_a_table_beside_the_folders_is_named(tmp_path: Path) -> None:
    image_folder(tmp_path, 2)
    (tmp_path / "labels.csv").write_text("path,label\nant/00000.jpg,1\n")
    note = FolderSource(tmp_path).notes[0]
    assert note.startswith("labels.csv not read: the folders are the classes")


def test_links_are_followed(tmp_path: Path) -> None:
    elsewhere = image_folder(tmp_path / "elsewhere", 4)
    root = tmp_path / "root"
    (root / "own").mkdir(parents=True)
    (root / "own" / "0.jpg").symlink_to(elsewhere / "ant" / "00000.jpg")
    (root / "own" / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (root / "own" / "sub").symlink_to(elsewhere / "ant")
    (root / "linked").symlink_to(elsewhere / "bee")
    (root / "file").symlink_to(elsewhere / "bee" / "00001.jpg")
    classes, samples = as_torchvision_lists(str(root))
    source = FolderSource(root)
    assert classes == ["linked", "own"]
    assert [str(sample.values[0]) for sample in source] == [path for path, _ in samples]
    report = fastdata.pack(root, tmp_path / "x.lmdb", num_workers=0, format="folder")
    assert report.num_samples == len(samples) - 1
    assert [reject.key for reject in report.rejects] == ["own/broken.jpg"]


def test_names_that_are_no_unicode_are_packed(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path / "root")
    for name in (b"caf\xe9", b"ok"):
        os.makedirs(os.path.join(root, name))
        with open(os.path.join(root, name, b"\xff\xfe.jpg"), "wb") as file:
            file.write(pil_file(photo(40, 40), "JPEG"))
    with open(os.path.join(root, b"ok", b"\xff\xfd.jpg"), "wb") as file:
        file.write(b"broken")
    report = fastdata.pack(os.fsdecode(root), tmp_path / "x.lmdb", num_workers=1)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dataset.classes == ["caf\ufffd", "ok"]
    assert list(dataset.keys) == ["caf\ufffd/\ufffd\ufffd.jpg", "ok/\ufffd\ufffd.jpg"]
    assert [reject.key for reject in report.rejects] == ["ok/\ufffd\ufffd.jpg"]
    assert printable(os.fsdecode(b"caf\xe9")) == "caf\ufffd"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/0.jpg", "b/readme.txt"], "(?s)no image in b.*1 .txt"),
        (["a/0.jpg", "b/", "c/"], "no image in b, c"),
        (["0.jpg"], "it has no class folders"),
        ([], "it has no class folders"),
    ],
)
def test_folders_that_torchvision_refuses_are_refused(
    tmp_path: Path, files: list[str], message: str
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            (tmp_path / file).mkdir(exist_ok=True)
        else:
            (tmp_path / file).write_bytes(b"x")
    with pytest.raises(SourceError, match=message):
        FolderSource(tmp_path)


def test_class_folders_have_no_other_fields(tmp_path: Path) -> None:
    image_folder(tmp_path)
    with pytest.raises(OptionError, match="format 'folder' has fields of its own"):
        FolderSource(tmp_path, fields={"label": "int"})


def test_fingerprints_see_what_a_sample_is_made_from(tmp_path: Path) -> None:
    files = jpegs(image_folder(tmp_path, 6))
    before = FolderSource(tmp_path).fingerprints()
    assert len(set(before.tolist())) == 6
    os.utime(files[1], (1, 1))
    files[4].write_bytes(files[4].read_bytes() + b"\0")
    changed = np.flatnonzero(FolderSource(tmp_path).fingerprints() != before)
    assert list(changed) == [1, 4]


def test_hash_fields_tells_parts_apart() -> None:
    parts = [("a", "bc"), ("ab", "c"), ("ab", "c", ""), ("ab", 1), ("ab", "1"), ("\udcff",)]
    assert len({hash_fields(*part) for part in parts}) == len(parts)


def test_a_link_that_leads_round_in_a_circle_is_refused(tmp_path: Path) -> None:
    """torchvision goes round such a link until a path has forty of them."""
    root = image_folder(tmp_path / "images", 6)
    (root / "ant" / "inner").mkdir()
    (root / "bee" / "self").symlink_to("self")
    assert FolderSource(root).num_samples == 6
    (root / "ant" / "inner" / "back").symlink_to(root / "ant")
    with pytest.raises(SourceError, match=r"ant/inner/back is a link to .*ant, a folder above it"):
        FolderSource(root)


def test_a_folder_that_several_links_lead_to_is_taken_as_often(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images", 6)
    others = image_folder(tmp_path / "others", 2, classes=["x"]) / "x"
    (root / "ant" / "one").symlink_to(others)
    (root / "ant" / "two").symlink_to(others)
    (root / "ant" / "bees").symlink_to(root / "bee")
    assert FolderSource(root).num_samples == 6 + 2 + 2 + 3


def test_a_class_folder_that_is_a_link_to_a_folder_above_is_refused(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images", 6)
    (root / "link").symlink_to("..")
    with pytest.raises(SourceError, match=r"images/link is a link to .*, a folder above it"):
        FolderSource(root)
