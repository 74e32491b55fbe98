"""From columns, or from samples, to the fields of a batch.

- Numbers and fixed-shape arrays become one tensor of the field's dtype.
- Variable-shape arrays stay a list of tensors; text and bytes a list.
- Images [C, H, W] become one tensor [N, C, H, W] in channels-last memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastdata.errors import OptionError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField

__all__ = ["collate_column", "collate_field", "split_column"]


def collate_column(field: Field, column: Any) -> Any:
    """Return what ``dataset.gather`` gave as the field of a batch."""
    if isinstance(column, np.ndarray):
        return torch.from_numpy(column)
    if isinstance(field, ArrayField):
        return [torch.from_numpy(array) for array in column]
    return column


def split_column(field: Field, column: Any) -> list[Any]:
    """Return what ``dataset.gather`` gave as one value a sample.

    Numbers are Python numbers, arrays tensors, as in ``dataset[i]``.
    """
    if isinstance(field, ScalarField):
        values: list[Any] = column.tolist()
        return values
    if isinstance(field, ArrayField):
        return [torch.from_numpy(array) for array in column]
    return list(column)


def collate_field(name: str, field: Field, values: list[Any]) -> Any:
    """Return one field of a batch, of values that callables may have changed.

    Raises
    ------
    OptionError
        If images differ in shape or dtype.
    """
    first = values[0]
    if isinstance(field, ImageField) and isinstance(first, torch.Tensor):
        return _stack_images(name, values)
    if isinstance(field, ScalarField) and isinstance(first, (bool, int, float)):
        return torch.from_numpy(np.array(values, field.dtype))
    if isinstance(field, ArrayField) and not field.fixed:
        return values
    if isinstance(first, torch.Tensor):
        if len({value.shape for value in values}) == 1:
            return torch.stack(values)
        return values
    if isinstance(first, (bool, int, float)):
        return torch.tensor(values)
    return values


def _stack_images(name: str, images: list[torch.Tensor]) -> torch.Tensor:
    first = images[0]
    for image in images:
        if image.shape != first.shape or image.dtype != first.dtype:
            raise OptionError(
                f"{name!r} of this batch has images of {_kind(first)} and {_kind(image)}; a batch "
                "needs one shape and dtype: end the transforms with one that fixes them, such as "
                "fastdata.transforms.CenterCrop(224)"
            )
    if first.ndim != 3:
        return torch.stack(images)
    batch = torch.empty(
        (len(images), *first.shape), dtype=first.dtype, memory_format=torch.channels_last
    )
    return torch.stack(images, out=batch)


def _kind(image: torch.Tensor) -> str:
    return f"{tuple(image.shape)} {str(image.dtype).removeprefix('torch.')}"
