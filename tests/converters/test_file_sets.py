"""Several files of one set are compared before anything is packed."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from case_tfrecord import examples
from cases import make_pictures
from cli_helpers import run
from packed import pack, samples

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.reading.named_files import find_named
from fastdata.errors import FormatError, OptionError, SourceError

PICTURES = make_pictures(4)


def table(number: int) -> pa.Table:
    return pa.table({"image": [PICTURES[number].data], "label": [number]})


def write_parquet(path: Path, number: int) -> None:
    pq.write_table(table(number), path)


def write_arrow(path: Path, number: int) -> None:
    with pa.ipc.new_file(path, table(number).schema) as writer:
        writer.write_table(table(number))


def write_tar(path: Path, number: int) -> None:
    with tarfile.open(path, "w") as archive:
        for suffix, data in (("jpg", PICTURES[number].data), ("cls", str(number).encode())):
            member = tarfile.TarInfo(f"{number}.{suffix}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_tfrecord(path: Path, number: int) -> None:
    pytest.importorskip("google.protobuf")
    path.write_bytes(examples(PICTURES)[number])


WRITERS: dict[str, Callable[[Path, int], None]] = {
    ".parquet": write_parquet,
    ".arrow": write_arrow,
    ".tar": write_tar,
}


def write_set(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        WRITERS[Path(name).suffix](folder / name, number)
    return folder


HASH = "0f3d5c1e2b4a6978"

MISSING = {
    "of": (["t-00000-of-00003.parquet", "t-00002-of-00003.parquet"], "t-00001-of-00003.parquet"),
    "arrow": (["data-00001-of-00002.arrow"], "data-00000-of-00002.arrow"),
    "tar": (["t-0-of-2.tar"], "t-1-of-2.tar"),
    "underscores": (["t_1_of_3.tar", "t_3_of_3.tar"], "t_2_of_3.tar"),
    "hash": ([f"t-00001-of-00002-{HASH}.parquet"], "t-00000-of-00002.parquet"),
    "splits": (
        ["train-00000-of-00001.parquet", "test-00001-of-00002.parquet"],
        "test-00000-of-00002.parquet",
    ),
    "folders": (
        ["a/train-00000-of-00001.parquet", "b/train-00000-of-00002.parquet"],
        "b/train-00001-of-00002.parquet",
    ),
    "gap": (["000000.tar", "000002.tar"], "000001.tar"),
    "from one": (["x-1.parquet", "x-2.parquet", "x-4.parquet"], "x-3.parquet"),
}


@pytest.mark.parametrize(("names", "missing"), MISSING.values(), ids=MISSING)
def test_a_missing_file_of_a_set_is_refused_and_a_pattern_goes_on(
    tmp_path: Path, names: list[str], missing: str
) -> None:
    folder = write_set(tmp_path / "data", *names)
    done = run("pack", folder, tmp_path / "a.lmdb")
    assert done.exit_code != 0
    assert missing in done.stderr
    assert not (tmp_path / "a.lmdb").exists()
    pattern = done.stderr.split("fastdata pack '")[1].split("'")[0]
    done = run("pack", pattern, tmp_path / "a.lmdb")
    assert done.exit_code == 0, done.stderr
    assert len(fastdata.open(tmp_path / "a.lmdb")) == len(names)
    assert missing in done.stdout + done.stderr  # said in a note


def test_one_file_of_a_set_is_a_choice(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "data", "t-00000-of-00003.parquet")
    source = find_source(folder / "t-00000-of-00003.parquet")
    assert source.notes == []


TWO_EXPORTS = {
    "totals": (["t-00000-of-00002.tar", "t-00001-of-00002.tar", "t-00000-of-00001.tar"], 2),
    "a hash": ([f"t-00000-of-00001-{HASH}.parquet", "t-00000-of-00001.parquet"], 1),
}


@pytest.mark.parametrize(("names", "count"), TWO_EXPORTS.values(), ids=TWO_EXPORTS)
def test_two_exports_of_one_set_are_refused(tmp_path: Path, names: list[str], count: int) -> None:
    folder = write_set(tmp_path / "data", *names)
    for location in (folder, folder / f"t*{Path(names[0]).suffix}"):
        with pytest.raises(SourceError, match=r"two exports of one set.*fastdata pack '") as caught:
            find_source(location)
        assert names[0] in str(caught.value)
        assert names[-1] in str(caught.value)
    report = (
        pack(folder / f"{names[0][:1]}*-of-0000{count}*", tmp_path / "a.lmdb")
        if (count == 2)
        else pack(folder / names[1], tmp_path / "a.lmdb")
    )
    assert report.num_samples == count


WHOLE = {
    "splits": ["train-00000-of-00002.tar", "train-00001-of-00002.tar", "val-00000-of-00001.tar"],
    "configurations": ["a/train-00000-of-00001.parquet", "b/train-00000-of-00001.parquet"],
    "years": ["2019.parquet", "2021.parquet"],
    "numbers of things": ["0007.tar", "0100.tar", "3000.tar"],
    "moved to another folder": ["t/000.parquet", "t/002.parquet", "v/001.parquet"],
    "counted from 1": ["t-1-of-2.tar", "t-2-of-2.tar"],
}


@pytest.mark.parametrize("names", WHOLE.values(), ids=WHOLE)
def test_whole_sets_are_taken(tmp_path: Path, names: list[str]) -> None:
    source = find_source(write_set(tmp_path / "data", *names))
    assert source.count() == len(names)


def test_files_and_shard_lengths_of_tfds_must_agree(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "x-train.tfrecord-00000-of-00001", 0)
    info = {"splits": [{"name": "train", "shardLengths": ["1", "1"]}]}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(SourceError, match=r"the split 'train' has 2 files, and .* say 1"):
        find_source(tmp_path)
    info = {"splits": [{"name": "train", "shardLengths": ["1"]}]}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    assert find_source(tmp_path).count() == 1


@pytest.mark.parametrize("change", ["missing", "unlisted"])
def test_a_pattern_for_shards_must_fit_the_manifest_beside_them(
    tmp_path: Path, change: str
) -> None:
    folder = write_set(tmp_path / "data", *(f"t-{k}-of-4.tar" for k in range(4)))
    own = tmp_path / "own.lmdb"
    fastdata.pack(folder, own, shard_size=1, progress=False)
    shards = sorted(own.glob("*.lmdb"))
    assert len(fastdata.open(str(own / "*.lmdb"))) == 4
    assert len(fastdata.open(str(own / "*0[01].lmdb"))) == 2  # a choice
    if change == "missing":
        shards[1].unlink()
    else:
        (own / "shard-00009.lmdb").write_bytes(shards[1].read_bytes())
    name = "shard-00001.lmdb" if change == "missing" else "shard-00009.lmdb"
    with pytest.raises(FormatError, match=name):
        fastdata.open(str(own / "*.lmdb"))
    done = run("pack", own / "*.lmdb", tmp_path / "a.lmdb")
    assert done.exit_code != 0
    assert name in done.stderr


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"

NAMED = {
    "as it is": ("a/0.jpg", "a/0.jpg"),
    "backslash": ("a\\0.jpg", "a/0.jpg"),
    "backslash in a name": ("a\\1.jpg", "a\\1.jpg"),
    "composed": (f"{COMPOSED}/{COMPOSED}.jpg", f"{DECOMPOSED}/{COMPOSED}.jpg"),
    "decomposed": (f"{DECOMPOSED}\\{DECOMPOSED}.jpg", f"{DECOMPOSED}/{COMPOSED}.jpg"),
    "missing": ("b\\0.jpg", "b\\0.jpg"),
    "outside": ("a\\..\\..\\secret.jpg", "a\\..\\..\\secret.jpg"),
}


@pytest.mark.parametrize(("name", "found"), NAMED.values(), ids=NAMED)
def test_a_file_is_found_by_a_name_of_another_system(tmp_path: Path, name: str, found: str) -> None:
    folder = tmp_path / "data"
    for file in ("a/0.jpg", "a/1.jpg", "a\\1.jpg", f"{DECOMPOSED}/{COMPOSED}.jpg"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    (tmp_path / "secret.jpg").touch()
    assert find_named(folder, name) == str(folder / found)


# -- columns and classes of tables --------------------------------------------------------


IMAGES = pa.array([picture.data for picture in PICTURES])
LABELS = pa.array([0, 1, 2, 1])
TEXTS = pa.array(["a", "b", "c", "d"])


def names_of(*names: str) -> dict[bytes, bytes]:
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def save(path: Path, columns: dict[str, pa.Array], metadata: dict[bytes, bytes] | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = pa.table(columns).replace_schema_metadata(metadata)
    if path.suffix == ".parquet":
        pq.write_table(content, path)
    else:
        with pa.ipc.new_stream(path, content.schema) as writer:
            writer.write_table(content)


def save_dataset_dict(
    folder: Path, content: dict[str, tuple[dict[str, pa.Array], tuple[str, ...]]]
) -> Path:
    """Write what `DatasetDict.save_to_disk` does: a folder a split, with a description beside."""
    for split, (columns, names) in content.items():
        save(folder / split / "data-00000-of-00001.arrow", columns, None)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": split}
        (folder / split / "state.json").write_text(json.dumps(state))
        info = json.loads(names_of(*names)[b"huggingface"])["info"]
        (folder / split / "dataset_info.json").write_text(json.dumps(info if names else {}))
    return folder


def save_files(
    folder: Path, kind: str, content: dict[str, tuple[dict[str, pa.Array], tuple[str, ...]]]
) -> Path:
    if kind == "DatasetDict":
        return save_dataset_dict(folder, content)
    for split, (columns, names) in content.items():
        save(folder / f"{split}.{kind}", columns, names_of(*names) if names else None)
    return folder


KINDS = ("parquet", "arrow", "DatasetDict")
NULLS = pa.nulls(4)

DIFFERENT_COLUMNS = {
    "label": ({"image": IMAGES}, {"image": IMAGES, "label": LABELS}, "label"),
    "label of text": ({"image": IMAGES}, {"image": IMAGES, "label": TEXTS}, "label"),
    "label in the first": ({"image": IMAGES, "label": LABELS}, {"image": IMAGES}, "label"),
    "label of nulls": (
        {"image": IMAGES, "label": NULLS},
        {"image": IMAGES, "label": LABELS},
        "label",
    ),
    "mask": ({"image": IMAGES}, {"image": IMAGES, "mask": IMAGES}, "mask"),
    "text": ({"image": IMAGES}, {"image": IMAGES, "caption": TEXTS}, "caption"),
    "types": ({"image": IMAGES, "label": TEXTS}, {"image": IMAGES, "label": LABELS}, "label"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("first", "second", "column"), DIFFERENT_COLUMNS.values(), ids=DIFFERENT_COLUMNS
)
def test_a_column_that_only_some_files_have_is_refused(
    tmp_path: Path, kind: str, first: Any, second: Any, column: str
) -> None:
    folder = save_files(tmp_path / "data", kind, {"test": (first, ()), "train": (second, ())})
    with pytest.raises(OptionError, match=rf"the column '{column}' is .*columns=image\b") as caught:
        pack(folder, tmp_path / "a.lmdb")
    assert "test" in str(caught.value)
    assert "train" in str(caught.value)
    pack(folder, tmp_path / "a.lmdb", columns=("image",))
    assert list(fastdata.open(tmp_path / "a.lmdb").schema) == ["image", "split"]
    if column in second:
        assert column in find_source(folder, options={"split": "train"}).schema


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_rows_says_nothing_of_columns(tmp_path: Path, kind: str) -> None:
    empty = {"image": pa.array([], pa.null())}
    whole = {"image": IMAGES, "label": LABELS}
    folder = save_files(tmp_path / "data", kind, {"test": (empty, ()), "train": (whole, ())})
    assert pack(folder, tmp_path / "a.lmdb").num_samples == 4
    assert [s["label"] for s in samples(tmp_path / "a.lmdb")] == [0, 1, 2, 1]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_classes_in_another_order_are_renumbered_by_their_names(
    tmp_path: Path, kind: str, shuffle: bool
) -> None:
    columns = {"image": IMAGES, "label": LABELS}
    content = {"test": (columns, ("ant", "bee", "cat")), "train": (columns, ("cat", "ant", "bee"))}
    folder = save_files(tmp_path / "data", kind, content)
    assert any("another order" in note for note in find_source(folder).notes)
    fastdata.pack(folder, tmp_path / "a.lmdb", shuffle=shuffle, progress=False)
    dataset = fastdata.open(tmp_path / "a.lmdb")
    found = zip(dataset.keys, samples(tmp_path / "a.lmdb"), strict=True)
    names = {(key[:4], int(key[-1])): dataset.classes[s["label"]] for key, s in found}
    assert [names["test", row] for row in range(4)] == ["ant", "bee", "cat", "bee"]
    assert [names["trai", row] for row in range(4)] == ["cat", "ant", "bee", "ant"]


OTHER_CLASSES = {
    "one more": ("ant", "bee", "cat", "dog"),
    "others": ("ant", "bee", "dog"),
    "none": (),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", OTHER_CLASSES.values(), ids=OTHER_CLASSES)
def test_files_with_other_classes_are_refused(
    tmp_path: Path, kind: str, names: tuple[str, ...]
) -> None:
    columns = {"image": IMAGES, "label": LABELS}
    content = {"test": (columns, ("ant", "bee", "cat")), "train": (columns, names)}
    folder = save_files(tmp_path / "data", kind, content)
    with pytest.raises(SourceError, match=r"train.*the classes of 'label' are .*test"):
        pack(folder, tmp_path / "a.lmdb")


@pytest.mark.parametrize("kind", KINDS)
def test_two_classes_of_one_name_are_refused(tmp_path: Path, kind: str) -> None:
    columns = {"image": IMAGES, "label": LABELS}
    folder = save_files(tmp_path / "data", kind, {"train": (columns, ("ant", "bee", "ant"))})
    with pytest.raises(SourceError, match="classes 0 and 2 are both called 'ant'"):
        pack(folder, tmp_path / "a.lmdb")


@pytest.mark.parametrize("name", ["label", "mask"])
@pytest.mark.parametrize("later", [False, True])
def test_hdf5_files_with_other_arrays_are_refused(tmp_path: Path, name: str, later: bool) -> None:
    h5py = pytest.importorskip("h5py")
    for number, more in enumerate((not later, later)):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["image"] = np.zeros((4, 8, 9, 3), np.uint8)
            if more:
                shape = (4,) if name == "label" else (4, 8, 9)
                file[name] = np.zeros(shape, np.int64 if name == "label" else np.uint8)
    with pytest.raises(SourceError, match=r"1\.h5: its arrays are of other kinds"):
        find_source(tmp_path)
    assert list(find_source(tmp_path, options={"arrays": "image"}).schema) == ["image"]
