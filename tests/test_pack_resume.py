"""A pack may be killed at any moment: what it ends with is what it would have ended with."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pack_helpers import (
    digest_of,
    finish,
    image_folder,
    open_if_there,
    png,
    rejects_of,
    run_child,
    start_child,
)

import fastdata
from fastdata.converters.packing import job, packer
from fastdata.converters.packing.job import Job
from fastdata.errors import (
    DatasetNotFoundError,
    DestinationExistsError,
    DestinationLockedError,
    DiskFullError,
    JobChangedError,
    OptionError,
)
from fastdata.formats.spool import Spool

FORMS: dict[str, dict[str, Any]] = {
    "lmdb": {"container": "lmdb"},
    "hdf5": {"container": "hdf5"},
    "lmdb shards": {"container": "lmdb", "shards": 3},
    "hdf5 shards": {"container": "hdf5", "shard_size": 5},
}
SMALL = {"size": 24, "resize": "short", "num_workers": 0}


def with_bad_images(root: Path, numbers: tuple[int, ...]) -> Path:
    """Break some of a folder's images."""
    files = sorted(root.rglob("*.jpg"))
    for number in numbers:
        files[number].write_bytes(b"not an image")
    return root


def pack_in_child(source: Any, path: Path, options: dict[str, Any]) -> None:
    fastdata.pack(source, path, **options)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)
    monkeypatch.setattr(packer, "_COMMIT_BYTES", 1)


# -- killed at random ----------------------------------------------------------------------


def _slow_pack(source: Path, path: Path, options: dict[str, Any]) -> None:
    take = packer.Packer._take

    def slowly(self: Any, result: Any) -> None:
        time.sleep(0.012)
        take(self, result)

    packer.Packer._take = slowly  # type: ignore[method-assign]
    fastdata.pack(source, path, **options)


@pytest.mark.parametrize("form", FORMS)
def test_ten_random_kills_do_not_change_the_result(tmp_path: Path, form: str) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 400), (3, 90, 91, 300))
    options = {**SMALL, **FORMS[form], "num_workers": 1}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    dice = random.Random(form)
    path = tmp_path / "killed"
    for _ in range(10):
        process = start_child(_slow_pack, source, path, options)
        time.sleep(dice.uniform(0.01, 0.11))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL  # it was at it, not done
        process.close()
        assert open_if_there(path) is None
    assert finish(source, path, **options) == whole.digest
    assert rejects_of(path) == rejects_of(tmp_path / "whole")
    assert rejects_of(path).count("\n") == 5


# -- killed at every step ----------------------------------------------------------------------

NAMES = ("replace", "rename", "unlink", "rmdir", "mkdir")
STEPS = (*NAMES, "ftruncate", "pwrite", "fsync", "fdatasync")
"""What changes the disk for good, apart from LMDB's own writing."""


def _die_at(
    step: int, source: Any, path: Path, options: dict[str, Any], names: tuple[str, ...] = STEPS
) -> None:
    """Pack, and die just before the `step`-th change of the disk."""
    left = step

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(99)
            left -= 1
            return call(*args, **kwargs)

        return wrapper

    for name in names:
        setattr(os, name, counted(getattr(os, name)))
    fastdata.pack(source, path, **options)


def killed_at_every_step(
    source: Any,
    path: Path,
    options: dict[str, Any],
    *,
    before: Callable[[], None],
    names: tuple[str, ...] = STEPS,
) -> Iterator[int]:
    """Pack again and again, each time dying a step later, until one is done.

    `before` prepares the destination; what was left is there while the
    caller has its turn.
    """
    for step in range(10_000):
        before()
        code = run_child(_die_at, step, source, path, options, names)
        if code == 0:
            return
        assert code == 99
        yield step
    raise AssertionError("it never ended")


def remove(path: Path) -> None:
    for each in (path, path.with_name(path.name + ".partial")):
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink(missing_ok=True)
    path.with_name(path.name + ".rejects.csv").unlink(missing_ok=True)


@pytest.mark.parametrize("form", FORMS)
def test_killed_at_any_step_it_goes_on(tmp_path: Path, form: str) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 11), (2, 9))
    options = {**SMALL, **FORMS[form]}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    path = tmp_path / "killed"
    reached = set()
    # Within a shard, several are as one: there only what happens between them.
    names = STEPS if form in ("lmdb", "hdf5") else (*NAMES, "ftruncate", "pwrite")
    for _ in killed_at_every_step(source, path, options, before=lambda: remove(path), names=names):
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


