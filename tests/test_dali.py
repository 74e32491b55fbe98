"""The DALI backend against the CPU backend: the same batches, and nearly the same pixels."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import boxed_shard
from dali_helpers import by_cpu, by_dali, without_pixels
from memory_data import MemoryData, digest
from samples import EVERY_KIND, decoded, encode, make_records, mask, photo, psnr, write_shard
from worker_helpers import (
    MEAN,
    PICTURES,
    RRC,
    STD,
    TurnByIndex,
    WindowByIndex,
    invert,
    kept,
    pictures,
)

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.formats.writer import Record
from fastdata.loading import loader
from fastdata.sampling import BlockShuffle
from fastdata.schema import ImageField, ScalarField, Schema

pytestmark = [pytest.mark.dali, pytest.mark.usefixtures("dali")]

CROP = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of short side 256, as fastdata packs them: 4:2:0 with restart intervals."""
    records = pictures(32, "jpeg", (256, 300))
    return write_shard(tmp_path_factory.mktemp("photos") / "p.lmdb", records, PICTURES)


def test_a_split_is_that_of_the_cpu_backend(tmp_path: Path) -> None:
    images = ({"image": photo(40, 48, seed=k), "number": k, "split": k % 2} for k in range(9))
    fields = {
        "image": ImageField(),
        "number": ScalarField(),
        "split": ScalarField(classes=("train", "val")),
    }
    path = tmp_path / "a.lmdb"
    fastdata.pack(images, path, fields=fields, codec="jpeg", num_workers=0, progress=False)
    options: dict[str, Any] = {"split": "val", "transform": [T.RandomResizedCrop(32)]}
    with by_cpu(path, **options) as cpu, by_dali(path, **options) as dali:
        (expected,), (batch,) = cpu, dali
    assert batch._fields == expected._fields == ("image", "number")
    assert batch.number.tolist() == expected.number.tolist() == [1, 3, 5, 7]


def decibels(path: Path, transform: Any, **options: Any) -> list[float]:
    """Return the PSNR of each image of an epoch to that of the CPU backend, in dB."""
    found = []
    with (
        by_cpu(path, transform=transform, **options) as cpu,
        by_dali(path, transform=transform, **options) as dali,
    ):
        for expected, batch in zip(cpu, dali, strict=True):
            for one, other in zip(expected.image.numpy(), batch.image.numpy(), strict=True):
                found.append(psnr(one, other))
    return found


# -- pixels ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "lowest", "median"),
    [
        # Seen: lowest 70.3, 55.8, 70.3, 52.0, 55.5, 51.4, 49.3, 74.5 dB.
        ([T.RandomResizedCrop(224), T.RandomHorizontalFlip()], 67, 70),
        ([T.RandomResizedCrop(224, antialias=True)], 53, 54),
        ([T.RandomResizedCrop(224, antialias=False)], 67, 70),
        # The CPU decodes some of these at half the size, and resizes by other libraries where
        # nothing is compiled.
        ([T.RandomResizedCrop(112), T.RandomHorizontalFlip()], 49, 51),
        ([T.RandomResizedCrop(112, interpolation="bicubic", antialias=True)], 52, 54),
        ([T.RandomResizedCrop(112, interpolation="bicubic")], 49, 53),
        ([T.Resize(128), T.CenterCrop(112)], 47, 48),
        ([T.Resize(300), T.RandomHorizontalFlip()], 71, 72),
        ([T.RandomResizedCrop(224), T.RandomVerticalFlip(), TurnByIndex()], 67, 70),
    ],
    ids=str,
)
def test_a_resized_crop_is_that_of_the_cpu(
    photos: Path, transform: Any, lowest: float, median: float
) -> None:
    found = decibels(photos, transform, shuffle=True)
    assert min(found) > lowest
    assert np.median(found) > median


@pytest.mark.smoke
@pytest.mark.parametrize(
    "transform",
    [
        None,
        T.CenterCrop(200),
        T.CenterCrop(280),  # larger than the image: padded with zero
        [T.RandomCrop(100), T.RandomHorizontalFlip()],
        [T.RandomCrop(260, padding=9), T.RandomHorizontalFlip()],
        T.RandomHorizontalFlip(1.0),
        T.RandomVerticalFlip(),
        T.RandomCrop(300, 9, pad_if_needed=True, fill=(1, 2, 3)),
        [T.Pad((1, 2, 3, 4), fill={"image": 255}), T.RandomVerticalFlip()],
        [T.CenterCrop(200), TurnByIndex(), T.RandomVerticalFlip()],
        [T.RandomHorizontalFlip(), T.CenterCrop((99, 101))],
    ],
    ids=str,
)
def test_without_a_resize_pixels_are_equal(photos: Path, transform: Any) -> None:
    with by_cpu(photos, transform=transform) as cpu, by_dali(photos, transform=transform) as dali:
        assert digest(dali) == digest(cpu)


