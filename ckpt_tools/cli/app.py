"""All command lines, as typer reads them. A command's module is imported when the command is asked for."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cache
from importlib import import_module
from inspect import cleandoc
from typing import Any

import typer
from typer.completion import completion_init  # type: ignore[attr-defined] # not listed
from typer.core import TyperCommand, TyperGroup

from ckpt_tools import __version__
from ckpt_tools.cli import console
from ckpt_tools.cli.options import rename_flags
from ckpt_tools.errors import UsageError
from ckpt_tools.settings.parsers import nearest

GROUPS = {
    "See what is there": {
        "ls": "List the checkpoints below a directory, newest first.",
        "verify": "Say which files are damaged, and how that is known.",
        "report": "Write one HTML page with everything that is known.",
        "show": "Print what is in one file, without loading it.",
        "diff": "Compare two checkpoints, or two files, tensor by tensor.",
        "explain": "Say what a finding or a rule means, and what to do about it.",
        "formats": "List the file formats, and what cannot be seen in each.",
        "layouts": "List the layouts, and check or guess their templates.",
        "launchers": "List the launchers, and say which one started this process.",
    },
    "Start a job": {
        "plan": "Say what to resume from, and which files each rank loads.",
        "latest": "Print the files that one rank must load.",
        "run": "Decide once per job, then become the training command.",
        "hook": "Decide once per job, and print the answer for a script.",
        "stage": "Copy the chosen checkpoint from a store to a local disk.",
    },
    "Keep checkpoints good": {
        "seal": "Store digests of sound files, so that any change shows.",
        "repair": "Repair damaged files, where the repair can be proven.",
        "quarantine": "Move checkpoints out of sight, and bring them back.",
        "prune": "Remove old checkpoints, if enough others are verified.",
        "pin": "Protect checkpoints from being pruned.",
        "undo": "Undo the last repair or quarantine.",
        "watch": "Verify each checkpoint as it is saved, and report it.",
    },
    "Print what others read": {
        "hook install": "Print a job script or a manifest that asks ckpt.",
        "completion": "Print the script that makes Tab complete ckpt commands.",
    },
}
"""All commands, by purpose. Each is the function of its name in the module of its name, but for _MODULES. The
first page of help leaves out the last group.
"""
_MODULES = {
    **dict.fromkeys(("repair", "quarantine", "pin", "undo"), "changes"),
    "show": "ls",
    **dict.fromkeys(("explain", "formats", "launchers", "completion"), "known"),
}
COMMANDS = tuple(name for rows in GROUPS.values() for name in rows)
_NAMES = {"help_option_names": ["-h", "--help"]}
AFTER_DASHES = "the command to start comes after --: ckpt run ROOT -- torchrun … train.py"
_BESIDES = re.compile(r" \((?!default\))[^)]*\)| \\?\[CKPT_\w+\]|(?:[;:] \{|; default|; - |\. ).*|\.$")
"""The parts of a flag's help text that -h leaves out: asides, variables, and further sentences."""
_EXAMPLES = "\n\nExamples:\n"
_LOOKS_LIKE_MARKUP = re.compile(r"\[(?=[a-z#/@])")


class _Verbatim:
    """One converter that leaves values as they were typed. Typer's own would import pydantic, which takes as
    long as a short command, and would refuse file names that are not UTF-8.
    """

    def coerce(self, value: Any, **_: Any) -> Any:
        return value


class _Line:
    """The methods that a command and the group of commands share."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a line. Raise UsageError for a mistake in it."""
        ctx.meta["brief"] = "-h" in args and "--help" not in args
        try:
            return super().parse_args(ctx, [*args])  # type: ignore[misc,no-any-return] # it empties the list
        except typer.TyperException as error:
            raise _explain_mistake(error, ctx) from error

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, each with a converter that changes nothing."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            param._runtime_param = _Verbatim()  # noqa: SLF001 - nothing public says it
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        except SystemExit:  # rich raises it if the reader has closed the pipe
            ctx.exit()


class Commands(_Line, TyperGroup):
    """All commands."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is typer's
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:  # noqa: ARG002
        return command(name) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that a line begins with, of one word or two. Raise UsageError if none is."""
        for name, rest in ((" ".join(args[:2]), args[2:]), (args[0], args[1:])):
            if name in COMMANDS:
                return name, command(name), rest
        if ctx.resilient_parsing:  # of a shell that completes
            return super().resolve_command(ctx, args)
        meant = nearest(args[0], COMMANDS, 0.6)
        hint = f"did you mean 'ckpt {meant}'?" if meant else "'ckpt -h' lists all commands"
        raise UsageError(f"there is no command {args[0]!r}", hint)


