"""The command ``fastdata``.

=================  ============================================================
``shell.py``       the frame of a command: results, errors, signals, exit codes
``output.py``      writes to standard output and standard error
``options.py``     choices, types of values, shared options, and groups in ``--help``
``pack.py``        ``fastdata pack`` and ``formats``
``inspecting.py``  ``fastdata info``, ``verify`` and ``view``
``export.py``      ``fastdata export``
``combining.py``   ``fastdata merge``, ``subset`` and ``append``
``tune.py``        ``fastdata tune-workers``
``profile.py``     ``fastdata profile``
``doctor.py``      ``fastdata doctor``
``cache.py``       ``fastdata cache``
``target.py``      the dataset or script that a command measures, its transforms and step
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
    sections={
        "Make a dataset": (
            pack_command,
            append_command,
            merge_command,
            subset_command,
            formats_command,
        ),
        "Look at it": (info_command, view_command, verify_command, export_command),
        "Train faster": (tune_command, profile_command, doctor_command),
        "Object stores": (cache_command,),
    },
    subcommand_metavar="COMMAND ...",
    options_metavar="",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Example:
  fastdata pack ./images train.lmdb
  fastdata view train.lmdb
  fastdata tune-workers train.lmdb --batch-size 256 --model resnet50

`fastdata COMMAND --help` explains a command, its options and its exit codes.""",
)
@click.version_option(__version__, prog_name="fastdata", message="%(prog)s %(version)s")
def main() -> None:
    """Pack image datasets once, feed PyTorch at the speed of the machine."""
