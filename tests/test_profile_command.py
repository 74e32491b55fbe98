"""``fastdata profile``: what is measured, with what, and what is printed where."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from cli_helpers import make_folder, run, run_json
from click.testing import CliRunner
from process_helpers import gone
from samples import write_shard
from test_profile_page import INPUT_BOUND, ODD, STALLING
from torch.utils.data import DataLoader
from worker_helpers import PICTURES, pictures

import fastdata
from fastdata.cli import main
from fastdata.cli.target import Target, choose, loader_of
from fastdata.errors import OptionError
from fastdata.profiling.page import render_page
from fastdata.profiling.report import ProfileReport
from fastdata.steps import ReferenceStep, SleepStep
from fastdata.steps.script import MODULE_NAME
from fastdata.transforms import RandomHorizontalFlip, RandomResizedCrop


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Forget what scripts did to the interpreter's modules and paths."""
    paths = list(sys.path)
    yield
    sys.path[:] = paths
    sys.modules.pop(MODULE_NAME, None)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of 32 x 32."""
    return pack(tmp_path_factory.mktemp("small"), 48, size=32, resize="exact")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of 240 x 240 to 256, which is over the usual crop."""
    return pack(tmp_path_factory.mktemp("large"), 240, resize="none")


def pack(folder: Path, side: int, **options: Any) -> Path:
    """Pack six images."""
    make_folder(folder / "images", size=side)
    path = folder / "packed.lmdb"
    fastdata.pack(folder / "images", path, num_workers=0, progress=False, **options)
    return path


class Seen:
    """Stands in for `fastdata.profile`: keeps what it gets, and one batch of the loader."""

    def __init__(self) -> None:
        self.report = INPUT_BOUND
        self.loader: Any = None
        self.step: Any = None
        self.options: dict[str, Any] = {}
        self.batch: Any = None

    def __call__(self, loader: Any, step: Any = None, **options: Any) -> ProfileReport:
        """Do what the real one does with its arguments: go over the loader, call the step."""
        self.loader, self.step, self.options = loader, step, options
        self.batch = next(iter(loader))
        if step is not None:
            step(self.batch)
        return self.report


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What the command gave to `fastdata.profile`, which measures nothing here."""
    profile = Seen()
    monkeypatch.setitem(vars(fastdata), "profile", profile)
    return profile


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a script with the body of its function; return it as a target."""

    def write(body: str, head: str = "") -> str:
        path = tmp_path / "train.py"
        path.write_text(f"{head}\ndef build():\n    {body}\n", encoding="utf-8")
        return f"{path}:build"

    return write


# -- what is printed ------------------------------------------------------------------


def test_text_goes_to_standard_output_and_what_was_chosen_to_standard_error(
    seen: Seen, large: Path
) -> None:
    result = run("profile", large, "--step-ms", 1)
    assert result.exit_code == 0
    assert result.stdout == f"{INPUT_BOUND}\n"
    assert result.stderr == (
        "fastdata: images are up to 240x256: batches are random resized crops of 224, and flips; "
        "--crop takes another size, or none\n"
    )


def test_small_images_of_several_sizes_are_cropped_to_what_all_have(
    seen: Seen, tmp_path: Path
) -> None:
    path = write_shard(tmp_path / "some.lmdb", pictures(12), PICTURES)
    assert "random resized crops of 40, and flips" in run("profile", path).stderr


def test_quiet_prints_the_verdict_only(seen: Seen, large: Path) -> None:
    result = run("profile", large, "--quiet")
    assert (result.stdout, result.stderr) == (f"{INPUT_BOUND.verdict}\n", "")
    assert seen.options["progress"] is False


@pytest.mark.parametrize("report", [INPUT_BOUND, STALLING, ODD])
def test_json_is_one_document_and_the_page_is_written_too(
    seen: Seen, small: Path, tmp_path: Path, report: ProfileReport
) -> None:
    seen.report = report
    page = tmp_path / "r.html"
    document = run_json("profile", small, "--step-ms", 1, "--html", page)
    assert document == report.to_json()
    assert page.read_text(encoding="utf-8") == render_page(report)


