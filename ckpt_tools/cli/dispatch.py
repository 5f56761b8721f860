"""Run one command line and return its exit code. Only the module of the requested command is imported."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from typing import Any

import typer

from ckpt_tools import api
from ckpt_tools.cli import console
from ckpt_tools.cli.app import COMMANDS, line, parameters
from ckpt_tools.cli.output import is_same_file, is_state
from ckpt_tools.cli.signals import INTERRUPTED, TERMINATED, Terminated
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.output import registry, shell
from ckpt_tools.output.failure import Failure, make_code
from ckpt_tools.output.page import View
from ckpt_tools.storage.signed import redact
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.urls import is_url

COMMON = ("json", "jsonl", "shell")
"""Formats in which every command prints its failure on stdout."""


def execute(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    try:
        try:
            return _dispatch(console.name_urls(argv))
        except CkptError as error:
            return _fail(argv, error)
        except Exception as error:
            if isinstance(error, BrokenPipeError) and set(argv[-1:]) <= {"-h", "--help"} and "--" not in argv:
                return 0  # 'ckpt plan --help | head'
            return _fail(argv, _explain(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except CannotLook as error:  # even the answer that something failed could not be written
        console.problem("error", str(error), error.hint)
        return error.exit_code
    finally:
        mounts.configure()  # the next command of this process has its own store options


def _dispatch(argv: list[str]) -> int:
    """Run a line and return its exit code. typer's own ``main`` would exit with 1 (damage) on EPIPE."""
    if _is_to_list(argv):
        argv = ["ls", "--", *(argv or ["."])]
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if not argv:  # the help is part of an error here
        with redirect_stdout(sys.stderr):
            _dispatch(["--help"])
        return UsageError.exit_code
    try:
        with line().make_context("ckpt", argv) as context:
            return int(line().invoke(context) or 0)
    except typer.Exit:  # no command has run: typer printed help
        return 0


def _is_to_list(argv: Sequence[str]) -> bool:
    """Return True for a line that is one path, and for an empty one in a directory with checkpoints."""
    if len(argv) == 1:
        is_path = is_url(argv[0]) or os.path.lexists(argv[0]) or "/" in argv[0]
        return is_path and argv[0] not in COMMANDS
    with suppress(CkptError):
        return not argv and console.terminal(sys.stdout) and bool(api.scan().checkpoints)
    return False


class Bug(CkptError):
    """One bug of ckpt. Python's traceback would exit with 1, which means a broken checkpoint."""

    hint = (
        "this is a bug in ckpt, which says nothing about your checkpoints: run the same command with"
        " CKPT_DEBUG=1 and report the traceback together with 'ckpt --version'"
    )


def _explain(error: Exception) -> CkptError:
    """Return the error to report for an unexpected exception: CannotLook for an OSError, else Bug."""
    if os.environ.get("CKPT_DEBUG"):
        console.err(redact("".join(traceback.format_exception(error)), os.environ))
    if not isinstance(error, OSError):
        return Bug(redact(f"{type(error).__name__}: {error}", os.environ))
    where = f"{error.filename}: " if error.filename else ""
    hint = "look for errors of the disk or the network file system (dmesg), then run this again"
    if "://" in where:
        hint = "check that the store answers, then run this again"
    return CannotLook(redact(f"{where}{error.strerror or error}", os.environ), hint)


def read_answer_flags(argv: Sequence[str]) -> dict[str, Any]:
    """Return the answer flags of a line (format, json, output_file, verbose), even if the rest is invalid."""
    given: dict[str, Any] = {}
    with suppress(Exception):  # a plain error is better than a second one
        given = parameters("plan", argv, resilient_parsing=True, ignore_unknown_options=True)
    if file := given.get("output_file"):
        # A failure must not replace a checkpoint. -world is a mistake, and no -o rld.
        named = [text for word in argv for text in (word, word.partition("=")[2], word[2:])]
        if file not in named or is_state(file) or sum(is_same_file(text, file) for text in named) > 1:
            given["output_file"] = None
    return given


def _fail(argv: Sequence[str], error: CkptError) -> int:
    """Print an error on stderr, and in the format that was asked for on stdout. Return its exit code."""
    given = read_answer_flags(argv)
    rule = f" (rule: 'ckpt explain {error.rule}')" if error.rule and given.get("verbose") else ""
    word = "internal error" if isinstance(error, Bug) else "error"
    console.problem(word, f"{error}{rule}", error.hint)
    # the default format of hook is shell: eval must see that ckpt failed
    default = "shell" if argv[:1] == ["hook"] and argv[1:2] != ["install"] else ""
    form = "json" if given.get("json") else given.get("format") or default
    text, file = _render("".join(argv[:1]), form, error), given.get("output_file")
    if text and file in (None, "", "-"):
        console.out(text)
    elif text:
        with suppress(CannotLook):  # if FILE cannot be written, stderr has said it
            console.out(text, file)
    return error.exit_code


def _render(command: str, form: str, error: CkptError) -> str:
    """Return the error in a format; "" if the command does not have the format."""
    if form == "slurm":
        return shell.prolog_failure(str(error), error.hint)
    # verify and plan have all formats of output/registry.py
    if not (form in COMMON or (form and command in ("verify", "plan"))):
        return ""
    code = make_code(type(error).__name__)
    failure = Failure(command, code, str(error), error.hint, error.exit_code, error.plan, error.rule)
    with suppress(CkptError):  # of a plug-in: less important than the error on stderr
        if found := registry.find(form):
            return found.render(failure, View(now=time.time()))
    return ""