@pytest.mark.parametrize("before", ["file", "directory"])
@pytest.mark.parametrize("form", ["lmdb", "lmdb shards"])
def test_killed_while_it_overwrites_there_is_always_one_of_the_two(
    tmp_path: Path, form: str, before: str
) -> None:
    source = image_folder(tmp_path / "images", 5)
    options = {**SMALL, **FORMS[form], "overwrite": True}
    new = fastdata.pack(source, tmp_path / "new", **options).digest
    kept = tmp_path / "kept"
    old = fastdata.pack(
        image_folder(tmp_path / "others", 3), kept, **SMALL, shards=1 if before == "file" else 2
    ).digest
    path = tmp_path / "killed"

    def put_the_old_one_there() -> None:
        remove(path)
        if kept.is_dir():
            shutil.copytree(kept, path)
        else:
            shutil.copyfile(kept, path)

    found = set()
    for _ in killed_at_every_step(source, path, options, before=put_the_old_one_there, names=NAMES):
        there = open_if_there(path)
        found.add(there)
        if there is None:
            # Between the renames of directories; both are complete, beside it.
            assert digest_of(tmp_path / "killed.partial" / "replaced") == old
        assert finish(source, path, **options) == new
    assert found - {None} == {old, new}
    assert (None in found) == (before == "directory" or form == "lmdb shards")


def test_a_dataset_taken_away_between_the_renames_is_put_back(tmp_path: Path) -> None:
    """Also where the pack that took it away is given up."""
    source = image_folder(tmp_path / "images", 8)
    path = tmp_path / "killed"
    kept = tmp_path / "kept"
    old = fastdata.pack(image_folder(tmp_path / "others", 3), kept, **SMALL, shards=2).digest
    options = {**SMALL, "shards": 2, "overwrite": True}

    def put_the_old_one_there() -> None:
        remove(path)
        shutil.copytree(kept, path)

    for _ in killed_at_every_step(
        source, path, options, before=put_the_old_one_there, names=("rename",)
    ):
        if not path.exists():
            break
    assert not path.exists()
    with pytest.raises(JobChangedError, match="quality was 90 and is 50"):
        fastdata.pack(source, path, **SMALL, shards=2, quality=50)
    assert fastdata.open(path).digest == old
    with pytest.raises(DestinationExistsError, match="beside the unfinished pack"):
        fastdata.pack(source, path, **SMALL, shards=2)
    assert fastdata.open(path).digest == old


# -- other ends ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_signals_lose_nothing(tmp_path: Path, number: signal.Signals, num_workers: int) -> None:
    source = image_folder(tmp_path / "images", 200)
    options = {**SMALL, "num_workers": num_workers}
    whole = fastdata.pack(source, tmp_path / "whole.lmdb", **options)
    path = tmp_path / "stopped.lmdb"
    process = start_child(_slow_pack, source, path, options)
    state = tmp_path / "stopped.lmdb.partial" / "state.json"
    while not state.exists():
        time.sleep(0.002)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode in (1, -number)  # KeyboardInterrupt ends a process with 1
    process.close()
    assert open_if_there(path) is None
    report = fastdata.pack(source, path, **options)
    assert report.digest == whole.digest
    assert report.resumed_at > 0


class Interrupted(BaseException):
    """Like KeyboardInterrupt, but not pytest's."""


