"""`subset(divide=)`: shares, strata and groups, and one dataset for each part."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pack_helpers import run_child

import fastdata
from fastdata.cli import main
from fastdata.converters.combining import dividing
from fastdata.converters.combining.assignment import assign_groups, assign_samples
from fastdata.errors import DestinationExistsError, OptionError
from fastdata.schema import ScalarField

SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}
NAMES = ("ant", "bee", "cat")


def pack(path: Path, labels: Any, **others: Any) -> Path:
    """Pack a picture for each label; `others` are values of further fields."""
    rows = [
        {
            "image": np.full((8, 8, 3), k % 256, np.uint8) + np.uint8(k // 256),
            "label": int(label),
            **{name: values[k] for name, values in others.items()},
        }
        for k, label in enumerate(labels)
    ]
    fields = {"label": ScalarField(classes=NAMES)}
    if "split" in others:
        fields["split"] = ScalarField(classes=("train", "test"))
    fastdata.pack(rows, path, fields=fields, codec="raw", num_workers=0, progress=False)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples: 70 ants, 20 bees and 10 cats; 25 patients of 1 to 9 samples."""
    labels = np.random.default_rng(0).permutation([0] * 70 + [1] * 20 + [2] * 10)
    patients = [f"p{k}" for k in np.repeat(np.arange(25), [1, 2, 4, 4, 9] * 5)]
    ages = np.arange(100) / 100
    return pack(
        tmp_path_factory.mktemp("whole") / "whole.lmdb",
        labels,
        patient=patients,
        age=list(map(float, ages)),
        sex=["", *["f", "m"] * 49, "f"],
    )


