"""Names of Cityscapes' classes.

Source: ``cityscapesscripts/helpers/labels.py``.  What is a train id of 255 there has no name here.
"""

from __future__ import annotations

__all__ = ["NAMES"]

_TRAINED = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign"),
    *("vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train"),
    *("motorcycle", "bicycle"),
)
_ALL = (
    *("unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic"),
    *("ground", "road", "sidewalk", "parking", "rail track", "building", "wall", "fence"),
    *("guard rail", "bridge", "tunnel", "pole", "polegroup", "traffic light", "traffic sign"),
    *("vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "caravan"),
    *("trailer", "train", "motorcycle", "bicycle"),
)

NAMES = {"labelIds": _ALL, "labelTrainIds": _TRAINED}
