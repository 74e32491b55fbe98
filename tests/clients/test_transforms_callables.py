"""torchvision, albumentations and timm as they are used among the transforms."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.schema import ArrayField, ImageField, ScalarField

A = pytest.importorskip("albumentations")
v2 = pytest.importorskip("torchvision.transforms.v2")
v1 = pytest.importorskip("torchvision.transforms")

COUNT, HEIGHT, WIDTH = 32, 60, 80
FORK = {"multiprocessing_context": "fork"} if sys.platform == "linux" else {}
WORKERS = [{"num_workers": 0}, {"num_workers": 1, **FORK}, {"num_workers": 2, **FORK}]


# -- data: boxes can be seen in the images, and masks are what is in them ---------------


def boxes_of(index: int) -> np.ndarray[Any, Any]:
    """Return three boxes: float32 [3, 4]."""
    numbers = np.random.default_rng(index)
    left, top = numbers.integers(0, 45, 3), numbers.integers(0, 30, 3)
    sides = numbers.integers(12, 30, (2, 3))
    return np.stack([left, top, left + sides[0], top + sides[1]], 1).astype(np.float32)


def sample_of(index: int) -> dict[str, Any]:
    """Return a sample whose box number k is a rectangle in channel k of the image."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    boxes = boxes_of(index)
    for channel, (left, top, right, bottom) in enumerate(boxes.astype(int).tolist()):
        image[top:bottom, left:right, channel] = 255
    mask = (image > 0).any(2).astype(np.uint8)[..., None]
    classes = np.arange(3) + 10 * index
    return {"image": image, "mask": mask, "boxes": boxes, "classes": classes, "label": index}


def noise(index: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(index).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


FIELDS = {
    "image": ImageField(),
    "mask": ImageField(1, mask=True),
    "boxes": ArrayField("float32", (None, 4), boxes=True),
    "classes": ArrayField("int64", (None,)),
    "label": ScalarField(),
}


def packed_in(folder: Path, *names: str) -> str:
    samples = [{name: sample_of(index)[name] for name in names} for index in range(COUNT)]
    fields = {name: FIELDS[name] for name in names}
    fastdata.pack(
        samples, folder / "d.lmdb", codec="raw", fields=fields, num_workers=0, progress=False
    )
    return str(folder / "d.lmdb")


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed_in(tmp_path_factory.mktemp("detection"), *FIELDS)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("classes")
    samples = [{"image": noise(index), "label": index} for index in range(COUNT)]
    fastdata.pack(samples, folder / "d.lmdb", codec="raw", num_workers=0, progress=False)
    return str(folder / "d.lmdb")


def batches(path: str, transform: Any, **options: Any) -> list[Any]:
    options = {"batch_size": 8, "num_workers": 0, "seed": 5, "shuffle": True, **options}
    with fastdata.loader(path, transform=transform, **options) as it:
        return [batch for _ in range(2) for batch in it]


def flat(batches: list[Any]) -> list[Any]:
    """Return all numbers of batches, by the samples' labels and epochs."""
    rows: dict[int, list[Any]] = {}
    for batch in batches:
        for at, label in enumerate(batch.label.tolist()):
            values = [
                field[at].tolist() for name, field in batch._asdict().items() if name != "label"
            ]
            rows.setdefault(label, []).append(values)
    return [rows[label] for label in sorted(rows)]


# -- random numbers -------------------------------------------------------------------


COLOURS = [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)]
ALBUMENTED = [
    A.RandomResizedCrop((24, 24)),
    A.HorizontalFlip(p=0.5),
    A.VerticalFlip(p=0.5),
    A.OneOf([A.GaussNoise(p=1), A.ColorJitter(p=1)], p=1),
    A.CoarseDropout(p=0.5),
]


def own(image: torch.Tensor) -> torch.Tensor:
    return image.roll(random.randrange(60) + int(np.random.randint(20)), 2)[:, :24, :24]


MODULE = A.Compose([A.RandomCrop(24, 24), A.RandomBrightnessContrast(p=1)])


def hidden(image: torch.Tensor) -> torch.Tensor:
    """Call a transform of albumentations that only this function knows of."""
    pixels = MODULE(image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()))["image"]
    return torch.from_numpy(pixels).permute(2, 0, 1)


def timms() -> Any:
    timm = pytest.importorskip("timm.data")
    return timm.create_transform(24, is_training=True, auto_augment="rand-m9", re_prob=0.5)


