"""The frame of every command: a result, or an error in one paragraph, and an exit code.

====  ========================================================================
code  meaning
====  ========================================================================
0     all packed; intact; done
1     failed
2     wrong usage, or an option with a value that cannot be used
3     ``pack``: done, but samples were rejected; ``verify``: damage found;
      ``tune-workers``: no settings keep the step busy; ``doctor --check``: a gain is open
4     the destination exists, is locked, or has an unfinished pack of something else
5     the disk is full
130   stopped by Ctrl-C
143   stopped by SIGTERM
====  ========================================================================
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from fastdata.cli.output import emit, emit_json, leave_stdout, say
from fastdata.errors import (
    REMEDIES,
    DestinationExistsError,
    DestinationLockedError,
    DiskFullError,
    FastdataError,
    JobChangedError,
    OptionError,
    SourceError,
    did_you_mean,
    is_of_machine,
)
from fastdata.installing import check_not_replaced
from fastdata.printable import printable_lines

__all__ = [
    "DONE",
    "FAILED",
    "FOUND",
    "INTERRUPTED",
    "ScriptCommand",
    "Shell",
    "Terminated",
    "on_interruption",
    "print_report",
    "print_result",
]

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
FOUND: Final = 3
"""Samples were rejected, damage was found, or no settings keep the step busy."""
TAKEN: Final = 4
DISK_FULL: Final = 5
INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM

_HELP = frozenset({"-h", "--help", "--version"})


class Terminated(BaseException):
    """SIGTERM arrived.  As with `KeyboardInterrupt`, code that cleans up does so."""


_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (OptionError, USAGE),
    (DestinationExistsError, TAKEN),
    (DestinationLockedError, TAKEN),
    (JobChangedError, TAKEN),
    (DiskFullError, DISK_FULL),
    (KeyboardInterrupt, INTERRUPTED),
    (Terminated, TERMINATED),
)


def print_result(
    document: Any,
    text: Callable[[], str],
    *,
    as_json: bool,
    quiet: bool = False,
    found: bool = False,
) -> int:
    """Print the result of a command, as JSON or as text, and return its exit code.

    `found` says whether samples were rejected or damage was found.
    """
    if as_json:
        emit_json(document)
    elif not quiet:
        emit(text())
    return FOUND if found else DONE


def print_report(report: Any, *, as_json: bool, quiet: bool, shown: Collection[str] = ()) -> int:
    """Print the report of a pack, a copy or an export, and return the exit code.

    Lines and notes that were `shown` on standard error already are left out of the text.
    """

    def text() -> str:
        lines = str(report).splitlines()
        return "\n".join(line for line in lines if line.removeprefix("note: ") not in shown)

    # A part of a pack has done its work: batch systems take another code for a failure.
    found = getattr(report, "num_rejected", 0) > 0 and getattr(report, "digest", "-") != ""
    return print_result(report.to_json(), text, as_json=as_json, quiet=quiet, found=found)


@contextlib.contextmanager
def on_interruption(message: str) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM inside the block end the command with this message."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        stop.args = (message,)
        raise


class ScriptCommand(click.Command):
    """A command that ends with a script and its arguments, as ``python`` does.

    Its own options come before the script.  All later words belong to the script.
    """

    def own_words(self, words: Sequence[str]) -> list[str]:
        """Return the words before the script: the command's own options and their values."""
        options = [one for one in self.params if isinstance(one, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        end = 0
        while end < len(words) and words[end][:1] == "-" and words[end] not in ("-", "-m", "--"):
            end += 2 if words[end] in valued else 1
        return list(words[:end])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command's own options; the script starts at the first other word."""
        own = self.own_words(args)
        script = args[len(own) :]
        if script and script[0] != "--":
            if not ctx.resilient_parsing:
                self._note_own_options(ctx, script)
            script = ["--", *script]
        return super().parse_args(ctx, [*own, *script])

    def _note_own_options(self, ctx: click.Context, script: list[str]) -> None:
        """Tell the user if the script gets an option that the command has, too."""
        own = {name for one in self.get_params(ctx) for name in one.opts if name[:2] == "--"}
        words = script[: script.index("--")] if "--" in script else script
        found = dict.fromkeys(name for word in words if (name := word.partition("=")[0]) in own)
        if found:
            say(
                f"note: the script gets {', '.join(found)}; "
                f"options of {self.name} come before the script"
            )


class Shell(click.Group):
    """Commands that return their exit code and may raise anything; ``--help`` has sections."""

    def __init__(self, *, sections: Mapping[str, Sequence[click.Command]], **options: Any) -> None:
        super().__init__(commands=[c for part in sections.values() for c in part], **options)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section, then the options."""
        width = max(map(len, self.commands))
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{c.name:<{width}}", c.short_help or "") for c in commands])
        click.Command.format_options(self, ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of that name, or suggest the one that was probably meant."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{did_you_mean(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; exit with its code."""
        if not standalone_mode or "_FASTDATA_COMPLETE" in os.environ:
            return super().main(args, prog_name, complete_var, standalone_mode, **extra)
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            check_not_replaced()
            with _sigterm_raises(), self.make_context(prog_name or "fastdata", [*words]) as context:
                _check_working_directory()
                code = self.invoke(context)
        except click.exceptions.Exit as end:  # what --help and --version raise
            code = end.exit_code
        except (Exception, KeyboardInterrupt, Terminated) as error:
            if isinstance(error, BrokenPipeError) and _HELP.intersection(words):
                leave_stdout()
                sys.exit(DONE)  # the reader of the help has gone
            code = _report(error, words, self.commands.get(words[0]))
        sys.exit(code or DONE)


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise FastdataError("the working directory was deleted: cd to another folder") from None


def _report(error: BaseException, words: Sequence[str], command: click.Command | None) -> int:
    message, code = _describe(error, words)
    if isinstance(command, ScriptCommand):
        words = command.own_words(words[1:])
    if isinstance(error, FastdataError) and command is not None:
        message = _with_flags(message, command)
    if _has(words, "--traceback") or os.environ.get("FASTDATA_TRACEBACK", "0") not in ("", "0"):
        lines = "".join(traceback.format_exception(error)).rstrip()
        click.echo(printable_lines(lines), err=True)
    if _has(words, "--json"):
        emit_json({"error": {"type": type(error).__name__, "message": message}})
    say(f"{'' if code > 128 else 'error: '}{message}")
    return code


def _describe(error: BaseException, words: Sequence[str]) -> tuple[str, int]:
    """Return the message of an error, a paragraph, and the exit code."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
    if isinstance(error, (KeyboardInterrupt, Terminated)):
        signal_name = "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C"
        return f"stopped by {signal_name}. {error}".strip(), code
    if isinstance(error, click.ClickException):
        return _usage_message(error, words), error.exit_code
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        # Without Python's "[Errno 28]", which means nothing to a user.
        place = f"{error.filename}: " if error.filename is not None else ""
        remedy = "" if isinstance(error, FastdataError) else REMEDIES.get(error.errno, "")
        return _paragraph(f"{place}{error.strerror}{'. ' * bool(remedy)}{remedy}"), code
    if isinstance(error, SourceError):  # it may show a tree and commands, a line each
        return printable_lines(error), code
    if isinstance(error, (FastdataError, OSError)):
        return _paragraph(str(error)), code
    said = f": {error}" if str(error) else ""
    if isinstance(error, MemoryError):
        return _paragraph(f"there is not enough memory{said}"), code
    if is_of_machine(error):
        remedy = f". {REMEDIES[errno.EAGAIN]}" if "thread" in said else ""
        return _paragraph(f"this machine or a limit does not allow it{said}{remedy}"), code
    text = (
        f"unexpected {type(error).__name__}{said}. This is likely a bug in fastdata: please report "
        "it with the output of --traceback."
    )
    return _paragraph(text), code


def _usage_message(error: click.ClickException, words: Sequence[str]) -> str:
    if not isinstance(error, click.UsageError):  # it may show a traceback
        return printable_lines(error.format_message())
    message = _paragraph(error.format_message())
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    if isinstance(error, click.NoSuchOption):
        meant = _option_of_a_format(error, context.command, words)
        if meant:
            return f"No such option {error.option_name!r}. Did you mean {meant}?"
    return f"{message} See `{context.command_path} --help`."


def _option_of_a_format(
    error: click.NoSuchOption, command: click.Command, words: Sequence[str]
) -> str:
    """Return how an option that only a source format has is given, or ""."""
    if not any("--option" in parameter.opts for parameter in command.params):
        return ""
    from fastdata.converters.finding import own_options

    name = error.option_name.lstrip("-").replace("-", "_")
    if name not in own_options():
        return ""
    value = "VALUE"
    for word, behind in zip(words, [*words[1:], "-"], strict=True):
        given, equals, rest = word.partition("=")
        if given == error.option_name and (equals or not behind.startswith("-")):
            value = rest if equals else behind
    return f"--option {name}={value}"


def _with_flags(message: str, command: click.Command) -> str:
    """Return a message of the library with its arguments as options: ``--size 3`` for ``size=3``.

    A name with its option behind it, ``overwrite=True (--overwrite)``, becomes that option.
    """
    for parameter in command.params:
        name, flag = str(parameter.name), max(parameter.opts, key=len)
        if not isinstance(parameter, click.Option):
            continue

        def written(match: re.Match[str], flag: str = flag) -> str:
            return match[3] or " ".join(filter(None, (flag, match[1], match[2])))

        # Without a value, only a name with an underscore is sure to be no word of the sentence.
        value = r"(?:=(?:True\b|'([^']*)'|\{[^}]*\}|([\w.-]*)))" + "?" * ("_" in name)
        pattern = rf"(?<![^\s(]){name}{value}(?!\w)(?: \(({flag}[^)]*)\))?"
        message = re.sub(pattern, written, message)
    return message


def _paragraph(text: str) -> str:
    return " ".join(text.split())


def _has(words: Sequence[str], flag: str) -> bool:
    """Tell whether a flag was given, even where the command line cannot be parsed."""
    options = words[: words.index("--")] if "--" in words else words
    return flag in options


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that work done is kept."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(signum: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
