"""Opening datasets and reading samples out of them, in one process and in many."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from PIL import Image
from samples import (
    EVERY_KIND,
    LABELLED,
    SUFFIXES,
    decoded,
    encode,
    make_records,
    photo,
    write_shard,
    write_shards,
)
from torch.utils.data import DataLoader, Subset, random_split

import fastdata
from fastdata.errors import (
    DatasetNotFoundError,
    FormatError,
    OptionError,
    ShardCorruptError,
)
from fastdata.formats import layout, reader
from fastdata.formats.writer import Record
from fastdata.packed_views import packed_view
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema

LABELS = [0, 1, 2, 0, 1, 2]
"""Of what `make_records` makes."""


def labels(dataset: fastdata.Dataset) -> list[int]:
    return [sample.label for sample in dataset]


def fingerprint(sample: Any) -> int:
    """Hash a labelled image; both sides of a process boundary compute it."""
    return xxhash.xxh3_64_intdigest(sample.image.numpy().tobytes() + bytes([sample.label]))


def fingerprints(dataset: fastdata.Dataset) -> list[int]:
    return [fingerprint(sample) for sample in dataset]


# -- opening ----------------------------------------------------------------------


@pytest.mark.parametrize("as_type", [str, Path])
def test_open_a_shard(shard: Path, as_type: type) -> None:
    dataset = fastdata.open(as_type(shard))
    assert len(dataset) == 6
    assert dataset.paths == [shard]
    assert dataset.classes == ["cat", "dog", "newt"]
    assert dataset.schema == LABELLED
    assert labels(dataset) == LABELS
    assert not dataset.is_subset


def test_open_a_directory_of_shards(shards: Path) -> None:
    dataset = fastdata.open(shards)
    assert len(dataset) == 6
    assert [path.name[:11] for path in dataset.paths] == [f"shard-{n:05}" for n in range(3)]
    assert labels(dataset) == LABELS
    assert list(dataset.keys) == [record.key for record in make_records()]


@pytest.mark.parametrize("pattern", ["shard-*", "**/shard-0000?.*", "../shards/*[0-9].*"])
def test_open_a_pattern(shards: Path, pattern: str) -> None:
    assert fingerprints(fastdata.open(shards / pattern)) == fingerprints(fastdata.open(shards))


def test_open_a_list_in_the_order_given(shards: Path) -> None:
    whole = fastdata.open(shards)
    one, two, three = whole.paths
    copy = shutil.copytree(shards, shards.with_name("copy"))
    dataset = fastdata.open([three, one, copy, two])
    assert list(dataset.keys) == [whole.keys[i] for i in (4, 5, 0, 1, 2, 0, 1, 2, 3, 4, 5, 3)]
    assert fastdata.open(iter([str(one)])).digest == fastdata.open(one).digest


def test_both_containers_can_be_mixed(tmp_path: Path) -> None:
    records = make_records()
    parts = [
        write_shard(tmp_path / f"part{suffix}", part)
        for suffix, part in zip(SUFFIXES.values(), (records[:4], records[4:]), strict=True)
    ]
    mixed = fastdata.open(parts)
    assert mixed.digest == fastdata.open(write_shard(tmp_path / "all.h5", records)).digest
    assert labels(mixed) == LABELS


def test_a_name_that_looks_like_a_pattern_is_a_name(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard[1].h5", make_records())
    assert len(fastdata.open(path)) == 6


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: p / "absent.lmdb", DatasetNotFoundError, r"absent.lmdb: no such file.* Make it"),
        (lambda p: p / "absent-*.h5", DatasetNotFoundError, "nothing matches this pattern"),
        (lambda p: p, DatasetNotFoundError, "a directory without a readable manifest.json"),
        (lambda p: [], OptionError, "at least one path"),
    ],
)
def test_what_is_not_there_is_named(
    tmp_path: Path, make: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fastdata.open(make(tmp_path))


def test_an_unfinished_pack_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "train.lmdb.partial").mkdir()
    with pytest.raises(DatasetNotFoundError, match="its pack is unfinished"):
        fastdata.open(tmp_path / "train.lmdb")


def test_datasets_with_other_fields_do_not_open_as_one(tmp_path: Path) -> None:
    other = Schema({"image": ImageField(), "label": ScalarField(classes=("dog", "cat", "newt"))})
    one = write_shard(tmp_path / "one.lmdb", make_records())
    two = write_shard(tmp_path / "two.h5", make_records(other), other)
    with pytest.raises(FormatError, match=r"two.h5 and .*one.lmdb have different fields: \S"):
        fastdata.open([one, two])


def test_a_dataset_of_a_relative_path_outlives_a_change_of_directory(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shards.parent)
    dataset = fastdata.open("shards")
    monkeypatch.chdir("/")
    assert labels(dataset) == LABELS


# -- indices ----------------------------------------------------------------------


@pytest.fixture(params=["one shard", "three shards"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> fastdata.Dataset:
    """The six samples, in one shard and in three."""
    records = make_records()
    if request.param == "one shard":
        return fastdata.open(write_shard(tmp_path / "shard.h5", records))
    return fastdata.open(write_shards(tmp_path / "many", [records[:3], records[3:4], records[4:]]))


SELECTIONS: list[Any] = [
    slice(None),
    slice(2, 5),
    slice(None, None, -2),
    slice(-2, None),
    slice(4, 2),
    slice(0, 100, 4),
    [4, 0, 0, -1],
    (1, 2),
    np.array([5, 3], np.uint8),
    np.array([], np.float64),
    [],
    torch.tensor([2, 1]),
    [True, False, False, True, True, False],
    np.array([False] * 6),
    torch.tensor([True, True, True, True, False, True]),
    range(1, 6, 2),
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
def test_a_selection_is_a_lazy_dataset(dataset: fastdata.Dataset, selection: Any) -> None:
    everything = np.arange(6)
    chosen = np.asarray(selection) if not isinstance(selection, slice) else selection
    if not isinstance(chosen, slice) and chosen.size == 0:
        chosen = chosen.astype(int)
    expected = everything[chosen].tolist()
    subset = dataset[selection]
    assert isinstance(subset, fastdata.Dataset)
    assert len(subset) == len(expected)
    assert list(subset.keys) == [dataset.keys[i] for i in expected]
    assert fingerprints(subset) == [fingerprint(dataset[i]) for i in expected]
    assert subset.classes == dataset.classes
    assert subset.is_subset == (expected != everything.tolist()) or isinstance(chosen, np.ndarray)
    images = subset._images("image", range(len(expected)))
    assert [tuple(sample.image.shape[1:]) for sample in subset] == list(
        zip(images.heights.tolist(), images.widths.tolist(), strict=True)
    )
    assert subset._gather("label", np.arange(len(expected))).tolist() == labels(subset)


@pytest.mark.parametrize("outer", [SELECTIONS[i] for i in (1, 2, 6, 12)], ids=repr)
@pytest.mark.parametrize("inner", [slice(None, None, -1), [1, 0], slice(1, None), -1], ids=repr)
def test_a_selection_of_a_selection(dataset: fastdata.Dataset, outer: Any, inner: Any) -> None:
    first = np.arange(6)[np.asarray(outer) if not isinstance(outer, slice) else outer]
    result = dataset[outer][inner]
    if isinstance(inner, int):
        assert fingerprint(result) == fingerprint(dataset[int(first[inner])])
    else:
        assert list(result.keys) == [dataset.keys[i] for i in first[inner].tolist()]


@pytest.mark.parametrize("as_index", [int, np.int64, np.uint8, torch.tensor, np.array])
def test_one_index_of_any_integer_type_gives_a_sample(
    dataset: fastdata.Dataset, as_index: Any
) -> None:
    assert fingerprint(dataset[as_index(4)]) == fingerprint(dataset[4])
    if as_index is not np.uint8:
        assert fingerprint(dataset[as_index(-2)]) == fingerprint(dataset[4])


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (6, IndexError, "index 6 for a dataset of 6 samples"),
        (-7, IndexError, "index -7 for a dataset of 6 samples"),
        (10**30, IndexError, "for a dataset of 6 samples"),
        ([0, 6], IndexError, "index 6 for a dataset of 6 samples"),
        ([0, -7], IndexError, "index -7 for a dataset of 6 samples"),
        (np.array([2**64 - 1], np.uint64), IndexError, "for a dataset of 6 samples"),
        ([True], IndexError, r"a mask of shape \(1,\) for 6 samples"),
        (1.0, TypeError, "an index, slice, list of indices or mask is expected, not 1.0"),
        ([1.0], TypeError, "list of indices or mask is expected"),
        ("label", TypeError, "list of indices or mask is expected, not 'label'"),
        (None, TypeError, "list of indices or mask is expected, not None"),
        ([[0, 1]], TypeError, "list of indices or mask is expected"),
        ((0, "a"), TypeError, "list of indices or mask is expected"),
    ],
    ids=repr,
)
def test_wrong_indices_are_refused(
    dataset: fastdata.Dataset, index: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        dataset[index]
    subset = dataset[[0, 1, 2, 3, 4, 5]]
    with pytest.raises(error, match=message):
        subset[index]


def test_getitems_reads_a_batch(dataset: fastdata.Dataset) -> None:
    batch = dataset.__getitems__([5, 0, -2])
    assert list(map(fingerprint, batch)) == [fingerprint(dataset[i]) for i in (5, 0, 4)]
    assert dataset.__getitems__([]) == []
    with pytest.raises(IndexError, match="index 9 for a dataset of 6 samples"):
        dataset.__getitems__([0, 9])


PUBLIC = [
    "class_to_idx",
    "classes",
    "digest",
    "is_subset",
    "keys",
    "paths",
    "record_format",
    "samples",
    "schema",
    "shards",
    "targets",
    "transform",
]


@pytest.mark.parametrize("kind", ["packed", "view", "joined", "unpacked"])
def test_dir_lists_what_is_for_users_and_documented(kind: str, shard: Path, tmp_path: Path) -> None:
    if kind == "unpacked":
        (tmp_path / "files" / "a").mkdir(parents=True)
        Image.new("RGB", (9, 8)).save(tmp_path / "files" / "a" / "0.png")
    unpacked = kind == "unpacked"
    dataset = (
        fastdata.open(tmp_path / "files", format="folder") if unpacked else fastdata.open(shard)
    )
    if kind == "view":
        dataset = dataset[:2]
    if kind == "joined":
        joined = packed_view(dataset + dataset)
        assert joined is not None
        dataset = joined
    assert [name for name in dir(dataset) if not name.startswith("_")] == PUBLIC
    for name in PUBLIC:
        assert getattr(type(dataset), name).__doc__.strip().split("\n")[0].endswith(".")
    # mkdocstrings lists all members of the class there.
    page = Path(__file__).parents[1] / "docs" / "api" / "datasets.md"
    assert f"::: {type(dataset).__module__}.{type(dataset).__name__}\n" in (
        page.read_text(encoding="utf-8").replace("fastdata.Dataset", "fastdata.dataset.Dataset")
    )


def test_keys_are_a_sequence(dataset: fastdata.Dataset) -> None:
    expected = [record.key for record in make_records()]
    keys = dataset.keys
    assert len(keys) == 6
    assert keys[-1] == expected[-1]
    assert keys[1:3] == expected[1:3]
    assert list(reversed(keys)) == expected[::-1]
    assert keys.index(expected[4]) == 4
    assert expected[2] in keys
    assert "nothing" not in keys
    assert repr(keys) == f"Keys({expected[0]!r}, {expected[1]!r}, {expected[2]!r}, ...)"
    with pytest.raises(IndexError, match="index 6 for a dataset of 6 samples"):
        keys[6]


# -- samples ----------------------------------------------------------------------


def test_samples_are_named_tuples_of_writable_tensors(rich_shard: Path) -> None:
    dataset = fastdata.open(rich_shard)
    records = make_records(EVERY_KIND, codec=("jpeg", "png", "raw", "file"))
    for sample, record in zip(dataset, records, strict=True):
        image, *_ = sample
        assert image is sample.image
        assert image.shape == (3, record.values[0].height, record.values[0].width)
        assert sample.mask.shape == (1, *image.shape[1:])
        for value in sample:
            if isinstance(value, torch.Tensor):
                value.zero_()  # PyTorch crashes, or warns, where memory is read-only
    assert fastdata.open(rich_shard)[2].image.any(), "writing to a sample changed the file"


def test_samples_survive_pickle(rich_shard: Path) -> None:
    sample = fastdata.open(rich_shard)[1]
    copy = pickle.loads(pickle.dumps(sample))
    assert type(copy) is type(sample)
    assert copy.caption == sample.caption
    assert torch.equal(copy.image, sample.image)


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw", "file"])
def test_images_are_read_into_memory_of_the_caller(tmp_path: Path, codec: str) -> None:
    schema = Schema({"image": ImageField(), "grey": ImageField(1)})
    records = make_records(schema, 3, codec)
    dataset = fastdata.open(write_shard(tmp_path / "shard.lmdb", records, schema))
    for index, record in enumerate(records):
        for name, image in zip(schema, record.values, strict=True):
            channels = schema.images[name].channels
            out = np.full((image.height, image.width, channels), 7, np.uint8)
            assert dataset._images(name, [index]).read(0, out) is out
            np.testing.assert_array_equal(out, decoded(image, channels))
            np.testing.assert_array_equal(dataset._images(name, [index]).read(0), out)


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw", "file"])
def test_memory_that_does_not_fit_the_image_is_refused(tmp_path: Path, codec: str) -> None:
    path = write_shard(tmp_path / "shard.h5", make_records(count=1, codec=codec))
    images = fastdata.open(path)._images("image", [0])
    for wrong in (
        np.zeros((23, 40, 3), np.uint8),
        np.zeros((25, 40, 3), np.uint8),
        np.zeros((40, 24, 3), np.uint8),
        np.zeros((24, 40, 1), np.uint8),
        np.zeros((1, 24, 40, 3), np.uint8),
        np.zeros((24, 40, 3), np.int8),
        np.zeros((24, 40, 3), np.float32),
        np.zeros((24, 80, 3), np.uint8)[:, ::2],
    ):
        with pytest.raises(OptionError, match=r"out must be uint8, C-contiguous .*\(24, 40, 3\)"):
            images.read(0, wrong)
        assert not wrong.any()


def test_gather_returns_copies_of_columns(rich_shard: Path) -> None:
    dataset = fastdata.open(rich_shard)
    records = make_records(EVERY_KIND)
    chosen = [4, 0, -1]
    for at, (name, field) in enumerate(EVERY_KIND.items()):
        if isinstance(field, ImageField):
            continue
        expected = [records[i].values[at] for i in chosen]
        found = dataset._gather(name, chosen)
        assert type(found) is (np.ndarray if hasattr(found, "dtype") else list)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        if isinstance(field, ScalarField) or (isinstance(field, ArrayField) and field.fixed):
            assert found.dtype == field.dtype
            found[:] = 0  # writable
    assert dataset[4].label == 1


def test_repr_tells_what_is_inside(rich_shard: Path, shards: Path) -> None:
    text = repr(fastdata.open(rich_shard)[1:5])
    assert text.splitlines()[:4] == [
        f"fastdata.Dataset({rich_shard.name}): 4 samples of 6",
        "  image: RGB image, png, the first one 31 x 31",
        "  grey: grey image, png, the first one 31 x 31",
        "  mask: mask, png, the first one 31 x 31",
    ]
    assert "  label: int64, 3 classes" in text
    assert "  ragged: array, float64, ? x ? x ?" in text
    assert "shard-00000" in repr(fastdata.open(shards))
    assert repr(fastdata.open(shards)[:0]).startswith("fastdata.Dataset(shard-00000")


def test_the_digest_of_a_subset_is_its_own(dataset: fastdata.Dataset) -> None:
    digests = [d.digest for d in (dataset, dataset[:3], dataset[3:], dataset[[2, 1, 0]])]
    assert len(set(digests)) == 4
    assert dataset[:].digest == dataset.digest
    assert dataset[:3].digest == dataset[[0, 1, 2]].digest


# -- what reading costs -------------------------------------------------------------


@pytest.fixture(scope="module")
def small_and_large(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Shards of 20 and of 20,000 images of one pixel, per container."""
    folder = tmp_path_factory.mktemp("sizes")
    image = encode(photo(1, 1), "raw")
    records = [Record(f"{n:05}", (image, n % 3)) for n in range(20_000)]
    return [
        write_shard(folder / f"{count}{suffix}", records[:count])
        for suffix in SUFFIXES.values()
        for count in (20, 20_000)
    ]


