"""CIFAR: both editions of both, as their authors wrote them, and what becomes of damage."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_cifar import archive
from pack_helpers import pixels

import fastdata
from fastdata.converters.cifar import CifarSource
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FINE = tuple(f"fine {k}" for k in range(100))
COARSE = tuple(f"coarse {k}" for k in range(20))
GLOBALS: list[str] = []


def planes(seed: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def upright(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return rows of CIFAR as N x 32 x 32 x 3, put together pixel by pixel."""
    out = np.zeros((len(rows), 32, 32, 3), np.uint8)
    for channel in range(3):
        for y in range(32):
            begin = 1024 * channel + 32 * y
            out[:, y, :, channel] = rows[:, begin : begin + 32]
    return out


# -- as Python 2 pickled, opcode by opcode (protocol 2, cPickle) ----------------------


def short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def python2(value: Any) -> bytes:
    if isinstance(value, dict):
        pairs = b"".join(python2(k) + python2(v) for k, v in value.items())
        return b"}q\x01(" + pairs + b"u"
    if isinstance(value, list):
        return b"]q\x02(" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, bytes):
        return short(value) if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85"
        + short(b"b") + b"\x87Rq\x07"
    )  # fmt: skip
    shape = b"".join(b"M" + struct.pack("<H", n) for n in value.shape)
    dtype = b"cnumpy\ndtype\nq\x08" + short(b"u1") + b"K\x00K\x01\x87Rq\x09"
    dtype += b"(K\x03" + short(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return array + b"(K\x01" + shape + b"\x86" + dtype + b"\x89" + python2(value.tobytes()) + b"tb"


def pickled2(value: Any) -> bytes:
    return b"\x80\x02" + python2(value) + b"."


def test_what_the_test_writes_is_what_python_reads() -> None:
    content = {b"labels": [1, 300], b"data": planes(1, 2)}
    found = pickle.loads(pickled2(content), encoding="bytes")
    assert found[b"labels"] == [1, 300]
    assert np.array_equal(found[b"data"], content[b"data"])


def ten(counts: tuple[int, ...] = (4, 3, 2, 2, 2), test: int = 3) -> dict[str, bytes]:
    """Return the files of CIFAR-10 for Python."""
    files = {
        "batches.meta": pickled2({b"num_vis": 3072, b"label_names": [n.encode() for n in TEN]})
    }
    for number, count in enumerate((*counts, test), 1):
        content = {
            b"batch_label": b"batch",
            b"labels": [(number + k) % 10 for k in range(count)],
            b"data": planes(number, count),
            b"filenames": [b"a_s_%06d.png" % k for k in range(count)],
        }  # fmt: skip
        files[f"data_batch_{number}" if number < 6 else "test_batch"] = pickled2(content)
    return files


def hundred(count: int = 5) -> dict[str, bytes]:
    names = {b"fine_label_names": [n.encode() for n in FINE],
             b"coarse_label_names": [n.encode() for n in COARSE]}  # fmt: skip
    files = {"meta": pickled2(names)}
    for seed, name in enumerate(("train", "test")):
        content = {
            b"filenames": [b"x.png"] * count, b"batch_label": b"training batch 1 of 1",
            b"fine_labels": [90 + k for k in range(count)],
            b"coarse_labels": [k for k in range(count)], b"data": planes(seed, count),
        }  # fmt: skip
        files[name] = pickled2(content)
    return files


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def pack(location: Any, path: Path, **options: Any) -> Any:
    keywords = {k: options.pop(k) for k in ("shuffle", "format") if k in options}
    return fastdata.pack(
        location, path, codec="raw", num_workers=0, progress=False, source_options=options,
        **keywords,
    )  # fmt: skip


def content(path: Path, name: str = "label") -> tuple[np.ndarray[Any, Any], list[int]]:
    dataset: Any = fastdata.open(path)
    samples = [dataset[k] for k in range(len(dataset))]
    return np.stack([pixels(s.image) for s in samples]), [int(getattr(s, name)) for s in samples]


def test_cifar_10_for_python(tmp_path: Path) -> None:
    report = pack(write(tmp_path / "in", ten()), tmp_path / "a.lmdb")
    found, labels = content(tmp_path / "a.lmdb")
    wanted = np.concatenate([planes(n, c) for n, c in enumerate((4, 3, 2, 2, 2), 1)])
    assert np.array_equal(found, upright(wanted))
    assert labels == [1, 2, 3, 4, 2, 3, 4, 3, 4, 4, 5, 5, 6]
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dataset.schema.classes == TEN
    assert dataset.keys[5] == "data_batch_2[1]"
    assert report.num_rejected == 0
    assert any("batches left out: test_batch" in note for note in report.notes)
    assert any("of batches left out: filenames" in note for note in report.notes)


@pytest.mark.parametrize("shuffle", [False, True])
def test_test_and_all(tmp_path: Path, shuffle: bool) -> None:
    folder = write(tmp_path / "cifar-10-batches-py", ten())
    pack(tmp_path, tmp_path / "test.lmdb", split="test")
    found, labels = content(tmp_path / "test.lmdb")
    assert np.array_equal(found, upright(planes(6, 3)))
    assert labels == [6, 7, 8]
    pack(folder, tmp_path / "all.lmdb", split="all", shuffle=shuffle)
    assert sorted(content(tmp_path / "all.lmdb", "split")[1]) == [0] * 13 + [1] * 3
    with pytest.raises(OptionError, match="split=x: expected train, test or all"):
        find_source(folder, options={"split": "x"})
    with pytest.raises(OptionError, match="has only split=test"):
        find_source(write(tmp_path / "t", {"test_batch": ten()["test_batch"]}))


def test_cifar_100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    pack(write(tmp_path / "in", hundred()), tmp_path / "a.lmdb", split="test")
    found, fine = content(tmp_path / "a.lmdb")
    assert np.array_equal(found, upright(planes(1, 5)))
    assert fine == [90, 91, 92, 93, 94]
    assert content(tmp_path / "a.lmdb", "coarse_label")[1] == [0, 1, 2, 3, 4]
    schema: Any = fastdata.open(tmp_path / "a.lmdb").schema
    assert (schema["label"].classes, schema["coarse_label"].classes) == (FINE, COARSE)


def test_one_batch_alone_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ten())
    with pytest.raises(OptionError, match=r"test_batch: is one batch\. Name its folder"):
        find_source(tmp_path / "test_batch")


