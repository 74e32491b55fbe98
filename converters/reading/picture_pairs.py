"""Whether the pictures of several folders belong together: pairs, or pictures and their masks.

Names cannot decide: ``left`` and ``right`` are hand signs or stereo pairs.  If files of two
folders have the same stems, thumbnails decide.  Two pictures are a pair if they are more alike
than the first one is to the next picture of the other folder: so a fixed camera, or a common
background, makes no pair.  A mask has few values in flat areas.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.image import decode_image

__all__ = [
    "PICTURE_WORDS",
    "SPLIT_WORDS",
    "TARGET_WORDS",
    "belong_together",
    "is_reserved",
    "words",
]


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "trainset", "trn"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "valset"), "validation"),
    **dict.fromkeys(("test", "testing", "testset", "tst", "eval", "pred"), "test"),
    **dict.fromkeys(("query", "gallery"), "query"),
}
"""Words that name a part of a dataset, and which part."""

PICTURE_WORDS = _set(
    "image images img imgs photo photos picture pictures pic pics frame frames rgb color colour "
    "original originals raw input inputs source src jpegimages leftimg"
)
TARGET_WORDS = _set(
    "mask masks gt groundtruth truth ground label labels labelids annotation annotations ann anns "
    "annot annots anno annos annotated seg segs segmentation segmentations target targets trimap "
    "trimaps depth depths disparity disp flow normal normals alpha matte semantic semantics "
    "instance instances parsing edge edges contour contours heatmap saliency manual output "
    "outputs reference ref"
)
_PAIR_WORDS = _set(
    "left right low high hr lr sr clean noisy noise blur blurred blurry sharp hazy haze rain rainy "
    "norain derain foggy fog dark bright degraded enhanced compressed a b x y before after nir "
    "thermal infrared ir vis visible lwir part content style"
)
RESERVED = frozenset(SPLIT_WORDS) | PICTURE_WORDS | TARGET_WORDS | _PAIR_WORDS
"""Words in names of folders that may be no classes; pictures then decide."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SAMPLE = 200
"""Names of a folder to compare with those of others."""
_FOLDERS = 48
_COMPARED = 8
_CANDIDATES = 4
_SIDE = 16
_FLAT = 0.9
_FEW = 0.95


def words(name: str) -> list[str]:
    """Return the words of a name: ``DUTS-TR-Image`` has duts, tr and image."""
    return [word.lower() for word in _WORD.findall(name)]


def is_reserved(name: str) -> bool:
    """Tell whether a name has a word of pairs, masks or splits; a number behind it may stay."""
    return not RESERVED.isdisjoint(words(name))


class _Pair(NamedTuple):
    """Two folders with files of the same stems: the folders, and (file, file) of each stem."""

    folders: tuple[str, str]
    files: list[tuple[str, str]]


def belong_together(
    folders: Mapping[str, Sequence[str]],
    read: Callable[[Sequence[str]], list[bytes | None]],
) -> str:
    """Return why the pictures of two folders belong together; "" if nothing says so.

    folders: sorted names of the images in each folder, by its path.
    """
    candidates = sorted(_shared_stems(folders), key=lambda pair: not any(map(_last, pair.folders)))
    for (first, second), files in candidates[:_CANDIDATES]:
        named = is_reserved(_base(first)) or is_reserved(_base(second))
        chosen = files[:: max(1, len(files) // _COMPARED)][:_COMPARED]
        contents = read([name for both in chosen for name in both])
        pictures = [_picture(data) for data in contents]
        # A copy of a picture is not its mask, nor its better or worse version.
        differ = [a != b for a, b in zip(contents[::2], contents[1::2], strict=True)]
        both = zip(pictures[::2], pictures[1::2], differ, strict=True)
        pairs = [(a, b) for a, b, different in both if a and b and different]
        kind = _kind_of(pairs, named)
        if kind:
            return (
                f"{first!r} and {second!r} have files of the same names, such as "
                f"{os.path.basename(files[0][0])}, and {kind}"
            )
    return ""


def _last(name: str) -> bool:
    return is_reserved(_base(name))


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _shared_stems(folders: Mapping[str, Sequence[str]]) -> Iterator[_Pair]:
    """Yield pairs of folders of whose first stems most are in both."""
    first = sorted(folders, key=lambda path: not is_reserved(_base(path)))[:_FOLDERS]
    stems = {path: _stems(path, folders[path][:_SAMPLE]) for path in first}
    for one, other in combinations(first, 2):
        both = stems[one].keys() & stems[other].keys()
        if 2 * len(both) >= min(len(stems[one]), len(stems[other])) > 0:
            yield _Pair((one, other), [(stems[one][s], stems[other][s]) for s in sorted(both)])


def _stems(folder: str, files: Sequence[str]) -> dict[str, str]:
    """Return the files of a folder by their stems, without words such as mask and the folder's."""
    own = frozenset(words(_base(folder)))
    found: dict[str, str] = {}
    for file in files:
        kept = [w for w in words(os.path.splitext(file)[0]) if w not in RESERVED and w not in own]
        found.setdefault(" ".join(kept), f"{folder}/{file}" if folder else file)
    return found


class _Picture(NamedTuple):
    """What is compared of a picture."""

    size: tuple[int, int]
    thumbnail: NDArray[np.float32]
    flat: bool


def _picture(data: bytes | None) -> _Picture | None:
    """Decode an image file; None if it is damaged or missing."""
    if data is None:
        return None
    try:
        pixels = decode_image(data, 1, mask=False, max_pixels=1 << 26).pixels[:, :, 0]
    except Exception:  # a damaged file is evidence of nothing; packing rejects it
        return None
    small = cv2.resize(pixels, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
    return _Picture(pixels.shape[:2], small, _is_flat(pixels))


def _is_flat(pixels: NDArray[np.uint8]) -> bool:
    """Tell whether a picture has few values in large areas, as masks have, be they JPEGs."""
    steps = np.abs(np.diff(pixels.astype(np.int16), axis=1))
    counts = np.sort(np.bincount(pixels.ravel() >> 3, minlength=32))[::-1]
    return bool((steps <= 2).mean() >= _FLAT and counts[:6].sum() >= _FEW * pixels.size)


def _alike(one: _Picture, other: _Picture) -> float:
    """Return the correlation of two thumbnails, of either sign."""
    a, b = (p.thumbnail.ravel() - p.thumbnail.mean() for p in (one, other))
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / scale if scale > 1e-3 else 0.0


def _kind_of(pairs: Collection[tuple[_Picture, _Picture]], named: bool) -> str:
    """Return what pairs of pictures are; "" if they have nothing in common.

    named: whether a folder has a name of pairs or masks; then less evidence is enough.
    """
    ones, others = zip(*pairs, strict=True) if pairs else ((), ())
    if not ones:
        return ""
    flat = [all(p.flat for p in side) for side in (ones, others)]
    same_size = all(a.size == b.size for a, b in pairs)
    if named and flat[0] != flat[1] and same_size:
        return "one of them has flat pictures of few values, as masks are"
    matched = np.median([_alike(a, b) for a, b in pairs])
    if len(pairs) == 1:
        return "their pictures are alike" if named and matched >= 0.8 else ""
    rotated = (*others[1:], others[0])
    crossed = np.median([_alike(a, b) for a, b in zip(ones, rotated, strict=True)])
    least, gap = (0.5, 0.2) if named else (0.85, 0.4)
    return "their pictures are alike" if matched >= least and matched >= crossed + gap else ""
