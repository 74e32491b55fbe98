"""The files that the blocks of the documentation name: small, and of the right format."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata

# The writers of formats stand with the tests of the converters.
sys.path.append(str(Path(__file__).parent / "converters"))

from cases import Picture, make_pictures

__all__ = ["add_sources", "make_common"]

FIXTURES = Path(__file__).parent / "converters" / "fixtures"


def make_common(folder: Path) -> None:
    """Make what many pages name: pictures, and datasets packed of them."""
    folders(folder / "images", make_pictures(300))
    folders(folder / "more_images", make_pictures(20))
    for split, count in (("train", 150), ("val", 40)):
        folders(folder / "flowers" / split, make_pictures(count), ("rose", "daisy"))
    fastdata.pack(folder / "flowers", folder / "images.lmdb", progress=False, num_workers=0)
    pictures = sorted((folder / "images").rglob("*.jpg"))
    rows = [f"images/{p.parent.name}/{p.name},{p.parent.name}\n" for p in pictures[:40]]
    (folder / "labels.csv").write_text("path,label\n" + "".join(rows))
    for name, limit in (
        ("train.lmdb", 300), ("val.lmdb", 97), ("more.h5", 40), ("a.lmdb", 40), ("b.h5", 40)
    ):  # fmt: skip
        fastdata.pack(folder / "images", folder / name, limit=limit, progress=False, num_workers=0)
    fastdata.pack(
        folder / "images", folder / "shards", shards=2, limit=40, progress=False, num_workers=0
    )


def folders(root: Path, pictures: Sequence[Picture], names: Sequence[str] = ("cat", "dog")) -> Path:
    """Write class folders."""
    for picture in pictures:
        path = root / names[picture.label % len(names)] / f"{picture.name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.data)
    return root


def add_sources(page: str, folder: Path) -> None:
    """Make what only this page names."""
    if page not in SOURCES:
        return
    try:
        SOURCES[page](folder, make_pictures(12))
    except ModuleNotFoundError as error:  # in the environment of the clients
        pytest.skip(f"{error.name} is not installed")


def _archive(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_archive

    case_archive.gzipped(_new(folder / "made"), pictures).rename(folder / "flowers.tar.gz")
    case_archive.deflated(folder / "made", pictures).rename(folder / "pets.zip")


def _arrow(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_parquet

    made = case_parquet.saved_to_disk(_new(folder / "my_dataset" / "train"), pictures)
    (folder / "my_dataset" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (file, *_) = sorted(Path(made).rglob("*.arrow"))
    shutil.copy(file, folder / "cifar10-train.arrow")


def _beton(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_beton

    os.replace(case_beton.jpegs(_new(folder / "made"), pictures), folder / "train.beton")


def _cifar(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_cifar

    small = make_pictures(12, 32, 32)
    made = case_cifar.downloaded(_new(folder / "made"), small)
    os.replace(made, folder / "cifar-10-python.tar.gz")
    hundred = _new(folder / "cifar-100-python")
    labels = [p.label for p in small]
    content = {
        b"data": np.stack([p.pixels.transpose(2, 0, 1) for p in small]),
        b"fine_labels": labels,
        b"coarse_labels": labels,
    }
    for name in ("train", "test"):
        (hundred / name).write_bytes(pickle.dumps(content, 4))


def _coco(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_coco

    shutil.copytree(FIXTURES / "coco", folder / "coco")
    made = case_coco.write_coco(_new(folder / "made"), pictures)
    root = Path(made) if Path(made).is_dir() else Path(made).parent
    (file, *_) = sorted(root.rglob("*.json"))
    shutil.copy(file, folder / "labels.json")
    _new(folder / "pictures")
    for picture in sorted(root.rglob("*.jpg")):
        shutil.copy(picture, folder / "pictures")


def _folder(folder: Path, pictures: Sequence[Picture]) -> None:
    folders(folder / "photos", pictures)
    folders(folder / "imagenet" / "train", pictures)
    folders(folder / "imagenet" / "val", pictures)


def _hdf5(folder: Path, pictures: Sequence[Picture]) -> None:
    import h5py

    with h5py.File(folder / "pcam_train.h5", "w") as file:
        file["x"] = np.stack([p.pixels for p in pictures])
        file["y"] = np.array([p.label for p in pictures])


def _idx(folder: Path, pictures: Sequence[Picture]) -> None:
    from case_idx import idx

    pixels = np.stack([p.pixels[:28, :28, 0] for p in pictures])
    labels = np.array([p.label for p in pictures], np.uint8)
    raw = _new(folder / "MNIST" / "raw")
    (raw / "train-images-idx3-ubyte").write_bytes(idx(pixels))
    (raw / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    emnist = _new(folder / "emnist")
    for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        path = emnist / f"emnist-letters-test-{name}-ubyte.gz"
        path.write_bytes(gzip.compress(idx(array)))


def _litdata(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_litdata

    case_litdata.files(None)(_new(folder / "litdata" / "train"), pictures)


def _lmdb(folder: Path, pictures: Sequence[Picture]) -> None:
    import lmdb

    with lmdb.open(str(folder / "train_lmdb"), map_size=1 << 26) as env, env.begin(write=True) as t:
        for picture in pictures:
            name = ("cat", "dog", "newt")[picture.label]
            t.put(f"{name}_{picture.name}".encode(), picture.data)


def _flat(folder: Path, pictures: Sequence[Picture]) -> None:
    from case_manifest import write_images

    write_images(folder / "photos", pictures)
    write_images(folder / "archive" / "2024", pictures)


def _hf_folder(folder: Path, pictures: Sequence[Picture]) -> None:
    shutil.copytree(FIXTURES / "hf_folder" / "jsonl", folder / "birds")
    for path in (folder / "birds").rglob("metadata.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [json.dumps({k: v for k, v in row.items() if k != "objects"}) for row in rows]
        path.write_text("\n".join(lines))


def _ilsvrc(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_ilsvrc

    case_ilsvrc.ilsvrc(_new(folder / "imagenet"), pictures)


def _manifest(folder: Path, pictures: Sequence[Picture]) -> None:
    from case_manifest import json_lines, write_rows

    json_lines(folder, pictures)
    rows = [(p.name, "jay") for p in pictures]
    write_rows(folder / "train.csv", [("image_id", "breed"), *rows])
    folders(folder / "pairs", pictures, ("left", "right"))
    names = sorted((folder / "pairs").rglob("*.jpg"))
    rows = [f"{p.relative_to(folder)},{p.relative_to(folder)},{n}\n" for n, p in enumerate(names)]
    (folder / "pairs.csv").write_text("left,right,depth_mm\n" + "".join(rows))


def _masks(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_masks

    case_masks.write_cityscapes(_new(folder / "cityscapes"), pictures)
    case_masks.write_masks(_new(folder / "carvana"), pictures)
    for picture in pictures:
        mask = case_masks.mask_of(picture)
        case_masks.save(folder / f"mine/left/{picture.name}.png", picture.pixels)
        case_masks.save(folder / f"mine/right/{picture.name}-classes.png", mask)


def _mds(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_mds

    case_mds.plain(_new(folder / "mds" / "train"), pictures)


def _mvtec(folder: Path, pictures: Sequence[Picture]) -> None:
    from case_mvtec import write_category

    for name in ("bottle", "screw"):
        write_category(folder / "mvtec_anomaly_detection" / name, pictures)


def _numpy(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_numpy

    case_numpy.medmnist(folder, pictures)
    case_numpy.beside(_new(folder / "arrays"), pictures)


def _parquet(folder: Path, pictures: Sequence[Picture]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(path: Path, image: str, label: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        images = [{"bytes": p.data, "path": f"{p.name}.jpg"} for p in pictures]
        pq.write_table(pa.table({image: images, label: [p.label for p in pictures]}), path)

    for split in ("train", "validation"):
        write(folder / "imagenette" / f"{split}-00000-of-00001.parquet", "image", "label")
    write(folder / "data" / "train-00000-of-00001.parquet", "img", "fine_label")


def _recordio(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_recordio

    case_recordio.with_index(folder, pictures)
    lines = [f"{n}\t{p.label}\t{p.name}.jpg\n" for n, p in enumerate(pictures)]
    (folder / "train.lst").write_text("".join(lines))


def _tfrecord(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_tfrecord

    made = case_tfrecord.shards(_new(folder / "made"), pictures)
    sources = sorted((folder / "made").rglob("*"))
    assert sources, made
    case_tfrecord.objects(folder / "made", pictures).rename(folder / "pets.record")
    items = (f"item {{ id: {k} name: '{name}' }}\n" for k, name in ((1, "ant"), (2, "bee")))
    (folder / "pet_label_map.pbtxt").write_text("".join(items))
    _new(folder / "imagenet")
    (folder / "names.txt").write_text("cat\ndog\nnewt\n")
    for number, path in enumerate(path for path in sources if path.is_file()):
        shutil.copy(path, folder / "imagenet" / f"train-{number:05}-of-01024")


def _torch(folder: Path, pictures: Sequence[Picture]) -> None:
    import torch

    images = torch.from_numpy(np.stack([p.pixels[:28, :28, 0] for p in pictures]))
    labels = torch.tensor([p.label for p in pictures])
    torch.save({"train": (images, labels)}, folder / "training.pt")


def _voc(folder: Path, pictures: Sequence[Picture]) -> None:
    import case_voc
    import case_voc_folders

    case_voc.segmented(folder, pictures)
    case_voc_folders.beside(_new(folder / "labelimg"), pictures)
    case_voc_folders.roboflow(_new(folder / "roboflow"), pictures)


def _webdataset(folder: Path, pictures: Sequence[Picture]) -> None:
    import io
    import json
    import tarfile

    def write(path: Path, some: Sequence[Picture], label: str) -> None:
        with tarfile.open(path, "w") as tar:
            for p in some:
                number = {"cls": str(p.label), "json": json.dumps({"category": {"id": p.label}})}
                for suffix, data in (("jpg", p.data), (label, number[label].encode())):
                    info = tarfile.TarInfo(f"{p.name}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))

    for number in range(147):
        write(folder / f"train-{number:06}.tar", pictures[number % 12 : number % 12 + 1], "cls")
    write(_new(folder / "shards") / "0.tar", pictures, "json")


def _yolo(folder: Path, pictures: Sequence[Picture]) -> None:
    from case_yolo import write_yolo

    write_yolo(_new(folder / "coco8"), pictures)


def _zarr(folder: Path, pictures: Sequence[Picture]) -> None:
    from case_zarr import write_array

    root = folder / "train.zarr"
    write_array(root / "raw/images", "zarr", np.stack([p.pixels for p in pictures]))
    write_array(root / "raw/y", "zarr", np.array([p.label for p in pictures]))
    (root / ".zgroup").write_text('{"zarr_format": 2}')


def _recipes(folder: Path, pictures: Sequence[Picture]) -> None:
    from recipe_cases import RECIPES

    for recipe in RECIPES:
        recipe.write(folder, pictures)


def _new(folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


SOURCES: dict[str, Callable[[Path, Sequence[Picture]], Any]] = {
    f"docs/converters/{function.__name__[1:]}.md": function
    for function in (
        _archive, _arrow, _beton, _cifar, _coco, _flat, _folder, _hdf5, _hf_folder, _idx, _ilsvrc,
        _litdata, _lmdb, _manifest, _masks, _mds, _mvtec, _numpy, _parquet, _recordio, _tfrecord,
        _torch, _voc, _webdataset, _yolo, _zarr,
    )
}  # fmt: skip

SOURCES["docs/recipes/datasets.md"] = _recipes
SOURCES["docs/recipes/segmentation.md"] = _masks
SOURCES["docs/recipes/detection.md"] = _coco

for here, source in (("ffcv", "beton"), ("webdataset", "webdataset"), ("litdata", "litdata")):
    SOURCES[f"docs/moving/{here}.md"] = SOURCES[f"docs/converters/{source}.md"]
