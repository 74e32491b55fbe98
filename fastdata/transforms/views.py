"""Several views of one image, as contrastive and self-distilling methods take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastdata.errors import OptionError
from fastdata.random import operation_id
from fastdata.schema import Schema
from fastdata.transforms.base import GeometricTransform, PixelTransform, positive_int
from fastdata.transforms.mixing import MixTransform

__all__ = ["Views", "lists_of_views"]


class Views:
    """Make several views of every image, each with random numbers of its own.

    In a batch an image field is a tuple of one tensor [N, C, H, W] a view; all other fields are
    unchanged.  Geometry and pixel transforms before `Views` are the same in all views; what comes
    behind is done to each, with draws of its own.

    Parameters
    ----------
    *views : int, then transforms; or pairs of these
        ``Views(2, [...])`` makes two views alike; ``Views((2, [...]), (8, [...]))`` two of one
        kind, and behind them eight of another.  Each list is as the whole list of transforms may
        be; an image is decoded for each view as far as it needs it, so two views cost twice one.

    Raises
    ------
    OptionError
        If there is no view; and where data have masks or boxes, a callable or a transform of
        whole batches comes before, `MixUp` or `CutMix` are among the transforms, or another
        `Views` is.

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
                    "Views takes a number and a list of transforms, Views(2, [...]), or pairs of "
                    f"these, Views((2, [...]), (8, [...])), not {pair!r}"
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


def lists_of_views(transforms: Sequence[Any], schema: Schema) -> list[list[tuple[int, Any]]] | None:
    """Return the whole list of transforms of each view; None where there are no `Views`.

    Each transform comes with the number that it draws under.  Raises `OptionError` if `Views` do
    not fit the other transforms, or the fields.
    """
    positions = [at for at, one in enumerate(transforms) if isinstance(one, Views)]
    if not positions:
        return None
    at = positions[0]
    views = transforms[at]
    _check(views, transforms, at, len(positions), schema)
    before = [(operation_id(n, _name(one)), one) for n, one in enumerate(transforms[:at])]
    lists = []
    for view, inner in enumerate(views.lists):
        own = [
            (operation_id(at, f"view {view}/{n}/{_name(one)}"), one) for n, one in enumerate(inner)
        ]
        behind = [
            (operation_id(n, f"view {view}/{_name(one)}"), one)
            for n, one in enumerate(transforms[at + 1 :], at + 1)
        ]
        lists.append([*before, *own, *behind])
    return lists


def _check(views: Views, transforms: Sequence[Any], at: int, count: int, schema: Schema) -> None:
    inner = [one for _, some in views.groups for one in some]
    if count > 1 or any(isinstance(one, Views) for one in inner):
        raise OptionError("there are Views among Views: name all views in one, as pairs")
    for one in transforms[:at]:
        if not isinstance(one, (GeometricTransform, PixelTransform)):
            raise OptionError(
                f"{_name(one)} comes before Views, where only geometry and pixel transforms may "
                "be; put it into the lists of the views, or behind"
            )
    for one in (*inner, *transforms):
        if isinstance(one, MixTransform):
            raise OptionError(
                f"{_name(one)} mixes labels, which all views share, by shares that it draws for "
                "each; leave it out, and mix in the training loop"
            )
    wrong = [name for name, field in schema.images.items() if field.mask] or list(schema.boxes)
    if wrong:
        raise OptionError(
            f"Views make several images of one, but the dataset has {wrong[0]!r}, of which there "
            "is one; pack it without, or call the loader once for each view"
        )
    if not schema.images:
        raise OptionError("Views are of images, but the dataset has none")


def _name(transform: object) -> str:
    return type(transform).__name__