RANDOM: dict[str, Any] = {
    "v2": lambda: v2.Compose(COLOURS),
    "v2, one by one": lambda: COLOURS,
    "albumentations": lambda: A.Compose(ALBUMENTED),
    "albumentations with a seed": lambda: A.Compose(ALBUMENTED, seed=137),
    "albumentations wrapped": lambda: T.Albumentations(A.Compose(ALBUMENTED)),
    "albumentations hidden": lambda: hidden,
    "own": lambda: own,
    "timm": timms,
    "v1 for PIL": lambda: v1.Compose(
        [v1.RandomResizedCrop(24), v1.ColorJitter(0.4, 0.4), v1.ToTensor()]
    ),
}


@pytest.mark.parametrize("name", list(RANDOM))
def test_random_callables_make_the_same_batches_for_any_number_of_workers(
    classes: str, name: str
) -> None:
    transform = RANDOM[name]()
    expected = flat(batches(classes, transform))
    for workers in WORKERS:
        assert flat(batches(classes, transform, **workers)) == expected, workers
    seen = {str(values) for epochs in expected for values in epochs}
    assert len(seen) > 1.9 * COUNT, "samples and epochs differ"
    assert flat(batches(classes, transform, seed=6)) != expected


def test_flips_of_albumentations_are_independent(classes: str) -> None:
    """Generators that are all given one seed would flip both ways or none."""

    class Note(A.ImageOnlyTransform):
        def apply(self, image: Any, **parameters: Any) -> Any:
            return image

        def __call__(self, *arguments: Any, **values: Any) -> Any:
            drawn.append((self.py_random.random() < 0.5, self.random_generator.random() < 0.5))
            return values

    drawn: list[Any] = []
    batches(classes, A.Compose([Note(p=1), Note(p=1)]))
    pairs = np.array(drawn).reshape(-1, 4)
    for one in range(4):
        for other in range(one):
            assert 0.2 < (pairs[:, one] == pairs[:, other]).mean() < 0.8


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
def test_albumentations_draw_differently_in_workers_of_a_stock_dataloader(classes: str) -> None:
    crops = A.Compose([A.RandomCrop(16, 16)])

    def drawn(seed: int) -> list[bytes]:
        dataset = fastdata.open(classes, transform=crops)
        again = [0] * COUNT  # of one sample, only the draws differ
        part = torch.utils.data.Subset(dataset, again)
        torch.manual_seed(seed)
        it = torch.utils.data.DataLoader(
            part, batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        return [image.numpy().tobytes() for _ in range(2) for batch in it for image in batch.image]

    assert len({*drawn(1)}) > 1.8 * COUNT
    assert drawn(1) == drawn(1) != drawn(2)


def test_albumentations_own_generators_are_put_back(classes: str) -> None:
    transform = A.Compose([A.HorizontalFlip(p=0.5)], seed=3)
    twin = A.Compose([A.HorizontalFlip(p=0.5)], seed=3)
    batches(classes, transform)
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    for _ in range(20):
        assert (transform(image=image)["image"] == twin(image=image)["image"]).all()


# -- masks and boxes ------------------------------------------------------------------


def check_moved(made: list[Any], *, tolerance: float = 1.5, least: int = 40) -> None:
    """Compare boxes, classes and masks with what is to be seen in the images."""
    seen = 0
    for batch in made:
        for at, label in enumerate(batch.label.tolist()):
            image = batch.image[at].float()
            image = image / (255 if batch.image.dtype == torch.uint8 else 1)
            mask = batch.mask[at, 0]
            assert mask.shape == image.shape[1:]
            agree = ((image > 0.5).any(0) == (mask > 0)).float().mean()
            assert agree > 0.9, "mask and image"
            assert len(batch.boxes[at]) == len(batch.classes[at])
            for box, number in zip(batch.boxes[at].tolist(), batch.classes[at], strict=True):
                channel = image[int(number) - 10 * label] > 0.5
                if box[2] - box[0] < 3 or box[3] - box[1] < 3:
                    continue
                rows, columns = channel.any(1).nonzero(), channel.any(0).nonzero()
                assert len(rows), "a box of which nothing is to be seen"
                edges = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
                assert np.abs(np.array(box) - torch.cat(edges).numpy()).max() < tolerance
                seen += 1
    assert seen > least


V2_MOVES: dict[str, Any] = {
    "flips": [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()],
    "crop": [v2.RandomResizedCrop((40, 50), scale=(0.3, 1.0))],
    "pad and crop": [v2.RandomCrop((50, 50), padding=8)],
    "zoom out, sanitize": [v2.RandomIoUCrop(), v2.Resize((40, 40)), v2.SanitizeBoundingBoxes()],
    "float": [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)],
    "pure": [v2.RandomHorizontalFlip(), v2.ToPureTensor()],
}