def test_where_the_page_is_is_said(seen: Seen, small: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    assert run("profile", small, "--step-ms", 1, "--html", page).stderr == (
        f"fastdata: the page is {page}\n"
    )


def test_a_place_that_takes_no_page_is_an_error_before_anything_is_measured(
    seen: Seen, small: Path, tmp_path: Path
) -> None:
    for place, message in [
        (tmp_path, "is a folder: name a file"),
        (tmp_path / "x" / "r.html", "does not exist: make it (mkdir -p"),
    ]:
        result = run("profile", small, "--html", place)
        assert result.exit_code == 2
        assert message in result.stderr
    assert seen.loader is None


def test_a_terminal_without_blocks_gets_ascii(seen: Seen, small: Path) -> None:
    for charset, bar in (("latin-1", "#"), ("utf-8", "█")):
        result = CliRunner(charset=charset).invoke(main, ["profile", str(small), "--step-ms", "1"])
        assert result.exit_code == 0
        assert f"120 ms  {bar * 20}" in result.stdout


# -- datasets -------------------------------------------------------------------------


def test_a_dataset_gets_a_shuffled_loader_with_the_options_given(seen: Seen, small: Path) -> None:
    words = "--batch-size 2 --workers 1 --worker-method thread --seconds 2.5 --model resnet18"
    assert run("profile", small, *words.split(), "--device", "cpu").exit_code == 0
    assert isinstance(seen.step, ReferenceStep)
    assert seen.step.name == "resnet18"
    assert seen.options == {"seconds": 2.5, "device": "cpu", "progress": None}
    assert seen.batch.image.shape == (2, 3, 32, 32)
    assert len(seen.loader) == 3
    orders = [choice.tolist() for choice in batches_of(small, 3)]
    assert orders[0] != orders[1] or orders[1] != orders[2]


def batches_of(path: Path, epochs: int) -> list[torch.Tensor]:
    """Return the images of some epochs, each as one row of sums."""
    with contextlib.closing(loader_of(choose(str(path)), num_workers=0)) as loader:
        return [
            torch.cat([batch.image.float().mean((1, 2, 3)) for batch in loader])
            for _ in range(epochs)
        ]


@pytest.mark.parametrize(
    ("crop", "shape"),
    [(None, (224, 224)), ("100", (100, 100)), ("80x120", (80, 120))],
)
def test_large_images_are_cropped(
    seen: Seen, large: Path, crop: str | None, shape: tuple[int, int]
) -> None:
    words = [] if crop is None else ["--crop", crop]
    result = run("profile", large, "--step-ms", 1, "--batch-size", 3, *words)
    assert result.exit_code == 0, result.stderr
    assert seen.batch.image.shape == (3, 3, *shape)
    assert ("images are up to" in result.stderr) == (crop is None)


def test_what_transforms_are_taken(small: Path, large: Path) -> None:
    assert choose(str(small)).transform == ()
    assert choose(str(large), crop="none").transform == ()
    crop, flip = choose(str(large)).transform
    assert isinstance(crop, RandomResizedCrop)
    assert isinstance(flip, RandomHorizontalFlip)
    crop, _ = choose(str(small), crop=16).transform
    assert isinstance(crop, RandomResizedCrop)


def test_without_a_step_only_the_loader_is_measured_and_that_is_said(
    seen: Seen, small: Path
) -> None:
    result = run("profile", small)
    assert "no step: only the loader is measured; --model or --step-ms" in result.stderr
    assert seen.step is None


def test_the_step_may_be_a_wait(seen: Seen, small: Path) -> None:
    assert run("profile", small, "--step-ms", "2.5").exit_code == 0
    assert isinstance(seen.step, SleepStep)
    assert seen.step.seconds == 0.0025


def test_the_loader_is_closed_also_after_an_error(
    monkeypatch: pytest.MonkeyPatch, small: Path
) -> None:
    seen: list[Any] = []

    def profile(loader: Any, step: Any, **options: Any) -> None:
        next(iter(loader))
        seen.append(loader)  # so that it does not end by itself
        close = type(loader).close
        closed = lambda it: (seen.append("closed"), close(it))  # noqa: E731
        monkeypatch.setattr(type(loader), "close", closed)
        raise OptionError("enough")

    monkeypatch.setitem(vars(fastdata), "profile", profile)
    result = run("profile", small, "--workers", 2, "--batch-size", 2)
    assert (result.exit_code, "enough" in result.stderr) == (2, True)
    assert seen[1:] == ["closed"]


# -- scripts --------------------------------------------------------------------------


def test_a_loader_of_a_script_is_taken_as_it_is(seen: Seen, script: Callable[..., str]) -> None:
    target = script("return [1, 2], STEP", "STEP = lambda batch: None")
    result = run("profile", target)
    assert (result.exit_code, result.stderr) == (0, "")
    assert seen.loader == [1, 2]
    assert seen.step.__name__ == "<lambda>"
    assert seen.options["device"] is None  # the script's own affair


def test_a_dataset_of_a_script_gets_a_loader(
    seen: Seen, script: Callable[..., str], small: Path
) -> None:
    head = (
        "import torch\nclass Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 7\n"
        "    def __getitem__(self, index):\n        return torch.zeros(3, 8, 8)\n"
    )
    assert run("profile", script("return Data()", head), "--batch-size", 4).exit_code == 0
    assert isinstance(seen.loader, DataLoader)
    assert seen.batch.shape == (4, 3, 8, 8)
    assert run("profile", script(f"return {str(small)!r}"), "--batch-size", 2).exit_code == 0
    assert isinstance(seen.loader, fastdata.Loader)


def test_a_step_given_takes_the_place_of_the_scripts(
    seen: Seen, script: Callable[..., str]
) -> None:
    target = script("return [1, 2], print")
    result = run("profile", target, "--step-ms", 3)
    assert isinstance(seen.step, SleepStep)
    assert result.stderr == (
        f"fastdata: the step is a simulated step of 3 ms, in place of {target}'s own\n"
    )


def test_a_script_without_a_step_is_told_so(seen: Seen, script: Callable[..., str]) -> None:
    assert "returns no step: only the loader" in run("profile", script("return [1]")).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batch-size 4", "--batch-size is for a dataset, but "),
        ("--workers auto", "--workers is for a dataset, but "),
        ("--worker-method thread", "--worker-method is for a dataset, but "),
        ("--crop none", "--crop is for a dataset by its path"),
    ],
)
def test_options_of_a_loader_are_refused_where_there_is_one(
    seen: Seen, script: Callable[..., str], words: str, message: str
) -> None:
    result = run("profile", script("return [1, 2], print"), *words.split())
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return {}['mine']", "raised KeyError: 'mine' at {path}:3, in build."),
        ("return [1], lambda batch: batch.missing", "has no attribute 'missing' at {path}:3, in"),
        ("raise SystemExit(3)", "raised SystemExit: 3 at {path}:3, in build."),
        ("raise ValueError", "raised ValueError at {path}:3, in build."),
        ("import json; return json.loads('{')", "raised JSONDecodeError: .* at {path}:3, in"),
    ],
)
def test_an_error_of_a_script_is_said_to_be_its_own(
    seen: Seen, script: Callable[..., str], body: str, message: str
) -> None:
    target = script(body)
    result = run("profile", target)
    assert result.exit_code == 1
    path = re.escape(target.removesuffix(":build"))
    pattern = re.escape(message).replace(re.escape(".*"), ".*").replace(re.escape("{path}"), path)
    assert re.search(pattern, result.stderr), result.stderr
    assert "bug" not in result.stderr
    assert "Traceback" not in result.stderr
    assert "KeyError: 'mine'" in run("profile", script("return {}['mine']"), "--traceback").stderr