def test_reflected_pixels_are_refused(photos: Path) -> None:
    with (
        pytest.raises(OptionError, match="padding_mode='reflect' is not for DALI"),
        by_dali(photos, transform=T.Pad(3, padding_mode="reflect")) as dali,
    ):
        next(iter(dali))


def _anywhere(index: int, height: int, width: int) -> tuple[int, int, int, int]:
    """Return rectangles inside, at, over and beyond every edge."""
    top = (-90, -20, 0, 17, height - 70, height - 30, height + 5)[index % 7]
    left = (width + 9, width - 20, width - 70, 33, 0, -13, -80)[index // 2 % 7]
    return top, left, 70, 70


def test_what_lies_beyond_the_image_is_zero(photos: Path) -> None:
    enlarged = WindowByIndex(_anywhere, (90, 80))
    assert min(decibels(photos, enlarged)) > 67
    transform = WindowByIndex(_anywhere, (70, 70), resize=False)
    with (
        by_cpu(photos, transform=transform, batch_size=32) as cpu,
        by_dali(photos, transform=transform, batch_size=32) as dali,
    ):
        [expected], [batch] = cpu, dali
        assert torch.equal(batch.image, expected.image)
        assert not batch.image[0].any()


@pytest.mark.parametrize("place", ["lmdb", "hdf5 x 3"])
@pytest.mark.parametrize(
    "transform",
    [
        RRC,
        [T.RandomCrop(140, padding=8), T.RandomHorizontalFlip()],
        [T.Resize(64), T.RandomHorizontalFlip(), T.CenterCrop(60)],
        [T.Resize((50, 60)), T.CenterCrop(40), T.Resize(30), T.RandomHorizontalFlip()],
    ],
    ids=str,
)
def test_every_codec_in_one_batch_with_masks(
    mixed: dict[str, Path], place: str, transform: Any
) -> None:
    options: dict[str, Any] = {"transform": transform, "shuffle": True}
    with by_cpu(mixed[place], **options) as cpu, by_dali(mixed[place], **options) as dali:
        for _ in range(2):
            for expected, batch in zip(cpu, dali, strict=True):
                assert without_pixels(batch) == without_pixels(expected)
                for one, other in zip(batch.image.numpy(), expected.image.numpy(), strict=True):
                    assert psnr(one, other) > 45
                # A centre may fall between two pixels, and OpenCV then takes either.
                assert (batch.mask == expected.mask).float().mean() > 0.98


@pytest.mark.smoke
@pytest.mark.parametrize("transform", [None, [T.RandomCrop(16, padding=2)], RRC], ids=str)
def test_raw_images(tiny: dict[str, Path], transform: Any) -> None:
    path = tiny["lmdb"]
    with by_cpu(path, transform=transform) as cpu, by_dali(path, transform=transform) as dali:
        for expected, batch in zip(cpu, dali, strict=True):
            assert without_pixels(batch) == without_pixels(expected)
            assert psnr(batch.image.numpy(), expected.image.numpy()) > 60


def test_a_field_of_every_kind_and_grey_images(tmp_path: Path) -> None:
    records = make_records(EVERY_KIND, codec="jpeg")
    path = write_shard(tmp_path / "rich.lmdb", records, EVERY_KIND)
    with by_cpu(path, batch_size=1) as cpu, by_dali(path, batch_size=1) as dali:
        assert digest(dali) == digest(cpu)


def test_jpegs_kept_as_they_were_are_decoded_whole(tmp_path: Path) -> None:
    records = [
        Record(record.key, (kept(decoded(record.values[0], 3)), record.values[1]))
        for record in pictures(8, "jpeg", (200, 210))
    ]
    path = write_shard(tmp_path / "kept.lmdb", records, PICTURES)
    transform = WindowByIndex(lambda i, h, w: (3 * i, 5 * i, 100, 90), (100, 90), resize=False)
    with by_cpu(path, transform=transform) as cpu, by_dali(path, transform=transform) as dali:
        assert digest(dali) == digest(cpu)


def test_pixel_and_batch_transforms_are_those_of_the_cpu(photos: Path) -> None:
    transform = [
        T.RandomCrop(100),
        T.Normalize(MEAN, STD),
        T.ToDtype(torch.float16),
        T.RandomErasing(0.7),
    ]
    with by_cpu(photos, transform=transform) as cpu, by_dali(photos, transform=transform) as dali:
        batches = list(dali)
        assert batches[0].image.dtype == torch.float16
        assert digest(batches) == digest(cpu)
    mixing = [T.RandomCrop(100), T.MixUp(num_classes=40)]
    with by_cpu(photos, transform=mixing) as cpu, by_dali(photos, transform=mixing) as dali:
        assert digest(dali) == digest(cpu)
    with by_cpu(photos, dtype=torch.float32) as cpu, by_dali(photos, dtype=torch.float32) as dali:
        assert digest(dali) == digest(cpu)


def test_boxes_follow_their_images(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "b.lmdb")
    transform = [T.RandomCrop(50), T.RandomHorizontalFlip()]
    with by_cpu(path, transform=transform) as cpu, by_dali(path, transform=transform) as dali:
        assert digest(dali) == digest(cpu)


def test_data_in_memory_which_has_no_bytes_to_decode() -> None:
    data = MemoryData(40)
    with by_cpu(data, transform=RRC) as cpu, by_dali(data, transform=RRC) as dali:
        for expected, batch in zip(cpu, dali, strict=True):
            assert torch.equal(batch.label, expected.label)
            assert psnr(batch.image.numpy(), expected.image.numpy()) > 45


# -- order -------------------------------------------------------------------------------------

ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True},
    "drop last": {"shuffle": True, "drop_last": True},
    "block": {"shuffle": BlockShuffle(block_size=3, window_blocks=2)},
    "weighted": {"weights": [1 + index % 5 for index in range(32)]},
    "last of three ranks": {"shuffle": True, "rank": 2, "world_size": 3},
    "not even": {"shuffle": True, "rank": 1, "world_size": 3, "even": False},
    "not persistent": {"shuffle": True, "persistent_workers": False, "prefetch_factor": 1},
    "batches of any size": {"batch_size": 1, "batch_sampler": [[1], [2, 5, 7], [9], [0] * 9]},
}


