"""Archives, arrays and tables that claim, repeat or nest without end are refused in little time.

What would take hours or all memory ends by the time limit of every test.
"""

from __future__ import annotations

import json
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import photo, pil_encode

import fastdata
from fastdata.errors import FastdataError, SourceError

JPEG = pil_encode(photo(24, 32), "JPEG")


def _save(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def _pack(source: Path, tmp_path: Path, **options: Any) -> Any:
    return fastdata.pack(source, tmp_path / "packed.lmdb", num_workers=0, **options)


# -- text that patterns could match in very many ways ------------------------------------


def _digits_in_csv(root: Path) -> Path:
    _save(root / "a.jpg", JPEG)
    return _save(root / "m.csv", f"path,text\na.jpg,1\na.jpg,{'1' * 900_000}x\n")


def _digits_in_text(root: Path) -> Path:
    _save(root / "a.jpg", JPEG)
    return _save(root / "m.txt", f"a.jpg 1\na.jpg {'1' * 900_000}x\n")


def _blanks_in_table(root: Path) -> Path:
    for name in "ab":
        _save(root / "images" / f"{name}.png", pil_encode(photo(24, 32), "PNG"))
        _save(root / "masks" / f"{name}.png", pil_encode(np.zeros((24, 32, 1), np.uint8), "PNG"))
    _save(root / "labelmap.txt", f"a{' ' * 900_000}b\n")
    return root


@pytest.mark.parametrize("make", [_digits_in_csv, _digits_in_text, _blanks_in_table])
def test_text_is_matched_in_linear_time(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    report = _pack(make(tmp_path / "source"), tmp_path)
    assert report.num_samples == 2


def test_digits_in_labels_of_yolo_are_matched_in_linear_time(tmp_path: Path) -> None:
    _save(tmp_path / "source/images/a.jpg", JPEG)
    _save(tmp_path / "source/labels/a.txt", "0 " + " ".join(["1" * 1300] * 3) + "\n")
    with pytest.raises(SourceError, match="not packed as class folders"):
        _pack(tmp_path / "source", tmp_path)


@pytest.mark.parametrize("name", ["kpt_shape", "nc"])
def test_what_anchors_of_yaml_repeat_is_not_written_out(tmp_path: Path, name: str) -> None:
    pytest.importorskip("yaml")
    _save(tmp_path / "source/images/train/a.jpg", JPEG)
    _save(tmp_path / "source/labels/train/a.txt", "0 .5 .5 .1 .1\n")
    lists = [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 12)]
    rest = ["train: images/train", "names: [cat]", f"{name}: *a11"]
    _save(tmp_path / "source/data.yaml", "\n".join(["a0: &a0 [x]", *lists, *rest]))
    with pytest.raises(SourceError, match=name):
        _pack(tmp_path / "source", tmp_path)


# -- tar ---------------------------------------------------------------------------------


def _pax(path: Path, key: bytes, value: bytes) -> Path:
    record = b" " + key + b"=" + value + b"\n"
    size = next(n for n in range(len(record), len(record) + 9) if n == len(str(n)) + len(record))
    head = tarfile.TarInfo("x")
    head.type, head.size = b"x", size
    member = tarfile.TarInfo("ant/a.jpg")
    member.size = len(JPEG)
    data = head.tobuf() + str(size).encode() + record + bytes(-size % 512)
    return _save(path, data + member.tobuf() + JPEG + bytes(-len(JPEG) % 512 + 1024))


@pytest.mark.parametrize("format", ["archive", "webdataset"])
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"size", b"9" * 20_000, "a member of more than 8 GB, which is not read"),
        (b"path", b"ant/" + b"n" * 100_000 + b".jpg", "a member's name of 100,008 bytes"),
    ],
)
def test_pax_records_that_cannot_be_are_damage(
    tmp_path: Path, format: str, key: bytes, value: bytes, message: str
) -> None:
    with pytest.raises(SourceError, match=rf"{message}, at byte [\d,]+; the rest of .*x\.tar"):
        _pack(_pax(tmp_path / "x.tar", key, value), tmp_path, format=format)


