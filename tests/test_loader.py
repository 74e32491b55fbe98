"""The loader: same batches however they are made, and every error in its place."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import ALL_FIELDS, MemoryData, digest, image_of
from PIL import Image
from warm_python import WarmPython
from worker_helpers import worker_threads

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import DatasetNotFoundError, OptionError, ShardCorruptError
from fastdata.loading import loader
from fastdata.sampling import BlockShuffle
from fastdata.schema import Field

RRC = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# What processes do is seen in test_workers.py and its neighbours.
pytestmark = pytest.mark.usefixtures("workers_are_threads")


# -- what a batch is ----------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_batch_holds_every_kind_of_field(num_workers: int) -> None:
    data = MemoryData(10, size=(9, 11), fields=ALL_FIELDS)
    batch = next(iter(loader(data, batch_size=4, num_workers=num_workers)))
    assert type(batch)._fields == tuple(ALL_FIELDS)
    assert batch.image.shape == (4, 3, 9, 11)
    assert batch.image.dtype == torch.uint8
    assert batch.image.is_contiguous()
    for index in range(4):
        expected = image_of(index, 9, 11)
        np.testing.assert_array_equal(batch.image[index].permute(1, 2, 0).numpy(), expected)
    assert batch.mask.shape == (4, 1, 9, 11)
    assert batch.label.tolist() == [0, 3, 6, 9]
    assert batch.label.dtype == torch.int64
    assert batch.weight.dtype == torch.float32
    assert batch.caption == ["caption 0", "caption 1", "caption 2", "caption 3"]
    assert batch.blob == [b"\x00", b"\x01", b"\x02", b"\x03"]
    assert [boxes.tolist() for boxes in batch.boxes] == [[], [0], [0, 1], [0, 1, 2]]
    assert batch.points.shape == (4, 2, 3)
    assert batch.points.dtype == torch.int16


def test_a_loader_of_samples_makes_the_same_batches() -> None:
    """The way for callables and the direct way are two implementations of one thing."""
    transforms = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)]
    data = MemoryData(23, fields=ALL_FIELDS)
    direct = loader(data, batch_size=5, transform=transforms, seed=4, num_workers=0)
    by_sample = loader(
        data,
        batch_size=5,
        transform=[*transforms, T.ImageOnly(lambda image: image)],
        seed=4,
        num_workers=2,
    )
    batches = list(by_sample)
    assert digest(batches) == digest(direct)
    assert batches[0].image.is_contiguous()


def test_a_batch_is_rendered_as_planned() -> None:
    """Against a plain loop: one image, one crop, one flip at a time."""
    batches = list(loader(MemoryData(20), batch_size=8, transform=T.CenterCrop(16)))
    images = torch.cat([batch.image for batch in batches])
    for index in range(20):
        height, width = 20 + index % 7, 20 + index % 5
        top, left = round((height - 16) / 2), round((width - 16) / 2)
        expected = image_of(index, height, width)[top : top + 16, left : left + 16]
        np.testing.assert_array_equal(images[index].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize(
    ("transform", "fields"),
    [
        (None, None),
        (None, ALL_FIELDS),
        (RRC, None),
        ([T.RandomResizedCrop(16, antialias=True)], ALL_FIELDS),
        ([T.RandomCrop(12, padding=4), T.RandomHorizontalFlip()], ALL_FIELDS),
        ([*RRC, T.Normalize(MEAN, STD)], None),
        ([*RRC, T.PerSample(lambda s: s._replace(label=s.label + 1))], ALL_FIELDS),
    ],
    ids=["none", "none, all fields", "rrc", "antialias", "padding", "normalize", "per sample"],
)
def test_batches_are_the_same_for_any_number_of_workers(
    transform: Any, fields: dict[str, Field] | None
) -> None:
    size = (24, 28) if transform is None else None

    def made_with(num_workers: int, prefetch_factor: int = 2) -> str:
        data = MemoryData(37, fields=fields, size=size)
        with loader(
            data,
            batch_size=8,
            shuffle=True,
            seed=9,
            transform=transform,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
        ) as it:
            return digest([list(it), list(it)])

    assert made_with(0) == made_with(1) == made_with(2) == made_with(5, 7)


def test_an_augmentation_depends_on_the_sample_not_on_its_place() -> None:
    def by_sample(**options: Any) -> dict[int, str]:
        found = {}
        for batch in loader(MemoryData(30), transform=RRC, seed=1, num_workers=2, **options):
            for image, label in zip(*batch, strict=True):
                found[int(label)] = digest([image])
        return found

    alone = by_sample(batch_size=1)
    assert by_sample(batch_size=7, shuffle=True) == alone
    half = by_sample(batch_size=4, rank=1, world_size=2)
    assert len(half) == 15
    assert half.items() <= alone.items()


def test_epochs_and_seeds_differ() -> None:
    data = MemoryData(20)
    once = loader(data, batch_size=20, transform=RRC, num_workers=0)
    first, second = list(once), list(once)
    assert digest(first) != digest(second)
    again = loader(data, batch_size=20, transform=RRC, num_workers=0)
    again.set_epoch(1)
    assert digest(again) == digest(second)
    other = loader(data, batch_size=20, transform=RRC, num_workers=0, seed=1)
    assert digest(other) != digest(first)


def test_a_batch_that_is_kept_is_never_overwritten() -> None:
    it = loader(MemoryData(64), batch_size=4, transform=RRC, num_workers=2)
    batches = list(it)
    kept = batches[3].image.numpy()[1:]
    before = kept.copy()
    del batches
    for _ in range(3):
        list(it)
    np.testing.assert_array_equal(kept, before)


def test_empty_data_gives_no_batches() -> None:
    it = loader(MemoryData(0), batch_size=4, transform=RRC, shuffle=True)
    assert len(it) == 0
    assert list(it) == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_cut_in_order_and_counted(drop_last: bool, num_workers: int) -> None:
    it = loader(
        MemoryData(11), batch_size=4, transform=RRC, drop_last=drop_last, num_workers=num_workers
    )
    batches = [(batch.label // 3).tolist() for batch in it]
    whole = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches == (whole if drop_last else [*whole, [8, 9, 10]])
    assert len(it) == len(batches)


def test_a_sampler_decides_the_order() -> None:
    it = loader(MemoryData(30), batch_size=2, transform=RRC, sampler=[7, 7, -1], num_workers=1)
    assert [batch.label.tolist() for batch in it] == [[21, 21], [3 * 29]]


# -- transforms in the loader -------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "first", "other"),
    [
        (None, "20 x 20", "21 x 21"),
        (T.RandomHorizontalFlip(), "20 x 20", "21 x 21"),
        (T.Views(2, [T.RandomHorizontalFlip()]), "20 x 20", "21 x 21"),
        (T.Resize(8), "8 x 8", "10 x 8"),  # the first of another shape
    ],
)
def test_several_sizes_are_refused_when_the_loader_is_made(
    transform: Any, first: str, other: str
) -> None:
    data = MemoryData()
    said = rf"a batch needs images of one size.*'image' has several \({first} and {other}"
    with pytest.raises(OptionError, match=said) as refused:
        loader(data, batch_size=4, transform=transform, num_workers=2)
    if isinstance(transform, T.Resize):
        remedy = r"(T\.Resize\(\(8, 8\)\))"
    else:
        remedy = r"transform=(\[.*?\]) for training"
    (code,) = re.findall(remedy, str(refused.value))
    next(iter(loader(data, batch_size=4, transform=eval(code, {"T": T}), num_workers=0)))


def test_several_sizes_are_taken_where_batches_may_have_one() -> None:
    data = MemoryData()
    assert len(next(iter(loader(data))).image) == 1
    first = loader(data, batch_sampler=[[0], [1]], num_workers=0)
    assert [len(batch.image) for batch in first] == [1, 1]
    for transform in (T.RandomResizedCrop(8), [T.Resize(9), T.CenterCrop(8)], lambda image: image):
        loader(data, batch_size=4, transform=transform, num_workers=0)


def test_callables_that_leave_unequal_sizes_are_explained() -> None:
    it = loader(MemoryData(), batch_size=4, transform=lambda image: image, num_workers=2)
    with pytest.raises(OptionError, match=r"\(3, 20, 20\) uint8 and \(3, 21, 21\) uint8"):
        next(iter(it))


def test_dtype_scales_what_no_transform_did() -> None:
    data = MemoryData(4, size=(8, 8))
    plain = next(iter(loader(data, batch_size=4))).image
    half = next(iter(loader(data, batch_size=4, dtype=torch.bfloat16))).image
    assert torch.equal(half, T.ToDtype(torch.bfloat16)(plain))
    normalized = next(
        iter(loader(data, batch_size=4, transform=T.Normalize(MEAN, STD), dtype=torch.float16))
    ).image
    assert torch.equal(normalized, T.Normalize(MEAN, STD)(plain).half())
    assert normalized.is_contiguous()


def test_device_runs_pixel_transforms_where_batches_arrive() -> None:
    transforms = [*RRC, T.Normalize(MEAN, STD)]
    batch = next(
        iter(
            loader(
                MemoryData(8, fields=ALL_FIELDS), batch_size=8, transform=transforms, device="meta"
            )
        )
    )
    assert batch.image.device.type == "meta"
    assert batch.image.dtype == torch.float32
    assert batch.mask.dtype == torch.uint8
    assert batch.label.device.type == "meta"
    assert batch.boxes[1].device.type == "meta"
    assert batch.caption[1] == "caption 1"
    assert digest(loader(MemoryData(8), transform=transforms, device="cpu")) == digest(
        loader(MemoryData(8), transform=transforms)
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_on_a_gpu_are_those_of_the_cpu() -> None:
    transforms = [*RRC, T.Normalize(MEAN, STD)]
    here = loader(MemoryData(40), batch_size=8, transform=transforms)
    there = loader(MemoryData(40), batch_size=8, transform=transforms, device="cuda")
    for cpu, gpu in zip(here, there, strict=True):
        assert gpu.image.is_cuda
        torch.testing.assert_close(gpu.image.cpu(), cpu.image)
        assert torch.equal(gpu.label.cpu(), cpu.label)


# -- errors -------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_an_error_comes_in_its_place_and_as_itself(num_workers: int) -> None:
    data = MemoryData(40, corrupt=frozenset({17, 30}))
    it = iter(loader(data, batch_size=5, transform=RRC, num_workers=num_workers, prefetch_factor=6))
    assert [next(it).label[0].item() for _ in range(3)] == [0, 15, 30]
    with pytest.raises(ShardCorruptError, match="sample 17 of 'image' is corrupt") as caught:
        next(it)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "read" in frames
    assert worker_threads() == []
    assert list(it) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_planning_waits_for_the_batches_before(num_workers: int) -> None:
    data = MemoryData(40)  # images 20 to 26 pixels high: sample 0 is the first of 20
    it = iter(
        loader(
            data,
            batch_size=1,
            transform=T.RandomCrop(22),
            sampler=[2, 3, 0, 4],
            num_workers=num_workers,
        )
    )
    assert [next(it).label.item() for _ in range(2)] == [6, 9]
    with pytest.raises(OptionError, match="sample 0 has 20 x 20"):
        next(it)
    assert worker_threads() == []


def test_an_error_in_a_callable_is_the_callables() -> None:
    def broken(image: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("by the user")

    with pytest.raises(ZeroDivisionError, match="by the user"):
        list(loader(MemoryData(9), transform=broken, num_workers=2))


# -- statistics ---------------------------------------------------------------------


def test_stats_count_what_was_handed_out() -> None:
    it = loader(MemoryData(10), batch_size=4, transform=RRC, num_workers=2)
    assert it.stats().batches == 0
    assert it.stats().images_per_second == 0
    list(it)
    next(iter(it))
    stats = it.stats()
    assert (stats.batches, stats.samples) == (4, 14)
    assert 0 < stats.wait_seconds <= stats.seconds
    assert stats.images_per_second == pytest.approx(14 / stats.seconds)


# -- what is accepted ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker_method": "fibre"}, "worker_method is one of 'auto', 'thread', 'process', not 'f"),
        ({"on_corrupt": "ignore"}, "on_corrupt is one of 'raise', 'skip', not 'ignore'"),
        ({"decoder": "ffmpeg"}, "ffmpeg"),
        ({"shuffle": "blocks"}, 'shuffle is False, True, "block", "lanes" or a BlockShuffle'),
        ({"shuffle": 1}, 'shuffle is False, True, "block", "lanes" or a BlockShuffle'),
        ({"shuffle": BlockShuffle}, 'shuffle is False, True, "block", "lanes" or a BlockShuffle'),
        ({"weights": [1, 2]}, "weights has 2 numbers, but the dataset has 50 samples"),
        ({"weights": [1, 2], "sampler": [1]}, "sampler and weights: one of them decides"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "leave out batch_size and drop_last"),
        ({"even": False, "drop_last": True}, "drop_last=True leaves samples out"),
        ({"backend": "gpu"}, "backend is one of 'auto', 'cpu', 'dali', not 'gpu'"),
        ({"batch_size": 0}, "batch_size=0 is not an integer from 1 to"),
        ({"num_workers": -1}, 'num_workers=-1 is not "auto" or an integer from 0 to'),
        ({"num_workers": "all"}, 'num_workers=.all. is not "auto" or an integer'),
        ({"prefetch_factor": 0}, 'prefetch_factor=0 is not "auto" or an integer from 1'),
        ({"pin_memory": "yes"}, "pin_memory is one of 'auto', True, False"),
        ({"dtype": torch.int32}, "floating torch.dtype"),
        ({"sampler": [1], "shuffle": True}, "shuffle and sampler: one of them decides the order"),
        ({"sampler": [1], "world_size": 2}, "leave out rank and world_size"),
        ({"rank": 2, "world_size": 2}, "rank is 0 to world_size - 1, not 2"),
        ({"rank": -1, "world_size": 2}, "rank=-1 is not None or an integer from 0"),
        ({"rank": 1}, "rank is 1 and world_size None: give both, or neither"),
        ({"world_size": 2}, "rank is None and world_size 2: give both, or neither"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        loader(MemoryData(), **options)


def test_arguments_are_named_as_those_of_dataloader() -> None:
    data = MemoryData(6, size=(8, 8))
    with loader(dataset=data, batch_size=4, num_workers=0) as named:
        assert len(named) == len(loader(data, 4, False, num_workers=0)) == 2
    with pytest.raises(TypeError, match=r"batch_size and shuffle by position.*sampler=\[0"):
        loader(data, 4, False, [0, 1])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"sampler=None, batch_sampler=None, num_workers=2$"):
        loader(data, 4, False, None, None, 2)  # type: ignore[call-overload]


def test_a_path_without_a_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"absent\.lmdb"):
        loader(tmp_path / "absent.lmdb")


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(
        OptionError, match="takes a path, a fastdata dataset or a torch Dataset, not int"
    ):
        loader(3)


def test_importing_the_module_does_not_hide_the_function(warm_python: WarmPython) -> None:
    script = "import fastdata, fastdata.loading; print(len(fastdata.loader([1, 2, 3])))"
    done = warm_python.run(script)
    assert done.stdout.split() == ["3"], done.stderr


# -- packed data --------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("packed")
    for index in range(24):
        path = folder / "images" / f"class_{index % 3}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = image_of(index, 6, 6 + index % 4)
        Image.fromarray(noise).resize((50 + index % 4, 48), Image.Resampling.BICUBIC).save(path)
    for name in ("data.lmdb", "data.h5"):
        fastdata.pack(
            folder / "images",
            folder / name,
            size=32,
            codec="jpeg",
            num_workers=1,
            progress=False,
        )
    return {path.suffix: path for path in (folder / "data.lmdb", folder / "data.h5")}


@pytest.mark.parametrize("suffix", [".lmdb", ".h5"])
def test_packed_files_are_loaded(packed: dict[str, Path], suffix: str) -> None:
    with loader(packed[suffix], batch_size=8, transform=T.CenterCrop(32), num_workers=2) as it:
        batches = list(it)
        for index, (image, label) in enumerate(it.dataset):
            left = round((image.shape[2] - 32) / 2)
            batch = batches[index // 8]
            assert torch.equal(batch.image[index % 8], image[:, :, left : left + 32])
            assert batch.label[index % 8] == label


def test_containers_give_the_same_batches(packed: dict[str, Path]) -> None:
    found = {
        digest(
            loader(packed[suffix], batch_size=5, shuffle=True, transform=RRC, num_workers=workers)
        )
        for suffix in packed
        for workers in (0, 3)
    }
    assert len(found) == 1


def test_a_subset_and_a_list_of_paths_are_loaded(packed: dict[str, Path]) -> None:
    subset = fastdata.open(packed[".lmdb"])[10:20]
    assert len(list(loader(subset, batch_size=4, transform=RRC))) == 3
    assert (
        len(list(loader([packed[".lmdb"], str(packed[".h5"])], batch_size=4, transform=RRC))) == 12
    )