@pytest.mark.parametrize("order", list(ORDERS))
def test_three_epochs_are_those_of_the_cpu(photos: Path, order: str) -> None:
    options = {"batch_size": 5, "transform": T.RandomCrop(64), **ORDERS[order]}
    with by_cpu(photos, **options) as cpu, by_dali(photos, **options) as dali:
        assert len(cpu) == len(dali)
        for _ in range(3):
            assert digest(dali) == digest(cpu)
        ours, others = dali.stats(), cpu.stats()
        assert (ours.batches, ours.samples) == (others.batches, others.samples)
        assert ours.bytes_read == others.bytes_read
        assert dali.state_dict() == cpu.state_dict()


def test_resuming_at_every_batch_continues_exactly(photos: Path) -> None:
    options = {"batch_size": 7, "transform": T.RandomCrop(64), "shuffle": True}
    with by_cpu(photos, **options) as cpu:
        batches = [digest([batch]) for _ in range(2) for batch in cpu]
    with by_dali(photos, **options) as first, by_dali(photos, **options) as second:
        states = [first.state_dict()]
        for _ in range(2):
            for _ in first:
                states.append(first.state_dict())
        for number in (3, 1, 7, 5, 0):
            second.load_state_dict(states[number])
            assert digest([next(iter(second))]) == batches[number]
        second.load_state_dict(states[6])
        rest = [digest([batch]) for batch in second] + [digest([batch]) for batch in second]
        assert rest[:4] == batches[6:]


def test_an_epoch_that_is_left_is_begun_anew(photos: Path) -> None:
    options = {"batch_size": 4, "transform": T.RandomCrop(64), "shuffle": True}
    with by_cpu(photos, **options) as cpu, by_dali(photos, **options) as dali:
        for epoch, left_at in ((0, 1), (0, 3), (2, 0), (1, 8)):
            for it in (cpu, dali):
                it.set_epoch(epoch)
            made = []
            for number, batch in enumerate(dali):
                made.append(digest([batch]))
                if number == left_at:
                    break
            assert made == [digest([b]) for b, _ in zip(cpu, range(left_at + 1), strict=False)]


def test_two_epochs_at_once(photos: Path) -> None:
    options = {"batch_size": 8, "transform": T.RandomCrop(64), "shuffle": True}
    with by_cpu(photos, **options) as cpu, by_dali(photos, **options) as dali:
        pairs = list(zip(dali, dali, strict=True))
        assert digest(one for one, _ in pairs) == digest(cpu)
        assert digest(two for _, two in pairs) == digest(cpu)


def test_batches_stay_as_they_are(photos: Path) -> None:
    """Memory that DALI, or a batch behind, writes to is nobody's."""
    with by_dali(photos, batch_size=4, transform=RRC) as dali:
        batches, then = [], []
        for _ in range(3):
            for batch in dali:
                batches.append(batch)
                then.append(digest([batch]))
        assert [digest([batch]) for batch in batches] == then
        assert dali.stats().buffers_in_use >= len(batches)
        del batch, batches
        assert dali.stats().buffers_in_use <= 5


