"""Whether the pictures of several folders belong together: pairs, or pictures and their masks.

Names cannot decide: ``left`` and ``right`` are hand signs or stereo pairs.  If files of two
folders have the same stems, thumbnails decide.  Pictures are pairs if each is more similar to its
partner than to all other pictures of the folder, in brightness or in edges: so a fixed camera, or a
common background, makes no pair.  Of 16 pairs 12 must be first.  A mask has few values in flat
areas.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PICTURE_WORDS",
    "SAMPLE",
    "SPLIT_WORDS",
    "TARGET_WORDS",
    "belong_together",
    "belong_within",
    "is_generic",
    "is_reserved",
    "words",
]


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "trainset", "trn"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "valset"), "validation"),
    **dict.fromkeys(("test", "testing", "testset", "tst", "eval", "evaluation", "pred"), "test"),
    **dict.fromkeys(("query", "gallery"), "query"),
}
"""Words that name a part of a dataset, and which part."""

PICTURE_WORDS = _set(
    "image images img imgs photo photos picture pictures pic pics frame frames rgb color colors "
    "colour original originals raw source src jpegimages leftimg"
)
TARGET_WORDS = _set(
    "mask masks gt groundtruth truth ground label labels labelids annotation annotations ann anns "
    "annot annots anno annos annotated seg segs segmentation segmentations target targets trimap "
    "trimaps depth depths disparity disp flow normal normals alpha matte semantic semantics "
    "instance instances parsing edge edges contour contours heatmap saliency manual reference ref"
)
_VERSION_WORDS = _set(
    "hr lr sr clean noisy noise blur blurred blurry sharp hazy haze rain rainy norain derain foggy "
    "fog degraded enhanced compressed nir thermal infrared visible lwir"
)
_GREY_WORDS = _set("nir ir thermal infrared lwir")
_PAIR_WORDS = _VERSION_WORDS | _set(
    "left right low high dark bright a b x y before after ir vis part content style input inputs "
    "output outputs"
)
_INNER = PICTURE_WORDS | TARGET_WORDS | _VERSION_WORDS
RESERVED = frozenset(SPLIT_WORDS) | PICTURE_WORDS | TARGET_WORDS | _PAIR_WORDS
"""Words in names of folders that may be no classes; pictures then decide."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_UNIQUE = re.compile("[1-9][0-9]{9}|(?=[a-f]*[0-9])[0-9a-f]{16}")
"""A time or a hash in a name: two pictures have the same one if they are of one thing."""
_FEW_FOLDERS = 6
"""In up to this many folders, longer stems and files in one order are compared, too."""
SAMPLE = 200
"""Names of a folder to compare with those of others."""
_FOLDERS = 48
_COMPARED, _ALL = 16, 8
_CANDIDATES = 4
_SIDE, _LEAST_DECODED = 16, 128
_FLAT, _FEW = 0.9, 0.95
_FIRST, _FIRST_IF_NAMED = 0.75, 0.6
"""Share of pairs that must be more similar than other pictures; all of less than `_ALL` pairs."""
_ALIKE = 0.8
"""Correlation of thumbnails of a pair where there are too few pictures to compare with."""


def words(name: str) -> list[str]:
    """Return the words of a name: ``DUTS-TR-Image`` has duts, tr and image."""
    return [word.lower() for word in _WORD.findall(name)]


def is_reserved(name: str) -> bool:
    """Tell whether a name has a word of pairs, masks or splits; a number behind it may stay."""
    return not RESERVED.isdisjoint(words(name))


def is_generic(name: str) -> bool:
    """Tell whether a folder's name is about pictures in general; no class has such a name."""
    return bool(PICTURE_WORDS & set(words(name))) or name.lower() in (
        "data",
        "dataset",
        "png",
        "jpg",
    )


class _Pair(NamedTuple):
    """Two folders with files of the same stems: the folders, and (file, file) of each stem."""

    folders: tuple[str, str]
    files: list[tuple[str, str]]

    @property
    def named(self) -> bool:
        """Whether a folder has a name of pairs, masks or splits."""
        return any(is_reserved(_base(folder)) for folder in self.folders)

    @property
    def target(self) -> bool:
        """Whether a folder has a name of masks, depth maps or thermal images."""
        found = {word for folder in self.folders for word in words(_base(folder))}
        return not found.isdisjoint(TARGET_WORDS | _GREY_WORDS)