def _cost(path: Path) -> tuple[int, int]:
    """Count calls, and bytes that are hashed, while a dataset is opened and shown."""
    calls, hashed = 0, 0

    def count_calls(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def count_bytes(data: Any) -> int:
        nonlocal hashed
        hashed += memoryview(data).nbytes
        return xxhash.xxh3_64_intdigest(data)

    with pytest.MonkeyPatch.context() as patch:
        for module in (layout, reader):
            patch.setattr(module, "checksum", count_bytes)
        sys.setprofile(count_calls)
        try:
            dataset = fastdata.open(path)
            assert len(dataset[::2]) * 2 == len(dataset)
            assert len(dataset.keys) == len(dataset)
            assert dataset.classes is not None
            assert len(dataset.digest) == 32
        finally:
            sys.setprofile(None)
    return calls, hashed


def test_opening_does_no_work_per_sample(small_and_large: list[Path]) -> None:
    for path in small_and_large:  # what is made once and kept, e.g. imports
        _cost(path)
    for small, large in (small_and_large[:2], small_and_large[2:]):
        few, many = _cost(small), _cost(large)
        assert abs(many[0] - few[0]) <= 5, "more samples took more calls"
        assert many[1] < 8000, "more than header and footer was read"


def test_pickling_carries_no_data(small_and_large: list[Path]) -> None:
    for path in small_and_large:
        dataset = fastdata.open(path)
        dataset[0]
        assert len(pickle.dumps(dataset)) < 2000
        assert len(pickle.dumps(dataset[5:15])) < 2000


# -- pickling, processes and threads ---------------------------------------------------


@pytest.mark.parametrize(
    "view", [lambda d: d, lambda d: d[1:5:2], lambda d: d[[4, 1]][::-1]], ids=["all", "cut", "list"]
)
def test_a_pickled_dataset_is_the_same(dataset: fastdata.Dataset, view: Any) -> None:
    shown = view(dataset)
    shown[0]
    copy = pickle.loads(pickle.dumps(shown))
    assert fingerprints(copy) == fingerprints(shown)
    assert repr(copy) == repr(shown)
    assert copy.digest == shown.digest
    assert copy.paths == shown.paths


def test_a_pickle_refuses_another_dataset_of_that_name(shard: Path) -> None:
    pickled = pickle.dumps(fastdata.open(shard))
    write_shard(shard, make_records()[::-1])
    with pytest.raises(ShardCorruptError, match="not the shard that the manifest lists or that"):
        pickle.loads(pickled)
    shard.unlink()
    with pytest.raises(DatasetNotFoundError, match="no such file"):
        pickle.loads(pickled)


def test_a_pickle_of_many_files_refuses_another_of_that_name(shards: Path) -> None:
    paths = fastdata.open(shards).paths
    pickled = pickle.dumps(fastdata.open(paths))
    write_shard(paths[1], make_records(count=2))
    dataset = pickle.loads(pickled)
    assert dataset[0].label == 0
    with pytest.raises(ShardCorruptError, match=r"shard-00001\.\w+: this is not the shard"):
        dataset[3]


def test_a_pickle_keeps_whether_to_check(shard: Path) -> None:
    dataset = fastdata.open(shard, check=False)
    expected = fingerprints(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    data = bytearray(shard.read_bytes())
    data[int(next(iter(copy.shards)).column("image.offset")[0]) + 15] ^= 1  # JFIF's density
    shard.write_bytes(data)
    assert fingerprints(copy) == expected
    with pytest.raises(ShardCorruptError, match="the checksum of 'image' of sample 0"):
        fingerprints(fastdata.open(shard))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_in_use_can_be_handed_to_processes(tmp_path: Path, method: str) -> None:
    records = make_records()
    dataset = fastdata.open(write_shards(tmp_path / "shards", [records[:3], records[3:]]))
    expected = fingerprints(dataset)
    context = multiprocessing.get_context(method)
    # One process: those that do not fork import everything again, which takes seconds.
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        parts = list(pool.map(fingerprints, [dataset[:4], dataset[[5, 4]]]))
    assert parts == [expected[:4], [expected[5], expected[4]]]
    assert fingerprints(dataset) == expected


def test_a_forked_child_reads_what_its_parent_opened(dataset: fastdata.Dataset) -> None:
    dataset[0]
    expected = fingerprints(dataset)
    child = os.fork()
    if child == 0:
        os._exit(0 if fingerprints(dataset) == expected else 1)
    assert os.waitpid(child, 0) == (child, 0)


def test_threads_share_a_dataset(shards: Path) -> None:
    expected = fingerprints(fastdata.open(shards))
    for _ in range(5):
        dataset = fastdata.open(shards)  # not yet opened shards, to race for
        with ThreadPoolExecutor(8) as pool:
            orders = [np.random.default_rng(seed).permutation(6).tolist() for seed in range(16)]
            views = pool.map(lambda order, d=dataset: fingerprints(d[order]), orders)
            assert list(views) == [[expected[i] for i in order] for order in orders]


def collate(batch: list[Any]) -> list[int]:
    return [fingerprint(sample) for sample in batch]


def test_a_stock_dataloader_reads_a_dataset(dataset: fastdata.Dataset) -> None:
    options: Any = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(dataset, batch_size=4, collate_fn=collate, **options)
    expected = fingerprints(dataset)
    assert list(loader) == [expected[:4], expected[4:]]


def test_default_collation_and_torchs_subsets_work(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard.lmdb", make_records(size=(20, 30)))
    dataset = fastdata.open(path)
    (batch,) = DataLoader(dataset, batch_size=6)
    assert type(batch) is LABELLED.sample_type
    assert batch.image.shape == (6, 3, 20, 30)
    assert batch.label.tolist() == LABELS
    assert [sample.label for sample in Subset(dataset, [5, 4])] == [2, 1]
    assert sum(map(len, random_split(dataset, [4, 2]))) == 6