def divided(whole: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """Divide a dataset; return the parts, opened, and check that they make up the whole."""
    options = {"divide": SHARES, **options}
    report = fastdata.subset(whole, folder, progress=False, **options)
    parts = {name: fastdata.open(folder / f"{name}.lmdb") for name in options["divide"]}
    assert sorted(os.listdir(folder)) == sorted(f"{name}.lmdb" for name in parts)
    assert sorted(key for part in parts.values() for key in part.keys) == sorted(
        fastdata.open(whole).keys
    )
    assert [one.path for one in report.parts.values()] == [folder / f"{n}.lmdb" for n in parts]
    assert [one.digest for one in report.parts.values()] == [p.digest for p in parts.values()]
    return parts


def test_each_part_is_a_dataset_with_its_share(whole: Path, tmp_path: Path) -> None:
    parts = divided(whole, tmp_path / "a")
    assert [len(part) for part in parts.values()] == [80, 10, 10]
    assert all(part.classes == list(NAMES) for part in parts.values())
    # The order stays, the seed decides which samples, and the same seed draws the same.
    assert [int(key) for key in parts["val"].keys] == sorted(int(k) for k in parts["val"].keys)
    same = divided(whole, tmp_path / "b", divide={"train": 80, "val": 10, "test": 10})
    other = divided(whole, tmp_path / "c", seed=1)
    assert list(same["val"].keys) == list(parts["val"].keys) != list(other["val"].keys)


def test_of_a_single_part_the_rest_is_not_written(whole: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"stratify": "label", "progress": False}
    report = fastdata.subset(whole, tmp_path / "a", divide={"small": 0.3}, **options)
    assert os.listdir(tmp_path / "a") == ["small.lmdb"]
    small = fastdata.open(tmp_path / "a/small.lmdb")
    assert Counter(small.targets) == {0: 21, 1: 6, 2: 3}
    assert report.notes == ("70 other samples are in no part",)
    assert report.num_samples == 30
    # The order stays, and the part is that of a division with the rest.
    assert list(small.keys) == sorted(small.keys, key=int)
    both = {"small": 0.3, "rest": 0.7}
    fastdata.subset(whole, tmp_path / "b", divide=both, **options)
    assert fastdata.open(tmp_path / "b/small.lmdb").digest == small.digest
    fastdata.subset(whole, tmp_path / "c", divide={"few": 7, "rest": 93}, progress=False)
    report = fastdata.subset(whole, tmp_path / "d", divide={"few": 7}, progress=False)
    assert report.parts["few"].digest == fastdata.open(tmp_path / "c/few.lmdb").digest
    grouped = fastdata.subset(
        whole, tmp_path / "e", divide={"few": 0.2}, group="patient", progress=False
    )
    assert 15 <= grouped.num_samples <= 25


def test_a_seed_draws_the_same_samples_on_every_machine() -> None:
    strata = np.arange(12) % 3
    sizes = np.array([8.0, 4.0])
    assert assign_samples(sizes, strata, 7).tolist() == [0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1]
    groups = np.arange(12) // 2
    assert assign_groups(sizes, strata, groups, 7).tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_stratified_parts_have_their_share_of_each_class(whole: Path, tmp_path: Path) -> None:
    parts = divided(whole, tmp_path / "a", stratify="label")
    counts = {name: Counter(part.targets) for name, part in parts.items()}
    assert counts["train"] == {0: 56, 1: 16, 2: 8}
    assert counts["val"] == counts["test"] == {0: 7, 1: 2, 2: 1}


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_rounded_by_class_and_in_all(seed: int) -> None:
    """Each class by less than one sample, and the parts too, although most classes are small."""
    rng = np.random.default_rng(seed)
    strata = np.repeat(np.arange(60), rng.integers(1, 12, 60))
    sizes = np.array([0.7, 0.2, 0.1]) * len(strata)
    parts = assign_samples(sizes, strata, seed)
    table = np.zeros((60, 3))
    np.add.at(table, (strata, parts), 1)
    quotas = np.bincount(strata)[:, None] * [0.7, 0.2, 0.1]
    assert np.abs(table - quotas).max() < 1
    assert np.abs(table.sum(axis=0) - sizes).max() < 1


@pytest.mark.parametrize(
    ("strata", "shares"),
    [
        ([53, 54, 20, 29], [0.15508137, 0.01400874, 0.52469079, 0.13728183, 0.16893727]),
        ([6, 18, 21, 46, 32, 21, 27, 28, 6, 26, 5, 44, 46, 24], [0.3108162, 0.360124, 0.1589962]),
    ],
)
def test_sizes_are_kept_without_rounding_a_class_by_more(strata: Any, shares: Any) -> None:
    shares = np.array(shares if sum(shares) > 0.999 else [*shares, 1 - sum(shares)])
    sizes = shares / shares.sum() * sum(strata)
    rows = np.repeat(np.arange(len(strata)), strata)
    table = np.zeros((len(strata), len(sizes)))
    np.add.at(table, (rows, assign_samples(sizes, rows, 0)), 1)
    assert np.abs(table - np.outer(strata, sizes / sizes.sum())).max() < 1
    assert np.abs(table.sum(axis=0) - sizes).max() < 1
    up = np.argsort(sizes % 1)[::-1][: round(float((sizes % 1).sum()))]
    assert set(np.flatnonzero(table.sum(axis=0) > sizes)) == set(up)


def test_a_note_names_classes_that_are_too_few_for_all_parts(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.lmdb", [0] * 60 + [1] * 38 + [2] * 2)
    report = fastdata.subset(path, tmp_path / "b", divide=SHARES, stratify="label", progress=False)
    (note,) = report.notes
    assert note.startswith("1 of 3 classes have too few samples for all parts: 'cat' (2) is not in")
    assert report.parts["train"].classes is not None
    assert sum(part.classes["cat"] for part in report.parts.values()) == 2  # type: ignore[index]


def patients_of(parts: dict[str, Any]) -> dict[str, set[str]]:
    return {name: {sample.patient for sample in part} for name, part in parts.items()}


@pytest.mark.parametrize("stratify", [None, "label"])
@pytest.mark.parametrize("seed", range(3))
def test_a_group_is_in_one_part(
    whole: Path, tmp_path: Path, stratify: str | None, seed: int
) -> None:
    parts = divided(whole, tmp_path / "a", group="patient", stratify=stratify, seed=seed)
    train, val, test = patients_of(parts).values()
    assert len(train | val | test) == len(train) + len(val) + len(test) == 25
    assert [len(part) for part in parts.values()] == [
        pytest.approx(share * 100, abs=4) for share in SHARES.values()
    ]


def test_groups_are_stratified_where_they_can_be(tmp_path: Path) -> None:
    """Groups of one class each, in three classes: each part gets its share of each class."""
    labels = np.repeat([0, 1, 2], 40)
    path = pack(tmp_path / "a.lmdb", labels, site=list(map(int, np.arange(120) // 4)))
    parts = divided(path, tmp_path / "b", group="site", stratify="label")
    counts = {name: Counter(part.targets) for name, part in parts.items()}
    assert counts["train"] == {0: 32, 1: 32, 2: 32}
    assert counts["val"] == counts["test"] == {0: 4, 1: 4, 2: 4}


def test_a_note_tells_of_groups_larger_than_a_part(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.lmdb", [0] * 40, patient=["", *["x"] * 29, *map(str, range(10))])
    report = fastdata.subset(path, tmp_path / "b", divide=SHARES, group="patient", progress=False)
    assert report.notes == (
        "1 of 12 groups have more samples than the 4 that 'val' is to have; the largest, patient "
        "'x', has 29",
        "1 samples with an empty 'patient' count as one group",
    )
    assert [part.groups for part in report.parts.values()] == [
        len(patients)
        for patients in patients_of(
            {name: fastdata.open(part.path) for name, part in report.parts.items()}
        ).values()
    ]


def test_no_part_is_empty_where_there_are_groups_enough(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.lmdb", [0] * 30, patient=list(map(str, np.arange(30) // 10)))
    parts = divided(path, tmp_path / "b", group="patient")
    assert [len(part) for part in parts.values()] == [10, 10, 10]


def test_a_note_tells_of_the_same_image_in_two_parts(tmp_path: Path) -> None:
    rows = [np.full((8, 8, 3), k // 2, np.uint8) for k in range(20)]
    fastdata.pack(rows, tmp_path / "a.lmdb", codec="raw", num_workers=0, progress=False)
    report = fastdata.subset(
        tmp_path / "a.lmdb", tmp_path / "b", divide={"a": 0.5, "b": 0.5}, progress=False
    )
    both = [
        {s.image.numpy().tobytes() for s in fastdata.open(p.path)} for p in report.parts.values()
    ]
    twice = len(both[0] & both[1])
    assert twice > 0
    assert report.notes == (f"{twice} images are in more than one part, byte for byte",)


def test_only_the_chosen_samples_are_divided(whole: Path, tmp_path: Path) -> None:
    report = fastdata.subset(
        whole, tmp_path / "a", classes=["ant", "bee"], divide={"a": 0.5, "b": 0.5}, progress=False
    )
    assert [part.num_samples for part in report.parts.values()] == [45, 45]
    assert report.num_samples == 90
    assert report.parts["a"].classes.keys() == {"ant", "bee"}  # type: ignore[union-attr]


def test_parts_are_packed_as_asked(whole: Path, tmp_path: Path) -> None:
    divide = {"a": 0.5, "b": 0.5}
    fastdata.subset(whole, tmp_path, divide=divide, container="hdf5", progress=False)
    fastdata.subset(whole, tmp_path, divide=divide, shards=2, progress=False)
    assert sorted(os.listdir(tmp_path)) == ["a", "a.h5", "b", "b.h5"]
    assert list(fastdata.open(tmp_path / "a").keys) == list(fastdata.open(tmp_path / "a.h5").keys)
    assert len(list(fastdata.open(tmp_path / "a").shards)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"divide": {"a": 0.8, "b": 0.1}}, r"the shares of divide= add up to 0\.9, not to 1"),
        ({"divide": {"a": 0.8, "b": 0.199}}, r"the shares of divide= add up to 0\.999, not to 1"),
        ({"divide": {"a": 80, "b": 10}}, r"add up to 90 samples, and there are 100\. Give numbers"),
        ({"divide": {"a": 1.5}}, r"the shares of divide= add up to 1\.5, not to 1"),
        ({"divide": {"a": 101}}, "add up to 101 samples, and there are 100"),
        ({"divide": {"a": 1.5, "b": -0.5}}, r"'b' the size -0\.5, which is not a number above 0"),
        ({"divide": {"a": float("nan"), "b": 0.5}}, "'a' the size nan"),
        (
            {"divide": {"../a": 0.5, "b": 0.5}},
            r"'\.\./a', but it becomes the name of a file, which",
        ),
        (
            {"divide": {"divide.partial": 0.5, "b": 0.5}},
            r"'divide\.partial', but it becomes the name",
        ),
        ({"divide": {"lock": 0.5, "b": 0.5}}, "'lock', but it becomes the name"),
        ({"shards": 11}, "shards=11 are more than the 10 samples of 'val'"),
        ({"divide": {"a": 0.999, "b": 0.001}}, r"would leave 'b' empty: it is to have 0\.1 of 100"),
        ({"divide": {"a": 50, "b": 50}, "group": "patient"}, "divide= with group= takes shares"),
        ({"group": "patients"}, r"group='patients': the dataset has no such field; it has image"),
        ({"group": "patients"}, r"Did you mean 'patient'"),
        ({"stratify": "image"}, "stratify='image': this field holds neither numbers nor text"),
        ({"stratify": "age"}, "stratify='age': this field holds fractions, not classes"),
        ({"group": "label", "divide": {k: 0.25 for k in "abcd"}}, "3 groups are fewer than the 4"),
        ({"indices": [1, 1, 2]}, "give each sample once"),
        ({"divide": None, "indices": [1], "group": "patient"}, "give divide=, too"),
    ],
)
def test_what_cannot_be_divided_is_said(
    whole: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.subset(whole, tmp_path / "x", **{"divide": SHARES, **options})
    assert os.listdir(tmp_path) == []


def test_one_of_several_splits_is_chosen_first(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.lmdb", [0] * 30, split=[0] * 20 + [1] * 10)
    with pytest.raises(OptionError, match=r"several splits: train \(20 samples\), test"):
        fastdata.subset(path, tmp_path / "b", divide={"train": 0.5, "val": 0.5})
    report = fastdata.subset(
        path, tmp_path / "b", split="train", divide={"train": 0.5, "val": 0.5}, progress=False
    )
    assert report.num_samples == 20
    assert "split" not in fastdata.open(tmp_path / "b/train.lmdb").schema


def test_a_sample_without_a_group_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.lmdb", [0] * 3, patient=[1.0, float("nan"), 2.0])
    with pytest.raises(OptionError, match="group='patient': sample 1 is in no group"):
        fastdata.subset(path, tmp_path / "b", divide={"a": 0.5, "b": 0.5}, group="patient")


# -- the folder --------------------------------------------------------------------------


def test_existing_parts_are_replaced_only_if_asked(whole: Path, tmp_path: Path) -> None:
    fastdata.subset(whole, tmp_path / "val.lmdb", indices=[0], progress=False)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DestinationExistsError, match=r"val\.lmdb already exists"):
        fastdata.subset(whole, tmp_path, divide=SHARES, progress=False)
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "val.lmdb"]
    fastdata.subset(whole, tmp_path, divide=SHARES, overwrite=True, progress=False)
    assert len(fastdata.open(tmp_path / "val.lmdb")) == 10
    (tmp_path / "val.lmdb").write_text("not a dataset, but something of the user's")
    with pytest.raises(DestinationExistsError, match="is a file, not a dataset"):
        fastdata.subset(whole, tmp_path, divide=SHARES, overwrite=True, progress=False)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("step", ["replace_state", "_move", "sync_directory", "remove_own"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_division_that_is_killed_goes_on(
    whole: Path, tmp_path: Path, step: str, shards: int, overwrite: bool
) -> None:
    folder = tmp_path / "parts"
    options: dict[str, Any] = {"divide": SHARES, "shards": shards, "progress": False}
    if overwrite:
        fastdata.subset(whole, folder, seed=1, **options)
        options["overwrite"] = True

    def die(after: int) -> None:
        wrapped, left = getattr(dividing, step), [after]

        def call(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return wrapped(*arguments, **named)

        setattr(dividing, step, call)
        fastdata.subset(whole, folder, **options)

    for after in range(6):
        if run_child(lambda after=after: die(after)) == 0:  # type: ignore[misc]
            break
    else:
        fastdata.subset(whole, folder, **options)
    fresh = fastdata.subset(whole, tmp_path / "fresh", **{**options, "overwrite": False})
    suffix = ".lmdb" if shards == 1 else ""
    assert sorted(os.listdir(folder)) == sorted(f"{name}{suffix}" for name in SHARES)
    assert [fastdata.open(folder / f"{name}{suffix}").digest for name in SHARES] == [
        part.digest for part in fresh.parts.values()
    ]


def test_a_part_may_be_called_as_a_file_of_a_division(whole: Path, tmp_path: Path) -> None:
    """Staged datasets lie beside the files of the division itself."""
    options: dict[str, Any] = {"divide": {"replaced": 0.4, "state": 0.6}, "shards": 2}
    for seed in range(2):
        report = fastdata.subset(
            whole, tmp_path, seed=seed, overwrite=True, progress=False, **options
        )
        digests = [fastdata.open(tmp_path / name).digest for name in options["divide"]]
        assert digests == [part.digest for part in report.parts.values()]
    assert sorted(os.listdir(tmp_path)) == ["replaced", "state"]


@pytest.mark.parametrize("shards", [1, 2])
def test_no_part_replaces_the_dataset_that_is_divided(
    whole: Path, tmp_path: Path, shards: int
) -> None:
    """An interruption would leave the next run a part in place of the whole."""
    source = tmp_path / ("train.lmdb" if shards == 1 else "train")
    options: dict[str, Any] = {"shards": shards, "progress": False}
    before = fastdata.subset(whole, source, indices=range(100), **options).digest
    with pytest.raises(DestinationExistsError, match=r"train\S* (is|contains) the source"):
        fastdata.subset(source, tmp_path, divide=SHARES, overwrite=True, **options)
    assert os.listdir(tmp_path) == [source.name]
    assert fastdata.open(source).digest == before


def test_a_file_in_place_of_the_folder_is_said(whole: Path) -> None:
    with pytest.raises(DestinationExistsError, match="is a file, and divide= writes to a folder"):
        fastdata.subset(whole, whole, divide=SHARES, progress=False)


def test_classes_of_one_name_are_counted_together(tmp_path: Path) -> None:
    rows = [{"image": np.full((8, 8, 3), k, np.uint8), "label": k % 3} for k in range(9)]
    fields = {"label": ScalarField(classes=("ant", "bee", "ant"))}
    fastdata.pack(rows, tmp_path / "a.lmdb", fields=fields, num_workers=0, progress=False)
    report = fastdata.subset(
        tmp_path / "a.lmdb", tmp_path / "b", divide={"a": 6, "b": 3}, progress=False
    )
    counts = [part.classes or {} for part in report.parts.values()]
    assert sum(one["ant"] for one in counts) == 6
    assert [sum(one.values()) for one in counts] == [6, 3]


def test_a_folder_that_is_a_link_is_followed(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    fastdata.subset(whole, tmp_path / "link", divide={"a": 0.5, "b": 0.5}, progress=False)
    assert sorted(os.listdir(tmp_path / "disk")) == ["a.lmdb", "b.lmdb"]


def test_another_request_starts_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dividing, "_move", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fastdata.subset(whole, tmp_path, divide={"a": 0.5, "b": 0.5}, progress=False)
    assert os.listdir(tmp_path) == ["divide.partial"]
    report = fastdata.subset(whole, tmp_path, divide={"a": 0.4, "c": 0.6}, progress=False)
    assert [part.num_samples for part in report.parts.values()] == [40, 60]
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "c.lmdb"]


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"indices": range(50, 100)}, {"stratify": "label"}, {"group": "patient"}]
)
def test_the_same_parts_of_other_samples_start_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"divide": {"a": 0.5, "b": 0.5}, "progress": False}
    options["indices"] = range(50)
    with monkeypatch.context() as patch:
        patch.setattr(dividing, "_move", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fastdata.subset(whole, tmp_path / "x", **options)
    options |= other
    found = fastdata.subset(whole, tmp_path / "x", **options)
    assert found.digest == fastdata.subset(whole, tmp_path / "fresh", **options).digest


def test_a_folder_of_the_user_is_not_used_for_unfinished_parts(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "divide.partial").mkdir()
    (tmp_path / "divide.partial/mine.txt").write_text("mine")
    with pytest.raises(DestinationExistsError, match=r"it has mine\.txt, which fastdata did not"):
        fastdata.subset(whole, tmp_path, divide=SHARES, progress=False)
    assert os.listdir(tmp_path / "divide.partial") == ["mine.txt"]


def test_a_list_of_rejects_goes_with_the_part_that_is_replaced(whole: Path, tmp_path: Path) -> None:
    rejects = tmp_path / "val.lmdb.rejects.csv"
    rejects.write_text("mine")
    with pytest.raises(DestinationExistsError, match=r"rejects\.csv is not a list of rejects"):
        fastdata.subset(whole, tmp_path, divide=SHARES, progress=False)
    assert rejects.read_text() == "mine"
    rejects.write_text("index,key,reason\n0,of,an earlier run\n")
    fastdata.subset(whole, tmp_path, divide=SHARES, progress=False)
    assert sorted(os.listdir(tmp_path)) == ["test.lmdb", "train.lmdb", "val.lmdb"]


def test_damaged_samples_are_left_out_and_listed(whole: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.lmdb"
    data = bytearray(whole.read_bytes())
    blob = bytes(next(iter(fastdata.open(whole).shards)).blob("image", 5))
    data[data.index(blob) + 9] ^= 0xFF
    damaged.write_bytes(data)
    report = fastdata.subset(
        damaged, tmp_path / "b", divide=SHARES, on_error="report", progress=False
    )
    assert (report.num_samples, report.num_rejected) == (99, 1)
    (part,) = (part for part in report.parts.values() if part.num_rejected)
    assert part.rejects_path == Path(f"{part.path}.rejects.csv")
    assert "checksum" in part.rejects[0].reason
    assert str(part.rejects_path) in str(report)


# -- the command -------------------------------------------------------------------------


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_command_prints_samples_groups_and_classes(whole: Path, tmp_path: Path) -> None:
    shares = ("--divide", "train=0.8,val=0.1,test=0.1")
    words = ("subset", whole, tmp_path / "a", *shares, "--stratify", "label", "--seed", "3")
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert "train.lmdb: 80 images (80.0%), ant 56, bee 16, cat 8" in done.output
    assert f'fastdata.loader("{tmp_path}/a/train.lmdb"' in done.output
    assert run(*words).exit_code == 4
    grouped = run("subset", whole, tmp_path / "b", *shares, "--group", "patient", "--json")
    found = json.loads(grouped.stdout)
    assert list(found["parts"]) == ["train", "val", "test"]
    assert sum(part["groups"] for part in found["parts"].values()) == 25
    assert sum(part["classes"]["ant"] for part in found["parts"].values()) == 70
    for part in found["parts"].values():
        assert len(fastdata.open(part["path"])) == part["num_samples"]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ("train=0.8,val", "'val' is not NAME=VALUE"),
        ("train=x,val=0.5", "'train=x' is not NAME=SHARE"),
        ("a=0.5,a=0.5", "there are two parts 'a'"),
        ("a=0.5,b=0.4", "error: the shares of --divide add up to 0.9, not to 1"),
    ],
)
def test_wrong_shares_are_said(whole: Path, tmp_path: Path, shares: str, message: str) -> None:
    done = run("subset", whole, tmp_path / "x", "--divide", shares)
    assert done.exit_code == 2
    assert message in done.stderr
