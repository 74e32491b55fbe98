"""An unfinished pack goes on where it was, if nothing has changed; else it says what has."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pack_helpers import (
    FORMS,
    SMALL,
    finish,
    held_pack,
    image_folder,
    open_if_there,
    png,
    rejects_of,
    run_child,
    start_child,
    with_bad_images,
)
from process_helpers import wait_until

import fastdata
from fastdata.converters.packing import packer, plan
from fastdata.errors import (
    DatasetNotFoundError,
    DestinationExistsError,
    DiskFullError,
    JobChangedError,
    OptionError,
)
from fastdata.formats.writer import Spool
from fastdata.native.library import loaded_library

pytestmark = pytest.mark.usefixtures("small_chunks")


# -- stopped ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_signals_lose_nothing(tmp_path: Path, number: signal.Signals, num_workers: int) -> None:
    source = image_folder(tmp_path / "images", 200)
    options = {**SMALL, "num_workers": num_workers}
    whole = fastdata.pack(source, tmp_path / "whole.lmdb", **options)
    path = tmp_path / "stopped.lmdb"
    process = start_child(held_pack, source, path, options, tmp_path / "never")
    state = tmp_path / "stopped.lmdb.partial" / "state.json"
    wait_until(state.exists)
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
    with pytest.raises(DiskFullError, match=r"ulimit -f unlimited.* Run the same command again"):
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


@pytest.mark.skipif(loaded_library() is None, reason="the compiled library is not here")
def test_a_pack_begun_with_the_compiled_library_does_not_go_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    _begin(source, path, SMALL)
    _begin(source, tmp_path / "kept.lmdb", {"codec": "keep", "num_workers": 0})
    with monkeypatch.context() as without:
        without.setattr("fastdata.converters.packing.options.loaded_library", lambda: None)
        with pytest.raises(JobChangedError, match="compiled was true and is false"):
            fastdata.pack(source, path, **SMALL)
        fastdata.pack(source, tmp_path / "kept.lmdb", codec="keep", num_workers=0)
    assert fastdata.pack(source, path, **SMALL).resumed_at == 8
    (shard,) = fastdata.open(path).shards
    assert shard.header.options["compiled"] is True


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


def test_a_pack_that_another_release_would_make_otherwise_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    _begin(source, path, SMALL)
    monkeypatch.setattr(plan, "RECIPE", plan.RECIPE + 1)
    with pytest.raises(JobChangedError, match=f"recipe was {plan.RECIPE - 1} and is"):
        fastdata.pack(source, path, **SMALL)


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
        (_touch, r"files of the source have changed .* \(16 then, 16 now\)"),
        (_rewrite, r"have changed .* \(16 then, 16 now\)"),
        (lambda files: files[3].unlink(), r"removed \(16 then, 15 now\)"),
        (_add, r"added or removed \(16 then, 17 now\)"),
        (_add_last, r"added or removed \(16 then, 17 now\)"),
        (lambda files: files[-1].unlink(), r"removed \(16 then, 15 now\)"),
        (lambda files: files[3].rename(files[3].with_name("0.jpg")), "16 then, 16 now"),
        (_new_class, "classes of label: 'cow' is new"),
        (lambda files: shutil.rmtree(files[0].parent), "classes of label: 'ant' is gone"),
    ],
)
def test_a_changed_source_refuses_to_go_on(
    tmp_path: Path, change: Callable[[list[Path]], None], message: str
) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    options: dict[str, Any] = {**SMALL, "format": "folder"}
    _begin(source, path, options)
    change(sorted(source.rglob("*.jpg")))
    with pytest.raises(JobChangedError, match=message):
        fastdata.pack(source, path, **options)
    # Asked to, it starts anew, and is as if nothing had been.
    report = fastdata.pack(source, path, **options, overwrite=True)
    assert report.resumed_at == 0
    assert report.digest == fastdata.pack(source, tmp_path / "fresh.lmdb", **options).digest


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
    with pytest.raises(JobChangedError, match="files of the source have changed"):
        fastdata.pack(tmp_path / "list.csv", path, **SMALL)


def test_what_lies_behind_the_limit_may_change(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 16, classes=["ant"]), tmp_path / "x.lmdb"
    options: dict[str, Any] = {**SMALL, "limit": 11, "format": "folder"}
    _begin(source, path, options)
    (source / "ant" / "00014.jpg").unlink()
    report = fastdata.pack(source, path, **options)
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


# -- what is in the way ----------------------------------------------------------------------


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
    other = image_folder(tmp_path / "others", 8)
    for shards in (1, 2):
        with pytest.raises(DestinationExistsError, match="images is a directory, not a dataset"):
            fastdata.pack(other, source, **SMALL, shards=shards, overwrite=True)
        with pytest.raises(DestinationExistsError, match="images is the source"):
            fastdata.pack(source, source, **SMALL, shards=shards, overwrite=True)
    assert len(list(source.rglob("*.jpg"))) == 8


def test_what_appears_at_the_destination_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 16), tmp_path / "x.lmdb"
    _begin(source, path, SMALL)
    finished = packer.Packer._finish

    def late(self: Any) -> str:
        path.write_text("somebody's")
        return finished(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer.Packer, "_finish", late)
        with pytest.raises(DestinationExistsError, match="appeared or changed meanwhile"):
            fastdata.pack(source, path, **SMALL)
    assert path.read_text() == "somebody's"
    path.unlink()
    assert fastdata.pack(source, path, **SMALL).num_samples == 16