@pytest.mark.parametrize("name", list(V2_MOVES))
@pytest.mark.parametrize("workers", [0, 2])
def test_v2_moves_images_masks_and_boxes(detection: str, name: str, workers: int) -> None:
    transform = T.V2(v2.Compose(V2_MOVES[name]), also="classes")
    options = FORK if workers else {}
    made = batches(detection, transform, num_workers=workers, **options)
    check_moved(made)
    plain = {label: sample_of(label)["image"] for label in range(COUNT)}
    same = [
        np.array_equal(image.permute(1, 2, 0).numpy(), plain[label])
        for batch in made
        for label, image in zip(batch.label.tolist(), batch.image, strict=True)
    ]
    assert not all(same), "nothing was moved"


def test_bare_v2_left_masks_and_boxes_and_is_refused(detection: str) -> None:
    with pytest.raises(OptionError, match=r"RandomHorizontalFlip is given images.*T\.V2"):
        batches(detection, v2.RandomHorizontalFlip(1.0))
    with pytest.raises(OptionError, match=r"HorizontalFlip .*T\.Albumentations"):
        batches(detection, A.HorizontalFlip(p=1))


def test_v2_and_fastdatas_geometry_and_drops_go_together(detection: str) -> None:
    transform = [
        T.RandomHorizontalFlip(),
        T.V2(v2.RandomCrop((30, 30))),
        T.DropEmptyBoxes(also="classes", min_side=3),
    ]
    made = batches(detection, transform)
    check_moved(made)
    assert sum(len(boxes) for batch in made for boxes in batch.boxes) < 2 * COUNT * 3


def test_dropped_boxes_take_what_is_named_or_are_an_error(detection: str) -> None:
    drop = v2.Compose([v2.RandomCrop((30, 30)), v2.SanitizeBoundingBoxes()])
    with pytest.raises(OptionError, match=r"'classes' has one entry for each of the 3.*also='cl"):
        batches(detection, T.V2(drop))
    check_moved(batches(detection, T.V2(drop, also=("classes",))))
    users = v2.Compose(
        [v2.RandomCrop((30, 30)), v2.SanitizeBoundingBoxes(labels_getter=lambda d: d["classes"])]
    )
    check_moved(batches(detection, T.V2(users)))
    check_moved(batches(detection, T.V2(users, also="classes")))
    unsaid = v2.Compose([v2.RandomCrop((30, 30)), v2.SanitizeBoundingBoxes(labels_getter=None)])
    with pytest.raises(OptionError, match="without saying which, so the entries of classes"):
        batches(detection, T.V2(unsaid, also="classes"))


def test_a_field_called_labels_takes_its_own_entries_along(tmp_path: Path) -> None:
    """The numbers of boxes need a key that is "labels" in any case, and no field's."""
    fields = {
        "image": ImageField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "Labels": ArrayField("int64", (None,)),
        "areas": ArrayField("int64", (None,)),
    }
    boxes = np.float32([[0, 0, 30, 30], [10, 10, 12, 12], [20, 20, 50, 50]])
    sample = {"image": noise(0), "boxes": boxes, "Labels": [2, 0, 1], "areas": [900, 4, 901]}
    path = tmp_path / "d.lmdb"
    fastdata.pack([sample], path, codec="raw", fields=fields, num_workers=0, progress=False)
    drop = T.V2(v2.SanitizeBoundingBoxes(min_size=5), also=("Labels", "areas"))
    (batch, _) = batches(str(path), drop)
    assert [one.tolist() for one in batch.Labels + batch.areas] == [[2, 1], [900, 901]]


