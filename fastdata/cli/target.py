"""What a command measures: a dataset or a user's script, its transforms, step and device.

Shared by the commands that run training steps: `choose` turns their arguments into a `Target`,
`loader_of` makes its loader, and `users_code` reports errors of a script as the script's.
"""

from __future__ import annotations

import contextlib
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from fastdata.cli.options import (
    MODELS,
    Choice,
    bounded,
    option_group,
    parse_crop,
    split_option,
    store_options,
)
from fastdata.errors import FastdataError, OptionError

__all__ = ["Target", "choose", "loader_of", "target_options", "users_code"]

BATCH_SIZE = 256
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


@dataclass(frozen=True)
class Target:
    """What to measure: `name` is as it was given."""

    name: str
    data: Any
    is_dataset: bool
    """Whether `data` needs a loader to be made; else it is one."""
    is_script: bool = False
    """Whether `data`, and perhaps `step`, come from a user's function."""
    transform: tuple[Any, ...] = ()
    """For a packed dataset given by its path."""
    step: Callable[[Any], Any] | None = None
    device: str | None = None
    """Where steps run; None where a script decides."""
    notes: tuple[str, ...] = ()
    """What was chosen for the user, to be shown."""
    split: str | None = None
    """Of a dataset given by its path."""


target_options = option_group(
    click.option("--model", type=Choice(MODELS), help="The step is a training step of this model."),
    click.option(
        "--step-ms",
        type=float,
        callback=bounded("step_ms"),
        metavar="MS",
        help="The step is a wait of so many milliseconds.",
    ),
    click.option(
        "--crop",
        type=parse_crop,
        metavar="N|HxW|none",
        help="Of a dataset by its path: random resized crops of this size, and flips; none "
        "takes images as they are.  [default: 224 where images are larger, their shortest "
        "side where sizes differ, else none]",
    ),
    click.option("--device", metavar="NAME", help="Where steps run.  [default: cuda, else cpu]"),
    split_option,
    store_options,
)
"""Options that `choose` takes."""


def choose(
    target: str,
    *,
    model: str | None = None,
    step_ms: float | None = None,
    crop: int | tuple[int, int] | Literal["none"] | None = None,
    device: str | None = None,
    split: str | None = None,
) -> Target:
    """Return the target, transforms, step and device of a command line.

    The target is a dataset's path, as `fastdata.open` takes it, or ``FILE.py:FUNCTION``; what
    exists as a file is a path.  Of a script, `model` or `step_ms` take the place of its own step.
    The crop is a size, "none", or None for what suits the images.  Options that contradict each
    other or the target, and a device that does not exist, are an `OptionError`; what a script
    raises is a `click.ClickException`.
    """
    import fastdata
    from fastdata.measuring.images import ChosenCrops
    from fastdata.splits import check_one_split
    from fastdata.steps import is_script_target

    if model is not None and step_ms is not None:
        raise OptionError("--model and --step-ms are two steps: give one of them")
    place = _device(device)
    if is_script_target(target):
        if split is not None:
            raise OptionError(f"--split is for a dataset by its path: give {target} the split")
        return _of_script(target, _step(model, step_ms, place), crop, place if device else None)
    step = _step(model, step_ms, place)
    opened = fastdata.open(target, split=split)
    if split is None:
        check_one_split(opened, "--split {split}")
    transform, notes = ChosenCrops(crop).transforms_for(opened)
    if step is None:
        notes += ("no step: only the loader is measured; --model or --step-ms gives one",)
    return Target(target, target, True, False, transform, step, place, notes, split)


def _of_script(
    target: str, step: Callable[[Any], Any] | None, crop: object, device: str | None
) -> Target:
    from fastdata.loading import is_dataset
    from fastdata.steps import run_script

    if crop is not None:
        raise OptionError(
            f"--crop is for a dataset by its path: {target} has transforms of its own"
        )
    with users_code(target):
        data, own = run_script(target)
    notes: tuple[str, ...] = ()
    if step is not None and own is not None:
        notes = (f"the step is {step}, in place of {target}'s own",)
    elif step is None and own is None:
        notes = (
            f"{target} returns no step: only the loader is measured; "
            "--model or --step-ms gives one",
        )
    return Target(target, data, is_dataset(data), True, (), step or own, device, notes)


def _device(name: str | None) -> str:
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"--device is cpu, cuda or cuda:N, not {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"--device is cpu, cuda or cuda:N, not {name!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise OptionError(f"--device {name}: torch finds {count} CUDA devices here; cpu is there")
    return name


def _step(model: str | None, step_ms: float | None, device: str) -> Callable[[Any], Any] | None:
    from fastdata.steps import ReferenceStep, SleepStep

    if model is not None:
        return ReferenceStep(model, device)
    return None if step_ms is None else SleepStep(step_ms / 1e3)


def loader_of(
    target: Target,
    *,
    batch_size: int | None = None,
    num_workers: int | Literal["auto"] | None = None,
    worker_method: Literal["auto", "thread", "process"] | None = None,
) -> Any:
    """Return the loader of a target: its own, or one that is made, shuffled.

    Options that are None are the defaults: batches of `BATCH_SIZE`, one worker a core.  One that
    is given for a loader which exists already is an `OptionError`.
    """
    given = {
        "--batch-size": batch_size,
        "--workers": num_workers,
        "--worker-method": worker_method,
    }
    if not target.is_dataset:
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"{name} is for a dataset, but {target.name} returns a loader, which has its "
                    "own: leave the option out, or return the dataset"
                )
        return target.data
    import torch
    from torch.utils.data import IterableDataset

    import fastdata

    options: dict[str, Any] = {} if target.split is None else {"split": target.split}
    if target.transform:
        options["transform"] = target.transform
    if target.device is not None and torch.device(target.device).type != "cpu":
        options["device"] = target.device
    if worker_method is not None:
        options["worker_method"] = worker_method
    return fastdata.loader(
        target.data,
        batch_size=BATCH_SIZE if batch_size is None else batch_size,
        shuffle=not isinstance(target.data, IterableDataset),
        num_workers="auto" if num_workers is None else num_workers,
        **options,
    )


# -- errors of scripts ---------------------------------------------------------------------


@contextlib.contextmanager
def users_code(target: str) -> Iterator[None]:
    """Report an error as the script's, so that nobody takes it for one of fastdata's.

    Errors of fastdata and of the system are raised as they are.
    """
    try:
        yield
    except (FastdataError, OSError, click.ClickException):
        raise
    except (Exception, SystemExit) as error:
        # An error of a worker process has its traceback as text; the last line is the message.
        last = (str(error).strip().splitlines() or [""])[-1]
        name = type(error).__name__
        text = last if last.startswith(f"{name}:") else f"{name}: {last}" if last else name
        raise click.ClickException(
            f"{target} raised {text}{_place(error)}. --traceback shows all of it."
        ) from error


def _place(error: BaseException) -> str:
    """Return the innermost line that is the user's, empty where there is none."""
    # A worker process's frames come as text, and are the inner ones.
    in_worker = re.findall(r'File "(.+)", line (\d+), in (.+)', str(error))
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    for file, line, name in reversed([*frames, *in_worker]):
        if _is_users(file):
            return f" at {file}:{line}, in {name}"
    return ""


def _is_users(file: str) -> bool:
    """Return whether a file is neither fastdata's, nor installed, nor of Python itself."""
    parents = Path(file).parents
    paths = sysconfig.get_paths()
    installed = {Path(__file__).parents[1], *(Path(paths[name]) for name in _INSTALLED)}
    return Path(file).is_file() and not installed.intersection(parents)
