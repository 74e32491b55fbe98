"""Several files of one set are compared before anything is packed."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from case_tfrecord import example, record
from cases import make_pictures
from cli_helpers import run
from packed import pack, samples

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.reading.named_files import find_named
from fastdata.errors import FastdataError, FormatError, OptionError, SourceError
from fastdata.schema import ScalarField

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
            add_member(archive, f"{number}.{suffix}", data)


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


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
    """Write what `DatasetDict.save_to_disk` does: a folder for each split, with its description."""
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [False, True], ids=["ClassLabel", "text"])
def test_one_split_has_the_numbers_of_all(tmp_path: Path, kind: str, text: bool) -> None:
    names = {"train": ("cat", "ant", "bee"), "test": ("ant", "bee", "cat")}
    content = {
        split: ({"image": IMAGES, "label": LABELS}, of_split) for split, of_split in names.items()
    }
    if text:
        few = pa.array(["cat", "bee", "cat", "bee"])
        content = {
            "train": ({"image": IMAGES, "label": few}, ()),
            "test": ({"image": IMAGES, "label": pa.array(["ant", "bee", "cat", "bee"])}, ()),
        }
    folder = save_files(tmp_path / "data", kind, content)
    classes = find_source(folder).schema.classes
    assert sorted(classes or ()) == ["ant", "bee", "cat"]
    for split in ("train", "test"):
        pack(folder, tmp_path / f"{split}.lmdb", split=split)
        dataset = fastdata.open(tmp_path / f"{split}.lmdb")
        assert tuple(dataset.classes) == classes
        labels = content[split][0]["label"].to_pylist()
        wanted = labels if text else [names[split][label] for label in labels]
        assert [dataset.classes[sample.label] for sample in dataset] == wanted
        if text and kind != "DatasetDict":
            assert find_source(folder / f"{split}.{kind}").schema.classes == classes


def write_hf_folder(root: Path, labels: dict[str, str]) -> Path:
    for k, name in enumerate(labels):
        root.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(PICTURES[k].data)
    rows = "".join(f"{name},{label}\n" for name, label in labels.items())
    (root / "metadata.csv").write_text(f"file_name,label\n{rows}")
    return root


def write_boxes(root: Path, labels: dict[str, str]) -> Path:
    write_hf_folder(root, labels)
    rows = "".join(f"{name},1,2,10,20,{label}\n" for name, label in labels.items())
    (root / "metadata.csv").rename(root / "_annotations.csv")
    (root / "_annotations.csv").write_text(f"filename,xmin,ymin,xmax,ymax,class\n{rows}")
    return root


def write_zip(root: Path, labels: dict[str, str]) -> Path:
    root.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(root.with_suffix(".zip"), "w") as archive:
        for k, (name, label) in enumerate(labels.items()):
            archive.writestr(f"{label}/{name}", PICTURES[k].data)
    return root.with_suffix(".zip")


def write_coco(root: Path, labels: dict[str, str]) -> Path:
    write_hf_folder(root, labels)
    (root / "metadata.csv").unlink()
    names = sorted(set(labels.values()))
    sizes = [picture.pixels.shape for picture in PICTURES]
    annotations = {
        "images": [
            {"id": k, "file_name": name, "height": sizes[k][0], "width": sizes[k][1]}
            for k, name in enumerate(labels)
        ],
        "annotations": [
            {"id": k, "image_id": k, "category_id": names.index(label), "bbox": [1, 2, 5, 6]}
            for k, label in enumerate(labels.values())
        ],
        "categories": [{"id": k, "name": name} for k, name in enumerate(names)],
    }
    (root / "_annotations.coco.json").write_text(json.dumps(annotations))
    return root


@pytest.mark.parametrize("write", [write_hf_folder, write_boxes, write_coco, write_zip])
def test_the_folder_or_archive_of_one_split_is_refused_if_another_has_more_classes(
    tmp_path: Path, write: Callable[[Path, dict[str, str]], Path]
) -> None:
    train = write(tmp_path / "data/train", {"0.jpg": "ant", "1.jpg": "bee", "2.jpg": "cat"})
    test = write(tmp_path / "data/test", {"0.jpg": "bee", "1.jpg": "cat"})
    write(tmp_path / "data/valid", {"0.jpg": "unknown"})  # another numbering: it has no such class
    assert find_source(train).schema.classes == ("ant", "bee", "cat")
    with pytest.raises(SourceError, match=r"train.* next to it has more classes \(ant\)") as error:
        find_source(test)
    same = write is write_coco  # it refuses categories that differ
    wanted = "Give both the same classes" if same else "--option split=test"
    assert wanted in str(error.value)
    if test.is_dir() and not same:
        one = find_source(tmp_path / "data", options={"split": "test"})
        assert one.schema.classes == ("ant", "bee", "cat", "unknown")
    pack(train, tmp_path / "all.lmdb")
    fastdata.append(tmp_path / "all.lmdb", test, progress=False)
    dataset = fastdata.open(tmp_path / "all.lmdb")
    field = "labels" if "labels" in dataset.schema else "label"
    assert np.ravel([getattr(sample, field) for sample in dataset]).tolist() == [0, 1, 2, 1, 2]


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


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_a_label_that_only_a_later_split_has_is_found_or_refused(tmp_path: Path, kind: str) -> None:
    for split, labelled in (("test", False), ("train", True)):
        path = tmp_path / f"{split}.{kind}"
        if kind == "tar":
            with tarfile.open(path, "w") as archive:
                for number in range(20):
                    add_member(archive, f"{number}.jpg", PICTURES[0].data)
                    if labelled:
                        add_member(archive, f"{number}.cls", b"1")
        else:
            features = {"image/encoded": PICTURES[0].data, **({"label": 1} if labelled else {})}
            path.write_bytes(record(example(features)) * 20)
    options: dict[str, Any] = {}
    if kind == "tar":
        with pytest.raises(SourceError, match="the label 'cls' is only in some"):
            find_source(tmp_path)
        options = {"members": "image=jpg,label=cls"}
    report = pack(tmp_path, tmp_path / "a.lmdb", **options)
    assert [sample["label"] for sample in samples(tmp_path / "a.lmdb")] == [1] * 20
    assert report.num_rejected == 20


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


# -- labels -------------------------------------------------------------------------------


def write_list(root: Path, labels: list[str]) -> Path:
    for number in range(len(labels)):
        (root / f"{number}.jpg").write_bytes(PICTURES[0].data)
    lines = ["path,label", *(f"{number}.jpg,{label}" for number, label in enumerate(labels))]
    (root / "a.csv").write_text("\n".join(lines) + "\n")
    return root / "a.csv"


TEXTS_OF_LABELS = {
    "whole numbers": (["7", "8"], None, [7, 8]),
    "zeros in front": (["007", "008"], None, [7, 8]),
    "decimals": (["1.5", "2"], None, [1.5, 2.0]),
    "whole decimals": (["0.0", "1.0"], None, [0, 1]),
    "zeros behind": (["1.1", "1.10"], ("1.1", "1.10"), [0, 1]),
    "a power": (["2e3", "2000"], ("2000", "2e3"), [1, 0]),
    "one number": (["007", "07", "7"], ("007", "07", "7"), [0, 1, 2]),
    "missing": (["0", "nan", "1", "NaN"], None, [0, 1]),
    "missing decimal": (["0.5", "nan"], None, [0.5]),
    "missing text": (["a", "nan", "b"], ("a", "b"), [0, 1]),
    "accents": (["a", COMPOSED, DECOMPOSED], ("a", COMPOSED), [0, 1, 1]),
}


@pytest.mark.parametrize(
    ("cells", "classes", "labels"), TEXTS_OF_LABELS.values(), ids=TEXTS_OF_LABELS
)
def test_labels_of_a_list(
    tmp_path: Path, cells: list[str], classes: tuple[str, ...] | None, labels: list[float]
) -> None:
    report = pack(write_list(tmp_path, cells), tmp_path / "a.lmdb")
    field = fastdata.open(tmp_path / "a.lmdb").schema["label"]
    whole = all(isinstance(label, int) for label in labels)
    assert field == ScalarField("int64" if whole else "float64", classes=classes)
    assert [sample["label"] for sample in samples(tmp_path / "a.lmdb")] == labels
    assert report.num_rejected == sum(cell.lower() == "nan" for cell in cells)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_differ_in_the_form_of_accents_are_one_class(tmp_path: Path, kind: str) -> None:
    content = {
        split: ({"image": IMAGES[:1], "label": pa.array([name])}, ())
        for split, name in (("test", DECOMPOSED), ("train", COMPOSED))
    }
    pack(save_files(tmp_path / "data", kind, content), tmp_path / "a.lmdb")
    assert fastdata.open(tmp_path / "a.lmdb").classes == [COMPOSED]
    assert [sample["label"] for sample in samples(tmp_path / "a.lmdb")] == [0, 0]


def numbered_parquet(root: Path, labels: list[int]) -> Any:
    columns = {"image": IMAGES[: len(labels)], "label": pa.array(labels)}
    save(root / "a.parquet", columns, names_of("ant", "bee", "cat"))
    return root


def numbered_list(root: Path, labels: list[int]) -> Any:
    return write_list(root, list(map(str, labels)))


def numbered_tars(root: Path, labels: list[int]) -> Any:
    for number, label in enumerate(labels):
        write_tar(root / f"{number}.tar", label)
    return root


def numbered_hdf5(root: Path, labels: list[int]) -> Any:
    h5py = pytest.importorskip("h5py")
    with h5py.File(root / "a.h5", "w") as file:
        file["image"] = np.zeros((len(labels), 8, 9, 3), np.uint8)
        file["label"] = np.array(labels)
    return root


def numbered_rows(root: Path, labels: list[int]) -> Any:
    return [{"image": np.zeros((8, 9, 3), np.uint8), "label": label} for label in labels]


@pytest.mark.parametrize(
    "write", [numbered_parquet, numbered_list, numbered_tars, numbered_hdf5, numbered_rows]
)
def test_labels_beyond_the_class_names_are_rejects(
    tmp_path: Path, write: Callable[[Path, list[int]], Any]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    options = {"classes": str(tmp_path / "names.txt")}
    fields: dict[str, Any] = {}
    if write is numbered_parquet:
        options = {}
    elif write is numbered_rows:
        options, fields = {}, {"label": ScalarField(classes=("ant", "bee", "cat"))}
    location = write(tmp_path / "data", [0, 2, 3])
    report = pack(location, tmp_path / "a.lmdb", fields, **options)
    assert [sample["label"] for sample in samples(tmp_path / "a.lmdb")] == [0, 2]
    (reject,) = report.rejects
    assert "'label' is 3, and there are 3 classes: 0 to 2" in reject.reason


def test_what_is_not_packed_refuses_labels_beyond_the_class_names(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    location = write_list(tmp_path, ["0", "2"])
    data = fastdata.open(location, source_options={"classes": str(tmp_path / "names.txt")})
    assert data[0].label == 0
    with pytest.raises(FastdataError, match="'label' is 2, and there are 2 classes: 0 to 1"):
        data[1]


def test_a_label_that_is_nan_is_a_reject(tmp_path: Path) -> None:
    columns = {"image": IMAGES, "label": pa.array([0.5, float("nan"), 2.5, 1.0])}
    save(tmp_path / "a.parquet", columns, None)
    report = pack(tmp_path / "a.parquet", tmp_path / "a.lmdb")
    assert [sample["label"] for sample in samples(tmp_path / "a.lmdb")] == [0.5, 2.5, 1.0]
    assert [reject.reason for reject in report.rejects] == ["'label' is NaN: the label is missing"]
    whole = {**columns, "label": pa.array([0.0, float("nan"), 2.0, 1.0])}
    save(tmp_path / "b.parquet", whole, None)
    report = pack(tmp_path / "b.parquet", tmp_path / "b.lmdb")
    assert fastdata.open(tmp_path / "b.lmdb").schema["label"] == ScalarField()
    assert [reject.reason for reject in report.rejects] == ["'label' is NaN: the label is missing"]


def test_two_classes_of_one_name_in_a_file_of_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text(f"{COMPOSED}\nbee\n{DECOMPOSED}\n")
    with pytest.raises(SourceError, match="classes 0 and 2 are both called"):
        find_source(
            write_list(tmp_path, ["0", "1"]), options={"classes": str(tmp_path / "names.txt")}
        )