def test_an_interruption_keeps_what_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "_COMMIT_BYTES", 1 << 40)
    images = [png(k) for k in range(30)]

    def stopping() -> Iterator[bytes]:
        yield from images[:22]
        raise Interrupted

    whole = fastdata.pack(iter(images), tmp_path / "whole.lmdb", num_workers=0)
    path = tmp_path / "x.lmdb"
    with pytest.raises(Interrupted):
        fastdata.pack(stopping(), path, num_workers=0)
    report = fastdata.pack(iter(images), path, num_workers=0)
    assert report.resumed_at == 20  # whole chunks of four
    assert report.digest == whole.digest


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["append", "sync", "close"])
def test_an_exception_halfway_through_writing_falls_back_to_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, method: str
) -> None:
    """With Python's own clearing up, which a kill does not have."""
    source = with_bad_images(image_folder(tmp_path / "images", 16), (1, 13, 14))
    options = {**SMALL, **FORMS[form]}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    real = getattr(Spool, method)
    interrupted = 0
    for calls in range(1, 2000, 7):
        path = tmp_path / f"x{calls}"
        left = [calls]

        def failing(self: Any, *args: Any, left: list[int] = left) -> Any:
            left[0] -= self.length > 8  # not while the writer is only made
            if left[0] == 0:
                if method == "close":
                    real(self)  # else the file would stay open
                raise Interrupted
            return real(self, *args)

        with monkeypatch.context() as patch, contextlib.suppress(Interrupted):
            patch.setattr(Spool, method, failing)
            fastdata.pack(source, path, **options)
        if left[0] > 0:
            break
        interrupted += 1
        assert open_if_there(path) in (None, whole.digest)
        assert finish(source, path, **options) == whole.digest
        assert rejects_of(path) == rejects_of(tmp_path / "whole")
    assert interrupted > 1


# -- a full disk ----------------------------------------------------------------------


def _pack_with_little_room(source: Any, path: Path, options: dict[str, Any], limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with pytest.raises(DiskFullError, match="Make room and run the same command again"):
        fastdata.pack(source, path, **options)
    os._exit(28)


@pytest.mark.parametrize("form", ["hdf5", "hdf5 shards"])
def test_files_that_may_not_grow_are_a_full_disk(tmp_path: Path, form: str) -> None:
    source = image_folder(tmp_path / "images", 40, side=64)
    options = {**SMALL, **FORMS[form], "size": 64, "codec": "raw"}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    path = tmp_path / "x"
    for limit in (3_000, 20_000, 60_000):
        assert run_child(_pack_with_little_room, source, path, options, limit) == 28
        assert open_if_there(path) is None
    assert finish(source, path, **options) == whole.digest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, where one may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_is_an_error_and_then_it_goes_on(
    tmp_path: Path, small_disk: Path, form: str
) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 40, side=64), (5, 30))
    options = {**SMALL, **FORMS[form], "size": 64, "codec": "raw"}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    path = small_disk / "x"
    ballast = small_disk / "ballast"
    for room in (4_000, 100_000, 400_000):
        ballast.write_bytes(b"")
        ballast.write_bytes(
            bytes(shutil.disk_usage(small_disk).free // 4096 * 4096 - room // 4096 * 4096)
        )
        with pytest.raises(DiskFullError, match="Make room and run the same command again"):
            fastdata.pack(source, path, **options)
        with pytest.raises(DatasetNotFoundError, match="x"):
            fastdata.open(path)
    ballast.unlink()
    assert finish(source, path, **options) == whole.digest
    assert rejects_of(path) == rejects_of(tmp_path / "whole")


# -- what changed ----------------------------------------------------------------------


def _begin(source: Any, path: Path, options: dict[str, Any], chunks: int = 2) -> None:
    """Leave an unfinished pack."""
    take = packer.Packer._take
    left = [chunks]

    def taking(self: Any, result: Any) -> None:
        take(self, result)
        left[0] -= 1
        if left[0] == 0:
            raise Interrupted

    packer.Packer._take = taking  # type: ignore[method-assign]
    try:
        with pytest.raises(Interrupted):
            fastdata.pack(source, path, **options)
    finally:
        packer.Packer._take = take  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 25}, r"size was \[24, 24\] and is \[25, 25\]"),
        ({"quality": 91}, "quality was 90 and is 91"),
        ({"codec": "png"}, 'codec was "auto" and is "png"'),
        ({"container": "hdf5"}, 'container was "lmdb" and is "hdf5"'),
        ({"filter": "lanczos"}, 'filter was "bilinear" and is "lanczos"'),
        ({"resize": "crop"}, 'resize was "short" and is "crop"'),
        ({"shards": 2}, "shards was 1 and is 2"),
        ({"shard_size": 2}, "shard_size was null and is 2"),
        ({"shuffle": True}, "shuffle was false and is true"),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"limit": 9}, "limit was null and is 9"),
        ({"channels": 1}, "channels of image was 3 and is 1"),
        ({"quality": 91, "seed": 3}, "seed was 0 and is 3; quality was 90 and is 91"),
    ],
)
def test_changed_options_refuse_to_go_on(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    _begin(source, path, SMALL)
    with pytest.raises(JobChangedError, match=message):
        fastdata.pack(source, path, **{**SMALL, **options})
    assert fastdata.pack(source, path, **SMALL).resumed_at == 8


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"on_error": "stop"}, {"progress": False}])
def test_options_that_do_not_show_in_the_result_may_change(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    _begin(source, path, SMALL)
    assert fastdata.pack(source, path, **{**SMALL, **options}).resumed_at == 8


def _touch(files: list[Path]) -> None:
    os.utime(files[3], (5, 5))


def _rewrite(files: list[Path]) -> None:
    for file in (files[3], files[6], files[7]):
        file.write_bytes(file.read_bytes() + b"\0")


def _add(files: list[Path]) -> None:
    shutil.copy(files[0], files[3].with_name("00006a.jpg"))


def _add_last(files: list[Path]) -> None:
    shutil.copy(files[0], files[-1].with_name("zz.jpg"))


def _new_class(files: list[Path]) -> None:
    folder = files[0].parent.parent / "cow"
    folder.mkdir()
    shutil.copy(files[0], folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_touch, "in the source, ant/00006.jpg changed"),
        (_rewrite, "in the source, ant/00006.jpg changed and 2 more"),
        (lambda files: files[3].unlink(), "had 16 samples and has 15; they differ from ant/00008"),
        (_add, "had 16 samples and has 17; they differ from ant/00006a"),
        (_add_last, "had 16 samples and has 17; they differ from bee/zz.jpg on"),
        (lambda files: files[-1].unlink(), "had 16 samples and has 15"),
        (
            lambda files: files[3].rename(files[3].with_name("0.jpg")),
            "ant/0.jpg changed and 3 more",
        ),
        (_new_class, "classes of label: 'cow' is new"),
        (lambda files: shutil.rmtree(files[0].parent), "classes of label: 'ant' is gone"),
    ],
)
def test_a_changed_source_refuses_to_go_on(
    tmp_path: Path, change: Callable[[list[Path]], None], message: str
) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    _begin(source, path, SMALL)
    change(sorted(source.rglob("*.jpg")))
    with pytest.raises(JobChangedError, match=message):
        fastdata.pack(source, path, **SMALL)
    # Asked to, it starts anew, and is as if nothing had been.
    report = fastdata.pack(source, path, **SMALL, overwrite=True)
    assert report.resumed_at == 0
    assert report.digest == fastdata.pack(source, tmp_path / "fresh.lmdb", **SMALL).digest