def test_an_archive_that_is_not_compressed_is_in_order_and_can_be_shuffled(tmp_path: Path) -> None:
    files = dict(reversed(ten().items()))
    location = archive(tmp_path / "cifar.tar", files, "cifar-10-batches-py", "")
    unpacked = write(tmp_path / "in", files)
    digest = pack(unpacked, tmp_path / "a.lmdb").digest
    assert pack(location, tmp_path / "b.lmdb").digest == digest
    assert pack(location, tmp_path / "c.lmdb", shuffle=True).num_samples == 13


def test_a_compressed_archive_is_read_as_it_stands(tmp_path: Path) -> None:
    files = dict(reversed(ten().items()))
    location = archive(tmp_path / "cifar.tar.gz", files, "cifar-10-batches-py", "gz")
    report = pack(location, tmp_path / "b.lmdb")
    assert (report.num_samples, report.num_rejected) == (13, 0)
    assert content(tmp_path / "b.lmdb")[1] == [5, 6, 4, 5, 3, 4, 2, 3, 4, 1, 2, 3, 4]
    with pytest.raises(OptionError, match="Decompress it, or pack in order"):
        pack(location, tmp_path / "c.lmdb", shuffle=True)


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("shape", [(30, 3072), (30, 3, 32, 32)])
def test_what_python_3_pickled(tmp_path: Path, protocol: int, shape: tuple[int, ...]) -> None:
    rows, labels = planes(1, 30), list(range(30))
    written = {"data": rows.reshape(shape), "fine_labels": labels, "coarse_labels": labels}
    files = {"train": pickle.dumps(written, protocol)}
    for location in (
        write(tmp_path / "in", files),
        archive(tmp_path / "c.tar.gz", files, "cifar-100-python", "gz"),
    ):
        pack(location, tmp_path / f"{location.name}.lmdb")
        found, numbers = content(tmp_path / f"{location.name}.lmdb")
        assert np.array_equal(found, upright(rows))
        assert numbers == labels


