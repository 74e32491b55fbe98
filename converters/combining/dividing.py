"""`subset(divide=)`: one dataset for each part of a division, such as train, val and test.

The parts are packed in the folder ``divide.partial`` inside of the destination.  They are moved to
their places when all are complete.  ``state.json`` in that folder has a hash of the request and the
reports of the complete parts, so that the same call continues after an interruption.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.dataset import Dataset
from fastdata.errors import (
    DestinationExistsError,
    OptionError,
    did_you_mean,
    full_disk_explained,
)
from fastdata.formats.proof import DATASET, REJECTS
from fastdata.own_files import remove_own, sync_directory
from fastdata.replacing import Destination, check_apart
from fastdata.schema import ScalarField, StringField
from fastdata.splits import check_one_split
from fastdata.storage import is_url
from fastdata.summary import load_code

from ..base import hash_fields
from ..packed import files_of
from ..packing.job import read_state, rejects_path, replace_state
from ..packing.lock import DirectoryLock
from ..packing.report import PackReport
from .assignment import Numbers, assign_groups, assign_samples, part_sizes

__all__ = ["divide"]

_MAKE_ROOM = "Make room and run the same command again: complete parts are kept."
_LOCK = "lock"
_STATE = "state.json", "state.json.new", "replaced.partial"
_MOST_NAMED = 5


class _Values(NamedTuple):
    """A field as numbers from 0 on, [n], and the name of each number."""

    numbers: Numbers
    names: list[str]

    def counts(self, chosen: np.ndarray[Any, Any]) -> dict[str, int]:
        """Return how many of the chosen samples have each value; equal names are one."""
        counts = dict.fromkeys(self.names, 0)
        for number, of_value in enumerate(np.bincount(self.numbers[chosen]).tolist()):
            counts[self.names[number]] += of_value
        return counts


def divide(
    dataset: Dataset,
    destination: str | os.PathLike[str],
    copy: Callable[..., PackReport],
    shares: Mapping[str, float],
    stratify: str | None,
    group: str | None,
    **options: Any,
) -> PackReport:
    """Copy each part of a dataset into a dataset of its own in the folder `destination`.

    `copy` copies an open dataset to a path; `options` are those of `pack`, for each part.
    """
    if is_url(destination):
        raise OptionError(f"{destination} is a URL, and divide= writes to a folder")
    check_one_split(dataset, "split='{split}'")
    sizes = part_sizes(shares, len(dataset), grouped=group is not None)
    strata = _values(dataset, "stratify", stratify)
    groups = _values(dataset, "group", group)
    parts = _assigned(sizes, strata, groups, group, options["seed"])
    names = [*shares, *["the rest"] * (len(sizes) - len(shares))]
    found = np.bincount(parts, minlength=len(sizes))
    for name, wanted, number in zip(shares, sizes, found, strict=False):
        if not number:
            raise OptionError(
                f"divide= would leave {name!r} empty: it is to have {wanted:.3g} of "
                f"{len(dataset):,} samples"
            )
        if number < options["shards"]:
            raise OptionError(
                f"shards={options['shards']} are more than the {number:,} samples of {name!r}"
            )
    left = int(found[len(shares) :].sum())
    notes = [
        *[f"{left:,} other samples are in no part"] * bool(left),
        *_missing_classes(strata, parts, names),
        *_large_groups(groups, sizes, names, group),
        *(_same_images(dataset, parts, names) if len(shares) > 1 else ()),
    ]
    classes = strata or _classes_of(dataset)
    reports = _write(dataset, Path(destination), list(shares), parts, copy, options)
    for number, (name, report) in enumerate(reports.items()):
        mine = parts == number
        reports[name] = dataclasses.replace(
            report,
            groups=None if groups is None else len(np.unique(groups.numbers[mine])),
            classes=None if classes is None else classes.counts(mine),
        )
    done = list(reports.values())
    sums = ("num_samples", "num_rejected", "num_shards", "file_bytes", "seconds", "resumed_at")
    return PackReport(
        path=Path(destination),
        digest=f"{hash_fields(*(one.digest for one in done)):016x}",
        notes=tuple(notes),
        load_code=load_code(done[0].path),
        parts=reports,
        **{name: sum(getattr(one, name) for one in done) for name in sums},
    )


# -- which samples -----------------------------------------------------------------------


def _assigned(
    sizes: np.ndarray[Any, Any],
    strata: _Values | None,
    groups: _Values | None,
    group: str | None,
    seed: int,
) -> Numbers:
    """Return the part of each sample."""
    rows = np.zeros(round(sizes.sum()), np.int64) if strata is None else strata.numbers
    if groups is None:
        return assign_samples(sizes, rows, seed)
    if len(groups.names) < len(sizes):
        raise OptionError(
            f"group={group!r}: {len(groups.names)} groups are fewer than the {len(sizes)} parts"
        )
    return assign_groups(sizes, rows, groups.numbers, seed)


def _values(dataset: Dataset, option: str, name: str | None) -> _Values | None:
    """Return the values of the field for an option, ``stratify`` or ``group``."""
    if name is None:
        return None
    field = dataset.schema.get(name)
    if field is None:
        raise OptionError(
            f"{option}={name!r}: the dataset has no such field; it has "
            f"{', '.join(dataset.schema)}.{did_you_mean(name, dataset.schema)}"
        )
    if not isinstance(field, (ScalarField, StringField)):
        raise OptionError(f"{option}={name!r}: this field holds neither numbers nor text")
    values = dataset._gather(name, np.arange(len(dataset)))
    if isinstance(field, StringField):
        texts = sorted(set(values))
        number_of = {text: number for number, text in enumerate(texts)}
        return _Values(np.array([number_of[text] for text in values], np.int64), texts)
    if "float" in field.dtype:
        if option == "stratify":
            raise OptionError(f"stratify={name!r}: this field holds fractions, not classes")
        if np.isnan(values).any():
            at = int(np.isnan(values).argmax())
            raise OptionError(f"group={name!r}: sample {at} is in no group: its value is NaN")
    found, numbers = np.unique(values, return_inverse=True)
    known = field.classes or ()
    names = [
        known[value] if 0 <= value < len(known) else str(value)
        for value in (found.tolist() if not known else found.astype(np.int64).tolist())
    ]
    return _Values(numbers.reshape(-1).astype(np.int64), names)


def _classes_of(dataset: Dataset) -> _Values | None:
    """Return the classes of a dataset whose label is one number a sample."""
    label = dataset.schema.label
    field = dataset.schema.get(label or "")
    named = isinstance(field, ScalarField) and field.classes is not None
    return _values(dataset, "stratify", label) if named else None


# -- notes -------------------------------------------------------------------------------


def _missing_classes(strata: _Values | None, parts: Numbers, names: list[str]) -> list[str]:
    """Return a note on the classes that a part has no sample of."""
    if strata is None:
        return []
    counts = np.zeros((len(strata.names), len(names)), np.int64)
    np.add.at(counts, (strata.numbers, parts), 1)
    few = np.flatnonzero((counts == 0).any(axis=1)).tolist()
    said = [
        f"{strata.names[row]!r} ({counts[row].sum():,}) is not in "
        + " and ".join(name for name, n in zip(names, counts[row], strict=True) if not n)
        for row in few[:_MOST_NAMED]
    ]
    more = ", ..." if len(few) > _MOST_NAMED else ""
    start = f"{len(few):,} of {len(counts):,} classes have too few samples for all parts: "
    return [start + ", ".join(said) + more] if few else []


def _large_groups(
    groups: _Values | None, sizes: np.ndarray[Any, Any], names: list[str], field: str | None
) -> list[str]:
    """Return notes on groups that are larger than a part is to be, or that have no name."""
    if groups is None:
        return []
    of_group = np.bincount(groups.numbers)
    least, largest = int(sizes.argmin()), int(of_group.argmax())
    notes = []
    if of_group[largest] > sizes[least]:
        notes.append(
            f"{(of_group > sizes[least]).sum():,} of {len(of_group):,} groups have more samples "
            f"than the {sizes[least]:,.0f} that {names[least]!r} is to have; the largest, {field} "
            f"{groups.names[largest]!r}, has {of_group[largest]:,}"
        )
    if "" in groups.names:
        nameless = of_group[groups.names.index("")]
        notes.append(f"{nameless:,} samples with an empty {field!r} count as one group")
    return notes


def _same_images(dataset: Dataset, parts: Numbers, names: list[str]) -> list[str]:
    """Return a note on stored images that are in two parts, by their checksums."""
    image = next((n for n, field in dataset.schema.images.items() if not field.mask), None)
    if image is None:
        return []
    sums = dataset._checksums(image)
    _, numbers = np.unique(sums, return_inverse=True)
    pairs = np.unique(numbers.reshape(-1).astype(np.int64) * len(names) + parts)
    images = np.bincount(pairs // len(names))
    twice = int((images > 1).sum())
    return [f"{twice:,} images are in more than one part, byte for byte"] if twice else []


# -- writing -----------------------------------------------------------------------------


def _write(
    dataset: Dataset,
    folder: Path,
    names: list[str],
    parts: Numbers,
    copy: Callable[..., PackReport],
    options: dict[str, Any],
) -> dict[str, PackReport]:
    """Pack all parts, move them to their places, and return their reports."""
    overwrite = options.pop("overwrite")
    kept = {name: options[name] for name in sorted(options) if name != "progress"}
    asked = f"{hash_fields(dataset.digest, parts.tobytes(), names, kept):016x}"
    many = options["shards"] != 1 or options["shard_size"] is not None
    suffix = "" if many else ".h5" if options["container"] == "hdf5" else ".lmdb"
    workplace = folder / "divide.partial"
    targets = {name: folder / f"{name}{suffix}" for name in names}
    with full_disk_explained(folder, _MAKE_ROOM), contextlib.ExitStack() as stack:
        if folder.exists() and not folder.is_dir():
            raise DestinationExistsError(f"{folder} is a file, and divide= writes to a folder")
        folder.mkdir(parents=True, exist_ok=True)  # the user's, and may be a link
        lock = DirectoryLock(workplace, lambda name: name != _LOCK, "dividing")
        stack.callback(lock.release)
        sources = files_of(dataset)
        check_apart(workplace, sources, around=False)
        state: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):
            state = read_state(workplace / "state.json")
        if state.get("asked") != asked:
            _clear(workplace, [*state.get("targets", ()), *(one.name for one in targets.values())])
            state = {"asked": asked, "done": {}, "inodes": {}}
            state["targets"] = [one.name for one in targets.values()]
        done, inodes = state["done"], state["inodes"]
        places: dict[str, tuple[Destination, Destination]] = {}
        for name, target in targets.items():
            exists = os.path.lexists(target)
            if exists and os.lstat(target).st_ino == inodes.get(name):
                continue  # it was moved by an earlier run
            if exists:
                check_apart(target, sources)
            if exists and not overwrite:
                raise DestinationExistsError(
                    f"{target} already exists. Choose another destination, or pass overwrite=True "
                    "(--overwrite) to replace it once all parts are complete."
                )
            places[name] = Destination(target, DATASET), Destination(rejects_path(target), REJECTS)
        replace_state(workplace / "state.json", state)
        for number, (name, target) in enumerate(targets.items()):
            if name in done:
                continue
            part = dataset[np.flatnonzero(parts == number)]
            report = copy(part, workplace / target.name, overwrite=True, **options)
            done[name] = dataclasses.asdict(report)
            for place in ("path", "rejects_path", "load_code"):
                del done[name][place]
            inodes[name] = os.lstat(workplace / target.name).st_ino
            replace_state(workplace / "state.json", state)
        for name, (target_of, rejects) in places.items():
            _move(workplace / targets[name].name, target_of, rejects, done[name]["num_rejected"])
        sync_directory(folder)
        _clear(workplace, state["targets"])
    return {
        name: PackReport(
            path=target,
            rejects_path=rejects_path(target) if done[name]["num_rejected"] else None,
            load_code=load_code(target),
            **{**done[name], "notes": tuple(done[name]["notes"])},
        )
        for name, target in targets.items()
    }


def _move(staged: Path, place: Destination, rejects: Destination, num_rejected: int) -> None:
    """Move a complete dataset with its list of rejects, unless an earlier run has done so."""
    if os.path.lexists(staged):
        if not num_rejected or rejects_path(staged).exists():
            rejects.put(rejects_path(staged))
        place.put(staged, spare=staged.with_name("replaced.partial"))


def _clear(workplace: Path, targets: Iterable[str]) -> None:
    """Remove the files of a division, and what its parts have replaced; others stay."""
    own = {f"{name}{end}" for name in targets for end in ("", ".partial", ".rejects.csv")}
    for name in own.union(_STATE).intersection(os.listdir(workplace)):
        remove_own(workplace / name)