@pytest.mark.parametrize("name", ["list.csv", "0.png"])
def test_a_changed_manifest_refuses_to_go_on(tmp_path: Path, name: str) -> None:
    for number in range(10):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    rows = [f"{number}.png,{number}" for number in range(10)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    path = tmp_path / "x.lmdb"
    _begin(tmp_path / "list.csv", path, SMALL)
    os.utime(tmp_path / name, (9, 9))
    if name == "list.csv":
        (tmp_path / name).write_text("\n".join(["path,label", *rows[:-1], "9.png,8"]))
    with pytest.raises(JobChangedError, match="9.png changed" if name == "list.csv" else "0.png"):
        fastdata.pack(tmp_path / "list.csv", path, **SMALL)


def test_what_lies_behind_the_limit_may_change(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 16, classes=["ant"]), tmp_path / "x.lmdb"
    _begin(source, path, {**SMALL, "limit": 11})
    (source / "ant" / "00014.jpg").unlink()
    report = fastdata.pack(source, path, **SMALL, limit=11)
    assert (report.resumed_at, report.num_samples) == (8, 11)


def test_an_iterable_that_has_become_shorter_refuses_to_go_on(tmp_path: Path) -> None:
    images, path = [png(k) for k in range(20)], tmp_path / "x.lmdb"
    _begin(iter(images), path, {"num_workers": 0}, chunks=4)
    with pytest.raises(JobChangedError, match="had at least 16 samples and has 9"):
        fastdata.pack(iter(images[:9]), path, num_workers=0)
    assert fastdata.pack(iter(images), path, num_workers=0).num_samples == 20


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options", [{"shuffle": True, "seed": 3}, {"limit": 13}, {"limit": 13, "shuffle": True}]
)
def test_shuffled_and_limited_packs_go_on(
    tmp_path: Path, form: str, options: dict[str, Any]
) -> None:
    source = with_bad_images(image_folder(tmp_path / "images", 22), (4, 5))
    options = {**SMALL, **FORMS[form], **options}
    whole = fastdata.pack(source, tmp_path / "whole", **options)
    for chunks in (1, 2, 3):
        path = tmp_path / f"x{chunks}"
        _begin(source, path, options, chunks)
        _begin(source, path, options, 1) if chunks == 1 else None
        assert finish(source, path, **options) == whole.digest
        assert rejects_of(path) == rejects_of(tmp_path / "whole")
    if "shards" in options or "shard_size" in options:
        files = [sorted(p.name for p in (tmp_path / name).iterdir()) for name in ("whole", "x2")]
        assert files[0] == files[1]


