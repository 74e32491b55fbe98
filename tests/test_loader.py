"""The loader: same batches however they are made, and nothing left behind."""

from __future__ import annotations

import functools
import gc
import json
import multiprocessing
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import ALL_FIELDS, MemoryData, digest, image_of

from fastdata import transforms as T  # noqa: N812
from fastdata.engine import cores
from fastdata.engine import workers as engine_workers
from fastdata.engine.threads import THREAD_NAME
from fastdata.errors import DatasetNotFoundError, OptionError, ShardCorruptError
from fastdata.loading import Loader, loader
from fastdata.schema import (
    Field,
)

RRC = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def workers_alive() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(THREAD_NAME)]


@pytest.fixture(autouse=True)
def _workers_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes do is seen in test_workers.py and its neighbours."""
    monkeypatch.setattr(engine_workers, "_forks", lambda context: False)


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    yield
    if workers_alive():  # perhaps held by a traceback that only the collector ends
        gc.collect()
    assert workers_alive() == []


# -- what a batch is ----------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_batch_holds_every_kind_of_field(num_workers: int) -> None:
    data = MemoryData(10, size=(9, 11), fields=ALL_FIELDS)
    batch = next(iter(loader(data, batch_size=4, num_workers=num_workers)))
    assert type(batch)._fields == tuple(ALL_FIELDS)
    assert batch.image.shape == (4, 3, 9, 11)
    assert batch.image.dtype == torch.uint8
    assert batch.image.is_contiguous(memory_format=torch.channels_last)
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
        data, batch_size=5, transform=[*transforms, lambda image: image], seed=4, num_workers=2
    )
    batches = list(by_sample)
    assert digest(batches) == digest(direct)
    assert batches[0].image.is_contiguous(memory_format=torch.channels_last)


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
    "transform",
    [
        None,
        RRC,
        [T.RandomResizedCrop(16, antialias=True)],
        [T.RandomCrop(12, padding=4), T.RandomHorizontalFlip()],
        [*RRC, T.Normalize(MEAN, STD)],
        [*RRC, T.PerSample(lambda s: s._replace(label=s.label + 1))],
    ],
    ids=["none", "rrc", "antialias", "padding", "normalize", "per sample"],
)
@pytest.mark.parametrize("fields", [None, ALL_FIELDS], ids=["image", "all fields"])
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


def test_batch_memory_is_not_shared_between_batches() -> None:
    batches = list(loader(MemoryData(30), batch_size=3, transform=RRC, num_workers=2))
    assert len({batch.image.data_ptr() for batch in batches}) == 10


def test_empty_data_gives_no_batches() -> None:
    it = loader(MemoryData(0), batch_size=4, transform=RRC, shuffle=True)
    assert len(it) == 0
    assert list(it) == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_length_is_the_number_of_batches(drop_last: bool, num_workers: int) -> None:
    it = loader(
        MemoryData(11), batch_size=4, transform=RRC, drop_last=drop_last, num_workers=num_workers
    )
    sizes = [len(batch.label) for batch in it]
    assert sizes == ([4, 4] if drop_last else [4, 4, 3])
    assert len(it) == len(sizes)


def test_a_sampler_decides_the_order() -> None:
    it = loader(MemoryData(30), batch_size=2, transform=RRC, sampler=[7, 7, 2], num_workers=1)
    assert [batch.label.tolist() for batch in it] == [[21, 21], [6]]


# -- transforms in the loader -------------------------------------------------------


def test_unequal_sizes_without_a_geometric_transform_are_explained() -> None:
    with pytest.raises(
        OptionError,
        match=r"20 x 20 in the first sample of this batch and 21 x 21 in sample 1 .*RandomResized",
    ):
        next(iter(loader(MemoryData(), batch_size=4, num_workers=2)))


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
    assert normalized.is_contiguous(memory_format=torch.channels_last)


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
    assert workers_alive() == []
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
    assert workers_alive() == []


def test_an_error_in_a_callable_is_the_callables() -> None:
    def broken(image: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("by the user")

    with pytest.raises(ZeroDivisionError, match="by the user"):
        list(loader(MemoryData(9), transform=broken, num_workers=2))


# -- threads ------------------------------------------------------------------------


def test_work_goes_on_while_nobody_asks() -> None:
    data = MemoryData(100)
    it = iter(loader(data, batch_size=5, transform=RRC, num_workers=2, prefetch_factor=3))
    deadline = time.monotonic() + 30
    while len(data.reads) < 15 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(data.reads) == list(range(15))
    next(it)
    while len(data.reads) < 20 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(data.reads) == list(range(20))
    del it


def test_break_leaves_no_threads() -> None:
    it = loader(MemoryData(100), batch_size=2, transform=RRC, num_workers=3)
    for _ in it:
        assert workers_alive()
        break
    assert workers_alive() == []
    assert len(list(it)) == 50


def test_an_exception_in_the_training_loop_leaves_no_threads() -> None:
    def train() -> None:
        for _ in loader(MemoryData(100), batch_size=2, transform=RRC, num_workers=3):
            raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError, match="loss is nan"):
        train()
    gc.collect()
    assert workers_alive() == []


@pytest.mark.parametrize("options", [{"persistent_workers": False}, {"sampler": [3, 1]}])
def test_an_epoch_that_is_not_joined_to_the_next_leaves_no_threads(options: dict[str, Any]) -> None:
    it = loader(MemoryData(10), transform=RRC, num_workers=3, **options)
    list(it)
    assert workers_alive() == []


def test_a_loader_that_is_dropped_leaves_no_threads() -> None:
    it = loader(MemoryData(10), batch_size=2, transform=RRC, num_workers=3)
    list(it)
    assert len(workers_alive()) == 3, "they have begun the next epoch"
    del it
    assert workers_alive() == []


def test_workers_begin_the_next_epoch_before_it_is_asked_for() -> None:
    data = MemoryData(20)
    it = loader(data, batch_size=5, shuffle=True, transform=RRC, num_workers=2)
    list(it)
    deadline = time.monotonic() + 30
    while len(data.reads) < 30 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(data.reads) == 30, "two batches are made ahead"
    assert digest(it) == digest(fresh_epoch(1))
    it.close()


def fresh_epoch(epoch: int) -> Loader:
    it = loader(MemoryData(20), batch_size=5, shuffle=True, transform=RRC, num_workers=0)
    it.set_epoch(epoch)
    return it


@pytest.mark.parametrize("num_workers", [0, 2])
def test_another_epoch_can_be_chosen_after_the_next_was_begun(num_workers: int) -> None:
    it = loader(MemoryData(20), batch_size=5, shuffle=True, transform=RRC, num_workers=num_workers)
    list(it)
    it.set_epoch(7)
    assert digest(it) == digest(fresh_epoch(7))
    it.set_epoch(1)
    assert digest(it) == digest(fresh_epoch(1))
    it.close()


def test_close_ends_all_iterators_and_can_be_repeated() -> None:
    with loader(MemoryData(100), batch_size=2, transform=RRC, num_workers=2) as it:
        one, two = iter(it), iter(it)
        next(one)
        next(two)
        assert len(workers_alive()) == 4
    assert workers_alive() == []
    assert list(one) == []
    it.close()
    with pytest.raises(OptionError, match="loader is closed"):
        iter(it)


def test_two_iterators_at_once_are_two_epochs() -> None:
    def fresh() -> Loader:
        return loader(MemoryData(30), batch_size=4, shuffle=True, transform=RRC, num_workers=2)

    it = fresh()
    both = list(zip(it, it, strict=True))
    expected = fresh()
    assert digest(one for one, _ in both) == digest(expected)
    assert digest(two for _, two in both) == digest(expected)


def test_process_wide_thread_settings_are_left_alone() -> None:
    cv2 = pytest.importorskip("cv2")
    before = cv2.getNumThreads(), torch.get_num_threads()
    inside = []
    list(loader(MemoryData(9), transform=[lambda image: image, *RRC], num_workers=2))
    worker = threading.Thread(target=lambda: inside.append(torch.get_num_threads()))
    worker.start()
    worker.join()
    assert (cv2.getNumThreads(), torch.get_num_threads()) == before
    assert inside == [before[1]]


# -- resume -------------------------------------------------------------------------


def resumable(**options: Any) -> Loader:
    defaults = {"batch_size": 4, "shuffle": True, "seed": 3, "transform": RRC, "num_workers": 2}
    return loader(MemoryData(30), **{**defaults, **options})


@pytest.mark.parametrize("epochs_done", [0, 2])
@pytest.mark.parametrize("batches_done", [0, 1, 5, 8])
@pytest.mark.parametrize("dropped", [False, True])
def test_resume_yields_what_an_uninterrupted_run_would(
    epochs_done: int, batches_done: int, dropped: bool
) -> None:
    def run(it: Loader, epochs: int) -> list[Any]:
        return [batch for _ in range(epochs) for batch in it]

    whole = run(resumable(), 4)
    it = resumable()
    run(it, epochs_done)
    part = iter(it)
    for _ in range(batches_done):
        next(part)
    if dropped:
        del part
    state = json.loads(json.dumps(it.state_dict()))

    resumed = resumable(num_workers=0)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    rest = run(resumed, 4 - epochs_done)[: 32 - 8 * epochs_done - batches_done]
    assert digest(rest) == digest(whole[8 * epochs_done + batches_done :][: len(rest)])
    assert len(rest) == 32 - 8 * epochs_done - batches_done


def test_resume_reads_nothing_of_the_batches_before() -> None:
    data = MemoryData(30)
    it = loader(data, batch_size=4, transform=RRC, num_workers=0)
    state = it.state_dict() | {"batch": 7}
    it.load_state_dict(state)
    list(it)
    assert data.reads == [28, 29]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 5}, "taken with global_batch_size 4, but this loader has 5"),
        ({"seed": 4}, "taken with seed 3, but this loader has 4"),
        ({"shuffle": False}, "order 'Shuffled', but this loader has 'Sequential'"),
        ({"drop_last": True}, "drop_last False"),
        ({"rank": 0, "world_size": 2}, "global_batch_size 4, but this loader has 8"),
    ],
)
def test_a_state_of_another_loader_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resumable(**change).load_state_dict(resumable().state_dict())


def test_a_state_of_another_dataset_is_refused() -> None:
    it = resumable()
    state = it.state_dict()
    it.dataset.digest = "beef"
    with pytest.raises(OptionError, match="taken with digest 'feed', but this loader has 'beef'"):
        it.load_state_dict(state)
    with pytest.raises(OptionError, match="not the state of a loader of this version"):
        it.load_state_dict({})


def test_every_rank_has_the_same_state() -> None:
    states = []
    for rank in range(2):
        it = resumable(rank=rank, world_size=2)
        next(iter(it))
        states.append(it.state_dict())
    assert states[0] == states[1]
    assert states[0]["batch"] == 1


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


def test_repr_tells_what_is_loaded() -> None:
    it = loader(MemoryData(10), batch_size=4, num_workers=2)
    assert repr(it) == "Loader(3 batches of 4, Sequential, 2 worker threads)\nMemoryData(10)"


# -- what is accepted ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker_method": "fibre"}, "worker_method is one of 'auto', 'thread', 'process', not 'f"),
        ({"on_corrupt": "ignore"}, "on_corrupt is one of 'raise', 'skip', not 'ignore'"),
        ({"decoder": "ffmpeg"}, "ffmpeg"),
        ({"shuffle": "blocks"}, 'shuffle is False, True, "block" or a BlockShuffle'),
        ({"weights": [1, 2]}, "weights has 2 numbers, but the dataset has 50 samples"),
        ({"weights": [1, 2], "sampler": [1]}, "sampler and weights: one of them decides"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "leave out batch_size and drop_last"),
        ({"even": False, "drop_last": True}, "drop_last=True leaves samples out"),
        ({"backend": "gpu"}, "backend is one of 'auto', 'cpu', 'dali', not 'gpu'"),
        ({"batch_size": 0}, "batch_size is an int from 1 up, not 0"),
        ({"num_workers": -1}, 'num_workers is "auto" or an int from 0 up, not -1'),
        ({"num_workers": "all"}, 'num_workers is "auto" or an int from 0 up'),
        ({"prefetch_factor": 0}, 'prefetch_factor is "auto" or an int from 1 up'),
        ({"pin_memory": "yes"}, "pin_memory is one of 'auto', True, False"),
        ({"dtype": torch.int32}, "floating torch.dtype"),
        ({"sampler": [1], "shuffle": True}, "shuffle and sampler: one of them decides the order"),
        ({"sampler": [1], "world_size": 2}, "leave out rank and world_size"),
        ({"rank": 2, "world_size": 2}, "rank is 0 to world_size - 1, not 2"),
        ({"collate_fn": list}, "collate_fn: not an option of a loader of packed data"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        loader(MemoryData(), **options)


def test_a_path_without_a_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"absent\.lmdb"):
        loader(tmp_path / "absent.lmdb")


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(
        OptionError, match="takes a path, a fastdata dataset or a torch Dataset, not int"
    ):
        loader(3)


def test_importing_the_module_does_not_hide_the_function() -> None:
    script = "import fastdata, fastdata.loading; print(len(fastdata.loader([1, 2, 3])))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["3"], done.stderr


# -- packed data --------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    driver = pytest.importorskip("fastdata.converters.packing.driver")
    from PIL import Image

    folder = tmp_path_factory.mktemp("packed")
    for index in range(24):
        path = folder / "images" / f"class_{index % 3}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = image_of(index, 6, 6 + index % 4)
        Image.fromarray(noise).resize((50 + index % 4, 48), Image.Resampling.BICUBIC).save(path)
    for name in ("data.lmdb", "data.h5"):
        driver.pack(folder / "images", folder / name, size=32, codec="jpeg", num_workers=1)
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
    fastdata_open = pytest.importorskip("fastdata.dataset").open
    subset = fastdata_open(packed[".lmdb"])[10:20]
    assert len(list(loader(subset, batch_size=4, transform=RRC))) == 3
    assert (
        len(list(loader([packed[".lmdb"], str(packed[".h5"])], batch_size=4, transform=RRC))) == 12
    )


# -- torch datasets -----------------------------------------------------------------


class Squares(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index**2


class Noise(Squares):
    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        import random

        threads = torch.get_num_threads()
        return torch.tensor([random.random(), np.random.random(), torch.rand(()).item(), threads])


def test_a_torch_dataset_gets_a_stock_dataloader() -> None:
    it = loader(Squares(), batch_size=4, drop_last=True, num_workers=0)
    assert isinstance(it, torch.utils.data.DataLoader)
    assert [batch.tolist() for batch in it] == [[0, 1, 4, 9], [16, 25, 36, 49]]
    assert it.pin_memory == torch.cuda.is_available()


def test_the_stock_dataloader_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 1)
    it = loader(Squares(), batch_size=4, prefetch_factor=5)
    assert (it.num_workers, it.prefetch_factor, it.persistent_workers) == (1, 5, True)


def test_the_stock_dataloaders_workers_are_seeded_and_single_threaded() -> None:
    def batch(seed: int, context: str) -> torch.Tensor:
        it = loader(
            Noise(),
            batch_size=5,
            seed=seed,
            num_workers=2,
            multiprocessing_context=context,
            persistent_workers=False,
        )
        return torch.cat(list(it))

    # However they are started; spawned ones, which import everything, take seconds.
    first, again, other = batch(1, "spawn"), batch(1, "fork"), batch(2, "fork")
    assert torch.equal(first, again)
    assert not torch.equal(first[:, :3], other[:, :3])
    assert len(first[:, :3].unique()) == 30
    assert (first[:, 3] == 1).all()


class Enlarged(Squares):
    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        cv2 = pytest.importorskip("cv2")
        return int(cv2.resize(np.full((50, 50), index, np.uint8), (100, 100))[0, 0])


def test_workers_forked_after_opencv_used_threads_do_not_hang() -> None:
    cv2 = pytest.importorskip("cv2")
    cv2.resize(np.zeros((3000, 3000, 3), np.uint8), (4000, 4000))  # starts OpenCV's threads
    it = loader(Enlarged(), num_workers=2, multiprocessing_context="fork", persistent_workers=False)
    assert [int(batch) for batch in it] == list(range(len(Enlarged())))


def test_the_stock_dataloader_shuffles_by_seed() -> None:
    def order(seed: int) -> list[int]:
        return [int(x) for x in loader(Squares(), shuffle=True, seed=seed, num_workers=0)]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == [i**2 for i in range(10)]


def test_the_stock_dataloader_takes_its_own_options() -> None:
    it = loader(Squares(), batch_size=4, num_workers=0, collate_fn=sum)
    assert list(it) == [14, 126, 145]
    by_batch = loader(Squares(), num_workers=0, batch_sampler=[[1, 2], [3]])
    assert [batch.tolist() for batch in by_batch] == [[1, 4], [9]]


def test_ranks_share_a_torch_dataset() -> None:
    shares = [
        [int(x) for x in loader(Squares(), num_workers=0, rank=rank, world_size=2)]
        for rank in range(2)
    ]
    assert shares == [[0, 4, 16, 36, 64], [1, 9, 25, 49, 81]]


@pytest.mark.parametrize("option", ["transform", "dtype"])
def test_options_of_packed_data_are_refused_for_torch_datasets(option: str) -> None:
    value = {"transform": RRC, "dtype": torch.float32}[option]
    with pytest.raises(OptionError, match=f"{option} is for packed data, but Squares"):
        loader(Squares(), **{option: value})


# -- cores and memory ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "1600000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu.max": "nonsense"}, 8),
    ],
)
def test_cores_are_those_a_container_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.available_cores(tmp_path) == expected


@pytest.mark.parametrize(
    ("available", "local", "expected"),
    [(8, None, 8), (8, "4", 2), (8, "16", 1), (64, None, 16), (64, "0", 16), (4, "x", 4)],
)
def test_workers_are_shared_out_over_the_processes_of_a_machine(
    monkeypatch: pytest.MonkeyPatch, available: int, local: str | None, expected: int
) -> None:
    monkeypatch.setattr(cores, "available_cores", functools.partial(int, available))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    assert cores.default_workers() == expected


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("transform", [RRC, [*RRC, T.Normalize(MEAN, STD)]])
def test_memory_of_batches_goes_round_without_the_garbage_collector(
    num_workers: int, transform: Any
) -> None:
    it = loader(MemoryData(80), batch_size=4, transform=transform, num_workers=num_workers)
    gc.disable()
    try:
        addresses = {batch.image.data_ptr() for _ in range(3) for batch in it}
    finally:
        gc.enable()
    # Two ahead, one being made, one in the loop, and one just let go.
    assert len(addresses) <= 5


def test_batches_outlive_their_loader() -> None:
    def kept(num_workers: int) -> list[Any]:
        return list(loader(MemoryData(30), batch_size=4, transform=RRC, num_workers=num_workers))

    batches = kept(2)
    kept(2)
    assert digest(batches) == digest(kept(0))


# -- what "auto" means ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_workers", "calls_python", "context", "expected"),
    [
        (0, True, "fork", "thread"),
        (1, True, "fork", "thread"),
        (2, False, "fork", "process"),
        (2, False, "spawn", "thread"),
        (2, False, multiprocessing.get_context("forkserver"), "thread"),
        (2, True, "spawn", "process"),
    ],
)
def test_processes_are_taken_where_they_are_forked_or_callables_need_them(
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
    calls_python: bool,
    context: Any,
    expected: str,
) -> None:
    monkeypatch.undo()
    chosen = engine_workers.choose_method(num_workers, calls_python=calls_python, context=context)
    assert chosen == expected


def test_threads_are_taken_where_the_compiled_library_does_the_work() -> None:
    chosen = engine_workers.choose_method(8, calls_python=False, releases_lock=True, context="fork")
    assert chosen == "thread"


def test_a_free_threaded_interpreter_takes_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert engine_workers.choose_method(8, calls_python=True, context="fork") == "thread"
