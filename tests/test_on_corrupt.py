"""``on_corrupt="skip"``: another sample in place of a damaged one, the same whoever finds it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import digest
from samples import put_blob, write_shard, write_shards
from worker_helpers import (
    METHODS,
    PICTURES,
    RRC,
    SCENES,
    as_values,
    damage_image,
    invert,
    no_workers_soon,
    pictures,
    scenes,
    unchanged,
)

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.engine import batches as engine_batches
from fastdata.errors import ShardCorruptError
from fastdata.loading import Loader, loader

COUNT = 60
BAD = (3, 11, 12, 40, 59)

KINDS: dict[str, dict[str, Any]] = {
    "caller": {"num_workers": 0},
    "thread": {"num_workers": 3, "worker_method": "thread", "prefetch_factor": 4},
    "process": {"num_workers": 2, "worker_method": "process"},
}


def shard(
    folder: Path,
    bad: Sequence[int] = BAD,
    codecs: Sequence[str] = ("jpeg", "png", "raw"),
    size: tuple[int, int] | None = (60, 70),
    field: str = "image",
    suffix: str = ".lmdb",
    shards: int = 1,
) -> Path:
    """Write scenes, some of them damaged."""
    records = scenes(COUNT, codecs, size)
    if shards == 1:
        path = write_shard(folder / f"data{suffix}", records, SCENES)
        damage_image(path, *bad, field=field)
        return path
    each = COUNT // shards
    parts = [records[start : start + each] for start in range(0, COUNT, each)]
    path = write_shards(folder / "data", parts, SCENES)
    for number, file in enumerate(sorted(path.glob("shard-*"))):
        damage_image(file, *(index % each for index in bad if index // each == number), field=field)
    return path


def skipping(path: Path, transform: Any = RRC, **options: Any) -> Loader:
    """Return a loader that skips, of batches of 16."""
    defaults = {"batch_size": 16, "on_corrupt": "skip", "seed": 4, "shuffle": True}
    return loader(path, transform=transform, **{**defaults, "num_workers": 0, **options})


def labels(it: Any) -> list[int]:
    """Return the labels of an epoch; the label of sample i is 3 * i."""
    return [label for batch in it for label in batch.label.tolist()]


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "crops": ({}, RRC),
    "floats": ({}, [*RRC, T.Normalize((0.5,) * 3, (0.2,) * 3)]),
    "callable": ({}, [*RRC, T.ImageOnly(invert)]),
    "callable first": ({}, [T.ImageOnly(invert), *RRC]),
    "callable of types": ({}, [*RRC, T.PerSample(as_values)]),
    "damaged masks": ({"field": "mask"}, RRC),
    "damaged masks, callable": ({"field": "mask"}, [*RRC, T.ImageOnly(unchanged)]),
    "raw": ({"codecs": ("raw",)}, RRC),
    "raw whole": ({"codecs": ("raw",)}, None),
    "small raw whole": ({"codecs": ("raw",), "size": (20, 22)}, None),
    "small raw floats": ({"codecs": ("raw",), "size": (20, 22)}, T.ToDtype(torch.float32)),
    "small raw stack": (
        {"codecs": ("raw",), "size": (20, 22)},
        [T.RandomCrop(16, padding=2), T.RandomHorizontalFlip()],
    ),
    "small raw in three shards": ({"codecs": ("raw",), "size": (20, 22), "shards": 3}, None),
    "crops in three shards": ({"shards": 3}, RRC),
    "jpeg whole": ({"codecs": ("jpeg",)}, None),
    "png in hdf5": ({"codecs": ("png",), "suffix": ".h5"}, RRC),
}


@pytest.fixture(scope="module")
def shard_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What makes the shard of a case, once for all cases that have the same, to be read only."""
    made: dict[str, Path] = {}

    def make(case: str) -> Path:
        options = CASES[case][0]
        if str(options) not in made:
            made[str(options)] = shard(tmp_path_factory.mktemp("case"), **options)
        return made[str(options)]

    return make


