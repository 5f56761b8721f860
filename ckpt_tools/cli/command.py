"""Argument lists -> the parameters of a command, by typer's own parser but without its type conversion."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

COMMANDS = (
    "ls",
    "verify",
    "report",
    "seal",
    "latest",
    "plan",
    "run",
    "hook",
    "stage",
    "show",
    "diff",
    "repair",
    "quarantine",
    "prune",
    "pin",
    "undo",
    "watch",
    "explain",
    "formats",
    "layouts",
    "launchers",
    "completion",
)
"""Each is the function of that name in the module of that name."""


class Command(TyperCommand):
    """A command whose parameters are texts, lists of texts and flags, as all of ours are: settings.resolve
    gives the texts their types.

    Typer converts even a text through pydantic, which takes longer to import than typer itself, on every rank
    of a job, and refuses file names that are not UTF-8. So a well-formed argument list skips that step.
    Anything else (--help, a mistake, a parser that answers in an unexpected way) takes typer's own path, so
    that help and messages are its own.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values = self._texts(ctx, args)
        if values is None:
            return super().parse_args(ctx, args)
        ctx.params.update(values)
        ctx.args = []
        return []

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from ckpt_tools.cli import pages

        pages.options(self.get_params(ctx), ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from ckpt_tools.cli import pages

        pages.examples(ctx.command_path.removeprefix("ckpt "), formatter)

    def _texts(self, ctx: Any, args: list[str]) -> dict[str, Any] | None:
        try:
            given, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        except Exception:
            return None
        values: dict[str, Any] = {}
        for param in self.params:
            value = given.pop(param.name, None)
            if value is None or value == ():
                if param.required:
                    return None
                value = param.default
            if not _plain(value):
                return None
            values[param.name] = value
        return None if rest or given else values  # what is left in given is --help


def _plain(value: object) -> bool:
    return (
        value is None
        or isinstance(value, (str, bool))
        or (isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value))
    )


class Commands(TyperGroup):
    """All commands, in the groups of their page of help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature is click's
        from ckpt_tools.cli import pages

        pages.commands(formatter)


class Wrapper(Command):
    """A command whose words after ``--`` are another command, which is not looked at here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, command = (
            (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        )
        rest = super().parse_args(ctx, own)
        ctx.params["command"] = command
        return rest
