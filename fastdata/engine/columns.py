"""The fields of a batch that are no images, and how boxes follow the images there.

Workers draw and plan geometry for the images of their tasks.  Here it is planned once more
for the whole batch: what is drawn is a function of the sample, so it is the same geometry,
and cheaper than having it sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastdata.engine.rendering import plan_geometry
from fastdata.engine.tasks import image_sizes
from fastdata.random import SampleKeys
from fastdata.records import collate_column
from fastdata.schema import ImageField
from fastdata.transforms.boxes import move_boxes

if TYPE_CHECKING:
    from fastdata.engine.work import BatchWork

__all__ = ["read_columns"]


def read_columns(work: BatchWork, keys: SampleKeys) -> dict[str, Any]:
    """Return the fields that are no images, of samples that a direct pipeline makes.

    Parameters
    ----------
    work : BatchWork
    keys : SampleKeys
        The samples whose images are in the batch: in place of a corrupt one, that which was
        taken instead.

    Returns
    -------
    dict of str to field of a batch
        Boxes are moved as the images are, and dropped as the pipeline says.
    """
    dataset, pipeline = work.dataset, work.pipeline
    schema = dataset.schema
    values = {
        name: collate_column(field, dataset.gather(name, keys.indices))
        for name, field in schema.items()
        if not isinstance(field, ImageField)
    }
    if pipeline.geometry is not None and schema.boxes:
        first = next(iter(schema.images))
        sizes = image_sizes(dataset, first, keys.indices, work.decoder)
        geometry = plan_geometry(work, keys, *sizes)
        for name in schema.boxes:
            values[name] = move_boxes(geometry, values[name], name)
    if pipeline.drop is not None:
        pipeline.drop.run_batch(values, keys.indices)
    return values
