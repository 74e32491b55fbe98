"""A list of transforms, checked and cut into stages (`fastdata.transforms.stages`).

Neighbours of one kind run as one stage.  A list of fastdata's transforms alone is at most one
geometry stage, one drop stage and one pixel stage, and then perhaps a batch stage.  It is
*direct*: images are decoded and rendered straight into the batch.  With a callable in it,
samples are made one by one and collated.

With `Views` in the list there is a pipeline for each view, and the whole has no stages itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from fastdata.errors import OptionError
from fastdata.random import SampleKeys
from fastdata.schema import ImageField, Schema
from fastdata.transforms.base import (
    BatchTransform,
    Describe,
    GeometricTransform,
    PixelTransform,
    Sample,
    SampleTransform,
    name_of,
    pictures_of,
    positive_int,
)
from fastdata.transforms.boxes import BoundDrop, DropEmptyBoxes
from fastdata.transforms.callables import adapt
from fastdata.transforms.choosing import Chooser, Member, innermost, members_of
from fastdata.transforms.geometric import GeometryStage
from fastdata.transforms.mixing import MixTransform
from fastdata.transforms.pixel import warn_of_levels
from fastdata.transforms.stages import (
    BatchStage,
    BatchStep,
    CallStage,
    ChangeStage,
    DropStage,
    PixelStage,
    Stage,
    naming_field,
)

__all__ = ["Pipeline", "Transform", "Views", "as_tuple", "is_callable"]


class Views:
    """Make several views of every image, each with its own random draws.

    In a batch an image field is a list with one tensor [N, C, H, W] per view; all other fields are
    unchanged.  Geometry and pixel transforms before `Views` are the same in all views; later ones
    have separate draws for each.

    Parameters
    ----------
    *views : int, then transforms; or pairs of these
        ``Views(2, [...])`` makes two views of one kind; ``Views((2, [...]), (8, [...]))`` two of
        one kind, and then eight of another.  Each list follows the rules of the whole list; the
        window of each view is decoded separately, so two views cost twice one.

    Raises
    ------
    OptionError
        Without a view; if the data have masks or boxes; if a callable or a batch transform comes
        before; with `MixUp`, `CutMix` or another `Views`.

    Notes
    -----
    A callable may change images only; other fields are one for all views.

    Examples
    --------
    >>> from fastdata import transforms as T
    >>> T.Views(2, [T.RandomResizedCrop(224), T.RandomHorizontalFlip()])
    Views((2, [RandomResizedCrop, RandomHorizontalFlip]))
    """

    def __init__(self, *views: Any) -> None:
        pairs: Sequence[Any] = views
        if len(views) == 2 and isinstance(views[0], int):
            pairs = [views]
        groups = []
        for pair in pairs:
            if not (isinstance(pair, (list, tuple)) and len(pair) == 2):
                raise OptionError(
                    "Views takes a number and a list of transforms, Views(2, [...]), or "
                    f"pairs, Views((2, [...]), (8, [...])), not {pair!r}"
                )
            count, transforms = pair
            one = isinstance(transforms, (list, tuple))
            groups.append(
                (positive_int("views", count), tuple(transforms) if one else (transforms,))
            )
        if not groups:
            raise OptionError("Views takes a number and a list of transforms: Views(2, [...])")
        self.groups: tuple[tuple[int, tuple[Any, ...]], ...] = tuple(groups)
        """How many views, and their transforms, for each kind."""

    @property
    def lists(self) -> list[tuple[Any, ...]]:
        """The transforms of each view, in order."""
        return [transforms for count, transforms in self.groups for _ in range(count)]

    def __repr__(self) -> str:
        groups = (
            f"({count}, [{', '.join(_name(one) for one in transforms)}])"
            for count, transforms in self.groups
        )
        return f"Views({', '.join(groups)})"


Transform: TypeAlias = (
    GeometricTransform
    | PixelTransform
    | BatchTransform
    | DropEmptyBoxes
    | SampleTransform
    | Views
    | Chooser
    | Callable[..., Any]
)

OWN = GeometricTransform, PixelTransform, BatchTransform, DropEmptyBoxes, Views

StageT = TypeVar("StageT", bound=Stage)


class Pipeline:
    """Transforms, checked against the fields they will meet.

    `members` are those that run, with the numbers of their draws, by default from place and class.

    `stages` run sample by sample, except without callables (`direct`): then there are only
    `geometry`, `drop` and `pixels`, each a stage or None.  `batch` is the later stage for whole
    batches, and `schema_after` says how many channels images have behind it.  `views` has the
    complete pipeline of each view.
    """

    def __init__(
        self,
        transforms: Transform | Sequence[Transform] | None,
        schema: Schema,
        *,
        members: Sequence[Member] | None = None,
    ) -> None:
        self.transforms = as_tuple(transforms)
        self.schema = schema
        self.views = tuple(
            Pipeline([one.transform for one in members], schema, members=members)
            for members in _members_of_views(self.transforms, schema) or []
        )
        if members is None:
            members = _members(list(enumerate(self.transforms)))
        self.members = tuple(member.transform for member in members)
        cut = _Cut(schema)
        if not self.views:
            for member in members:
                cut.add(member)
        cut.end_of_samples()
        warn_of_levels(cut.of_uint8)
        self.stages: tuple[Stage, ...] = tuple(cut.stages)
        self.batch = BatchStage(schema, tuple(cut.batch_steps)) if cut.batch_steps else None
        self.schema_after: Schema = cut.schema_of_batch
        calls = any(isinstance(stage, CallStage) for stage in self.stages)
        self.direct: bool = not calls and all(view.direct for view in self.views)
        self.geometry = self._only(GeometryStage)
        self.drop = self._only(DropStage)
        self.pixels = self._only(PixelStage)

    def _only(self, kind: type[StageT]) -> StageT | None:
        """Return the only stage of a kind in a direct pipeline, or None."""
        stages = self.stages if self.direct else ()
        return next((stage for stage in stages if isinstance(stage, kind)), None)

    def run(
        self,
        samples: list[Sample],
        seed: int,
        keys: SampleKeys,
        describe: Describe = "sample {}".format,
    ) -> list[Sample]:
        """Return samples after all stages but the batch's: the way for any pipeline.

        `describe` names the sample of an index in errors of callables.
        """
        for stage in self.stages:
            samples = stage.run(samples, seed, keys, describe)
        if not self.views:
            return samples
        names = list(self.schema.images)
        made = []
        for view in self.views:
            # Callables may write to their arguments.
            copies = [
                sample._replace(**{name: getattr(sample, name).clone() for name in names})
                for sample in samples
            ]
            made.append(view.run(copies, seed, keys, describe))
        return [
            _joined(self.schema, sample, views)
            for sample, *views in zip(samples, *made, strict=True)
        ]


def as_tuple(transforms: Any) -> tuple[Transform, ...]:
    """Return transforms as they may be given, none, one or several, as a tuple."""
    if transforms is None:
        return ()
    # A text is refused as a whole, not by its first letter.
    is_one = callable(transforms) or isinstance(transforms, str)
    return (transforms,) if is_one or not isinstance(transforms, Iterable) else tuple(transforms)


def is_callable(transform: object) -> bool:
    """Return whether a transform, none that chooses, is called with one sample after another."""
    return not isinstance(transform, OWN)


def _refuse_class(transform: object) -> None:
    """Raise `OptionError` for the class of a transform in place of one of its objects."""
    own = (*OWN, SampleTransform, Chooser)
    if isinstance(transform, type) and (
        issubclass(transform, own) or any("__call__" in vars(base) for base in transform.__mro__)
    ):
        name = transform.__qualname__
        raise OptionError(
            f"{name} is the class of a transform; make one, with its parameters: {name}(...)"
        )


class _Cut:
    """Cuts a list of transforms into stages, one transform after another."""

    def __init__(self, schema: Schema) -> None:
        self.stages: list[Stage] = []
        self.batch_steps: list[BatchStep] = []
        self._schema = schema
        self.schema_of_batch = schema
        """The fields as the next transform of whole batches meets them."""
        # Since the last callable:
        self._geometric: list[Member] = []
        self._drops: list[BoundDrop] = []
        self._pixelwise: list[PixelTransform] = []
        # Since the beginning:
        self._floating: PixelTransform | None = None
        self.of_uint8: list[PixelTransform] = []
        """Pixel transforms before any callable."""

    def add(self, member: Member) -> None:
        """Add a transform."""
        transform = member.transform
        if member.gates:
            _check_member(member)
        others = BatchTransform, DropEmptyBoxes, SampleTransform
        if not self._schema.images and not isinstance(transform, others):
            raise OptionError(
                f"{_name(transform)} changes images, but the dataset has none: its fields "
                f"are {', '.join(self._schema)}. Pack fields of images as images: "
                '--field NAME=image, fields={NAME: "image"}'
            )
        if isinstance(transform, GeometricTransform):
            self._add_geometric(member)
        elif isinstance(transform, PixelTransform):
            self._add_pixelwise(transform)
        elif isinstance(transform, BatchTransform):
            floating = self._floating is not None
            step = ChangeStage(member, self.schema_of_batch, floating=floating)
            self.batch_steps.append(step)
            self.schema_of_batch = step.schema_after
        elif isinstance(transform, DropEmptyBoxes):
            drop = transform.bind(self._schema)
            if any(isinstance(step, GeometryStage) for step in self.batch_steps):
                self.batch_steps.append(DropStage((drop,)))
            else:  # all other steps on batches leave boxes alone
                self._drops.append(drop)
        else:
            self._add_callable(member)

    def end_of_samples(self) -> None:
        """Make stages of the transforms of samples since the last callable."""
        if self._geometric:
            self.stages.append(GeometryStage(self._schema, tuple(self._geometric)))
        if self._drops:
            self.stages.append(DropStage(tuple(self._drops)))
        if self._pixelwise:
            self.stages.append(self._pixel_stage(self._schema, self._pixelwise))
        self._geometric, self._drops, self._pixelwise = [], [], []

    def _called(self) -> bool:
        return any(isinstance(stage, CallStage) for stage in self.stages)

    def _pixel_stage(self, schema: Schema, transforms: list[PixelTransform]) -> PixelStage:
        return PixelStage(schema, tuple(transforms), of_any_dtype=self._called())

    def _add_geometric(self, member: Member) -> None:
        name = _name(member.transform)
        member.transform.check_fields(self.schema_of_batch)
        if self._floating is not None:
            raise OptionError(
                f"{name} comes after {_name(self._floating)}, but "
                "moves uint8 pixels: put geometric transforms before those of pixel values"
            )
        if self.batch_steps:
            self._add_step(GeometryStage(self.schema_of_batch, (member,)))
            return
        if self._drops:
            raise OptionError(
                f"{name} comes after DropEmptyBoxes, but moves boxes: put "
                "DropEmptyBoxes behind the geometric transforms"
            )
        self._geometric.append(member)

    def _add_pixelwise(self, transform: PixelTransform) -> None:
        for name in pictures_of(self.schema_of_batch):
            with naming_field(name):
                transform.check_channels(self.schema_of_batch.images[name].channels)
        if not self._called():
            self.of_uint8.append(transform)
        self._floating = transform
        if self.batch_steps:
            self._add_step(self._pixel_stage(self.schema_of_batch, [transform]))
        else:
            self._pixelwise.append(transform)

    def _add_step(self, step: Any) -> None:
        """Add a geometry or pixel stage on batches, joined with one of its kind before it."""
        last: Any = self.batch_steps[-1]
        if type(last) is type(step):
            self.batch_steps.pop()
            step = replace(last, transforms=(*last.transforms, *step.transforms))
        self.batch_steps.append(step)

    def _add_callable(self, member: Member) -> None:
        transform = member.transform
        _refuse_class(transform)
        self.end_of_samples()
        self._take_batch_steps(transform)
        function = adapt(transform, self._schema)
        last = self.stages[-1] if self.stages else None
        if isinstance(last, CallStage):
            self.stages[-1] = last.followed_by(function, member.gates)
        else:
            self.stages.append(CallStage((function,), member.operation, (member.gates,)))

    def _take_batch_steps(self, function: object) -> None:
        """Make the steps on batches stages of samples, as `function` takes samples after them."""
        for step in self.batch_steps:
            if isinstance(step, ChangeStage) and isinstance(step.transform, MixTransform):
                raise OptionError(
                    f"{name_of(function)} is called with one sample after another, but comes "
                    f"after {_name(step.transform)}, which mixes the images of a whole batch: put "
                    f"{_name(step.transform)} behind all callables"
                )
        self.stages += self.batch_steps
        self.batch_steps = []
        self._schema = self.schema_of_batch


def _check_member(member: Member) -> None:
    """Raise `OptionError` for a transform that cannot be of some images of a batch only."""
    chooser, transform = _name(member.gates[-1].chooser), member.transform
    what = None
    if isinstance(transform, PixelTransform):
        what = "the images of a batch are of one dtype and range"
    elif isinstance(transform, DropEmptyBoxes):
        what = "boxes are dropped by one rule"
    elif isinstance(transform, Views):
        what = "all images of a batch have the same views"
    if what is not None:
        raise OptionError(
            f"{_name(transform)} cannot be in {chooser}, since {what}: put it into the list of "
            f"transforms itself, before or behind {chooser}"
        )


def _joined(schema: Schema, sample: Sample, views: list[Sample]) -> Sample:
    """Return a sample whose images are lists of views."""
    for name, field in schema.items():
        if isinstance(field, ImageField):
            continue
        if any(getattr(view, name) is not getattr(sample, name) for view in views):
            raise OptionError(
                f"a callable changed {name!r} of a view, but views differ in their images only, "
                "and share all else; leave it as it is"
            )
    names = schema.images
    return sample._replace(**{n: [getattr(view, n) for view in views] for n in names})


def _members(transforms: Sequence[tuple[int, Any]], path: str = "") -> list[Member]:
    """Return what transforms of a list consist of; each comes with its place there."""
    return [
        member
        for position, one in transforms
        for member in members_of(position, path + _name(one), one)
    ]


def _members_of_views(transforms: Sequence[Any], schema: Schema) -> list[list[Member]] | None:
    """Return the whole list of transforms of each view; None where there are no `Views`.

    Raises `OptionError` if `Views` do not fit the other transforms, or the fields.
    """
    positions = [at for at, one in enumerate(transforms) if isinstance(one, Views)]
    if not positions:
        return None
    at = positions[0]
    views = transforms[at]
    _check_views(views, transforms, at, len(positions), schema)
    numbered = list(enumerate(transforms))
    lists = []
    for view, inner in enumerate(views.lists):
        own = [
            member
            for n, one in enumerate(inner)
            for member in members_of(at, f"view {view}/{n}/{_name(one)}", one)
        ]
        behind = _members(numbered[at + 1 :], f"view {view}/")
        lists.append([*_members(numbered[:at]), *own, *behind])
    return lists


def _check_views(
    views: Views, transforms: Sequence[Any], at: int, count: int, schema: Schema
) -> None:
    inner = list(innermost(one for _, some in views.groups for one in some))
    if count > 1 or any(isinstance(one, Views) for one in inner):
        raise OptionError("there are Views among Views: name all views in one, as pairs")
    for one in innermost(transforms[:at]):
        if not isinstance(one, (GeometricTransform, PixelTransform)):
            raise OptionError(
                f"{_name(one)} comes before Views, where only geometry and pixel transforms may "
                "be; put it into the lists of the views, or behind"
            )
    for one in (*inner, *innermost(transforms)):
        if isinstance(one, MixTransform):
            raise OptionError(
                f"{_name(one)} mixes labels, which all views share, by shares that it draws for "
                "each; leave it out, and mix in the training loop"
            )
    wrong = [name for name, field in schema.images.items() if field.mask] or list(schema.boxes)
    if wrong:
        raise OptionError(
            f"Views make several images of one, but the dataset has {wrong[0]!r}; pack it "
            "without that field, or call the loader once for each view"
        )
    if not schema.images:
        raise OptionError("Views are of images, but the dataset has none")


def _name(transform: object) -> str:
    return type(transform).__name__
