"""A pack may be killed at any moment: what it ends with is what it would have ended with.

What a kill leaves is what is on the disk: the process's locks go with it, and nothing of what
it had in memory is written any more.  So one pack that copies what is there before each of
its changes stands for as many packs that are killed (`left_at_every_step`); that its copies
are what kills leave is tested first.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pack_helpers import (
    FORMS,
    SMALL,
    digest_of,
    finish,
    image_folder,
    open_if_there,
    rejects_of,
    run_child,
    slow_pack,
    start_child,
    with_bad_images,
)

import fastdata
from fastdata import replacing
from fastdata.errors import DestinationExistsError, JobChangedError

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("small_chunks")]

NAMES = ("replace", "rename", "unlink", "rmdir", "mkdir")
STEPS = (*NAMES, "ftruncate", "pwrite", "fsync", "fdatasync")
"""What changes the disk for good, apart from LMDB's own writing."""


def _call_before(action: Callable[[], None], names: tuple[str, ...]) -> None:
    """Have this process call `action` before every change of the disk; not amid `action`."""
    within = False

    def announced(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal within
            if not within:
                within = True
                action()
                within = False
            return call(*args, **kwargs)

        return wrapper

    for name in names:
        setattr(os, name, announced(getattr(os, name)))
    replacing._renamed = announced(replacing._renamed)


def _die_at(
    step: int, source: Any, path: Path, options: dict[str, Any], names: tuple[str, ...] = STEPS
) -> None:
    """Pack, and die just before the `step`-th change of the disk."""
    left = step

    def count() -> None:
        nonlocal left
        if left == 0:
            os._exit(99)
        left -= 1

    _call_before(count, names)
    fastdata.pack(source, path, **options)


def _copy_at_every_step(
    states: Path, source: Any, path: Path, options: dict[str, Any], names: tuple[str, ...]
) -> None:
    """Pack, and before each change of the disk copy what is there into a folder of `states`."""
    step = 0

    def copy() -> None:
        nonlocal step
        state = states / f"{step:05}"
        state.mkdir(parents=True)
        for each in path.parent.glob(f"{path.name}*"):
            if each.is_dir():
                shutil.copytree(each, state / each.name)
            else:
                shutil.copy2(each, state)
        step += 1

    _call_before(copy, names)
    fastdata.pack(source, path, **options)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the bytes of all files below a folder; None for folders."""
    return {
        str(each.relative_to(folder)): None if each.is_dir() else each.read_bytes()
        for each in sorted(folder.rglob("*"))
    }


def remove(path: Path) -> None:
    for each in (path, path.with_name(path.name + ".partial")):
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink(missing_ok=True)
    path.with_name(path.name + ".rejects.csv").unlink(missing_ok=True)


def left_at_every_step(
    source: Any, path: Path, options: dict[str, Any], names: tuple[str, ...] = STEPS
) -> Iterator[int]:
    """Yield steps, `path` and what lies beside it being as a pack killed there leaves them.

    What is at `path` before is what the pack begins with.  Steps that leave
    what the one before them left are not repeated.
    """
    states = path.parent / "states"
    assert run_child(_copy_at_every_step, states, source, path, options, names) == 0
    before = None
    for step, state in enumerate(sorted(states.iterdir())):
        now = contents(state)
        if now != before:
            remove(path)
            for each in state.iterdir():
                each.rename(path.parent / each.name)
            yield step
        before = now


# -- killed at every step ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["lmdb", "lmdb shards"])  # HDF5 files have a time in them
def test_copies_made_on_the_way_are_what_kills_leave(tmp_path: Path, form: str) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 11), (2, 9))
    options = {**SMALL, **FORMS[form]}
    killed, copied = tmp_path / "1" / "x", tmp_path / "2" / "x"
    killed.parent.mkdir()
    copied.parent.mkdir()
    for step in left_at_every_step(source, copied, options):
        if step % 19 == 5:
            remove(killed)
            assert run_child(_die_at, step, source, killed, options) == 99
            left, found = contents(killed.parent), contents(copied.parent)
            assert left.keys() == {name for name in found if not name.startswith("states")}
            # The lock says which process held it, and the state has times of files.
            for state in (left, found):
                state.pop("x.partial/lock", None)
                for name in ("x.partial/state.json", "x.partial/state.json.new"):
                    text = state.get(name) or b""
                    state[name] = re.sub(rb'"(tag|checksum)": "[^"]*"', b"", text)
            assert not [k for k in left if left[k] != found[k]]


@pytest.mark.parametrize(
    "form",
    # One file of each container represents this module.
    [pytest.param(form, marks=[] if "shards" in form else pytest.mark.smoke) for form in FORMS],
)
def test_killed_at_any_step_it_goes_on(tmp_path: Path, form: str) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 11), (2, 9))
    options = {**SMALL, **FORMS[form]}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    path = tmp_path / "killed"
    reached = set()
    # Within a shard, several are as one: there only what happens between them.
    names = STEPS if form in ("lmdb", "hdf5") else (*NAMES, "ftruncate", "pwrite")
    for _ in left_at_every_step(source, path, options, names):
        found = open_if_there(path)
        assert found in (None, whole.digest)
        reached.add(found)
        assert finish(source, path, **options) == whole.digest
        assert rejects_of(path) == rejects_of(tmp_path / "whole")
        assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("killed")) == [
            "killed",
            "killed.rejects.csv",
        ]
    assert reached == {None, whole.digest}


@pytest.mark.parametrize("form", ["lmdb", "hdf5 shards"])
def test_killed_at_one_step_after_the_other_it_ends(tmp_path: Path, form: str) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 11), (2, 9))
    options = {**SMALL, **FORMS[form]}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    path = tmp_path / "killed"
    for step in range(0, 400, 5):
        code = run_child(_die_at, step, source, path, options)
        if code != 99:
            break
        assert open_if_there(path) in (None, whole.digest)
    assert finish(source, path, **options) == whole.digest
    assert rejects_of(path) == rejects_of(tmp_path / "whole")


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("before", ["file", "directory"])
@pytest.mark.parametrize("form", ["lmdb", "lmdb shards"])
def test_killed_while_it_overwrites_there_is_always_one_of_the_two(
    tmp_path: Path, form: str, before: str, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:  # as on file systems that cannot
        monkeypatch.setattr(replacing, "_renamed", lambda *_: False)
    source = image_folder(tmp_path / "images", 5)
    options = {**SMALL, **FORMS[form], "overwrite": True}
    new = fastdata.pack(source, tmp_path / "new", **options).digest
    path = tmp_path / "killed"
    old = fastdata.pack(
        image_folder(tmp_path / "others", 3), path, **SMALL, shards=1 if before == "file" else 2
    ).digest
    found = set()
    for _ in left_at_every_step(source, path, options, NAMES):
        there = open_if_there(path)
        found.add(there)
        if there is None:
            # Between the renames of directories; both are complete, beside it.
            assert digest_of(tmp_path / "killed.partial" / "replaced") == old
        assert finish(source, path, **options) == new
    assert found - {None} == {old, new}
    two_renames = before == "directory" or form == "lmdb shards"
    assert (None in found) == (two_renames and not exchange)


@pytest.mark.smoke
def test_a_dataset_taken_away_between_the_renames_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the pack that took it away is given up."""
    monkeypatch.setattr(replacing, "_renamed", lambda *_: False)
    source = image_folder(tmp_path / "images", 8)
    path = tmp_path / "killed"
    old = fastdata.pack(image_folder(tmp_path / "others", 3), path, **SMALL, shards=2).digest
    options = {**SMALL, "shards": 2, "overwrite": True}
    for _ in left_at_every_step(source, path, options, ("rename",)):
        if not path.exists():
            break
    assert not path.exists()
    with pytest.raises(JobChangedError, match="quality was 90 and is 50"):
        fastdata.pack(source, path, **SMALL, shards=2, quality=50)
    assert fastdata.open(path).digest == old
    with pytest.raises(DestinationExistsError, match="next to the unfinished pack"):
        fastdata.pack(source, path, **SMALL, shards=2)
    assert fastdata.open(path).digest == old


def _before_the_last_tidying(tmp_path: Path) -> tuple[Path, Path]:
    """Return a source and its dataset, which a killed pack has only just given its name."""
    source, path = image_folder(tmp_path / "images", 8), tmp_path / "x.lmdb"
    assert any(path.exists() for _ in left_at_every_step(source, path, SMALL, NAMES))
    return source, path


@pytest.mark.smoke
def test_a_dataset_removed_before_the_last_tidying_is_packed_again(tmp_path: Path) -> None:
    source, path = _before_the_last_tidying(tmp_path)
    path.unlink()
    report = fastdata.pack(source, path, **SMALL)
    assert digest_of(path) == report.digest


@pytest.mark.smoke
def test_another_dataset_put_in_its_place_is_not_taken_for_it(tmp_path: Path) -> None:
    source, path = _before_the_last_tidying(tmp_path)
    other = tmp_path / "other.lmdb"
    fastdata.pack(image_folder(tmp_path / "others", 3), other, **SMALL)
    os.replace(other, path)
    with pytest.raises(DestinationExistsError, match="next to the unfinished pack"):
        fastdata.pack(source, path, **SMALL)
    assert len(fastdata.open(path)) == 3


# -- killed at random ----------------------------------------------------------------------


def killed_pack(source: Any, path: Path, options: dict[str, Any], seconds: float) -> None:
    """Be killed after some time, at once however slow the machine is: no program looks at it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which is pytest's
    signal.setitimer(signal.ITIMER_REAL, seconds)
    slow_pack(source, path, options, 0.025)


@pytest.mark.parametrize("form", FORMS)
def test_ten_random_kills_do_not_change_the_result(tmp_path: Path, form: str) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 200), (3, 90, 91, 150))
    options = {**SMALL, **FORMS[form], "num_workers": 1}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    dice = random.Random(form)
    path = tmp_path / "killed"
    for _ in range(10):
        process = start_child(killed_pack, source, path, options, dice.uniform(0.01, 0.11))
        process.join()
        assert process.exitcode == -signal.SIGALRM  # it was at it, not done
        process.close()
        assert open_if_there(path) is None
    assert finish(source, path, **options) == whole.digest
    assert rejects_of(path) == rejects_of(tmp_path / "whole")
    assert rejects_of(path).count("\n") == 5