def belong_together(
    folders: Mapping[str, Sequence[str]],
    read: Callable[[Sequence[str]], list[bytes | None]],
) -> str:
    """Return why the pictures of two folders belong together; "" if nothing says so.

    folders: sorted names of the first images in each folder, `SAMPLE` at most, by its path.
    """
    candidates = sorted(_shared_stems(folders), key=lambda pair: not pair.named)
    for pair in candidates[:_CANDIDATES]:
        files = pair.files
        chosen = files[:: max(1, len(files) // _COMPARED)][:_COMPARED]
        contents = read([name for both in chosen for name in both])
        if len(files) > 3 and all(_UNIQUE.search(name) for both in files for name in both):
            return f"{pair.folders[0]!r} and {pair.folders[1]!r} have files of the same names"
        both = [(a, b) for a, b in zip(contents[::2], contents[1::2], strict=True) if a and b]
        copies = sum(a == b for a, b in both)
        if copies >= 4:
            return f"{pair.folders[0]!r} and {pair.folders[1]!r} hold the same pictures"
        # A copy of a picture is not its mask, nor its better or worse version.
        looks = [(_look(a), _look(b)) for a, b in both if a != b]
        kind = _kind_of([(a, b) for a, b in looks if a and b], pair.named, pair.target)
        if kind:
            return (
                f"{pair.folders[0]!r} and {pair.folders[1]!r} have files that fit, such as "
                f"{_base(files[0][0])} and {_base(files[0][1])}, and {kind}"
            )
    return ""


def belong_within(names: Sequence[str]) -> list[str]:
    """Return two files of one folder that belong together: ``0_rgb.png`` and ``0_depth.png``.

    Empty unless most files have such a partner: the same stem with another suffix, or with
    another word for a picture, a mask or a version of a picture, perhaps with a digit behind it.
    """
    found: dict[str, list[str]] = {}
    endings: dict[str, set[tuple[str, ...]]] = {}
    for name in dict.fromkeys(names[:SAMPLE]):
        parts = words(os.path.splitext(name)[0])
        counted = [a in _INNER and b.isdigit() and len(b) == 1 for a, b in pairwise(["", *parts])]
        dropped = [w in _INNER or after for w, after in zip(parts, counted, strict=True)]
        key = " ".join(w for w, drop in zip(parts, dropped, strict=True) if not drop)
        found.setdefault(key, []).append(name)
        ending = tuple(w for w, drop in zip(parts, dropped, strict=True) if drop)
        endings.setdefault(key, set()).add(ending)
    alike = len(found) > 3 and len({len(group) for group in found.values()}) == 1
    paired = [
        group
        for key, group in found.items()
        if key and len(group) > 1 and _differ(group, endings[key], alike)
    ]
    return paired[0][:2] if paired and 2 * len(paired) >= len(found) else []


def _differ(group: Sequence[str], endings: Collection[tuple[str, ...]], alike: bool) -> bool:
    """Tell whether files differ by a suffix, or by one of some words.

    alike: whether all groups have as many files; then a digit behind the word is enough.
    """
    if len({os.path.splitext(name)[0] for name in group}) == 1:
        return True
    plain = {tuple(w for w in ending if not w.isdigit()) for ending in endings}
    return len(plain) > 1 or (alike and len(endings) > 1)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _shared_stems(folders: Mapping[str, Sequence[str]]) -> Iterator[_Pair]:
    """Yield pairs of folders that share most of their first stems."""
    first = sorted(folders, key=lambda path: not is_reserved(_base(path)))[:_FOLDERS]
    stems = {path: _stems(path, folders[path][:SAMPLE]) for path in first}
    for one, other in combinations(first, 2):
        small, large = sorted((one, other), key=lambda path: len(stems[path]))
        known = stems[small]
        both = known.keys() & stems[large].keys()
        files = [(known[key], stems[large][key]) for key in sorted(both)]
        if not files and len(folders) <= _FEW_FOLDERS:
            files = _longer(known, stems[large])
            if not files and all(_counts_up(folders[path]) for path in (one, other)):
                # Pictures of two cameras in one order: IMG_0001 and DSC_0501.
                names = zip(folders[one][:SAMPLE], folders[other][:SAMPLE], strict=False)
                files = [(_path(one, a), _path(other, b)) for a, b in names]
                small, large = one, other
        if 2 * len(files) >= len(known) > 0:
            yield _Pair((small, large), files)


def _counts_up(names: Sequence[str]) -> bool:
    """Tell whether names end in numbers that follow each other."""
    ends = [re.findall("[0-9]+", os.path.splitext(name)[0])[-1:] for name in names]
    numbers = [int(end[0]) for end in ends if end]
    return numbers == list(range(numbers[0], numbers[0] + len(names))) if numbers else False


def _longer(known: Mapping[str, str], stems: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return files of stems that are longer by some words: ``1400 1`` is a version of ``1400``."""
    found: dict[str, tuple[str, str]] = {}
    for stem, file in stems.items():
        for _ in range(4):
            stem = stem.rpartition(" ")[0]
            if stem in known:
                found.setdefault(stem, (known[stem], file))
                break
    return [found[stem] for stem in sorted(found)]


def _stems(folder: str, files: Sequence[str]) -> dict[str, str]:
    """Return the files of a folder by their stems without common words.

    Words such as mask, those of the folder's name, and an end that all files have, are left out.
    """
    own = frozenset(words(_base(folder)))
    parts = [words(os.path.splitext(file)[0]) for file in files]
    while len(parts) > 2 and all(parts) and len({each[-1] for each in parts}) == 1:
        parts = [each[:-1] for each in parts]
    found: dict[str, str] = {}
    for each, file in zip(parts, files, strict=True):
        kept = [w for w in each if w.isdigit() or not (w in RESERVED or w in own or len(w) == 1)]
        found.setdefault(" ".join(kept), _path(folder, file))
    found.pop("", None)
    return found


def _path(folder: str, file: str) -> str:
    return f"{folder}/{file}" if folder else file


class _Look(NamedTuple):
    """What is compared of a picture: thumbnails of brightness and of edges, of norm 1."""

    size: tuple[int, int]
    thumbnails: tuple[NDArray[np.float32], NDArray[np.float32]]
    flat: bool
    grey: bool


def _look(data: bytes | None) -> _Look | None:
    """Decode an image file; None if it is damaged or missing."""
    # OpenCV needs 20 MB, and few sources have names in common.
    import cv2

    from fastdata.codecs.image import decode_image

    if data is None:
        return None
    try:
        decoded = decode_image(data, 3, max_pixels=1 << 26, scale=_reduced)
    except Exception:  # a damaged file is evidence of nothing; packing rejects it
        return None
    colours, pixels = decoded.pixels, decoded.pixels[:, :, 1]
    grey = bool((np.ptp(colours[::4, ::4].astype(np.int16), axis=2) <= 2).all())
    large = cv2.resize(pixels, (4 * _SIDE, 4 * _SIDE), interpolation=cv2.INTER_AREA)
    values = large.astype(np.float32)
    edges = np.zeros_like(values)
    edges[:-1] += np.abs(np.diff(values, axis=0))
    edges[:, :-1] += np.abs(np.diff(values, axis=1))
    return _Look(decoded.size, (_thumbnail(values), _thumbnail(edges)), _is_flat(pixels), grey)


def _reduced(height: int, width: int) -> int:
    """Return a factor to reduce a JPEG by while it is decoded."""
    return next((k for k in (8, 4, 2) if min(height, width) >= k * _LEAST_DECODED), 1)


def _thumbnail(values: NDArray[np.float32]) -> NDArray[np.float32]:
    small = values.reshape(_SIDE, 4, _SIDE, 4).mean((1, 3)).ravel()
    small -= small.mean()
    norm = float(np.linalg.norm(small))
    return small / norm if norm > 1e-3 else np.zeros_like(small)


def _is_flat(pixels: NDArray[np.uint8]) -> bool:
    """Tell whether a picture has few values in large areas, as masks have, be they JPEGs."""
    steps = np.abs(np.diff(pixels.astype(np.int16), axis=1))
    counts = np.sort(np.bincount(pixels.ravel() >> 3, minlength=32))[::-1]
    return bool((steps <= 2).mean() >= _FLAT and counts[:6].sum() >= _FEW * pixels.size)


def _kind_of(pairs: Sequence[tuple[_Look, _Look]], named: bool, target: bool) -> str:
    """Return what pairs of pictures are; "" if they have nothing in common.

    named: whether a folder has a name of pairs or masks; then less evidence is enough.
    target: whether one has a name of masks, depth maps or thermal images.
    """
    if not pairs:
        return ""
    ones, others = zip(*pairs, strict=True)
    flat = [all(look.flat for look in side) for side in (ones, others)]
    if named and flat[0] != flat[1] and all(a.size == b.size for a, b in pairs):
        return "one folder has flat pictures of few values, like masks"
    grey = [all(look.grey for look in side) for side in (ones, others)]
    if target and grey[0] != grey[1] and all(a.size == b.size for a, b in pairs):
        return "one folder has grey pictures, like depth maps or thermal images"
    least = 1.0 if len(pairs) < _ALL else _FIRST_IF_NAMED if named else _FIRST
    for kind in range(2):
        table = np.array([[a.thumbnails[kind] @ b.thumbnails[kind] for b in others] for a in ones])
        matched = float(np.median(np.diag(table)))
        if len(pairs) < 4:
            if matched >= _ALIKE and (named or len(pairs) == 3) and _first(table) == 1:
                return "their pictures are similar"
        elif _first(table) >= least and matched > 0.2:
            return "their pictures are similar"
    return ""


def _first(table: NDArray[np.float64]) -> float:
    """Return the share of pairs that are more similar than others, by rows and by columns."""
    numbers = np.arange(len(table))
    rows, columns = table.argmax(1) == numbers, table.argmax(0) == numbers
    return float(min(rows.mean(), columns.mean()))