def test_batches_are_made_ahead(photos: Path) -> None:
    with by_dali(photos, batch_size=4, transform=RRC, prefetch_factor=3) as dali:
        epoch = iter(dali)
        next(epoch)
        stream = epoch._stream  # type: ignore[attr-defined]
        deadline = time.monotonic() + 10
        while stream.ready < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stream.ready == 3
        assert len(list(epoch)) == 7


# -- what can be asked for ---------------------------------------------------------------------


def test_the_cpu_is_the_device_where_none_is_named(photos: Path) -> None:
    with by_dali(photos, device="cpu", transform=RRC) as one, by_dali(photos, transform=RRC) as two:
        assert "DALI on the CPU, 2 threads" in repr(one)
        assert digest(one) == digest(two)
        assert one.num_workers == 2


@pytest.mark.smoke
def test_auto_is_not_dali(photos: Path) -> None:
    with loader(photos, backend="auto", num_workers=1) as it:
        assert "DALI" not in repr(it)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": [*RRC, invert]}, r"transform has invert, a callable .*backend=\"cpu\""),
        ({"num_workers": 0}, r"num_workers is 0, but DALI .* 1 or more"),
        ({"worker_method": "process"}, r"worker_method is 'process', but DALI .*threads"),
        ({"decoder": "pil"}, r"decoder is 'pil', but with backend=\"dali\" DALI decodes"),
        ({"cache": "ram"}, r"cache is 'ram', which is for backend=\"cpu\""),
        ({"device": "meta"}, r"device is 'meta', but DALI knows the CPU and CUDA"),
    ],
    ids=["callable", "workers", "method", "decoder", "cache", "device"],
)
def test_what_dali_cannot_do_is_an_error(
    photos: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        loader(photos, backend="dali", **options)


def test_it_is_for_packed_data_with_images(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="backend is for packed data, but TensorDataset"):
        loader(torch.utils.data.TensorDataset(torch.zeros(3)), backend="dali")
    labels = Schema({"label": ScalarField("int64")})
    path = write_shard(tmp_path / "l.lmdb", [Record("a", (1,))], labels)
    with pytest.raises(OptionError, match="no images, so there is nothing for DALI to do"):
        loader(path, backend="dali", num_workers=1)


def test_images_that_do_not_fit_are_an_error_in_their_place(tmp_path: Path) -> None:
    records = [*pictures(6, size=(40, 50)), *pictures(3, size=(44, 50))]
    path = write_shard(tmp_path / "s.lmdb", records, PICTURES)
    seen = []
    message = r"40 x 50 in the first .* 44 x 50 in sample 6"
    made = by_dali(path, batch_size=4, sampler=range(9))
    with made as it, pytest.raises(OptionError, match=message):
        seen.extend(len(batch.image) for batch in it)
    assert seen == [4]
    fields = Schema({"image": ImageField(), "mask": ImageField(channels=1, mask=True)})
    record = Record("a", (encode(photo(30, 30), "jpeg"), encode(mask(30, 31), "png")))
    path = write_shard(tmp_path / "m.lmdb", [record], fields)
    made = by_dali(path, transform=RRC, sampler=[0])  # without a sampler it is refused at once
    with made as it, pytest.raises(OptionError, match="30 x 31"):
        next(iter(it))


# -- a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("transform", [CROP, [T.CenterCrop(200), T.Normalize(MEAN, STD)]], ids=str)
def test_batches_arrive_on_the_gpu(photos: Path, cuda: torch.device, transform: Any) -> None:
    options: dict[str, Any] = {"transform": transform, "shuffle": True, "batch_size": 8}
    with by_cpu(photos, **options) as cpu, by_dali(photos, device="cuda", **options) as dali:
        for _ in range(2):
            kept_back = []
            for expected, batch in zip(cpu, dali, strict=True):
                assert batch.image.device.type == batch.label.device.type == "cuda"
                assert batch.image.dtype == expected.image.dtype
                assert torch.equal(batch.label.cpu(), expected.label)
                kept_back.append((batch.image, expected.image))
            for image, expected_image in kept_back:  # after DALI has used its memory again
                # nvJPEG's inverse DCT and chroma are not libjpeg-turbo's to the bit.
                difference = (image.cpu().float() - expected_image.float()).abs().mean()
                assert difference < (2 if expected_image.dtype == torch.uint8 else 0.04)


@pytest.mark.gpu
def test_masks_and_other_codecs_on_the_gpu(mixed: dict[str, Path], cuda: torch.device) -> None:
    transform = [T.RandomCrop(120), T.RandomHorizontalFlip()]
    with (
        by_cpu(mixed["lmdb"], transform=transform) as cpu,
        by_dali(mixed["lmdb"], transform=transform, device="cuda") as dali,
    ):
        for expected, batch in zip(cpu, dali, strict=True):
            assert torch.equal(batch.mask.cpu(), expected.mask)
            assert batch.caption == expected.caption
