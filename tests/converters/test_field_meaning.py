"""One rule of what a field means: the same data in every format is the same dataset."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from case_litdata import tree, write_litdata
from case_mds import write_mds
from case_tfrecord import example, record
from PIL import Image

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

HEIGHT, WIDTH, COUNT = 60, 80, 6
BOXES = ArrayField("float32", (None, 4), boxes=True)
QUICK: dict[str, Any] = {"num_workers": 0, "progress": False, "overwrite": True}


class Row(NamedTuple):
    """A white rectangle on a black picture, three times: as pixels, as a mask and as a box."""

    image: np.ndarray[Any, Any]
    mask: np.ndarray[Any, Any]
    boxes: np.ndarray[Any, Any]
    label: Any

    @property
    def png(self) -> bytes:
        file = io.BytesIO()
        Image.fromarray(self.image).save(file, "PNG")
        return file.getvalue()


def rows(labels: Any = range(COUNT)) -> list[Row]:
    found = []
    for k, label in enumerate(labels):
        left, top, right, bottom = 8 + k, 6 + 2 * k, 30 + k, 36
        image, mask = np.zeros((HEIGHT, WIDTH, 3), np.uint8), np.zeros((HEIGHT, WIDTH), np.int64)
        image[top:bottom, left:right], mask[top:bottom, left:right] = 255, 2
        found.append(Row(image, mask, np.array([[left, top, right, bottom]], np.float32), label))
    return found


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def stacks(data: list[Row], name: str) -> dict[str, Any]:
    stacked = {
        key: np.stack([getattr(row, field) for row in data])
        for key, field in (("images", "image"), ("masks", "mask"), (name, "boxes"))
    }
    return {**stacked, "labels": [row.label for row in data]}


def python(folder: Path, data: list[Row], name: str) -> Any:
    return [{"image": r.image, "mask": r.mask, name: r.boxes, "label": r.label} for r in data]


def tensors(folder: Path, data: list[Row], name: str) -> Any:
    """As torchvision has them after `ToTensor`: floats from 0 to 1, channels first."""
    return [
        {
            "image": torch.from_numpy(row.image).permute(2, 0, 1).float() / 255,
            "mask": torch.from_numpy(row.mask)[None].bool().long() * 2,
            name: row.boxes.tolist(),
            "label": row.label,
        }
        for row in data
    ]


def generator(folder: Path, data: list[Row], name: str) -> Iterator[Any]:
    return iter(python(folder, data, name))


def python_files(folder: Path, data: list[Row], name: str) -> Any:
    found = []
    for k, row in enumerate(data):
        (folder / f"{k}.png").write_bytes(row.png)
        Image.fromarray(row.mask.astype(np.uint8)).save(folder / f"{k}_mask.png")
        files = {"image": folder / f"{k}.png", "mask": str(folder / f"{k}_mask.png")}
        found.append({**files, name: row.boxes.tolist(), "label": row.label})
    return found


def hdf5(folder: Path, data: list[Row], name: str) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        for key, value in stacks(data, name).items():
            file[key] = value
    return folder / "a.h5"


def npz(folder: Path, data: list[Row], name: str) -> Path:
    np.savez(folder / "a.npz", **stacks(data, name))
    return folder / "a.npz"


def torch_file(folder: Path, data: list[Row], name: str) -> Path:
    content = stacks(data, name)
    content = {k: v if k == "labels" else torch.from_numpy(v) for k, v in content.items()}
    torch.save(content, folder / "a.pt")
    return folder / "a.pt"


def webdataset(folder: Path, data: list[Row], name: str) -> Path:
    with tarfile.open(folder / "a.tar", "w") as tar:
        for k, row in enumerate(data):
            members = {"png": row.png, "mask.npy": npy(row.mask), f"{name}.npy": npy(row.boxes)}
            for suffix, content in {**members, "cls": str(row.label).encode()}.items():
                entry = tarfile.TarInfo(f"{k:03}.{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return folder / "a.tar"


def mds(folder: Path, data: list[Row], name: str) -> Path:
    text = isinstance(data[0].label, str)
    columns = {
        "image": "png",
        "mask": f"ndarray:int64:{HEIGHT},{WIDTH}",
        name: "ndarray:float32:1,4",
        "label": "str" if text else "int",
    }
    samples = [
        {
            "image": row.png,
            "mask": row.mask.tobytes(),
            name: row.boxes.tobytes(),
            "label": row.label.encode() if text else struct.pack("<q", row.label),
        }
        for row in data
    ]
    return write_mds(folder, columns, samples)


def litdata(folder: Path, data: list[Row], name: str) -> Path:
    def array(values: np.ndarray[Any, Any], number: int) -> bytes:
        head = struct.pack(f"<{2 + values.ndim}I", number, values.ndim, *values.shape)
        return head + values.tobytes()

    text = isinstance(data[0].label, str)
    samples = [
        [
            row.png,
            array(row.mask, NUMPY["int64"]),
            array(row.boxes, NUMPY["float32"]),
            row.label.encode() if text else struct.pack("<q", row.label),
        ]
        for row in data
    ]
    formats = ["bytes", "numpy", "numpy", "str" if text else "int"]
    return write_litdata(folder, formats, tree(["image", "mask", name, "label"]), samples)


def arrow_table(data: list[Row], name: str) -> Any:
    return pa.table(
        {
            "image": pa.array([row.png for row in data], pa.binary()),
            "mask": pa.array([row.mask.tolist() for row in data], pa.list_(pa.list_(pa.int64()))),
            name: pa.array([r.boxes.tolist() for r in data], pa.list_(pa.list_(pa.float32()))),
            "label": pa.array([row.label for row in data]),
        }
    )


def parquet_file(folder: Path, data: list[Row], name: str) -> Path:
    parquet.write_table(arrow_table(data, name), folder / "a.parquet")
    return folder / "a.parquet"


def arrow_file(folder: Path, data: list[Row], name: str) -> Path:
    table = arrow_table(data, name)
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    return folder / "a.arrow"


def tfrecord(folder: Path, data: list[Row], name: str) -> Path:
    records = []
    for row in data:
        file = io.BytesIO()
        Image.fromarray(row.mask.astype(np.uint8)).save(file, "PNG")
        label = row.label.encode() if isinstance(row.label, str) else row.label
        content = {"image": row.png, "mask": file.getvalue(), "label": label}
        records.append(record(example({**content, name: row.boxes.reshape(-1).tolist()})))
    (folder / "a.tfrecord").write_bytes(b"".join(records))
    return folder / "a.tfrecord"


NUMPY = {"int64": 3, "float32": 9}
"""The numbers of dtypes in LitData."""
FORMATS: dict[str, Callable[[Path, list[Row], str], Any]] = {
    "python": python,
    "tensors": tensors,
    "generator": generator,
    "python files": python_files,
    "hdf5": hdf5,
    "npz": npz,
    "torch": torch_file,
    "webdataset": webdataset,
    "tfrecord": tfrecord,
    "mds": mds,
    "litdata": litdata,
    "parquet": parquet_file,
    "arrow": arrow_file,
}
OPTIONS = {"tfrecord": {"features": ("image", "mask", "boxes", "label")}}


def pack(
    folder: Path, name: str, data: list[Row], called: str = "boxes", **options: Any
) -> tuple[Any, Any]:
    """Write the data in a format and pack it; return dataset and report."""
    place = folder / name.replace(" ", "-")
    place.mkdir(exist_ok=True)
    location = FORMATS[name](place, data, called)
    report = fastdata.pack(
        location, place.with_name(f"{place.name}.lmdb"), resize="none", codec="png",
        source_options={**OPTIONS.get(name, {}), **options}, **QUICK,
    )  # fmt: skip
    return fastdata.open(place.with_name(f"{place.name}.lmdb")), report


def pixels(image: torch.Tensor) -> np.ndarray[Any, Any]:
    return image.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_data_is_the_same_dataset(tmp_path: Path, name: str) -> None:
    data = rows()
    dataset, report = pack(tmp_path, name, data)
    assert report.num_rejected == 0
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "mask": ImageField(1, mask=True),
        "boxes": BOXES,
        "label": ScalarField("int64"),
    }
    for sample, row in zip(dataset, data, strict=True):
        np.testing.assert_array_equal(pixels(sample.image), row.image)
        np.testing.assert_array_equal(pixels(sample.mask)[:, :, 0], row.mask)
        np.testing.assert_array_equal(sample.boxes, row.boxes)
        assert sample.label == row.label


def rectangle(image: np.ndarray[Any, Any]) -> list[int]:
    """Return left, top, right and bottom of what is not black."""
    ys, xs = np.nonzero(image)
    return [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


TRANSFORMS: dict[str, list[Any]] = {
    "flip": [T.RandomHorizontalFlip(1.0)],
    "crop": [T.CenterCrop(40)],
    "resize": [T.Resize((30, 40))],
    "all": [T.Resize((90, 120)), T.CenterCrop(80), T.RandomHorizontalFlip(1.0)],
}


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("name", FORMATS)
def test_image_mask_and_boxes_move_together(tmp_path: Path, name: str, kind: str) -> None:
    dataset, _ = pack(tmp_path, name, rows())
    check_moved(fastdata.loader(dataset, COUNT, transform=TRANSFORMS[kind], num_workers=0))


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_rows_of_files_move_together_without_packing(tmp_path: Path, kind: str) -> None:
    location = python_files(tmp_path, rows(), "boxes")
    check_moved(fastdata.loader(location, COUNT, transform=TRANSFORMS[kind], num_workers=0))


def check_moved(loader: Any) -> None:
    (batch,) = loader
    for image, mask, boxes in zip(batch.image, batch.mask, batch.boxes, strict=True):
        found = rectangle(pixels(image)[:, :, 0] > 127)
        assert set(mask.unique().tolist()) == {0, 2}
        np.testing.assert_allclose(rectangle(pixels(mask)[:, :, 0]), found, atol=1)
        np.testing.assert_allclose(np.asarray(boxes)[0], found, atol=1)


NAMES = ["cat", "dog", "eel"] * 2


@pytest.mark.parametrize("name", sorted({*FORMATS} - {"npz", "webdataset", "tfrecord"}))
def test_text_labels_are_classes_or_stay_text_with_a_note(tmp_path: Path, name: str) -> None:
    dataset, report = pack(tmp_path, name, rows(NAMES))
    if name not in ("generator", "mds", "litdata"):
        assert dataset.schema["label"] == ScalarField(classes=("cat", "dog", "eel"))
        assert [dataset.classes[sample.label] for sample in dataset] == NAMES
    else:
        assert [sample.label for sample in dataset] == NAMES
        assert any("'label'" in note and "text" in note for note in report.notes)
        options = {"classes": ["dog", "cat", "eel"]}
        if name != "generator":
            (tmp_path / "names.txt").write_text("dog\ncat\neel\n")
            options = {"classes": str(tmp_path / "names.txt")}
        dataset, _ = pack(tmp_path, name, rows(NAMES), **options)
        assert [dataset.classes[sample.label] for sample in dataset] == NAMES


@pytest.mark.parametrize("name", FORMATS)
def test_labels_beyond_the_class_names_are_rejects(tmp_path: Path, name: str) -> None:
    (tmp_path / "names.txt").write_text("cat\ndog\neel\nfox\n")
    dataset, report = pack(tmp_path, name, rows(), classes=str(tmp_path / "names.txt"))
    assert dataset.classes == ["cat", "dog", "eel", "fox"]
    assert [sample.label for sample in dataset] == [0, 1, 2, 3]
    assert len(report.rejects) == 2


@pytest.mark.parametrize("name", sorted({*FORMATS} - {"tfrecord"}))
def test_boxes_of_another_name_need_their_form(tmp_path: Path, name: str) -> None:
    with pytest.raises((SourceError, OptionError), match="boxes may be of several forms"):
        pack(tmp_path, name, rows(), "bbox")
    corners, _ = pack(tmp_path, name, rows(), "bbox", boxes="xyxy,pixels")
    assert corners.schema["bbox"] == BOXES
    np.testing.assert_array_equal(corners[1].bbox, rows()[1].boxes)
    sized = [
        row._replace(boxes=row.boxes - np.array([0, 0, *row.boxes[0, :2]], np.float32))
        for row in rows()
    ]
    dataset, _ = pack(tmp_path, name, sized, "bbox", boxes="xywh,pixels")
    for sample, row in zip(dataset, rows(), strict=True):
        np.testing.assert_array_equal(sample.bbox, row.boxes)


@pytest.mark.parametrize("name", ["python", "hdf5", "npz", "torch"])
def test_other_pixels_are_refused_by_name_and_shape(tmp_path: Path, name: str) -> None:
    data = [row._replace(image=row.image.astype(np.uint16)) for row in rows()]
    with pytest.raises(SourceError, match=r"field 'image' of dtype uint16 and shape \(60, 80, 3\)"):
        find_source(FORMATS[name](tmp_path, data, "boxes"))