@pytest.mark.parametrize("damaged", ["state.json", "job.json"])
@pytest.mark.parametrize("damage", [b"", b"{}", b'{"checksum": "0", "body": {}}', b"\xff"])
def test_a_damaged_state_is_begun_again_rather_than_believed(
    tmp_path: Path, damaged: str, damage: bytes
) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    whole = fastdata.pack(source, tmp_path / "whole.lmdb", **SMALL)
    _begin(source, path, SMALL)
    (tmp_path / "x.lmdb.partial" / damaged).write_bytes(damage)
    report = fastdata.pack(source, path, **SMALL)
    assert (report.resumed_at, report.digest) == (0, whole.digest)


def test_a_dataset_removed_before_the_last_tidying_is_packed_again(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 8), tmp_path / "x.lmdb"
    for step in range(1000):
        remove(path)
        assert run_child(_die_at, step, source, path, SMALL, NAMES) == 99
        if path.exists():
            break
    path.unlink()
    report = fastdata.pack(source, path, **SMALL)
    assert digest_of(path) == report.digest


def test_another_dataset_put_in_its_place_is_not_taken_for_it(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 8), tmp_path / "x.lmdb"
    other = tmp_path / "other.lmdb"
    fastdata.pack(image_folder(tmp_path / "others", 3), other, **SMALL)
    for step in range(1000):
        remove(path)
        assert run_child(_die_at, step, source, path, SMALL, NAMES) == 99
        if path.exists():
            break
    os.replace(other, path)
    with pytest.raises(DestinationExistsError, match="beside the unfinished pack"):
        fastdata.pack(source, path, **SMALL)
    assert len(fastdata.open(path)) == 3


# -- the lock ----------------------------------------------------------------------


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def test_a_second_packer_refuses_and_says_who_is_the_first(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 200), tmp_path / "x.lmdb"
    options = {**SMALL, "num_workers": 1}
    process = start_child(_slow_pack, source, path, options)
    _wait((tmp_path / "x.lmdb.partial" / "state.json").exists)
    for overwrite in (False, True):
        with pytest.raises(DestinationLockedError, match=rf"another process \(pid {process.pid}\)"):
            fastdata.pack(source, path, **options, overwrite=overwrite)
    process.join()
    assert process.exitcode == 0  # it was not disturbed
    process.close()
    assert len(fastdata.open(path)) == 200


def test_after_a_kill_the_lock_is_free_at_once_and_workers_end(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 200), tmp_path / "x.lmdb"
    options = {**SMALL, "num_workers": 2}
    process = start_child(_slow_pack, source, path, options)
    _wait((tmp_path / "x.lmdb.partial" / "state.json").exists)
    workers = psutil.Process(process.pid).children(recursive=True)
    for worker in workers:
        worker.suspend()  # so that they are certainly there while the lock is taken
    process.kill()
    process.join()
    process.close()
    assert len(workers) >= 2
    Job(path).close()
    assert all(worker.is_running() for worker in workers)
    for worker in workers:
        worker.resume()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    # What workers had on its way is thrown away by a pack that has none, too.
    assert (tmp_path / "x.lmdb.partial" / "chunks").is_dir()
    assert fastdata.pack(source, path, **{**options, "num_workers": 0}).num_samples == 200
    assert not (tmp_path / "x.lmdb.partial").exists()


