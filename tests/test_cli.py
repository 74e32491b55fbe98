"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np
import pytest
from cli_helpers import make_folder, run, run_json, start
from samples import write_shard
from warm_python import WarmPython

import fastdata
from fastdata import errors
from fastdata.cli import main, options
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.resize import Filter, Resize
from fastdata.converters.finding import format_class, format_names, options_of
from fastdata.converters.packing.options import Container
from fastdata.converters.reading.fields import KINDS
from fastdata.engine.workers import WorkerMethod
from fastdata.formats.writer import Record
from fastdata.schema import ArrayField, Codec, Schema
from fastdata.steps.models import MODELS

REPOSITORY = Path(__file__).parents[1]
sys.path.append(str(REPOSITORY / "scripts"))

import cli_page  # noqa: E402

COMMANDS = tuple(main.commands)  # type: ignore[attr-defined]
SECTIONS = {
    "Make a dataset": ["pack", "append", "merge", "subset", "formats"],
    "Look at it": ["info", "view", "verify", "export"],
    "Train faster": ["tune-workers", "profile", "doctor"],
    "Object stores": ["cache"],
}
PACK_GROUPS = {
    "Images": "size resize enlarge filter codec quality channels",
    "Which samples": "format option field explain limit shuffle seed max-pixels on-error",
    "Output": "container shards shard-size overwrite",
    "Speed and clusters": "num-workers plan part commit executor",
    "Object stores": "storage-option",
    "General options": "quiet json traceback help",
}
HEAVY = ("numpy", "torch", "cv2", "lmdb", "h5py", "PIL", "tqdm", "simplejpeg")
DOCUMENT = REPOSITORY / "docs" / "cli.md"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of three JPEGs."""
    return make_folder(tmp_path / "images")


@pytest.fixture
def packed(tmp_path: Path, images: Path) -> Path:
    """These, packed."""
    path = tmp_path / "packed.lmdb"
    fastdata.pack(images, path, size=32, num_workers=0, progress=False)
    return path


# -- help -----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([c, "--help"] for c in COMMANDS)])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom fastdata.cli import main\n"
        f"try:\n    main({words!r})\n"
        f"finally:\n    print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout


@pytest.mark.parametrize("command", ["info", "verify"])
def test_what_reads_no_pixels_does_not_import_torch(packed: Path, command: str) -> None:
    code = (
        "import sys\nfrom fastdata.cli import main\n"
        f"try:\n    main([{command!r}, {str(packed)!r}])\n"
        "finally:\n    print('torch' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "False"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_and_the_exit_codes(command: str) -> None:
    text = run(command, "--help").stdout
    assert re.search(rf"Examples:\n +fastdata {command}\b", text)
    assert "Exit codes: 0" in text


def sections_of(text: str) -> dict[str, list[str]]:
    """Return the entries of a help text by their sections: what begins a line of two spaces."""
    found: dict[str, list[str]] = {}
    for section in re.finditer(r"^(\S[^\n]*):\n((?:  [^\n]*\n|\n)+)", text, re.MULTILINE):
        found[section[1]] = re.findall(r"^  (\S+)", section[2], re.MULTILINE)
    return found


def test_the_help_has_every_command_in_its_section() -> None:
    text = run("--help").stdout
    found = sections_of(text)
    assert {title: found.get(title) for title in SECTIONS} == SECTIONS
    assert sorted(itertools.chain(*SECTIONS.values())) == sorted(COMMANDS)
    (example,) = re.findall(r"Example:\n((?:    fastdata .*\n)+)", text)
    assert example.count("\n") == 3


def test_the_help_of_pack_has_every_option_in_its_group() -> None:
    text = run("pack", "--help").stdout
    shown = {
        title: " ".join(re.findall(r"^  (?:-\w, )?--([\w-]+)", section, re.MULTILINE))
        for title, section in re.findall(
            r"^(\S.*):\n((?:  .*\n)+)", text.partition("\n  Examples")[0], re.MULTILINE
        )
    }
    assert shown == PACK_GROUPS
    assert text.count("\n    fastdata pack ") == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_the_help_once_and_explained(command: str) -> None:
    text = run(command, "--help").stdout
    for parameter in main.commands[command].params:  # type: ignore[attr-defined]
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            name = re.escape(max(parameter.opts, key=len))
            assert len(re.findall(rf"^  (?:-\S+, )*{name}\b", text, re.MULTILINE)) == 1


def test_without_a_command_it_helps() -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout
    result = run("cache")
    assert result.exit_code == 0
    assert result.stdout == run("cache", "--help").stdout


def test_version() -> None:
    assert run("--version").stdout == f"fastdata {fastdata.__version__}\n"


def test_the_tables_of_the_document_are_those_of_the_parsers() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert cli_page.renewed(text) == text, "python scripts/cli_page.py makes them again"
    with_options = [c for c in COMMANDS if c not in ("formats", "info", "verify", "cache")]
    tables = re.findall(r"^<!-- options: (.+) -->$", text, re.MULTILINE)
    assert sorted(tables) == sorted(["fastdata", "shared", *with_options])
    for command in COMMANDS:
        assert f"\n## `fastdata {command}`\n" in text


# -- the command line against the library -----------------------------------------------


def test_choices_and_constants_are_those_of_the_library() -> None:
    assert typing.get_args(Resize) == options.RESIZES
    assert typing.get_args(Filter) == options.FILTERS
    assert typing.get_args(Codec) == options.CODECS
    assert typing.get_args(Container) == options.CONTAINERS
    on_error = inspect.signature(fastdata.pack).parameters["on_error"].annotation
    assert typing.get_args(eval(on_error, {"Literal": typing.Literal})) == options.ON_ERROR
    assert options.FIELD_KINDS == KINDS
    assert options.MAX_PIXELS == MAX_PIXELS
    assert tuple(MODELS) == options.MODELS
    assert ("auto", *typing.get_args(WorkerMethod)) == options.WORKER_METHODS


def test_pack_has_every_option_of_the_function_with_its_default() -> None:
    expected = {
        name: parameter.default
        for name, parameter in inspect.signature(fastdata.pack).parameters.items()
        if name not in ("source", "destination", "executor", "progress", "fields", "source_options")
    }
    command = main.commands["pack"]  # type: ignore[attr-defined]
    context = command.make_context("pack", ["a", "b"])
    found = {name: value for name, value in context.params.items() if name in expected}
    assert found == expected


def test_every_option_of_pack_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def pack(source: str, destination: str, **options: Any) -> NoReturn:
        seen.update(options)
        raise errors.SourceError("seen enough")

    monkeypatch.setattr(fastdata, "pack", pack)
    words = (
        "--size 224x320 --resize exact --enlarge --filter lanczos --codec png --quality 80 "
        "--channels 1 --container hdf5 --shards 2 --shard-size 2GB --workers 3 --on-error stop "
        "--overwrite --limit 9 --shuffle --seed 4 --format folder --field caption=string "
        "--field mask=image --option image=a=b --max-pixels 1000 --quiet "
        "--part 1/2 --executor dask:local --storage-option region=eu"
    )
    assert run("pack", "a", "b", *words.split()).exit_code == 1
    assert seen == {
        "size": (224, 320),
        "resize": "exact",
        "enlarge": True,
        "filter": "lanczos",
        "codec": "png",
        "quality": 80,
        "channels": 1,
        "container": "hdf5",
        "shards": 2,
        "shard_size": "2GB",
        "num_workers": 3,
        "on_error": "stop",
        "overwrite": True,
        "limit": 9,
        "shuffle": True,
        "seed": 4,
        "format": "folder",
        "fields": {"caption": "string", "mask": "image"},
        "source_options": {"image": "a=b"},
        "max_pixels": 1000,
        "progress": False,
        "part": "1/2",
        "executor": "dask:local",
        "storage_options": {"region": "eu"},
    }


@pytest.mark.parametrize(("flag", "part"), [("--plan", "plan"), ("--commit", "commit")])
def test_steps_of_a_pack_are_flags(flag: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(source: str, destination: str, **options: Any) -> NoReturn:
        raise errors.SourceError(options["part"])

    monkeypatch.setattr(fastdata, "pack", pack)
    assert f"error: {part}" in run("pack", "a", "b", flag).stderr
    assert run("pack", "a", "b", flag, "--part", "0/1").exit_code == 2


# -- pack -----------------------------------------------------------------------------


def test_pack_prints_a_summary_and_the_line_that_loads_it(tmp_path: Path, images: Path) -> None:
    out = tmp_path / "out.lmdb"
    result = run("pack", images, out, "--size", 32, "--workers", 0)
    read_as = "read as folder: 6 samples, 2 classes (cat, dog), fields image, label\n"
    assert (result.exit_code, result.stderr) == (0, read_as)
    assert "6 images" in result.stdout
    assert f'fastdata.loader("{out}"' in result.stdout
    assert len(fastdata.open(out)) == 6


def test_pack_prints_the_samples_of_each_class(tmp_path: Path, images: Path) -> None:
    def text(source: Path, out: str) -> str:
        return run("pack", source, tmp_path / out, "--size", 32, "--workers", 0).stdout

    assert "\nlabel: cat 3, dog 3\n" in text(images, "few.lmdb")
    picture = next(images.rglob("*.*g"))
    for k in range(10):
        for n in range(1 + k):
            (tmp_path / "many" / f"c{k}").mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, tmp_path / "many" / f"c{k}" / f"{n}{picture.suffix}")
    assert "\nlabel: 1 to 10 samples a class\n" in text(tmp_path / "many", "many.lmdb")
    some = ["--size", 32, "--workers", 0, "--limit", 3]
    shown = run("pack", tmp_path / "many", tmp_path / "some.lmdb", *some).stdout
    assert "\nlabel: 1 to 2 samples a class; none of c2, c3, c4, c5, c6, c7, c8, c9\n" in shown


def test_pack_prints_the_sizes_of_images_and_no_rate_of_a_few(tmp_path: Path, images: Path) -> None:
    text = run("pack", images, tmp_path / "out.lmdb", "--size", 32, "--workers", 0).stdout
    assert "\nimage: 32 x 37 typical (32 x 32-42), height x width\n" in text
    assert "images/s" not in text
    larger = ["--size", 500, "--workers", 0]
    text = run("pack", images, tmp_path / "small.lmdb", *larger).stdout
    assert re.search(r"^image: .*; 6 smaller than 500, not enlarged \(--enlarge\)$", text, re.M)
    assert "smaller" not in run("pack", images, tmp_path / "l.lmdb", *larger, "--enlarge").stdout
    found = run_json("pack", images, tmp_path / "again.lmdb", "--size", 32, "--workers", 0)
    assert found["images_per_second"] > 0


def test_the_rate_is_printed_from_2000_images_on(tmp_path: Path) -> None:
    some = fastdata.PackReport(tmp_path, "", 3000, 0, 1, 10, 1.5, 2000.0)
    assert "2,000 images/s, 0 rejected" in str(some)
    resumed = dataclasses.replace(some, resumed_at=1500, images_per_second=1000.0)
    assert "images/s" not in str(resumed)


def test_pack_prints_each_note_once(tmp_path: Path, images: Path) -> None:
    (images / "cat" / "readme.txt").write_text("cats\n")
    done = run("pack", images, tmp_path / "out.lmdb", "--workers", 0)
    lines = (done.stderr + done.stdout).splitlines()
    assert [line for line in lines if "left out" in line] == [
        "1 files without an image suffix left out: 1 .txt"
    ]
    assert len(lines) == len(set(lines))


def test_quiet_pack_prints_nothing(tmp_path: Path, images: Path) -> None:
    result = run("pack", images, tmp_path / "out.lmdb", "--workers", 0, "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_rejected_samples_are_exit_code_3(tmp_path: Path, images: Path) -> None:
    (images / "cat" / "bad.jpg").write_bytes(b"no image")
    result = run("pack", images, tmp_path / "out.lmdb", "--workers", 0)
    assert result.exit_code == 3
    assert "1 rejected" in result.stdout
    assert "cat/bad.jpg" in (tmp_path / "out.lmdb.rejects.csv").read_text()
    again = run("pack", images, tmp_path / "stop.lmdb", "--workers", 0, "--on-error", "stop")
    assert again.exit_code == 1
    assert "cat/bad.jpg" in again.stderr


_WITH_THREADS = """
import multiprocessing, cv2, numpy, torch
from fastdata.cli import main
pixels = numpy.zeros((900, 900, 3), numpy.uint8)
cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
torch.nn.functional.interpolate(
    torch.from_numpy(pixels).permute(2, 0, 1)[None], size=500, mode="bilinear", antialias=True
)
before = cv2.getNumThreads()
if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    try:
        main({words!r})
    finally:
        assert cv2.getNumThreads() == before