@pytest.mark.parametrize("case", list(CASES))
def test_replacements_are_the_same_whoever_makes_them(
    shard_of: Callable[[str], Path], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, transform = shard_of(case), CASES[case][1]
    found, skipped, stored = set(), set(), set()
    monkeypatch.setattr(engine_batches, "PIXELS_PER_TASK", 1)
    for pieces, kind in [(100, "caller"), (3, "thread"), (3, "process")]:
        monkeypatch.setattr(engine_batches, "SAMPLES_PER_TASK", pieces)
        with skipping(path, transform, **KINDS[kind]) as it:
            batches = [batch for _ in range(2) for batch in it]
            found.add(digest(batches))
            skipped.add(it.stats().skipped_samples)
            stored.add(it.stats().bytes_read)
        assert [len(batch.image) for batch in batches] == [16, 16, 16, 12] * 2
    assert len(found) == 1
    if "types" not in case:
        assert {3 * index for index in BAD}.isdisjoint(labels(batches))
    assert skipped == {2 * len(BAD)}
    assert len(stored) == 1
    assert min(stored) > 0


@pytest.mark.parametrize(
    "transform", [RRC, [*RRC, T.ImageOnly(unchanged)]], ids=["direct", "callable"]
)
def test_a_replacement_is_another_sample_altogether(tmp_path: Path, transform: Any) -> None:
    """Its label, mask and caption, and the pixels that it has in its own place."""
    records = scenes(COUNT, ("jpeg", "png", "raw"), (60, 70))
    sound = write_shard(tmp_path / "sound.lmdb", records, SCENES)
    one_by_one = list(loader(sound, transform=transform, seed=4, num_workers=0))
    replaced, place = {}, 0
    for batch in skipping(shard(tmp_path), transform, shuffle=False):
        for at, label in enumerate(batch.label.tolist()):
            taken = label // 3
            if taken != place:
                replaced[place] = taken
            expected = one_by_one[taken]
            assert digest([[value[at] for value in batch]]) == digest(
                [[value[0] for value in expected]]
            )
            place += 1
    assert place == COUNT
    assert sorted(replaced) == list(BAD)
    assert not set(replaced.values()) & set(BAD)


def test_replacements_differ_from_epoch_to_epoch_and_by_seed(tmp_path: Path) -> None:
    path = shard(tmp_path, codecs=("raw",), size=(20, 22))

    def taken(seed: int) -> list[list[int]]:
        it = skipping(path, None, shuffle=False, seed=seed)
        return [[labels(it)[index] for index in BAD] for _ in range(2)]

    one, two = taken(1)
    other, _ = taken(2)
    assert one != two
    assert one != other
    assert taken(1) == [one, two]


@pytest.mark.parametrize("method", METHODS)
def test_every_rank_keeps_its_number_of_steps(tmp_path: Path, method: Any) -> None:
    path = shard(tmp_path, codecs=("raw",), size=(20, 22))
    steps, seen = [], []
    for rank in range(3):
        with skipping(
            path, None, batch_size=4, rank=rank, world_size=3, num_workers=2, worker_method=method
        ) as it:
            batches = list(it)
        steps.append([len(batch.image) for batch in batches])
        seen += labels(batches)
    assert steps == [[4] * 5] * 3
    assert len(set(seen) & {3 * index for index in BAD}) == 0
    assert set(seen) >= {3 * index for index in range(COUNT) if index not in BAD}


@pytest.mark.parametrize("method", METHODS)
def test_the_first_one_is_logged_and_all_are_counted(
    tmp_path: Path, method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = shard(tmp_path, (5, 20))
    with caplog.at_level(logging.WARNING, "fastdata"):
        it = skipping(path, shuffle=False, num_workers=2, worker_method=method)
        epoch = iter(it)
        next(epoch)
        assert it.stats().skipped_samples == 1, "of batches handed out"
        next(epoch)
        assert it.stats().skipped_samples == 2
        list(epoch)
        list(it)
        assert it.stats().skipped_samples == 4
        it.close()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"{path}: the checksum of 'image' of sample 5 (key 'scene/5')" in record.getMessage()
    assert "stats().skipped_samples" in record.getMessage()


@pytest.mark.parametrize(
    ("kind", "codec", "transform"),
    [
        ("caller", "raw", None),
        ("caller", "png", [*RRC, T.ImageOnly(invert)]),
        ("thread", "jpeg", RRC),
        ("process", "raw", None),
        ("process", "png", [*RRC, T.ImageOnly(invert)]),
    ],
    ids=["caller, raw", "caller, callable", "thread, jpeg", "process, raw", "process, callable"],
)
def test_a_dataset_without_a_sound_sample_is_an_error(
    tmp_path: Path, kind: str, codec: str, transform: Any
) -> None:
    records = pictures(6, codec, (20, 22))
    path = write_shard(tmp_path / "s.lmdb", records, PICTURES)
    damage_image(path, *range(6))
    it = skipping(path, transform, batch_size=3, shuffle=False, **KINDS[kind])
    with pytest.raises(ShardCorruptError, match="checksum of 'image' of sample 0 "):
        next(iter(it))
    assert no_workers_soon()


def test_one_sound_sample_stands_in_for_all(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.lmdb", pictures(5, "jpeg"), PICTURES)
    damage_image(path, 0, 1, 3, 4)
    it = skipping(path, batch_size=5, num_workers=2)
    assert labels(it) == [2] * 5
    assert it.stats().skipped_samples == 4
    it.close()


def test_raising_is_the_default_and_says_where(shard_of: Callable[[str], Path]) -> None:
    for case, (made_of, transform) in CASES.items():
        field = made_of.get("field", "image")
        with pytest.raises(ShardCorruptError, match=f"'{field}' of sample 3 .*scene/3'"):
            list(loader(shard_of(case), batch_size=8, transform=transform, num_workers=2))


@pytest.mark.parametrize("method", METHODS)
def test_resuming_takes_the_same_replacements(tmp_path: Path, method: Any) -> None:
    path = shard(tmp_path)
    whole = [batch for it in [skipping(path)] for _ in range(2) for batch in it]
    for done in (1, 3, 5):
        it = skipping(path)
        epoch = iter(it)
        for _ in range(done % 4):
            next(epoch)
        state = it.state_dict() | {"epoch": done // 4}
        resumed = skipping(path, num_workers=2, worker_method=method)
        resumed.load_state_dict(state)
        rest = [batch for _ in range(2 - done // 4) for batch in resumed]
        resumed.close()
        assert digest(rest) == digest(whole[done:])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transform", [None, [T.ImageOnly(unchanged)]], ids=["direct", "callable"])
def test_a_shard_that_cannot_be_opened_is_an_error_also_when_skipping(
    tmp_path: Path, method: Any, transform: Any
) -> None:
    """A file is not a sample: leaving it out would leave out a good part of the dataset."""
    records = pictures(30, "raw", (20, 22))
    path = write_shards(tmp_path / "d", [records[:10], records[10:20], records[20:]], PICTURES)
    victim = sorted(path.glob("shard-*"))[1]
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    it = skipping(path, transform, batch_size=5, shuffle=False, num_workers=2, worker_method=method)
    seen: list[int] = []
    with pytest.raises(ShardCorruptError, match="shard-00001"):
        seen.extend(label for batch in it for label in batch.label.tolist())
    assert seen == list(range(10))
    assert no_workers_soon()


@pytest.mark.parametrize("check", [True, False])
def test_a_jpeg_cut_short_is_skipped_with_and_without_checksums(
    tmp_path: Path, check: bool
) -> None:
    """Without checksums it is the decoder that says so."""
    path = write_shard(tmp_path / "s.h5", pictures(12, "jpeg"), PICTURES)
    put_blob(path, 4, b"\xff\xd8\xff\xd9" + bytes(50))
    it = skipping(fastdata.open(path, check=check), batch_size=12, shuffle=False, num_workers=0)
    [batch] = it
    assert it.stats().skipped_samples == 1
    assert batch.label[4] != 4
    assert np.delete(batch.label.numpy(), 4).tolist() == [n for n in range(12) if n != 4]