def test_one_box_that_goes_leaves_the_mask(tmp_path: Path) -> None:
    """SanitizeBoundingBoxes takes a mask's first axis for objects where there is one box."""
    samples = [
        {**sample_of(n), "boxes": np.float32([[0, 0, 10, 10]]), "classes": [1]} for n in (1,)
    ]
    fastdata.pack(
        samples, tmp_path / "d.lmdb", codec="raw", fields=FIELDS, num_workers=0, progress=False
    )
    crop = v2.Compose([v2.CenterCrop((20, 20)), v2.SanitizeBoundingBoxes()])
    (batch, _) = batches(str(tmp_path / "d.lmdb"), T.V2(crop, also="classes"))
    assert batch.mask.shape == (1, 1, 20, 20)
    assert [len(one) for one in batch.boxes + batch.classes] == [0, 0]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (v2.ConvertBoundingBoxFormat("XYWH"), "format XYWH, of 'boxes'"),
        (v2.Lambda(lambda mask: mask[:9], v2._utils.tv_tensors.Mask), r"made Tensor.*of 'mask'"),
        (lambda given: given["image"], "V2 expects a dict of the fields"),
    ],
)
def test_what_v2_leaves_in_another_form_is_refused(
    detection: str, transform: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        batches(detection, T.V2(transform, also=()))


def test_v2_changes_colours_of_images_only(detection: str) -> None:
    plain = batches(detection, None, shuffle=False)
    for jitter in (T.V2(v2.RandomInvert(1.0)), T.ImageOnly(v2.RandomInvert(1.0))):
        for before, after in zip(plain, batches(detection, jitter, shuffle=False), strict=True):
            assert torch.equal(after.image, 255 - before.image)
            assert torch.equal(after.mask, before.mask)
            assert all(map(torch.equal, after.boxes, before.boxes))


ALB_MOVES: dict[str, Any] = {
    "flips": A.Compose([A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5)]),
    "one": A.RandomCrop(30, 30, p=1),
    "crop": A.Compose([A.RandomResizedCrop((40, 50), scale=(0.3, 1.0))]),
    "turn": A.RandomRotate90(p=0.5),
}


@pytest.mark.parametrize("name", [name for name in ALB_MOVES if name != "turn"])
@pytest.mark.parametrize("workers", [0, 2])
def test_albumentations_moves_image_masks_and_boxes(
    detection: str, name: str, workers: int
) -> None:
    transform = T.Albumentations(ALB_MOVES[name], bbox_params={}, also="classes")
    options = FORK if workers else {}
    check_moved(batches(detection, transform, num_workers=workers, **options), least=30)


@pytest.mark.parametrize("transpose_mask", [False, True])
def test_masks_of_totensorv2_are_as_any_masks(tmp_path: Path, transpose_mask: bool) -> None:
    """It leaves them as [H, W, C] unless it is told."""
    path = packed_in(tmp_path, "image", "mask", "label")
    totensor = pytest.importorskip("albumentations.pytorch").ToTensorV2(transpose_mask)
    made = batches(path, A.Compose([A.RandomCrop(30, 40), A.HorizontalFlip(), totensor]))
    for batch in made:
        assert batch.mask.shape == (len(batch.image), 1, 30, 40)
        assert torch.equal(batch.mask[:, 0] > 0, (batch.image > 0).any(1))
    assert fastdata.open(path, transform=A.Compose([totensor]))[0].mask.shape == (1, HEIGHT, WIDTH)