# -- zip ---------------------------------------------------------------------------------


def test_members_of_a_zip_that_overlap_are_refused(tmp_path: Path) -> None:
    """Each of 5,000 members of 64 kB would be the same bytes, which inflate to 60 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = JPEG + bytes(60 << 20)
    packed = packer.compress(content) + packer.flush()
    sizes = zlib.crc32(content), len(packed), len(content)
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, *sizes, 1, 0) + b"x" + packed
    directory = b""
    for number in range(5000):
        name = b"%s/%d.jpg" % ((b"ant", b"bee")[number % 2], number)
        head = b"PK\1\2", 20, 20, 0, 8, 0, 0, *sizes, len(name), 0, 0, 0, 0, 0, 0
        directory += struct.pack("<4s6H3I5H2I", *head) + name
    end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 5000, 5000, len(directory), len(local), 0)
    with pytest.raises(SourceError, match=r"x\.zip: its members overlap"):
        _pack(_save(tmp_path / "x.zip", local + directory + end), tmp_path)


# -- arrays ------------------------------------------------------------------------------


def _empty_rows(path: Path) -> Path:
    head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 0, 8), }\n"
    return _save(path, b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head)


def test_rows_without_bytes_are_no_samples(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"x\.npy:x: a row of 'x', of shape .* claims 0 bytes, not 1 to"
    ):
        _pack(_empty_rows(tmp_path / "x.npy"), tmp_path)


@pytest.mark.parametrize("kind", [list, dict])
def test_containers_of_torch_that_repeat_are_looked_into_once(tmp_path: Path, kind: type) -> None:
    import torch

    value: Any = torch.zeros(4, 8, 8, dtype=torch.uint8)
    for _ in range(4):
        value = [value] * 300 if kind is list else {str(n): value for n in range(300)}
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(FastdataError, match=r"x\.pt"):
        _pack(tmp_path / "x.pt", tmp_path)


def test_a_row_of_nested_lists_of_torch_is_not_written_out(tmp_path: Path) -> None:
    import torch

    row: Any = torch.zeros(8, 8, 3, dtype=torch.uint8)
    for _ in range(3):
        row = [row] * 300
    torch.save({"image": [row, row], "label": [0, 1]}, tmp_path / "x.pt")
    with pytest.raises(FastdataError, match="a list of samples"):
        _pack(tmp_path / "x.pt", tmp_path, source_options={"arrays": ["image=image"]})


def test_zarr_of_very_many_dimensions_is_no_array(tmp_path: Path) -> None:
    pytest.importorskip("tensorstore")
    shape = {"shape": [2**61] * 100_000, "chunks": [1] * 100_000, "dtype": "|u1"}
    _save(tmp_path / "x/.zgroup", '{"zarr_format": 2}')
    _save(tmp_path / "x/image/.zarray", json.dumps({"zarr_format": 2, **shape}))
    with pytest.raises(FastdataError) as caught:
        _pack(tmp_path / "x", tmp_path)
    assert len(str(caught.value)) < 1000


def test_rows_of_arrow_that_take_no_bytes_are_not_believed(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    ipc = pytest.importorskip("pyarrow.ipc")
    numbers = pa.array(np.zeros(10_000_000, np.int8))
    images = pa.DictionaryArray.from_arrays(numbers, pa.array([JPEG]))
    batch = pa.record_batch([images], ["image"])
    options = ipc.IpcWriteOptions(compression="zstd")
    with ipc.new_file(tmp_path / "x.arrow", batch.schema, options=options) as file:
        file.write_batch(batch)
    with pytest.raises(FastdataError, match=r"block 0 claims 10,000,000 rows, in [\d,]+ bytes"):
        _pack(tmp_path / "x.arrow", tmp_path, source_options={"columns": ["image=image"]})


def test_dictionaries_of_arrow_are_not_written_out(tmp_path: Path) -> None:
    """Two columns of 20,000 rows, with one value of 4 MB each."""
    pa = pytest.importorskip("pyarrow")
    ipc = pytest.importorskip("pyarrow.ipc")
    numbers = pa.array([0, None] * 10_000, pa.int16())
    values = {"image": JPEG + bytes(4 << 20), "text": "x" * (4 << 20)}
    columns = [
        pa.DictionaryArray.from_arrays(numbers if name == "text" else numbers.fill_null(0), [value])
        for name, value in values.items()
    ]
    batch = pa.record_batch(columns, list(values))
    with ipc.new_file(tmp_path / "x.arrow", batch.schema) as file:
        file.write_batch(batch)
    peak = pa.default_memory_pool().max_memory
    before = peak()
    options = {"columns": ["image=image", "text=text"]}
    report = _pack(tmp_path / "x.arrow", tmp_path, source_options=options, limit=3)
    assert report.num_samples == 3
    assert peak() - before < 100 << 20
    assert [len(row.text) for row in fastdata.open(report.path)] == [4 << 20, 0, 4 << 20]


# -- records and regions -----------------------------------------------------------------


def test_records_of_very_many_parts_are_damage(tmp_path: Path) -> None:
    """Each of 5,000 records would have the same 5,000 parts behind it."""
    count = 5_000
    mark = bytes.fromhex("0a23d7ce")
    begins = (mark + struct.pack("<I", 1 << 29 | 8 * (count - k - 1)) for k in range(count))
    inside = (mark + struct.pack("<I", 2 << 29)) * count
    with pytest.raises(FastdataError, match=r"x\.rec: .*more than 64 parts"):
        _pack(_save(tmp_path / "x.rec", b"".join(begins) + inside), tmp_path)


def test_polygons_far_outside_of_their_picture_are_rejected(tmp_path: Path) -> None:
    polygons = [[0, 0, 1e6, 1e6, 0, 1e6]] * 2000
    about = {"id": 1, "image_id": 1, "category_id": 1, "area": 9, "bbox": [0, 0, 9, 9]}
    content = {
        "images": [
            {"id": k, "file_name": f"{k}.jpg", "height": 24, "width": 32} for k in range(1, 3)
        ],
        "annotations": [{**about, "iscrowd": 0, "segmentation": polygons}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    for number in (1, 2):
        _save(tmp_path / f"source/val2017/{number}.jpg", JPEG)
    _save(tmp_path / "source/annotations/instances_val2017.json", json.dumps(content))
    report = _pack(tmp_path / "source", tmp_path, source_options={"masks": "instances"})
    assert [r.reason for r in report.rejects if "not near the picture" in r.reason]
    assert report.num_samples == 1


# -- what is exported can be read again --------------------------------------------------


@pytest.mark.parametrize("text", ["x" * (1 << 20) + "x", '"' * (9 << 20)])
def test_text_that_no_csv_is_read_with_is_not_exported_into_one(tmp_path: Path, text: str) -> None:
    samples = [{"image": photo(24, 32), "caption": text}]
    fastdata.pack(samples, tmp_path / "x.lmdb", num_workers=0)
    with pytest.raises(FastdataError, match=r"x\.lmdb: .*'caption'.*Export to parquet, webdataset"):
        fastdata.export(tmp_path / "x.lmdb", tmp_path / "out", format="folder")
    assert not (tmp_path / "out").exists()


def test_the_longest_text_that_is_exported_is_read_again(tmp_path: Path) -> None:
    samples = [{"image": photo(24, 32), "caption": "x" * (1 << 20)}]
    fastdata.pack(samples, tmp_path / "x.lmdb", num_workers=0)
    fastdata.export(tmp_path / "x.lmdb", tmp_path / "out", format="folder")
    _pack(tmp_path / "out/manifest.csv", tmp_path)
    assert fastdata.open(tmp_path / "packed.lmdb")[0].caption == samples[0]["caption"]
