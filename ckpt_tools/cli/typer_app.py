"""The commands as a typer app: it shows help, finds mistakes and completes. Imported for these alone
(words.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ckpt_tools import __version__
from ckpt_tools.cli import console, pages, words
from ckpt_tools.errors import UsageError


class Command(TyperCommand):
    """A command whose flags are in panels, and with examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        pages.options(self.get_params(ctx), ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        pages.examples(ctx.command_path.removeprefix("ckpt "), formatter)


class Wrapper(Command):
    """A command whose words after ``--`` are another command, which is not looked at here. Raises UsageError
    for words before it that say nothing.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, command = words.split(args)
        rest = super().parse_args(ctx, own)
        if command and (more := ctx.params["command"]):
            text = f"there are more words before -- than '{ctx.command_path}' takes: {' '.join(more)}"
            raise UsageError(text, f"'{ctx.command_path} -h' shows how it is called")
        ctx.params["command"] = command
        return rest


class Commands(TyperGroup):
    """All commands, in the groups of their page of help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature is click's
        pages.commands(formatter)


@cache
def parser(*names: str) -> Any:
    """What reads and runs the command lines of these commands, made once in a process. An app of one command
    takes no command name.
    """
    # Without rich_markup_mode=None typer imports rich for every help text and error, without
    # pretty_exceptions_enable=False for every crash.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    settings = {"help_option_names": ["-h", "--help"]}
    for name in names:
        command = words.command(name)
        kind = Wrapper if words.wrapped(words.parameters(command)) else Command
        app.command(name, cls=kind, context_settings=settings)(_declared(command))
    if len(names) > 1:
        app.callback(cls=Commands, context_settings=settings, no_args_is_help=True)(top)
    return typer.main.get_command(app)


def _declared(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with its parameters as typer wants them declared."""

    def answer(**given: Any) -> Any:
        return command(**given)

    known = words.parameters(command)
    kinds = {p.name: Annotated[p.kind, _info(p.declared)] for p in known}
    defaults = {p.name: Parameter.empty if p.required else p.default for p in known}
    answer.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in kinds.items()
        ]
    )
    answer.__annotations__ = kinds
    answer.__doc__ = command.__doc__
    return answer


def _info(declared: words.Option | words.Argument) -> Any:
    if isinstance(declared, words.Argument):
        return typer.Argument(metavar=declared.metavar, help=declared.help, show_default=False)
    names, metavar, text = declared.names, declared.metavar, declared.help
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.out(f"ckpt {__version__}\n")
        raise typer.Exit


def _install_completion(wanted: bool) -> None:
    if wanted:
        from ckpt_tools.cli.candidates import install

        console.out(install.install(install.own_shell(os.environ), os.environ))
        raise typer.Exit


def _show_completion(wanted: bool) -> None:
    if wanted:
        from ckpt_tools.cli.candidates import install, script

        console.out(script(install.own_shell(os.environ)))
        raise typer.Exit


def top(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    install_completion: bool = typer.Option(
        False,
        "--install-completion",
        callback=_install_completion,
        is_eager=True,
        help="Install completion for the shell that SHELL names.",
    ),
    show_completion: bool = typer.Option(
        False,
        "--show-completion",
        callback=_show_completion,
        is_eager=True,
        help="Print what that would install ('ckpt completion SHELL' names the shell).",
    ),
) -> None:
    """Find, verify and plan the loading of training checkpoints, without a GPU, without their framework and
    without running code found in them.

    Results go to stdout, all else to stderr. Exit codes: 0 good, 1 damage found, 2 usage, 3 nothing there, 4
    none usable, 5 could not look, 6 newest unusable.
    """