"""
"""A process in which OpenCV and PyTorch have threads; forked workers have none of them, nor have
those that a fork server forks, which runs the script too."""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_start_where_opencv_has_threads(
    tmp_path: Path, images: Path, method: str, warm_python: WarmPython
) -> None:
    words = ["pack", str(images), str(tmp_path / "out.lmdb"), "--workers", "1", "--quiet"]
    done = warm_python.run(_WITH_THREADS.format(words=words, method=method))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "big"], "neither a number nor HEIGHTxWIDTH"),
        (["--size", "20x30"], "takes one size, not (20, 30): use 'exact' or 'crop' for both"),
        (["--plan", "--commit"], "Run --plan, then --part K/N for each K from 0 to N-1"),
        (["--codec", "gif"], "'gif' is not one of"),
        (["--field", "caption"], "is not NAME=KIND"),
        (["--field", "caption=colour"], "is not NAME=KIND"),
        (["--nosuch"], "No such option"),
    ],
)
def test_wrong_options_are_exit_code_2(
    tmp_path: Path, images: Path, words: list[str], message: str
) -> None:
    result = run("pack", images, tmp_path / "out.lmdb", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "pack IMAGES PACKED",
            "already exists. Choose another destination, or pass --overwrite to",
        ),
        (
            "pack IMAGES a.lmdb --quality 101",
            "error: --quality 101 is not an integer from 1 to 100",
        ),
        (
            "pack IMAGES a.lmdb --codec keep --resize long",
            "--codec keep copies files byte for byte",
        ),
        ("pack IMAGES a.lmdb --codec keep --resize long", ": use it with --resize none\n"),
        (
            "pack IMAGES a.lmdb --shards 2 --shard-size 3",
            "error: --shards and --shard-size exclude",
        ),
        ("pack IMAGES a.tar", "With --container lmdb the file may have any name"),
        ("pack IMAGES a.lmdb --plan", "give --shard-size 1GB or --shards N\n"),
        ("view PACKED --per-class 0", "error: --per-class 0 is not an integer from 1 to 1,000"),
        ("export PACKED out --shard-size 3", "--format folder has no shards: omit --shard-size\n"),
        (
            "subset PACKED a.lmdb",
            "give --split, --class, --where, --indices or --divide\n",
        ),
        (
            "subset PACKED a.lmdb --class cta",
            "no value 'cta'; its classes are cat, dog. Did you mean",
        ),
        ("subset PACKED a.lmdb --where lable=1", "no field 'lable'; it has image, label. Did you"),
        ("append PACKED/ IMAGES --format folders", "Did you mean 'folder'?"),
        ("merge PACKED IMAGES a.lmdb", "Pack it: fastdata pack"),
    ],
)
def test_errors_name_options_as_the_command_line_has_them(
    tmp_path: Path,
    packed: Path,
    images: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"IMAGES": images, "PACKED": packed, "PACKED/": packed}
    result = run(*(places.get(word, word) for word in words.split()))
    assert result.exit_code in (1, 2, 4)
    assert message in result.stderr


def test_file_names_that_look_like_arguments_stay(tmp_path: Path) -> None:
    name = tmp_path / "split=train" / "size=3.lmdb"
    assert f"{name}: no such file" in run("export", name, tmp_path / "out").stderr


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("number", "code", "workers"),
    [(signal.SIGINT, 130, 0), (signal.SIGTERM, 143, 2)],
)
def test_a_stopped_pack_says_how_to_go_on_and_does(
    tmp_path: Path, number: signal.Signals, code: int, workers: int
) -> None:
    images = make_folder(tmp_path / "images", count=1, size=640)
    for index in range(400):
        (images / "cat" / f"link{index}.jpg").symlink_to(images / "cat" / "0.jpg")
    out = tmp_path / "out.lmdb"
    words = ("pack", images, out, "--size", 64, "--workers", workers)
    with start(*words, start_new_session=True) as process:
        _wait_for(tmp_path / "out.lmdb.partial" / "job.json", process)
        os.killpg(process.pid, number)  # to workers too, as terminals and schedulers do
        printed, said = process.communicate()
    assert (process.returncode, printed) == (code, "")
    assert "run the same command again to continue" in said
    assert "Traceback" not in said
    assert not out.exists()

    other = run(*words, "--codec", "png")
    assert other.exit_code == 4
    assert 'codec was "auto" and is "png"' in other.stderr
    assert run_json(*words)["num_samples"] == 402
    whole = run_json(*words[:2], tmp_path / "whole.lmdb", *words[3:])
    assert fastdata.open(out).digest == whole["digest"]


_FULL_DISK = """
import resource
from fastdata.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main({words!r})
"""
"""A file cannot grow beyond a limit, of which LMDB says what it says of a full disk."""


@pytest.mark.parametrize("suffix", [".lmdb", ".h5"])
def test_a_full_disk_is_exit_code_5_and_the_same_command_goes_on(
    tmp_path: Path, images: Path, suffix: str
) -> None:
    out = tmp_path / f"out{suffix}"
    words = ["pack", str(images), str(out), "--codec", "png", "--workers", "0"]
    code = _FULL_DISK.format(words=words)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    assert "ulimit -f unlimited" in done.stderr
    assert "Run the same command again" in done.stderr
    assert run_json(*words)["num_samples"] == 6


# -- errors ---------------------------------------------------------------------------


def test_an_error_is_one_paragraph_without_traceback(tmp_path: Path) -> None:
    result = run("info", tmp_path / "nothing.lmdb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("fastdata: error: ")
    assert result.stderr.count("\n") == 1


def test_a_traceback_is_shown_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" in run("info", tmp_path / "x.lmdb", "--traceback").stderr
    monkeypatch.setenv("FASTDATA_TRACEBACK", "1")
    assert "Traceback" in run("info", tmp_path / "x.lmdb").stderr
    monkeypatch.setenv("FASTDATA_TRACEBACK", "0")
    assert "Traceback" not in run("info", tmp_path / "x.lmdb").stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.FastdataError("a  b\nc"), 1, "a b c"),
        (errors.OptionError("o"), 2, "o"),
        (errors.DestinationExistsError("d"), 4, "d"),
        (errors.DestinationLockedError("d"), 4, "d"),
        (errors.JobChangedError("j"), 4, "j"),
        (errors.DiskFullError(28, "x.lmdb: No space left"), 5, "x.lmdb: No space left"),
        (errors.RejectedError("r"), 1, "r"),
        (errors.MissingExtraError("pip install 'fastdata-vision[dali]'"), 1, "pip install"),
        (PermissionError(13, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (ZeroDivisionError("by zero"), 1, "unexpected ZeroDivisionError: by zero. This is likely"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C."),
    ],
)
def test_every_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(path: str) -> NoReturn:
        raise error

    monkeypatch.setattr("fastdata.summary.summarise", fail)
    result = run("info", "x.lmdb", "--json")
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert set(document) == {"error"}
    assert document["error"]["type"] == type(error).__name__
    assert document["error"]["message"].startswith(message)
    assert document["error"]["message"] in result.stderr


def test_the_document_tells_the_exit_codes() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert set(rows) == {"0", "1", "2", "3", "4", "5", "130", "143"}
    named = {name: code for code, row in rows.items() for name in re.findall(r"\w+Error", row)}
    fours = dict.fromkeys(
        ["DestinationExistsError", "DestinationLockedError", "JobChangedError"], "4"
    )
    assert named == {"OptionError": "2", "DiskFullError": "5", **fours}


@pytest.mark.parametrize("words", [["pack"], ["pack", "--nosuch", "a", "b"], ["nosuch"]])
def test_wrong_usage_is_json_too(words: list[str]) -> None:
    document = run_json(*words, code=2)
    assert re.search(r"See `.* --help`\.$", document["error"]["message"])


def test_json_after_a_double_dash_is_a_name() -> None:
    result = run("info", "--", "--json")
    assert (result.exit_code, result.stdout) == (1, "")


def test_sigterm_unwinds_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    def wait(path: str) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            cleaned.append(path)

    monkeypatch.setattr("fastdata.summary.summarise", wait)
    before = signal.getsignal(signal.SIGTERM)
    assert run("info", "x.lmdb").exit_code == 143
    assert cleaned == ["x.lmdb"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("words", [["info"], ["info", "--json"], ["--help"], ["verify"]])
def test_a_reader_that_has_gone_is_no_error(packed: Path, words: list[str]) -> None:
    with start(*words, *([] if words == ["--help"] else [packed])) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")


def test_names_that_are_no_unicode_are_printed_escaped(tmp_path: Path, packed: Path) -> None:
    strange = tmp_path / os.fsdecode(b"caf\xe9.lmdb")
    packed.rename(strange)
    result = run("info", strange)
    assert result.exit_code == 0
    assert "caf\\udce9.lmdb: 6 samples" in result.stdout
    assert run_json("info", strange)["path"] == str(strange)
    assert run("info", os.fsdecode(b"\xff")).exit_code == 1


# -- info -----------------------------------------------------------------------------


def test_info_tells_what_is_inside(packed: Path) -> None:
    text = run("info", packed).stdout
    for part in (
        "6 samples, 1 lmdb shard",
        "image: RGB image, 32 x 37 typical (32 x 32-42), height x width, ",
        "raw 6",
        "label: int64, 2 classes",
        "cat  3",
        "size=32",
        "quality=90",
        f"digest: {fastdata.open(packed).digest}",
        f'loader = fastdata.loader("{packed}"',
    ):
        assert part in text
    for part in ("dct_margin", "compiled", "max_pixels"):
        assert part not in text
        assert part in run_json("info", packed)["options"]


def test_info_json_counts_everything(tmp_path: Path, images: Path) -> None:
    out = tmp_path / "shards"
    options = ("--size", 100, "--enlarge", "--shards", 2, "--container", "hdf5", "--workers", 0)
    assert run("pack", images, out, *options).exit_code == 0
    document = run_json("info", out)
    dataset = fastdata.open(out)
    image, label = document["fields"]
    assert document["num_samples"] == 6
    assert document["digest"] == dataset.digest
    assert document["containers"] == ["hdf5"]
    assert document["file_bytes"] == sum(shard["file_bytes"] for shard in document["shards"])
    assert [shard["num_samples"] for shard in document["shards"]] == [3, 3]
    assert [Path(shard["path"]).parent.name for shard in document["shards"]] == ["shards"] * 2
    assert image["codecs"] == {"jpeg": 6}
    assert image["height"] == {"min": 100, "median": 100, "max": 100}
    assert image["width"] == {"min": 100, "median": 116, "max": 133}
    assert (label["classes"], label["class_counts"]) == (["cat", "dog"], [3, 3])
    assert label["num_without_class"] == 0
    assert document["options"]["size"] == [100, 100]
    assert "T.RandomResizedCrop(100)" in document["load_code"]


def test_info_of_a_field_of_every_kind(rich_shard: Path) -> None:
    result = run("info", rich_shard)
    assert result.exit_code == 0
    for part in ("mask: mask", "points: array, int16, ?x2", "caption: string", "raw 1, jpeg 2"):
        assert part in result.stdout


def test_info_of_the_classes_of_boxes(tmp_path: Path) -> None:
    schema = Schema({"labels": ArrayField("int64", (None,), classes=("cat", "dog"))})
    records = [Record(str(k), (np.zeros(k, np.int64),)) for k in range(3)]
    path = write_shard(tmp_path / "boxes.lmdb", records, schema)
    assert "labels: array, int64, ?, 2 classes" in run("info", path).stdout
    (labels,) = run_json("info", path)["fields"]
    assert labels["classes"] == ["cat", "dog"]


# -- formats --------------------------------------------------------------------------


FORMAT_GROUPS = (
    "Folders and lists of images",
    "Files of many samples",
    "Annotations: boxes, masks",
    "Published datasets, as downloaded",
)


def test_formats_are_listed_in_four_groups_with_a_line_each() -> None:
    result = run("formats")
    assert result.exit_code == 0
    *lines, last = result.stdout.splitlines()
    assert last == "`fastdata formats NAME` explains the options of a format."
    titles = [line.removesuffix(":") for line in lines if line and not line.startswith(" ")]
    assert tuple(titles) == FORMAT_GROUPS
    summaries = [tuple(line.split(None, 1)) for line in lines if line.startswith(" ")]
    registered = {name: format_class(name).summary for name in format_names()}
    assert sorted(summaries) == sorted(registered.items())
    assert "--option" not in result.stdout


def test_a_format_has_its_options_explained() -> None:
    lines = run("formats", "coco").stdout.splitlines()
    options = [line.split()[1] for line in lines if line.startswith("  --option ")]
    assert [option.partition("=")[0] for option in options] == [
        option.name for option in options_of(format_class("coco"))
    ]
    assert "check_size=true|false" in options
    assert lines[-1].endswith("[default: true]")
    result = run("formats", "cocoa")
    assert result.exit_code == 2
    assert "Did you mean 'coco'?" in result.stderr


# -- verify ---------------------------------------------------------------------------


def test_verify_intact(rich_shard: Path) -> None:
    result = run("verify", rich_shard)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "intact; 6 samples in 1 shard" in result.stdout
    assert run("verify", rich_shard, "--quiet").stdout == ""


def test_verify_lists_every_damaged_image(packed: Path) -> None:
    (reader,) = fastdata.open(packed).shards
    data = bytearray(packed.read_bytes())
    for index in (1, 4):
        data[int(reader.column("image.offset")[index]) + 7] ^= 16
    packed.write_bytes(data)
    document = run_json("verify", packed, code=3)
    assert not document["intact"]
    assert [(d["path"], d["place"]) for d in document["damage"]] == [
        (str(packed), "'image' of sample 1 (key 'cat/1.jpg')"),
        (str(packed), "'image' of sample 4 (key 'dog/1.jpg')"),
    ]
    result = run("verify", packed)
    assert result.exit_code == 3
    assert result.stdout.count("the checksum does not match\n") == 2
    assert "2 damaged" in result.stdout
    assert "Restore the file from a copy, or pack the dataset again.\n" in result.stdout


def test_verify_goes_on_behind_a_bad_shard(shards: Path) -> None:
    _, second, third = fastdata.open(shards).paths
    second.unlink()
    data = third.read_bytes()
    third.write_bytes(data[:-10])
    document = run_json("verify", shards, code=3)
    assert document["num_samples"] == 3
    assert [(Path(d["path"]), d["reason"][:30]) for d in document["damage"]] == [
        (second, "the shard is missing (No such "),
        (third, f"{len(data)} bytes were written but the"[:30]),
        (third, "not a fastdata shard, or one t"),
    ]


def test_verify_finds_swapped_shards(shards: Path) -> None:
    first, second, _ = fastdata.open(shards).paths
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    reasons = [damage["reason"] for damage in run_json("verify", shards, code=3)["damage"]]
    assert sum("not the shard that the manifest lists" in reason for reason in reasons) == 2
    assert "1 samples, but the manifest lists 3" in reasons


def test_verify_reads_the_shards_of_a_damaged_manifest(shards: Path) -> None:
    manifest = shards / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"num_samples": 6', '"num_samples": 7'))
    document = run_json("verify", shards, code=3)
    assert document["num_samples"] == 6
    (damage,) = document["damage"]
    assert damage["path"] == str(manifest)
    assert "the checksum does not match" in damage["reason"]


def test_verify_calls_a_cut_shard_damaged(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-1000])
    (damage,) = run_json("verify", shard, code=3)["damage"]
    assert "cut short" in damage["reason"]


@pytest.mark.parametrize("content", [b"", b"text", b"x" * 1000])
def test_verify_of_something_else_fails(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes.lmdb").write_bytes(content)
    assert run("verify", tmp_path / "notes.lmdb").exit_code == 1
    assert run("verify", tmp_path / "nothing.lmdb").exit_code == 1
    assert run("verify", tmp_path).exit_code == 1


def test_verify_does_not_call_a_newer_version_damaged(shards: Path) -> None:
    manifest = shards / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 99'))
    document = run_json("verify", shards, code=1)
    assert "newer" in document["error"]["message"]


# -- export ---------------------------------------------------------------------------


def test_export_and_pack_again_is_the_same_dataset(tmp_path: Path, images: Path) -> None:
    packed, again = tmp_path / "a.lmdb", tmp_path / "b.h5"
    options = ("--size", 80, "--enlarge", "--workers", 0)
    digest = run_json("pack", images, packed, *options)["digest"]
    result = run("export", packed, tmp_path / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "6 samples, 6 image files" in result.stdout
    assert run_json("pack", tmp_path / "out/manifest.csv", again, *options)["digest"] == digest


def test_export_of_a_selection_and_over_an_earlier_one(tmp_path: Path, packed: Path) -> None:
    out = tmp_path / "out"
    assert run_json("export", packed, out, "--select", "::2")["num_samples"] == 3
    assert run_json("export", packed, out, code=4)["error"]["type"] == "DestinationExistsError"
    assert run_json("export", packed, out, "--overwrite", "--select=-2:")["num_files"] == 2
    assert run("export", packed, out, "--overwrite", "-q").stdout == ""
    assert len(list(out.glob("*/*"))) == 6


@pytest.mark.parametrize("text", ["3", "a:b", "1:2:0", "1:2:3:4", "--:1"])
def test_a_wrong_selection_is_exit_code_2(tmp_path: Path, packed: Path, text: str) -> None:
    result = run("export", packed, tmp_path / "out", f"--select={text}")
    assert result.exit_code == 2
    assert "is not START:STOP" in result.stderr


def test_a_pattern_that_the_shell_replaced_is_told_of(tmp_path: Path) -> None:
    names = [tmp_path / f"{number}.tar" for number in range(3)]
    result = run("pack", *names, tmp_path / "train.lmdb")
    assert result.exit_code == 2
    assert "expected SOURCE and DESTINATION, got 4 arguments" in result.stderr
    assert f"quote it: fastdata pack '*.tar' {tmp_path / 'train.lmdb'}" in result.stderr
    assert not (tmp_path / "train.lmdb").exists()


def test_a_working_directory_that_was_deleted_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for words in (
        "pack a b.lmdb", "merge a.lmdb b.lmdb", "subset a.lmdb b --indices 0:1", "append a.lmdb b",
        "export a.lmdb b", "info a.lmdb", "verify a.lmdb", "view a.lmdb", "formats", "cache list",
        "tune-workers a.lmdb", "profile a.lmdb", "doctor a.py",
    ):  # fmt: skip
        result = run(*words.split())
        assert result.exit_code == 1, words
        assert "the working directory was deleted: cd to another folder" in result.stderr
