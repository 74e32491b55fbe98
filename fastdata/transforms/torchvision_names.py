"""What to write in place of the names of torchvision's v2 that fastdata lacks."""

from __future__ import annotations

__all__ = ["no_attribute"]

_TENSORS = "leave it out: batches are tensors [N, C, H, W] already"
_CLAMPED = "leave it out: crops cut boxes off at their edges"
_NO_POINTS = "there is none: fields of key points are not moved"
_SEVERAL = "T.Views(5, [T.RandomCrop(size)]) makes several crops of an image"
_CALLABLE = "put torchvision's into the list, which may have callables: v2.{}(...)"
_FUNCTION = "it is torchvision's alone: from torchvision.transforms.v2 import {}"

_REMEDIES = {
    "AutoAugmentPolicy": 'write the name: T.AutoAugment("imagenet")',
    "ClampBoundingBoxes": _CLAMPED,
    "ClampKeyPoints": _NO_POINTS,
    "Compose": "give the list itself: transform=[T.RandomResizedCrop(224), ...]",
    "ConvertBoundingBoxFormat": (
        "boxes of batches are left, top, right and bottom; say the form of the source when "
        "packing: --option boxes=FORM,UNIT"
    ),
    "ConvertImageDtype": "write T.ToDtype(dtype, scale=True), or give dtype= to the loader",
    "FiveCrop": _SEVERAL,
    "GaussianNoise": _CALLABLE,
    "Identity": "leave it out",
    "InterpolationMode": (
        'write the name: interpolation="bicubic"; torchvision\'s enum is taken, too'
    ),
    "JPEG": _CALLABLE,
    "Lambda": (
        "put the function itself into the list; T.ImageOnly(function) if it moves no pixels, "
        "T.PerSample(function) for one of whole samples"
    ),
    "LinearTransformation": _CALLABLE,
    "PILToTensor": _TENSORS,
    "RGB": "pack with channels=3",
    "RandomChannelPermutation": _CALLABLE,
    "RandomPhotometricDistort": _CALLABLE,
    "SanitizeBoundingBoxes": "write T.DropEmptyBoxes(also=...)",
    "SanitizeKeyPoints": _NO_POINTS,
    "SetClampingMode": _CLAMPED,
    "TenCrop": _SEVERAL,
    "ToImage": _TENSORS,
    "ToPILImage": "leave it out: T.OnPIL(function) calls a function with PIL images",
    "ToPureTensor": _TENSORS,
    "ToTensor": (
        "leave it out: batches are tensors already; T.ToDtype(torch.float32, scale=True) makes "
        "values from 0 to 1"
    ),
    "UniformTemporalSubsample": "there is none: fastdata has no videos",
    "check_type": _FUNCTION,
    "functional": _FUNCTION,
    "get_bounding_boxes": _FUNCTION,
    "get_keypoints": _FUNCTION,
    "has_all": _FUNCTION,
    "has_any": _FUNCTION,
    "query_chw": _FUNCTION,
    "query_size": _FUNCTION,
}


def no_attribute(module: object, name: str) -> AttributeError:
    """Return the error for a missing name of a module; it says what to write instead."""
    message = f"module 'fastdata.transforms' has no attribute {name!r}"
    if name in _REMEDIES:
        message += f": {_REMEDIES[name].format(name)}"
    return AttributeError(message, name=name, obj=module)