def test_an_error_of_a_worker_of_a_script_is_said_in_one_line(
    seen: Seen, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long torch waits for a worker to end by itself.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    head = (
        "import torch\nclass Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 7\n"
        "    def __getitem__(self, index):\n        raise KeyError('mine')\n"
    )
    result = run("profile", script("return Data()", head), "--workers", 1, "--batch-size", 2)
    assert result.exit_code == 1
    # The line is one that only the worker's own traceback has.
    assert re.search(
        r"build raised KeyError: 'mine' at \S+train\.py:6, in __getitem__\.", result.stderr
    )
    del result  # its error holds the loader
    gc.collect()


def test_what_is_there_as_a_file_is_no_script(
    seen: Seen, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a:b").symlink_to(small)
    assert choose("a:b").is_script is False


# -- usage ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model resnet18 --step-ms 3", "--model and --step-ms are two steps: give one"),
        ("--model resnet19", "'resnet19' is not one of"),
        ("--step-ms 0", "--step-ms 0.0 is not a number from 0.001"),
        ("--step-ms nan", "--step-ms nan is not a number from"),
        ("--seconds 0", "--seconds 0.0 is not a number from 0.001"),
        ("--seconds nan", "--seconds nan is not a number from"),
        ("--seconds inf", "--seconds inf is not a number from"),
        ("--batch-size 0", "--batch-size 0 is not an integer from 1"),
        ("--workers many", "'many' is neither a number of workers nor auto"),
        ("--workers -1", "'-1' is neither a number of workers"),
        ("--crop 0", "a size is at least 1, not '0'"),
        ("--crop 12x", "'12x' is neither a number nor HEIGHTxWIDTH"),
        ("--device gpu", "--device is cpu, cuda or cuda:N, not 'gpu'"),
        ("--device meta", "--device is cpu, cuda or cuda:N, not 'meta'"),
        ("--device cuda:99", "--device cuda:99: torch finds"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    seen: Seen, small: Path, words: str, message: str
) -> None:
    result = run("profile", small, *words.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert seen.loader is None


def test_a_dataset_that_is_not_there_is_an_error(seen: Seen, tmp_path: Path) -> None:
    result = run("profile", tmp_path / "missing.lmdb", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["type"] == "DatasetNotFoundError"


def test_a_target_for_another_command_has_all_it_needs(small: Path) -> None:
    target = choose(str(small), step_ms=4, device="cpu")
    assert target == Target(
        str(small), str(small), True, False, (), target.step, "cpu", target.notes
    )
    assert isinstance(target.step, SleepStep)


# -- signals --------------------------------------------------------------------------


@contextlib.contextmanager
def started(code: str, **environment: str) -> Iterator[Any]:
    """Run Python with the tests' folder on its path; end it."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_signal_ends_it_without_a_page_or_a_traceback(
    small: Path, tmp_path: Path, number: int, code: int, word: str
) -> None:
    page = tmp_path / "r.html"
    program = (
        "import sys, time, fastdata\n"
        "def profile(loader, step, **options):\n"
        "    for batch in loader:\n"
        "        print('ready', file=sys.stderr, flush=True)\n"
        "        time.sleep(60)\n"
        "vars(fastdata)['profile'] = profile\n"
        "from fastdata.cli import main\n"
        f"main(['profile', {str(small)!r}, '--step-ms', '1', '--html', {str(page)!r}])\n"
    )
    with started(program) as process:
        assert process.stderr.readline() == "ready\n"
        process.send_signal(number)
        stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (code, "")
    assert stderr == f"fastdata: stopped by {word}. Nothing was written.\n"
    assert not page.exists()


@pytest.mark.timing
def test_a_second_signal_while_workers_are_closed_leaves_none_and_no_traceback(
    script: Callable[..., str],
) -> None:
    head = (
        "import os, time, torch\nclass Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 1000\n"
        "    def __getitem__(self, index):\n"
        "        if index >= 16:\n            os.write(2, b'slow\\n')\n            time.sleep(60)\n"
        "        return torch.zeros(1)\n"
    )
    target = script("return torch.utils.data.DataLoader(Data(), 2, num_workers=2), str", head)
    program = f"from fastdata.cli import main\nmain(['profile', {target!r}])\n"
    with started(program) as process:
        assert [process.stderr.readline() for _ in range(2)] == ["slow\n"] * 2
        workers = psutil.Process(process.pid).children()
        assert len(workers) == 2
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # torch waits for its workers, for seconds
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert gone(*(worker.pid for worker in workers))
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "fastdata: stopped by Ctrl-C. Nothing was written.\n"