class Command(_Line, TyperCommand):
    """One command. For ``run``, words after ``--`` are the command to start, which is not parsed here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a line, in which flags of earlier releases are renamed. Raise UsageError."""
        if not ctx.resilient_parsing:
            args = rename_flags(self.name or "", args)
        if self.name != "run":
            return super().parse_args(ctx, args)
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["undashed"] = at == len(args)
        rest, started = super().parse_args(ctx, args[:at]), args[at + 1 :]
        if started and (more := ctx.params["command"]) and not ctx.resilient_parsing:
            text = f"there are more words before -- than '{ctx.command_path}' takes: {' '.join(more)}"
            raise UsageError(text, f"'{ctx.command_path} -h' shows how it is called")
        ctx.params["command"] = started
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show all that is known of the command; for -h what people need first, and three examples."""
        shown = copy(self)
        if ctx.meta["brief"]:
            about, rows = str(self.help), str(self.epilog).splitlines()[:4]
            shown.help = about.partition("\n\n")[0]
            shown.epilog = "\n".join([*rows, "", f"{ctx.command_path} --help lists all flags."])
            first: list[Any] = [copy(p) for p in self.params if getattr(p, "rich_help_panel", None) is None]
            for param in first:
                param.help = _BESIDES.sub("", param.help)
            shown.params = first
        super(Command, shown).format_help(ctx, formatter)


def _explain_mistake(error: Any, ctx: Any) -> UsageError:
    """Return a parser's error, with where to read how the command is called."""
    hint = f"'{ctx.command_path} -h' shows how it is called"
    if ctx.meta.get("undashed", False):  # the flag may be one of the command to start
        hint = f"{AFTER_DASHES}; {hint}"
    return UsageError(error.format_message().rstrip("."), hint)


def _find_function(name: str) -> Any:
    """Return the function of a command; its docstring is what --help shows, with the examples last."""
    function_name = name.replace(" ", "_")
    module = import_module(f"ckpt_tools.cli.{_MODULES.get(name, function_name)}")
    return getattr(module, function_name)


@cache
def command(name: str) -> Any:
    """Return typer's command of this name, such as ``hook install``; imports the command's module."""
    function = _find_function(name)
    about, _, rows = cleandoc(function.__doc__).partition(_EXAMPLES)
    title = next(title for title, names in GROUPS.items() if name in names)
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command(
        name,
        cls=Command,
        context_settings=_NAMES,
        help=_escape(_join_lines(about)),
        short_help=GROUPS[title][name],
        epilog=_escape("\n".join(("Examples:", *(f"  {row}" for row in rows.splitlines())))),
        rich_help_panel=title,
        hidden=title == list(GROUPS)[-1],
    )(function)
    made: Any = typer.main.get_command(one)
    for param in made.params:
        param.help = _escape(param.help)
    return made


def examples(name: str) -> Iterator[tuple[str, str]]:
    """Yield the examples of a command, each with what it is for; ``run`` is a directory of checkpoints."""
    for row in cleandoc(_find_function(name).__doc__).partition(_EXAMPLES)[2].splitlines():
        line, _, why = row.rpartition("  # ")
        yield line, why


def parameters(name: str, words: Sequence[str], **lenient: bool) -> dict[str, Any]:
    """Return the parsed parameters of a command line, without running the command. Raise UsageError."""
    return dict(command(name).make_context(f"ckpt {name}", list(words), **lenient).params)


def _join_lines(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


def _escape(text: str) -> str:
    """Return a text in which rich takes no bracket for markup."""
    return _LOOKS_LIKE_MARKUP.sub(r"\\[", text).replace("…", "...")


def _print_version(wanted: bool) -> None:
    if wanted:
        console.out(f"ckpt {__version__}\n")
        raise typer.Exit


app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False, context_settings=_NAMES)


@app.callback()
def top(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Find, verify and plan the loading of training checkpoints. No code found in them runs. Exit codes: 0
    good, 1 damage found, 2 usage, 3 nothing there, 4 none usable, 5 could not look, 6 newest unusable.
    """


@cache
def line() -> Any:
    made: Any = typer.main.get_command(app)
    made.help = _join_lines(made.help)
    return made


def complete() -> None:
    """Print the words that complete a shell's line, and exit the process."""
    late = threading.Timer(5.0, os._exit, (0,))  # a file system may hang
    late.daemon = True
    late.start()
    os.environ["COLUMNS"] = "9999"  # rich would break what a flag means into several lines, and so into words
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # stderr would appear within the user's line
    completion_init()
    line().main(prog_name="ckpt")