def test_orphaned_workers_end_though_others_hold_the_pipe_open(tmp_path: Path) -> None:
    """A process that the packer's program forked meanwhile inherits the workers' life line."""
    source, path = image_folder(tmp_path / "images", 200), tmp_path / "x.lmdb"
    report = tmp_path / "pid"

    def pack_and_fork() -> None:
        def fork() -> None:
            _wait((tmp_path / "x.lmdb.partial" / "state.json").exists)
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            report.write_text(str(child))

        threading.Thread(target=fork).start()
        _slow_pack(source, path, {**SMALL, "num_workers": 1})

    process = start_child(pack_and_fork)
    _wait(lambda: report.exists() and report.read_text() != "")
    other = psutil.Process(int(report.read_text()))
    workers = [c for c in psutil.Process(process.pid).children() if c.pid != other.pid]
    process.kill()
    process.join()
    process.close()
    try:
        assert workers
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert not alive
    finally:
        other.kill()


@pytest.mark.parametrize("alias", ["x.lmdb", "sub/../x.lmdb", "linked/x.lmdb"])
def test_threads_of_one_process_are_kept_apart(tmp_path: Path, alias: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path)
    path, source = tmp_path / "x.lmdb", image_folder(tmp_path / "images", 8)
    first = Job(path)
    try:
        with pytest.raises(DestinationLockedError, match="another thread of this process"):
            fastdata.pack(source, tmp_path / alias, **SMALL)

        # The refusal did not give the lock away, as closing the file would have.
        def other_process() -> None:
            job._held.clear()
            try:
                fastdata.pack(source, tmp_path / alias, **SMALL)
            except DestinationLockedError:
                os._exit(7)

        assert run_child(other_process) == 7
    finally:
        first.close()
    assert fastdata.pack(source, tmp_path / alias, **SMALL).num_samples == 8


def test_many_threads_race_for_one_destination_and_one_gets_it(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 20), tmp_path / "x.lmdb"
    outcomes: list[str] = []
    gate = threading.Barrier(6)

    def run() -> None:
        gate.wait()
        try:
            fastdata.pack(source, path, **SMALL)
            outcomes.append("packed")
        except (DestinationLockedError, DestinationExistsError) as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("packed") == 1
    assert len(outcomes) == 6
    assert not (tmp_path / "x.lmdb.partial").exists()


def test_packers_that_come_and_go_never_meet(tmp_path: Path) -> None:
    """Taking the lock races with the removal of its directory."""
    path = tmp_path / "x.lmdb"

    def come_and_go() -> None:
        for _ in range(60):
            job._held.clear()
            with contextlib.suppress(DestinationLockedError):
                mine = Job(path)
                claim = tmp_path / "claim"
                descriptor = os.open(claim, os.O_CREAT | os.O_EXCL)
                os.close(descriptor)
                claim.unlink()
                mine.close()

    children = [start_child(come_and_go) for _ in range(4)]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    for child in children:
        child.close()
    assert [p.name for p in tmp_path.iterdir()] == []


def test_other_peoples_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    source = image_folder(tmp_path / "images", 8)
    theirs = tmp_path / "x.lmdb.partial" / "thesis.txt"
    theirs.parent.mkdir()
    theirs.write_text("all my work")
    with pytest.raises(OptionError, match="shards=9 are more than the source's 8 samples"):
        fastdata.pack(source, tmp_path / "x.lmdb", **SMALL, shards=9)
    fastdata.pack(source, tmp_path / "x.lmdb", **SMALL)
    assert theirs.read_text() == "all my work"
    assert [p.name for p in theirs.parent.iterdir()] == ["thesis.txt"]


def test_a_directory_that_is_no_dataset_is_never_overwritten(tmp_path: Path) -> None:
    source = image_folder(tmp_path / "images", 8)
    for shards in (1, 2):
        with pytest.raises(DestinationExistsError, match="is a directory but no dataset"):
            fastdata.pack(source, source, **SMALL, shards=shards, overwrite=True)
    assert len(list(source.rglob("*.jpg"))) == 8


def test_what_appears_at_the_destination_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    _begin(source, path, SMALL)
    finished = packer.Packer._finish

    def late(self: Any) -> None:
        finished(self)
        path.write_text("somebody's")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer.Packer, "_finish", late)
        with pytest.raises(DestinationExistsError, match="has appeared while"):
            fastdata.pack(source, path, **SMALL)
    assert path.read_text() == "somebody's"
    path.unlink()
    assert fastdata.pack(source, path, **SMALL).num_samples == 16