def test_without_a_meta_file_there_are_no_names(tmp_path: Path) -> None:
    files = ten()
    del files["batches.meta"]
    source = find_source(write(tmp_path, files))
    assert source.schema.classes is None
    assert any("no file with the names of the classes of 'label'" in n for n in source.notes)
    for meta in ({b"label_names": 3}, {b"label_names": []}, {b"label_names": [b"a", 2]}):
        (tmp_path / "batches.meta").write_bytes(pickle.dumps(meta, 4))
        assert find_source(tmp_path).schema.classes is None
    (tmp_path / "batches.meta").write_bytes(b"\x80\x02damaged")
    assert find_source(tmp_path).schema.classes is None


# -- nothing is executed --------------------------------------------------------------


class Evil:
    def __reduce__(self) -> Any:
        return (GLOBALS.append, ("executed",))


class Shell:
    def __reduce__(self) -> Any:
        return (os.system, ("echo executed > /tmp/executed-by-fastdata-test",))


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("evil", [Evil(), Shell(), print, np.float64(1), object()])
def test_a_pickle_that_names_anything_else_is_a_reject(
    tmp_path: Path, evil: object, protocol: int
) -> None:
    files = ten()
    files["data_batch_2"] = pickle.dumps({b"labels": [1], b"evil": evil}, protocol)
    report = pack(write(tmp_path / "in", files), tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (10, 1)
    assert report.rejects[0].key == "data_batch_2[0]"
    assert "only NumPy arrays and builtins are read" in report.rejects[0].reason or (
        "cannot be read as a pickle of arrays" in report.rejects[0].reason
    )
    assert not GLOBALS
    assert not Path("/tmp/executed-by-fastdata-test").exists()


def test_object_arrays_and_text_for_bytes_are_refused(tmp_path: Path) -> None:
    objects = {b"labels": [1], b"data": np.array([{}], object)}
    with pytest.raises(SourceError, match=r"no array .data. in it of uint8"):
        find_source(write(tmp_path / "a", {"train": pickle.dumps(objects, 4)}))
    text = {b"fine_labels": [1], b"data": planes(1, 1)}
    with pytest.raises(SourceError, match="Write arrays again with protocol 3 or 4"):
        find_source(write(tmp_path / "b", {"train": pickle.dumps(text, 2)}))
    with pytest.raises(SourceError, match="Write arrays again with protocol 3 or 4"):
        find_source(write(tmp_path / "d", {"train": pickle.dumps(text, 5)}))
    order = {b"fine_labels": [1, 2], b"data": np.asfortranarray(planes(1, 2))}
    with pytest.raises(SourceError, match=r"in C order; it has fine_labels, data"):
        find_source(write(tmp_path / "c", {"train": pickle.dumps(order, 4)}))


# -- damage -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({b"labels": [1, 2]}, "has 3 images and 2 labels"),
        ({b"labels": [1, 2, "x"]}, "'labels' is not a list of whole numbers"),
        ({b"labels": np.arange(3, dtype=np.uint8)}, "'labels' is not a list of whole numbers"),
        ({(1, 2): 3}, "a key is not text"),
        ({b"labels": [1, 2, True]}, "'labels' is not a list of whole numbers"),
        ({b"labels": None}, "'labels' is not a list of whole numbers"),
        ({b"data": planes(1, 3).astype(np.int16)}, "no array 'data' in it of uint8"),
        ({b"data": planes(1, 3)[:, :3000]}, "N x 3072 or N x 3 x H x W"),
        ({b"data": planes(1, 3).tobytes()}, "in C order; it has data, labels"),
    ],
)
def test_a_batch_that_does_not_fit_is_one_reject(
    tmp_path: Path, change: dict[bytes, Any], reason: str
) -> None:
    files = ten()
    written = {b"data": planes(1, 3), b"labels": [1, 2, 3], **change}
    files["data_batch_3"] = pickle.dumps(written, 4)
    report = pack(write(tmp_path / "in", files), tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (11, 1)
    assert report.rejects[0].key == "data_batch_3[0]"
    assert reason in report.rejects[0].reason


def test_no_labels_at_all_are_an_error(tmp_path: Path) -> None:
    files = {"train": pickle.dumps({b"data": planes(1, 3)}, 4)}
    with pytest.raises(SourceError, match=r"no list 'labels' or 'fine_labels' in it; it has data"):
        find_source(write(tmp_path, files))


def test_labels_beyond_the_names_are_rejects(tmp_path: Path) -> None:
    files = ten()
    written = {b"data": planes(1, 3), b"labels": [1, 10, 2]}
    files["data_batch_3"] = pickle.dumps(written, 4)
    report = pack(write(tmp_path / "in", files), tmp_path / "a.lmdb")
    assert [(r.key, r.reason) for r in report.rejects] == [
        ("data_batch_3[1]", "'label' is 10, and there are 10 classes: 0 to 9")
    ]


@pytest.mark.parametrize("cut", [10, 2000, 6200])
def test_a_pickle_cut_short_is_one_reject(tmp_path: Path, cut: int) -> None:
    files = ten()
    files["data_batch_3"] = files["data_batch_3"][:cut]
    report = pack(write(tmp_path / "in", files), tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (11, 1)
    assert "data_batch_3: cannot be read as a pickle of arrays: it ends" in report.rejects[0].reason


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_missing_batch_is_a_reject(tmp_path: Path, shuffle: bool) -> None:
    files = ten()
    del files["data_batch_2"], files["data_batch_5"]
    report = pack(write(tmp_path / "in", files), tmp_path / "a.lmdb", shuffle=shuffle)
    assert report.num_samples == 8
    assert sorted((r.key, r.reason) for r in report.rejects) == [
        ("data_batch_2", "this batch is not there"), ("data_batch_5", "this batch is not there")
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["", "gz"])
def test_an_archive_cut_short_gives_the_batches_that_are_whole(tmp_path: Path, mode: str) -> None:
    location = archive(tmp_path / "c.tar", ten(), "cifar-10-batches-py", mode)
    data = location.read_bytes()
    location.write_bytes(data[: len(data) // 2])
    report = pack(location, tmp_path / "a.lmdb")
    assert 4 <= report.num_samples <= 9
    keys = [reject.key for reject in report.rejects]
    assert "c.tar" in keys
    assert "data_batch_5" in keys


def test_damage_inside_an_archive_is_said(tmp_path: Path) -> None:
    plain = archive(tmp_path / "c.tar", ten(), "cifar-10-batches-py", "").read_bytes()
    header = plain.index(b"cifar-10-batches-py/data_batch_4")
    location = tmp_path / "c.tar.gz"
    location.write_bytes(gzip.compress(plain[:header] + b"\xff" * 512 + plain[header + 512 :]))
    report = pack(location, tmp_path / "a.lmdb")
    assert report.num_samples == 9
    assert [r.key for r in report.rejects] == ["data_batch_4", "data_batch_5", "c.tar.gz"]
    assert "the checksum of a header is wrong" in report.rejects[2].reason


@pytest.mark.parametrize("length", [1 << 20, (1 << 31) - 1])
def test_a_huge_length_in_a_pickle_allocates_nothing(tmp_path: Path, length: int) -> None:
    files = ten()
    data = files["data_batch_3"]
    at = data.index(b"T" + struct.pack("<i", 2 * 3072)) + 1
    files["data_batch_3"] = data[:at] + struct.pack("<i", length) + data[at + 4 :]
    tracemalloc.start()
    report = pack(write(tmp_path / "in", files), tmp_path / "a.lmdb")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (report.num_samples, report.num_rejected) == (11, 1)
    assert f"it ends early, or 'expected {length} bytes" in report.rejects[0].reason
    assert peak < 8 << 20


def test_names_that_leave_the_archive_are_only_names(tmp_path: Path) -> None:
    files = {f"../../{name}": data for name, data in ten().items()}
    location = archive(tmp_path / "c.tar.gz", files, "cifar-10-batches-py", "gz")
    before = sorted(tmp_path.parent.iterdir())
    assert pack(location, tmp_path / "a.lmdb").num_samples == 13
    assert sorted(tmp_path.parent.iterdir()) == before


def test_what_is_no_cifar_is_not_taken_for_it(tmp_path: Path) -> None:
    other = archive(tmp_path / "a.tar", {"data_batch_1": b"x"}, "somewhere", "")
    assert not CifarSource.recognises(other)
    with pytest.raises(SourceError, match="no batch can be read: data_batch_1: cannot be read"):
        find_source(other, format="cifar")
    (tmp_path / "in" / "train" / "ant").mkdir(parents=True)
    (tmp_path / "in" / "test.bin").write_bytes(bytes(3074))
    with pytest.raises(SourceError, match="no batches of CIFAR there"):
        find_source(tmp_path / "in", format="cifar")
    (tmp_path / "train").write_bytes(b"text")
    with pytest.raises(SourceError, match="not recognised"):
        find_source(tmp_path / "train")
