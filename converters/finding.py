"""Which format a source is in, and with which options it is opened.

Formats are the entry points of the group ``fastdata.converters``.  One is
chosen by its name or, without that, by what the source contains.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import os
import shlex
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import (
    DriveError,
    FastdataError,
    OptionError,
    ResourceLimitError,
    SourceError,
    StorageError,
    did_you_mean,
    not_there,
)
from fastdata.regular_files import mirror_of, with_urls
from fastdata.storage import Store

from .base import FieldSpec, Source, reason_of
from .known_sets import START, recipe_for, recipe_in
from .listing import Listing
from .reading.file_sets import check_file_set
from .reading.fingerprints import FileSource
from .reading.image_files import files_below, has_own_images, is_hidden, is_image_name
from .reading.list_signs import describe_list
from .reading.locations import files_at, folder_at, is_pattern, printable
from .reading.mirror import Mirror, StoredFiles
from .reading.options import Option
from .reading.picture_pairs import is_generic
from .reading.refusals import check_choice
from .reading.selection import joined
from .reading.spans import close_files
from .reading.splits import has_folders_of_images, mixed_splits, splits_next_to
from .refusal import Way, doubted, not_recognised
from .signs import FORMATS, Look

__all__ = [
    "FormatOption",
    "find_source",
    "format_class",
    "format_names",
    "format_of",
    "nearest_formats",
    "options_of",
    "own_options",
]

log = logging.getLogger("fastdata")

_GROUP = "fastdata.converters"
_COMMON = ("self", "location", "channels", "fields")
_NEAREST = 3
_LOOKED_AT, _MOST_BESIDE = 2_000, 100
_STORED = ("folder", "litdata", "manifest", "mds", "parquet", "tfrecord", "webdataset")
"""Formats that are read out of a store."""

_COVERS = {
    ("archive", "webdataset"),
    ("cifar", "webdataset"),
    ("fastdata", "hdf5"),
    ("masks", "voc"),
    ("fastdata", "lmdb"),
}
"""Pairs of formats: the first is a special case of the second."""

_COUNTED = ("archive", "arrow", "coco", "hf_folder", "manifest", "parquet")
"""Formats with own classes in each split; class folders and VOC count the other splits, too."""

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class FormatOption(NamedTuple):
    """An option that only one format has.

    Its kind is str, int, float, bool or tuple (of str); `help` is a line, empty where the source
    does not tell; `choices` are the values that it takes, empty where it takes any.
    """

    name: str
    kind: type
    default: Any
    help: str = ""
    choices: tuple[str, ...] = ()


def format_names() -> list[str]:
    """Return the names of all formats, those of other packages included."""
    return sorted(_points())


def format_class(name: str) -> type[Source]:
    """Return the class of a format; `OptionError` if there is none of that name."""
    points = _points()
    if name not in points:
        raise OptionError(
            f"format {name!r} is not one of {', '.join(sorted(points))}."
            f"{did_you_mean(name, points)}"
        )
    kind: type[Source] = points[name].load()
    return kind


def format_of(location: Any) -> type[Source]:
    """Return the class of the format that is recognised; `SourceError` if none fits."""
    return _recognised(location, _points())


def options_of(kind: type[Source]) -> list[FormatOption]:
    """Return a format's own options: the keyword arguments that only its class has."""
    declares: Callable[..., Any] = kind.__init__
    if issubclass(kind, Listing) and declares is Listing.__init__:
        declares = kind.list_samples
    # Not typing.get_type_hints: Python 3.10's hides an annotation whose default is None.
    return [
        _declared(name, parameter.annotation, parameter.default)
        for name, parameter in inspect.signature(declares, eval_str=True).parameters.items()
        if name not in _COMMON
    ]


def own_options() -> set[str]:
    """Return the names of the options that single formats have."""
    return {option.name for name in format_names() for option in options_of(format_class(name))}


