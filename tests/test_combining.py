"""Merging, cutting and appending: the same bytes, everything once, whatever kills it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pack_helpers import digest_of, image_folder, run_child
from PIL import Image
from samples import EVERY_KIND, SUFFIXES, make_records, write_shard

import fastdata
from fastdata import replacing
from fastdata.cli import main
from fastdata.converters.combining import append as append_module
from fastdata.converters.combining import copying
from fastdata.converters.packing import packer
from fastdata.errors import (
    DiskFullError,
    FormatError,
    OptionError,
    RejectedError,
    SourceError,
)
from fastdata.schema import ArrayField


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), 20, classes=("ant", "bee", "cat"))


@pytest.fixture(scope="module")
def whole(images: Path) -> Path:
    """A dataset of 20 images, 7 ants, 7 bees and 6 cats; not to be changed."""
    path = images.parent / "whole.lmdb"
    fastdata.pack(images, path, size=32, codec="jpeg", num_workers=0, progress=False)
    return path


def blobs(path: Path) -> list[bytes]:
    """Return the stored bytes of all images."""
    return [
        bytes(shard.blob("image", k))
        for shard in fastdata.open(path).shards
        for k in range(len(shard))
    ]


# -- merge ------------------------------------------------------------------------------


def test_the_parts_of_a_dataset_merge_into_the_same_dataset(whole: Path, tmp_path: Path) -> None:
    fastdata.subset(whole, tmp_path / "a.lmdb", indices=range(8), progress=False)
    fastdata.subset(whole, tmp_path / "b.h5", indices=range(8, 20), shards=2, progress=False)
    report = fastdata.merge([tmp_path / "a.lmdb", tmp_path / "b.h5"], tmp_path / "c.h5")
    assert report.num_samples == 20
    assert report.digest == digest_of(tmp_path / "c.h5") == fastdata.open(whole).digest
    assert list(fastdata.open(tmp_path / "c.h5").keys) == list(fastdata.open(whole).keys)


@pytest.mark.parametrize("kind", ["lmdb", "hdf5"])
def test_every_kind_of_field_and_codec_is_copied_as_it_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"every{SUFFIXES[kind]}"
    write_shard(path, make_records(EVERY_KIND, 9), EVERY_KIND)
    other = "hdf5" if kind == "lmdb" else "lmdb"
    report = fastdata.merge([path], tmp_path / f"copy{SUFFIXES[other]}")
    assert report.digest == digest_of(report.path) == fastdata.open(path).digest


def test_a_copy_says_how_its_images_were_packed(whole: Path, tmp_path: Path) -> None:
    fastdata.merge([whole], tmp_path / "a.lmdb", shards=2)
    before, after = (
        next(iter(fastdata.open(path).shards)).header.options
        for path in (whole, tmp_path / "a.lmdb")
    )
    assert before == after
    assert after["codec"] == "jpeg"


def test_datasets_of_other_fields_or_classes_do_not_merge(
    whole: Path, images: Path, tmp_path: Path
) -> None:
    fewer = tmp_path / "fewer"
    shutil.copytree(images, fewer)
    shutil.rmtree(fewer / "bee")
    fastdata.pack(fewer, tmp_path / "fewer.lmdb", size=32, num_workers=0, progress=False)
    with pytest.raises(FormatError, match="must have the same fields and classes"):
        fastdata.merge([whole, tmp_path / "fewer.lmdb"], tmp_path / "x.lmdb")
    with pytest.raises(OptionError, match="at least one dataset"):
        fastdata.merge([], tmp_path / "x.lmdb")
    assert not (tmp_path / "x.lmdb").exists()


def test_a_merge_that_is_killed_goes_on(whole: Path, tmp_path: Path) -> None:
    def die() -> None:
        packer.CHUNK_SAMPLES = 4
        take = packer.Packer._take

        def take_or_die(self: Any, result: Any) -> None:
            take(self, result)
            if self.state.position >= 8:
                os._exit(9)

        packer.Packer._take = take_or_die  # type: ignore[method-assign]
        fastdata.merge([whole], tmp_path / "a.lmdb")

    assert run_child(die) == 9
    report = fastdata.merge([whole], tmp_path / "a.lmdb")
    assert report.resumed_at == 8
    assert digest_of(tmp_path / "a.lmdb") == fastdata.open(whole).digest


def test_a_damaged_sample_ends_a_merge_or_is_left_out(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.lmdb"
    data = bytearray(whole.read_bytes())
    place = data.index(blobs(whole)[5]) + 40
    data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(RejectedError, match="checksum"):
        fastdata.merge([path], tmp_path / "a.lmdb")
    report = fastdata.merge([path], tmp_path / "b.lmdb", on_error="report")
    assert (report.num_samples, report.num_rejected) == (19, 1)
    assert blobs(tmp_path / "b.lmdb") == [b for k, b in enumerate(blobs(whole)) if k != 5]


def test_packing_a_packed_dataset_resizes_it(whole: Path, tmp_path: Path) -> None:
    report = fastdata.pack(whole, tmp_path / "small.h5", size=16, codec="raw", num_workers=2)
    small = fastdata.open(tmp_path / "small.h5")
    assert (len(small), report.num_rejected) == (20, 0)
    assert min(small[0].image.shape[1:]) == 16
    assert small.classes == ["ant", "bee", "cat"]
    assert list(small.keys) == list(fastdata.open(whole).keys)


# -- subset -----------------------------------------------------------------------------


def test_classes_by_name_and_number(whole: Path, tmp_path: Path) -> None:
    labels = np.asarray(fastdata.open(whole)._gather("label", range(20)))
    report = fastdata.subset(whole, tmp_path / "a.lmdb", classes=["cat", 0])
    expected = np.flatnonzero(labels != 1)
    assert report.num_samples == len(expected) == 13
    assert blobs(tmp_path / "a.lmdb") == [blobs(whole)[k] for k in expected]
    assert fastdata.subset(whole, tmp_path / "b.lmdb", classes="cat").num_samples == 6
    # Classes keep their numbers.
    assert fastdata.open(tmp_path / "a.lmdb").classes == ["ant", "bee", "cat"]


def test_fields_indices_and_what_is_left(tmp_path: Path) -> None:
    rows = [
        {"image": np.full((20, 20, 3), k, np.uint8), "split": "val" if k % 3 else "train", "age": k}
        for k in range(12)
    ]
    fastdata.pack(rows, tmp_path / "a.lmdb", num_workers=0, progress=False)

    def ages(path: Path) -> list[int]:
        return [sample.age for sample in fastdata.open(path)]

    fastdata.subset(tmp_path / "a.lmdb", tmp_path / "b.lmdb", where={"split": "train"})
    assert ages(tmp_path / "b.lmdb") == [0, 3, 6, 9]
    fastdata.subset(
        tmp_path / "a.lmdb", tmp_path / "c.lmdb", where={"split": "train", "age": [0, 1, 9]}
    )
    assert ages(tmp_path / "c.lmdb") == [0, 9]
    fastdata.subset(tmp_path / "a.lmdb", tmp_path / "d.lmdb", indices=[5, -1, 2])
    assert ages(tmp_path / "d.lmdb") == [5, 11, 2]
    fastdata.subset(tmp_path / "a.lmdb", tmp_path / "e.lmdb", indices=[5, -1, 2], invert=True)
    assert ages(tmp_path / "e.lmdb") == [0, 1, 3, 4, 6, 7, 8, 9, 10]


def test_samples_with_a_box_of_a_class_are_chosen(tmp_path: Path) -> None:
    labels = ([0, 0, 1], [], [1], [2, 0])
    rows = [
        {"image": np.zeros((20, 20, 3), np.uint8), "labels": np.array(row, np.int64), "place": k}
        for k, row in enumerate(labels)
    ]
    names = ArrayField("int64", (None,), classes=("ant", "bee", "cat"))
    fastdata.pack(
        rows, tmp_path / "a.lmdb", fields={"labels": names}, num_workers=0, progress=False
    )

    def chosen(**options: Any) -> list[int]:
        fastdata.subset(tmp_path / "a.lmdb", tmp_path / "b.lmdb", overwrite=True, **options)
        return [sample.place for sample in fastdata.open(tmp_path / "b.lmdb")]

    assert chosen(classes="ant") == [0, 3]
    assert chosen(classes=["bee", 2]) == [0, 2, 3]
    assert chosen(where={"labels": "ant", "place": [2, 3]}) == [3]
    assert chosen(classes=["ant", "bee", "cat"], invert=True) == [1]
    with pytest.raises(OptionError, match="classes are ant, bee, cat"):
        chosen(classes="dog")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "choose samples: give split=, classes=, where="),
        ({"classes": ["dog"]}, "'label' has no value 'dog'; its classes are ant, bee, cat"),
        ({"classes": [3]}, "has no class 3: its classes are 0 to 2"),
        ({"where": {"split": "x"}}, "has no field 'split'; it has image, label"),
        ({"where": {"image": 1}}, "neither numbers nor text"),
        ({"where": {"label": 1}, "classes": [1]}, "select by the same field 'label'"),
        ({"indices": [20]}, "indices: index 20 is out of bounds"),
        ({"indices": [0.5]}, "indices: arrays used as indices must be of integer"),
        ({"indices": range(20), "invert": True}, "none of the 20 samples meets the conditions"),
    ],
)
def test_what_cannot_be_chosen_is_said(
    whole: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.subset(whole, tmp_path / "x.lmdb", **options)
    assert os.listdir(tmp_path) == []


# -- append -----------------------------------------------------------------------------


def part(images: Path, target: Path, names: Callable[[str], bool]) -> Path:
    """Copy some of the images."""
    for file in sorted(images.rglob("*.jpg")):
        if names(file.name):
            (target / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target / file.parent.name)
    return target


def pack_part(images: Path, path: Path, **options: Any) -> Path:
    """Pack the first 12 images as `whole` was packed."""
    first = part(images, path.with_name("first"), lambda name: name < "00012")
    fastdata.pack(first, path, size=32, codec="jpeg", num_workers=0, progress=False, **options)
    return path


@pytest.mark.parametrize(("name", "options"), [("a.lmdb", {}), ("a.h5", {}), ("a", {"shards": 3})])
def test_images_are_added_as_the_others_were_packed(
    whole: Path, images: Path, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    path = pack_part(images, tmp_path / name, **options)
    before = blobs(path)
    more = part(images, tmp_path / "more", lambda name: name >= "00012")
    report = fastdata.append(path, more, num_workers=0)
    assert (report.num_samples, report.path) == (8, path)
    assert report.digest == digest_of(path)
    assert blobs(path)[:12] == before
    assert sorted(blobs(path)) == sorted(blobs(whole))
    assert sorted(os.listdir(tmp_path)) == sorted(["first", "more", name])
    if options:  # shards like those that are there
        assert [len(shard) for shard in fastdata.open(path).shards] == [4, 4, 4, 4, 4]


def test_fewer_classes_are_matched_by_name_and_new_ones_refused(
    images: Path, tmp_path: Path
) -> None:
    path = pack_part(images, tmp_path / "a.lmdb")
    cats = part(images / "cat", tmp_path / "cats", lambda name: True)
    assert fastdata.append(path, cats, num_workers=0).num_samples == 6
    assert [sample.label for sample in fastdata.open(path)][12:] == [2] * 6
    before = fastdata.open(path).digest
    (tmp_path / "cats" / "cat").rename(tmp_path / "cats" / "dog")
    with pytest.raises(SourceError, match="the dataset has no class 'dog'"):
        fastdata.append(path, cats, num_workers=0)
    with pytest.raises(SourceError, match="Bring the source into the form of the data"):
        fastdata.append(path, [np.zeros((9, 9, 3), np.uint8)], num_workers=0)
    assert fastdata.open(path).digest == before
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "cats", "first"]


def test_an_export_of_fewer_classes_is_added_with_its_keys(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("google_crc32c")
    path = pack_part(images, tmp_path / "a.lmdb")
    cats = part(images / "cat", tmp_path / "cats", lambda name: True)
    options = {"size": 32, "num_workers": 0, "progress": False}
    fastdata.pack(cats, tmp_path / "cats.lmdb", format="folder", **options)  # type: ignore[arg-type]
    fastdata.export(tmp_path / "cats.lmdb", tmp_path / "out", format="tfrecord", progress=False)
    fastdata.append(path, tmp_path / "out", num_workers=0)
    added = fastdata.open(path)[12:]
    assert list(added.keys) == list(fastdata.open(tmp_path / "cats.lmdb").keys)
    assert [sample.label for sample in added] == [2] * 6


def test_the_classes_of_boxes_are_matched_by_name(tmp_path: Path) -> None:
    def rows(*labels: list[int]) -> list[dict[str, Any]]:
        pixels = np.zeros((20, 20, 3), np.uint8)
        return [{"image": pixels, "labels": np.array(row, np.uint8)} for row in labels]

    def pack(name: str, classes: str, *labels: list[int]) -> Path:
        names = ArrayField("uint8", (None,), classes=tuple(classes))
        path = tmp_path / name
        fastdata.pack(rows(*labels), path, fields={"labels": names}, num_workers=0, progress=False)
        return path

    path = pack("a.lmdb", "abc", [0, 2], [])
    fastdata.append(path, pack("b.lmdb", "cb", [0, 1, 0], []))
    labels = [sample.labels for sample in fastdata.open(path)]
    assert [row.tolist() for row in labels] == [[0, 2], [], [2, 1, 2], []]
    with pytest.raises(SourceError, match="the dataset has no class 'd'"):
        fastdata.append(path, pack("d.lmdb", "d", [0]))


def labelled(root: Path, name: str, *labels: str) -> Path:
    """Write a list with a label for each of some images."""
    root.mkdir(exist_ok=True)
    lines = ["path,label"]
    for number, label in enumerate(labels):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(root / f"{name}{number}.png")
        lines.append(f"{name}{number}.png,{label}")
    (root / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return root / f"{name}.csv"


def test_numbers_are_names_if_the_classes_are_called_by_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    fastdata.pack(labelled(tmp_path / "in", "old", "3", "other", "1", "2"), path, progress=False)
    assert fastdata.open(path).classes == ["1", "2", "3", "other"]
    report = fastdata.append(path, labelled(tmp_path / "in", "new", "1", "2", "3", "4"))
    data = fastdata.open(path)
    assert [data.classes[s.label] for s in data] == ["3", "other", "1", "2", "1", "2", "3"]
    assert [reject.reason for reject in report.rejects] == [
        "'label' is 4, and the dataset has no such class"
    ]


def test_numbers_are_numbers_if_the_classes_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    fastdata.pack(labelled(tmp_path / "in", "a", "x", "y"), path, progress=False)
    fastdata.append(path, labelled(tmp_path / "in", "b", "1", "0"))
    assert [sample.label for sample in fastdata.open(path)] == [0, 1, 1, 0]


def test_classes_are_compared_whatever_the_form_of_their_accents(tmp_path: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    path = tmp_path / "a.lmdb"
    fastdata.pack(labelled(tmp_path / "in", "a", "ape", composed), path, progress=False)
    fastdata.append(path, labelled(tmp_path / "in", "b", decomposed))
    data = fastdata.open(path)
    assert [data.classes[sample.label] for sample in data] == ["ape", composed, composed]
    done = CliRunner().invoke(
        main, ["subset", str(path), str(tmp_path / "b.lmdb"), "--class", decomposed]
    )
    assert done.exit_code == 0, done.output
    assert len(fastdata.open(tmp_path / "b.lmdb")) == 2


def test_labels_of_rows_are_matched_by_name(tmp_path: Path) -> None:
    def rows(*labels: Any) -> list[dict[str, Any]]:
        pixels = np.zeros((20, 20, 3), np.uint8)
        return [{"image": pixels, "label": label} for label in labels]

    path = tmp_path / "a.lmdb"
    fastdata.pack(rows(*"abc"), path, num_workers=0, progress=False)
    fastdata.append(path, rows(*"cbc"), num_workers=0)
    options = {"classes": ["c", "a"]}
    report = fastdata.append(path, rows(0, "a", 7, -1), num_workers=0, source_options=options)
    assert [sample.label for sample in fastdata.open(path)] == [0, 1, 2, 2, 1, 2, 2, 0, -1]
    assert [reject.reason for reject in report.rejects] == [
        "'label' is 7, and there are 2 classes: 0 to 1"
    ]


def test_a_dataset_is_appended_byte_for_byte(whole: Path, images: Path, tmp_path: Path) -> None:
    path = pack_part(images, tmp_path / "a.lmdb")
    before = blobs(path)
    fastdata.append(path, whole)
    assert blobs(path) == before + blobs(whole)
    fastdata.append(path, whole)
    assert len(fastdata.open(path)) == 52


def test_what_is_rejected_is_listed_beside_the_dataset(images: Path, tmp_path: Path) -> None:
    path = pack_part(images, tmp_path / "a.lmdb")
    more = part(images, tmp_path / "more", lambda name: name >= "00018")
    (more / "ant").mkdir(exist_ok=True)
    (more / "ant" / "bad.jpg").write_bytes(b"no image")
    report = fastdata.append(path, more, num_workers=0)
    assert (report.num_samples, report.num_rejected) == (2, 1)
    assert report.rejects_path == tmp_path / "a.lmdb.append.rejects.csv"
    assert report.rejects[0].key == "ant/bad.jpg"


_STEPS = [
    (packer.Packer, "_seal"),
    (append_module, "replace_state"),
    (append_module, "_add_shards"),
    (append_module, "sync_directory"),
    (append_module.Manifest, "write"),
    (append_module, "merge"),
    (replacing.Destination, "put"),
    (append_module, "remove_own"),
    (append_module.DirectoryLock, "release"),
    (packer.Packer, "_publish"),
]


@pytest.mark.parametrize(
    "folder",
    [pytest.param(False, id="file"), pytest.param(True, id="folder", marks=pytest.mark.soak)],
)
def test_killed_at_any_step_everything_is_added_once(
    images: Path, tmp_path: Path, folder: bool
) -> None:
    more = part(images, tmp_path / "more", lambda name: name >= "00012")
    (more / "ant" / "bad.jpg").write_bytes(b"no image")
    path = pack_part(images, tmp_path / ("a" if folder else "a.lmdb"), shards=2 if folder else 1)
    rejects = tmp_path / f"{path.name}.append.rejects.csv"
    saved = tmp_path / "saved"
    copy = shutil.copytree if folder else shutil.copy2
    copy(path, saved)
    fastdata.append(path, more, num_workers=0)
    expected = digest_of(path)

    def die(owner: Any, name: str, after: bool) -> None:
        function = getattr(owner, name)

        def last(*args: Any, **kwargs: Any) -> Any:
            if after:
                function(*args, **kwargs)
            os._exit(9)

        setattr(owner, name, last)
        fastdata.append(path, more, num_workers=0)

    died = 0
    for owner, name in _STEPS:
        for after in (False, True):
            shutil.rmtree(path) if folder else path.unlink()
            copy(saved, path)
            killed = run_child(die, owner, name, after) == 9
            assert len(fastdata.open(path)) in (12, 20)
            if killed:  # else it had done all there is to do
                fastdata.append(path, more, num_workers=0)
            died += killed
            assert digest_of(path) == expected, f"killed {'after' if after else 'before'} {name}"
            left = {"first", "more", "saved", path.name, rejects.name}
            assert set(os.listdir(tmp_path)) == left
            assert "bad.jpg" in rejects.read_text()
            rejects.unlink()
    assert died >= 16


def test_killed_while_it_removes_what_it_replaced_nothing_is_left_in_the_end(
    images: Path, tmp_path: Path
) -> None:
    more = part(images, tmp_path / "more", lambda name: name >= "00012")
    path = pack_part(images, tmp_path / "a.lmdb")

    def die() -> None:
        remove = replacing.remove_own

        def last(old: Path) -> None:
            if old.name == "merged.lmdb":
                os._exit(9)
            remove(old)

        replacing.remove_own = last  # type: ignore[assignment]
        fastdata.append(path, more, num_workers=0)

    assert run_child(die) == 9
    assert len(fastdata.open(path)) == 20
    assert len(fastdata.open(tmp_path / "a.lmdb.append" / "merged.lmdb")) == 12
    fastdata.append(path, more, num_workers=0)
    assert len(fastdata.open(path)) == 20
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "first", "more"]


def test_an_append_to_what_has_changed_since_begins_again(
    whole: Path, images: Path, tmp_path: Path
) -> None:
    path = pack_part(images, tmp_path / "a.lmdb")

    def die() -> None:
        append_module.merge = lambda *args, **kwargs: os._exit(9)  # type: ignore[assignment]
        fastdata.append(path, whole)

    assert run_child(die) == 9
    shutil.copy2(whole, path)
    fastdata.append(path, whole)
    assert blobs(path) == blobs(whole) * 2


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("step", ["merge", "_add_shards", "sync_directory", "remove_own"])
def test_another_source_is_not_taken_for_the_one_that_was_interrupted(
    step: str, shards: int, whole: Path, images: Path, tmp_path: Path
) -> None:
    path = pack_part(images, tmp_path / ("a" if shards > 1 else "a.lmdb"), shards=shards)
    more = part(images, tmp_path / "more", lambda name: name >= "00018")

    def die() -> None:
        setattr(append_module, step, lambda *args, **kwargs: os._exit(9))
        fastdata.append(path, whole)

    if run_child(die) != 9:
        return  # the other way of adding has another step
    there = len(fastdata.open(path))
    assert fastdata.append(path, more, num_workers=0).num_samples == 2
    assert len(fastdata.open(path)) == there + 2
    left = {"first", "more", path.name}
    assert set(os.listdir(tmp_path)) == left


def test_a_dataset_appended_to_itself_is_added_once_whatever_kills_it(
    images: Path, tmp_path: Path
) -> None:
    path = pack_part(images, tmp_path / "a.lmdb")
    before = len(fastdata.open(path))

    def die() -> None:
        append_module.remove_own = lambda *args: os._exit(9)  # type: ignore[assignment]
        fastdata.append(path, path)

    assert run_child(die) == 9
    fastdata.append(path, path)
    assert len(fastdata.open(path)) == 2 * before


def test_only_a_whole_dataset_is_appended_to(whole: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    fastdata.merge([whole], shards, shards=2, container="lmdb", progress=False)
    with pytest.raises(OptionError, match="is a pattern"):
        fastdata.append(shards / "*.lmdb", whole)
    with pytest.raises(
        OptionError, match=r"is one shard of a dataset\. Append to the dataset: .*shards$"
    ):
        fastdata.append(shards / "shard-00000.lmdb", whole)
    assert len(fastdata.open(shards)) == 20


def test_a_full_disk_is_explained_once(
    whole: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack_part(images, tmp_path / "a.lmdb")

    def full(*_: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packer.Packer, "run", full)
    with pytest.raises(DiskFullError) as caught:
        fastdata.append(path, whole)
    assert str(caught.value).count("Make room") == 1


def test_an_append_follows_a_link(whole: Path, images: Path, tmp_path: Path) -> None:
    path = pack_part(images, tmp_path / "a.lmdb")
    before = len(fastdata.open(path))
    link = tmp_path / "link.lmdb"
    link.symlink_to(path)
    fastdata.append(link, whole)
    assert link.is_symlink()
    assert len(fastdata.open(path)) == before + 20


def test_values_are_compared_in_the_type_of_their_field(tmp_path: Path) -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    samples = [
        {"image": image, "label": k % 3, "score": np.float32(k / 10), "flag": k % 2 == 0}
        for k in range(10)
    ]
    fastdata.pack(samples, tmp_path / "a.lmdb", num_workers=0, progress=False)

    def places(where: dict[str, Any]) -> list[int]:
        part = tmp_path / "part.lmdb"
        fastdata.subset(tmp_path / "a.lmdb", part, where=where, overwrite=True, progress=False)
        return list(map(int, fastdata.open(part).keys))

    assert places({"score": ["0.3", 0.7]}) == [3, 7]
    assert places({"flag": "True"}) == [0, 2, 4, 6, 8]
    with pytest.raises(OptionError, match=r"'label' has no value 1\.7"):
        places({"label": 1.7})


# -- the commands -----------------------------------------------------------------------


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_commands_do_what_the_functions_do(whole: Path, tmp_path: Path) -> None:
    a, b, c = (tmp_path / f"{name}.lmdb" for name in "abc")
    assert run("subset", whole, a, "--class", "ant", "--class", "1", "-q").exit_code == 0
    done = run("subset", whole, b, "--class", "ant", "--class", "1", "--invert", "--json")
    assert json.loads(done.stdout)["num_samples"] == 6
    assert run("merge", a, b, c, "--json", "--shuffle").exit_code == 0
    assert sorted(blobs(c)) == sorted(blobs(whole))
    done = run("append", c, a)
    assert "14 samples added, 34 now" in done.output
    assert run("merge", a, b, c).exit_code == 4
    listed = tmp_path / "places.txt"
    listed.write_text("3\n1\n")
    for text, places in (("0:4,-1", [0, 1, 2, 3, 19]), (str(listed), [3, 1]), ("5,", [5])):
        assert run("subset", whole, c, "--indices", text, "--overwrite").exit_code == 0
        assert blobs(c) == [blobs(whole)[k] for k in places]
    assert run("subset", whole, c, "--indices", "nowhere.txt").exit_code == 2
    assert run("subset", whole, c).exit_code == 2


def test_classes_are_numbered_once_for_all_values(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    numbered = copying.numbered
    monkeypatch.setattr(copying, "numbered", lambda names: made.append(1) or numbered(names))
    fastdata.subset(whole, tmp_path / "a.lmdb", classes=["ant", "bee"] * 50, progress=False)
    assert len(made) == 1
