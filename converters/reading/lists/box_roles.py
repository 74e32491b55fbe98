"""Which columns of a list make its rows boxes, and what else they say of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastdata.errors import OptionError

from ..selection import listed
from .boxed_image import box_form
from .roles import LABELS, box_columns, plain_name

__all__ = ["BoxRoles", "box_roles"]


class BoxRoles(NamedTuple):
    """Which columns say what of boxes; see `BoxSamples`."""

    form: str
    boxes: list[int]
    label: int | None
    size: list[int]

    @property
    def used(self) -> set[int]:
        return {*self.boxes, *self.size, *([] if self.label is None else [self.label])}


def box_roles(names: Sequence[str], boxes: Sequence[str]) -> BoxRoles | None:
    """Return the columns of boxes, where rows are such; None where they are not.

    boxes: the option ``boxes=``.
    """
    if "none" in boxes:
        return None
    form, found = box_columns(names, box_form(boxes).form)
    if not found:
        if boxes:
            raise OptionError(
                f"boxes={','.join(boxes)}: no columns of boxes among {listed(names)}; name them: "
                "--option columns=image=COLUMN,xmin=COLUMN,ymin=COLUMN,xmax=COLUMN,ymax=COLUMN"
            )
        return None
    labels = [k for k, name in enumerate(names) if name in ("label", "labels")]
    labels += [k for k, name in enumerate(names) if name.lower() in LABELS]
    plain = [plain_name(name) for name in names]
    sized = {"width", "height"} <= set(plain)
    size = [plain.index("height"), plain.index("width")] if sized else []
    size = [] if set(size) & set(found) else size
    return BoxRoles(form, found, labels[0] if labels else None, size)