def find_source(
    location: Any,
    *,
    format: str | None = None,
    channels: int = 3,
    fields: FieldSpec | None = None,
    options: Mapping[str, Any] | None = None,
    numbered: bool = False,
) -> Source:
    """Return the source that reads `location`.

    Parameters
    ----------
    location : path, pattern, Store, StoredFiles or object
        A pattern is a path with ``*``, ``?``, ``[]`` or ``{0..9}``.  A `Source` is taken as
        it is.  One that is read out of a store is to be closed.
    format : str, optional
        Name of the format; recognised by content where not given.
    options : mapping, optional
        The format's own options; text is read as the kind of value that each takes.
    numbered : bool
        Whether the caller has the numbers of the classes: splits next to it do not count then.

    Raises
    ------
    SourceError
        If there is nothing there or no format fits.
    OptionError
        If `format`, or one of `options`, is not known.
    MissingExtraError
        If the format needs a package that is not installed.
    StorageError
        If a store cannot be read.
    """
    if isinstance(location, Source):
        return location
    given = _Given(format, channels, fields, options or {}, numbered)
    notes: list[str] = []
    if not isinstance(location, (str, os.PathLike, Store, StoredFiles)):
        from .reading.python_data import opened  # it needs OpenCV, and paths do not

        location, notes = opened(location)
    if isinstance(location, Store):
        return _of_store(StoredFiles(location, ""), given)
    if isinstance(location, StoredFiles):
        return _of_store(location, given)
    if format is not None:
        return _noting(notes, _opened(format_class(format), location, given))
    chosen = _recognised(location, _points())
    inner = _wrapped(location) if chosen.general else None
    if inner is not None:
        with contextlib.suppress(SourceError):
            below = _recognised(inner, _points())
            plain = is_generic(inner.name) or not has_own_images(inner)
            pictures = below.name == "flat" and plain
            if pictures or not below.general or below.name == "manifest":
                source = _opened(below, inner, given)
                source.notes.append(f"{inner.name} is the only folder there, and was looked into")
                return source
    return _noting(notes, _opened(chosen, location, given))


def _noting(notes: list[str], source: Source) -> Source:
    source.notes[:0] = notes
    return source


def _wrapped(location: Any) -> Path | None:
    """Return the only folder in a folder that has no other files than prose, at any depth."""
    folder = folder_at(location)
    inner = None
    while folder is not None:
        folders, others = _few_entries(folder)
        if len(folders) != 1:
            break
        some = itertools.islice(files_below(folder, "."), _LOOKED_AT)
        images = [os.path.normpath(name) for name in some if is_image_name(name)]
        if any(describe_list(folder / name, images) != "prose" for name in others):
            break
        inner = folder = folder / folders[0]
    return inner


