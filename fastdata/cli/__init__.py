"""The command ``fastdata``: its commands, and what they share.

=================  ============================================================
``shell.py``       what surrounds a command: results, errors, signals, exit codes
``output.py``      what is written to standard output and standard error
``options.py``     closed choices, types of values, and the options that commands share
``pack.py``        ``fastdata pack`` and ``formats``
``inspecting.py``  ``fastdata info``, ``verify`` and ``view``
``export.py``      ``fastdata export``
``combining.py``   ``fastdata merge``, ``subset`` and ``append``
``tune.py``        ``fastdata tune-workers``
``profile.py``     ``fastdata profile``
``doctor.py``      ``fastdata doctor``
``cache.py``       ``fastdata cache``
``target.py``      what is measured: dataset or script, transforms, step
=================  ============================================================

Nothing here imports NumPy, PyTorch or a container library at module level, so
that ``--help`` answers at once; a command imports its work when it is run.
"""

from __future__ import annotations

import click

from fastdata import __version__
from fastdata.cli.cache import cache_command
from fastdata.cli.combining import append_command, merge_command, subset_command
from fastdata.cli.doctor import doctor_command
from fastdata.cli.export import export_command
from fastdata.cli.inspecting import info_command, verify_command, view_command
from fastdata.cli.pack import formats_command, pack_command
from fastdata.cli.profile import profile_command
from fastdata.cli.shell import Shell
from fastdata.cli.tune import tune_command

__all__ = ["main"]


@click.group(
    cls=Shell,
    commands={
        "pack": pack_command,
        "formats": formats_command,
        "info": info_command,
        "verify": verify_command,
        "export": export_command,
        "merge": merge_command,
        "subset": subset_command,
        "append": append_command,
        "view": view_command,
        "tune-workers": tune_command,
        "profile": profile_command,
        "doctor": doctor_command,
        "cache": cache_command,
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  fastdata pack ./images train.lmdb
  fastdata info train.lmdb
  fastdata tune-workers train.lmdb --batch-size 256 --model resnet50

\b
Exit codes:
  0 done    1 failed    2 wrong usage    3 samples rejected, damage found,
                                        no settings keep the step busy, or
                                        doctor --check: something is left to do
  4 destination taken   5 disk full      130 Ctrl-C    143 SIGTERM""",
)
@click.version_option(__version__, prog_name="fastdata", message="%(prog)s %(version)s")
def main() -> None:
    """Pack image datasets once, feed PyTorch at the speed of the machine.

    `fastdata COMMAND --help` explains a command.
    """