def test_albumentations_drops_boxes_with_what_belongs_to_them(detection: str) -> None:
    crop = A.RandomCrop(30, 30, p=1)
    params = A.BboxParams("pascal_voc", min_visibility=0.5, label_fields=["classes"])
    composed = A.Compose([crop], bbox_params=params)
    for transform in (
        T.Albumentations(composed),
        T.Albumentations(crop, bbox_params=params),
        T.Albumentations(crop, bbox_params={"min_visibility": 0.5}, also="classes"),
    ):
        made = batches(detection, transform)
        check_moved(made, least=20)
        assert sum(len(boxes) for batch in made for boxes in batch.boxes) < 2 * COUNT * 3
    with pytest.raises(OptionError, match=r"'classes' has one entry for each of the 3"):
        batches(detection, T.Albumentations(crop, bbox_params={}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.Albumentations(A.HorizontalFlip()), r"bbox_params=\{\}"),
        (lambda: T.Albumentations(lambda x: x), "takes a transform of albumentations"),
        (
            lambda: T.Albumentations(
                A.Compose([A.HorizontalFlip()], bbox_params=A.BboxParams("coco"))
            ),
            "format 'coco'.*'pascal_voc'",
        ),
        (
            lambda: T.Albumentations(
                A.Compose([A.HorizontalFlip()], bbox_params=A.BboxParams("pascal_voc")),
                bbox_params={},
            ),
            "given twice",
        ),
        (lambda: T.Albumentations(A.HorizontalFlip(), {}, also="label"), "entries of 'label'"),
    ],
)
def test_albumentations_that_do_not_fit_are_refused(
    detection: str, make: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        batches(detection, make())


class MyFlip(A.DualTransform):  # type: ignore[misc]
    """A class of a user's, as albumentations' documentation tells how to write one."""

    def apply(self, img: Any, **parameters: Any) -> Any:
        return np.ascontiguousarray(img[:, ::-1])

    def apply_to_mask(self, mask: Any, **parameters: Any) -> Any:
        return np.ascontiguousarray(mask[:, ::-1])


def test_a_users_class_is_an_albumentations_transform(tmp_path: Path) -> None:
    path = packed_in(tmp_path, "image", "mask", "label")
    assert MyFlip.__module__ == __name__
    plain = batches(path, None, shuffle=False)
    for before, after in zip(plain, batches(path, MyFlip(p=1), shuffle=False), strict=True):
        assert torch.equal(after.image, before.image.flip(3))
        assert torch.equal(after.mask, before.mask.flip(3))


# -- PIL ------------------------------------------------------------------------------


def test_timms_transforms_make_what_timm_makes(classes: str) -> None:
    timm = pytest.importorskip("timm.data")
    from PIL import Image

    images = [Image.fromarray(noise(index)) for index in range(COUNT)]
    for options in ({}, {"use_prefetcher": True}, {"normalize": False}):
        transform = timm.create_transform(24, is_training=False, **options)
        for given in (transform, T.OnPIL(transform)):
            made = torch.cat([b.image for b in batches(classes, given, shuffle=False)[:4]])
            expected = [torch.as_tensor(transform(image)) for image in images]
            assert torch.equal(made, torch.stack(expected)), options


@pytest.mark.parametrize(
    "transform",
    [
        v1.ToTensor(),
        v1.PILToTensor(),
        v1.Compose([v1.Resize(20), v1.CenterCrop(20), v1.ToTensor(), v1.Normalize(0.5, 0.2)]),
        v2.Compose([v2.Resize(20), v2.CenterCrop(20), v2.PILToTensor()]),
        v1.Compose([v1.RandomApply([v1.Grayscale(3)], 0.5), v1.Compose([v1.ToTensor()])]),
    ],
)
def test_what_is_made_for_pil_images_is_given_them(classes: str, transform: Any) -> None:
    from PIL import Image

    (first, *_) = batches(classes, transform, shuffle=False)
    if "RandomApply" not in repr(transform):
        expected = [transform(Image.fromarray(noise(index))) for index in range(8)]
        assert torch.equal(first.image, torch.stack(expected))
    assert first.image.dtype == (torch.uint8 if "PILToTensor" in repr(transform) else torch.float32)


@pytest.mark.parametrize(
    "transform",
    [
        v1.Compose([v1.ToPILImage(), v1.Resize(20), v1.CenterCrop(20), v1.ToTensor()]),
        v1.Compose([v1.Compose([v1.ToPILImage(), v1.CenterCrop(20)]), v1.PILToTensor()]),
        v2.Compose([v2.ToPILImage(), v2.CenterCrop(20), v2.ToImage()]),
    ],
)
def test_what_makes_pil_images_itself_is_given_tensors(classes: str, transform: Any) -> None:
    (first, *_) = batches(classes, transform, shuffle=False)
    tensors = [torch.from_numpy(noise(index)).permute(2, 0, 1) for index in range(8)]
    assert torch.equal(first.image, torch.stack([transform(one) for one in tensors]))


def test_v2_on_tensors_goes_on_tensors(classes: str) -> None:
    transform = v2.Compose([v2.ToImage(), v2.CenterCrop(20), v2.ToDtype(torch.float32, scale=True)])
    (first, *_) = batches(classes, transform, shuffle=False)
    expected = torch.stack([torch.from_numpy(noise(n)) for n in range(8)])
    crop = expected.permute(0, 3, 1, 2)[:, :, 20:40, 30:50]
    torch.testing.assert_close(first.image, crop.float() / 255)