def _few_entries(folder: Path) -> tuple[list[str], list[str]]:
    """Return folders and files of a wrapper; nothing if there are images, or several folders."""
    folders, others = list[str](), list[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            (folders if entry.is_dir() else others).append(entry.name)
            if is_image_name(entry.name) or len(folders) > 1 or len(others) > _MOST_BESIDE:
                return [], []
    return folders, others


class _Given(NamedTuple):
    """What a user says of a source."""

    format: str | None
    channels: int
    fields: FieldSpec | None
    options: Mapping[str, Any]
    numbered: bool


def _opened(chosen: type[Source], location: Any, given: _Given) -> Source:
    """Return a source of a format."""
    format = given.format
    try:
        arguments = _checked(chosen, given.options)
        source = chosen(location, channels=given.channels, fields=given.fields, **arguments)
    finally:
        close_files()  # which may have been looked into
    source.format_options = arguments
    recognised = format is None and isinstance(location, (str, os.PathLike))
    if recognised and source.doubt:
        place = os.fspath(location)
        ways = tuple(way for way in source.doubt.ways if _works(place, way))
        raise doubted(place, chosen.name, source.tree, source.doubt._replace(ways=ways))
    if recognised and source.tree is not None:
        tree = source.tree
        if recipe := recipe_in(tree.names(), lambda name: tree.head(name, START) or b""):
            raise SourceError(f"{os.fspath(location)}: {recipe}")
    if recognised and chosen.name in _COUNTED and not given.numbered:
        opened = functools.partial(
            chosen, channels=given.channels, fields=given.fields, **arguments
        )
        _check_other_splits(source, Path(os.fspath(location)), opened)
    source.tree = None  # it is large, and not sent to workers
    if isinstance(source, FileSource):
        source.notes += check_file_set(source.files_read, location)
        if recognised and has_folders_of_images(location):
            source.notes.append(
                "the folders of images there are not taken (--format folder takes them instead)"
            )
        # Formats that know of splits have an option for them.
        if "split" not in {option.name for option in options_of(chosen)}:
            source.notes += mixed_splits(source.files_read)
    return source


def _check_other_splits(source: Source, path: Path, open_as: Callable[[Path], Source]) -> None:
    """Refuse one split if the splits next to it have classes that would change its numbers."""
    own = set(_class_names(source))
    if not own or (path.is_file() and path.suffix.lower() != ".zip"):
        return  # tables count the other splits themselves, and a tar file is read to its end
    for other in splits_next_to(path):
        try:
            with contextlib.closing(open_as(other)) as found:
                names = set(_class_names(found))
        except (FastdataError, OSError):
            continue
        if names & own and names - own:
            new = joined(map(printable, sorted(names - own)), 4)
            option = f"--option split={shlex.quote(path.stem)}"
            remedy = "Give both the same classes"
            if path.is_file():
                remedy = f"Extract both files into one folder, and pack that with {option}"
            elif _works(str(path), Way("..", f"--option split={path.name}", "")):
                pack = f"fastdata pack {shlex.quote(str(path.parent))} {path.name}.lmdb {option}"
                remedy = f"To give it the numbers of all splits: {pack}"
            raise SourceError(
                f"{printable(str(path))}: {printable(other.name)} next to it has more classes "
                f"({new}), so numbers of classes would differ. {remedy}. To number it by itself: "
                f"--format {source.name}"
            )


def _class_names(source: Source) -> tuple[str, ...]:
    """Return the names of the classes of labels."""
    fields = (source.schema.get(name) for name in ("label", "labels"))
    return next(filter(None, (getattr(field, "classes", None) for field in fields)), ())


def _works(place: str, way: Way) -> bool:
    """Tell whether a command that a refusal names would begin to pack; unknown of an archive."""
    if not os.path.isdir(place):
        return not way.options.startswith("--format masks")
    words = way.options.split()
    named = dict(zip(words[::2], words[1::2], strict=True))
    option, _, value = named.get("--option", "").partition("=")
    try:
        source = find_source(
            os.path.normpath(os.path.join(place, way.path)),
            format=named.get("--format"),
            options={option: value} if option else None,
        )
    except (FastdataError, OSError):
        return False
    source.close()
    return mirror_of(place) is None or source.name in _STORED


def _of_store(files: StoredFiles, given: _Given) -> Source:
    """Return the source that reads what is in a store: by the rules for files, on a mirror."""
    if given.format is not None and given.format not in _STORED:
        format_class(given.format)  # which may be no format at all
        raise _local_only(files.store.url, given.format)
    mirror = Mirror(files.store)
    try:
        with mirror.explained():
            location = mirror.path(files.pattern)
            if not os.listdir(mirror.root):
                raise SourceError(f"{mirror.url}: the store has no objects there")
            if given.format is None:
                chosen = _recognised(location, _points())
            else:
                chosen = format_class(given.format)
            if chosen.name not in _STORED:
                raise _local_only(location, chosen.name)
            source = _opened(chosen, location, given)
    except BaseException:
        mirror.close()
        raise
    source.mirror = mirror
    source.notes = list(map(with_urls, source.notes))
    return source


def _local_only(place: str, format: str) -> OptionError:
    return OptionError(
        f"{place}: out of a store, {', '.join(_STORED[:-1])} and {_STORED[-1]} are read; the "
        f"format {format!r} is read of files on this machine: copy them here, or mount the store"
    )


def _points() -> dict[str, EntryPoint]:
    points = entry_points(group=_GROUP)
    return {point.name: point for point in points if _is_ours(point) or _can_be_loaded(point)}


@functools.cache
def _can_be_loaded(point: EntryPoint) -> bool:
    """Tell whether a format of another package can be imported; if not, say so once."""
    try:
        point.load()
    except Exception as error:  # whatever its module raises
        _leave_out(point.name, f"{point.value} cannot be imported", error)
        return False
    return True


def _leave_out(name: str, problem: str, error: Exception) -> None:
    log.warning(
        "the format %r of another package is left out: %s: %s. Repair or uninstall that package",
        name,
        problem,
        reason_of(error),
    )


def _recognised(location: Any, points: Mapping[str, EntryPoint]) -> type[Source]:
    """Return the class of the format that a location is in; `SourceError` if none or two fit."""
    path = location if isinstance(location, (str, os.PathLike)) else None
    if path is not None and not (os.path.exists(path) or is_pattern(path)):
        raise SourceError(not_there(path))
    if path is not None:
        _check_listed(path)
    if path is not None and is_pattern(path) and not files_at(path):
        raise SourceError(f"{os.fspath(path)}: no file is called so. Quote patterns in a shell.")
    found: type[Source] | None = None
    for kind in _asked(location, points):
        if found is not None and (kind.general or (found.name, kind.name) in _COVERS):
            continue
        if not _recognises(kind, location):
            continue
        if found is not None:
            raise SourceError(
                f"{location}: may be in the format {found.name!r} ({found.summary}) or in "
                f"{kind.name!r} ({kind.summary}). Name it: --format {found.name} or --format "
                f"{kind.name}"
            )
        if kind.general and (recipe := recipe_for(location)):
            raise SourceError(f"{location}: {recipe}")
        if kind.general or not _is_ours(points[kind.name]):
            return kind
        found = kind
    if found is not None:
        return found
    if path is not None and os.path.isfile(path) and os.path.getsize(path) == 0:
        raise SourceError(f"{os.fspath(path)}: the file is empty")
    if recipe := recipe_for(location):
        raise SourceError(f"{location}: {recipe}")
    raise not_recognised(location, lambda way: _works(os.fspath(location), way))


def _check_listed(path: str | os.PathLike[str]) -> None:
    """Raise why a folder cannot be listed; each format would take it for an empty one."""
    if not os.path.isdir(path):
        return
    try:
        with os.scandir(path):
            pass
    except OSError as error:
        raise SourceError(
            f"{os.fspath(path)}: the folder cannot be listed: {error.strerror}. Permit reading it, "
            "or look at the drive"
        ) from error


def _recognises(kind: type[Source], location: Any) -> bool:
    """Tell whether a format takes a location; one may fail, say at a folder that is forbidden."""
    try:
        return kind.recognises(location)
    except (DriveError, ResourceLimitError, StorageError):
        raise
    except OSError:
        return False
    except Exception as error:
        if kind.__module__.startswith("fastdata."):
            raise
        _leave_out(kind.name, "its recognises() failed", error)
        return False


def _asked(location: Any, points: Mapping[str, EntryPoint]) -> Iterator[type[Source]]:
    """Yield the formats that the location may be in; only these are imported."""
    # Formats of other packages come first: ours recognise much that is theirs.
    others = {name: point.load() for name, point in points.items() if not _is_ours(point)}
    yield from (others[name] for name in sorted(others, key=lambda n: (others[n].general, n)))
    look = Look(location)
    for name, signs in FORMATS.items():
        if name in points and _is_ours(points[name]) and look.fits(signs):
            yield points[name].load()


def nearest_formats(location: Any) -> str:
    """Return the formats that a folder is nearest to, and what each misses, a line each."""
    folder = folder_at(location)
    if folder is None:
        return ""
    candidates = []
    for name, point in _points().items():
        kind: type[Source] = point.load()
        missing = [part for part in kind.parts if not _has(folder, part)]
        if len(missing) < len(kind.parts):
            candidates.append((len(missing) / len(kind.parts), name, kind, missing))
    lines = [
        f"  {name} ({kind.summary}): "
        f"{'misses ' + ' and '.join(missing) if missing else 'has its parts; --format ' + name}"
        for _, name, kind, missing in sorted(candidates, key=lambda candidate: candidate[:2])[
            :_NEAREST
        ]
    ]
    return "\nNearest to it:\n" + "\n".join(lines) if lines else ""


def _has(folder: Path, part: str) -> bool:
    """Tell whether a folder has a file or folder of one of the patterns, ``a.csv|b/*.csv``."""
    with contextlib.suppress(OSError):
        return any(next(folder.glob(one), None) is not None for one in part.split("|"))
    return False


def _is_ours(point: EntryPoint) -> bool:
    return point.value.startswith("fastdata.")


def _declared(name: str, hint: Any, default: Any) -> FormatOption:
    """Return the option that a parameter declares: a text, where it has no annotation."""
    declared = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Option)]
    plain = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    if hint is inspect.Parameter.empty:
        plain = str
    return FormatOption(name, _plain(plain), default, *(declared[0] if declared else ()))


def _plain(hint: Any) -> type:
    """Return the kind of value that an annotation such as ``str | None`` asks for."""
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if typing.get_origin(hint) is tuple:
        return tuple
    if kinds:
        return _plain(kinds[0])
    return hint if isinstance(hint, type) else str


def _checked(kind: type[Source], options: Mapping[str, Any]) -> dict[str, Any]:
    known = {option.name: option for option in options_of(kind)}
    for name in options:
        if name not in known:
            raise OptionError(
                f"format {kind.name!r} has no option {name!r}; it has "
                f"{', '.join(known) or 'none'}.{did_you_mean(name, known)}"
            )
    return {name: _value(known[name], value) for name, value in options.items()}


def _value(option: FormatOption, value: Any) -> Any:
    """Read an option given as text as what it is."""
    if option.choices and (value or option.default):
        check_choice(option.name, value, option.choices)
    if not isinstance(value, str) or option.kind is str:
        return value
    text = value.strip()
    try:
        if option.kind is bool:
            return _BOOLEANS[text.lower()]
        if option.kind is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return option.kind(text)
    except (KeyError, ValueError) as error:
        raise OptionError(
            f"option {option.name}={value!r}: not a value of type {option.kind.__name__}"
        ) from error
