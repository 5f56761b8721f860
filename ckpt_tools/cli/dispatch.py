"""Run one command line and return its exit code. Only the module of the requested command is imported."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from typing import NoReturn

import typer

from ckpt_tools.cli import console
from ckpt_tools.cli.app import COMMANDS, line
from ckpt_tools.cli.signals import INTERRUPTED, TERMINATED, Terminated
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.storage.urls import is_url

COMMON = ("json", "jsonl", "shell")
"""Formats in which every command says that it failed."""
_NAMES = 10_000
"""Entries of this directory that a mistyped word is compared with, at most."""
DOCUMENTS = ("verify", "plan")
"""Commands that have all formats of the registry."""


def leave(code: int) -> NoReturn:
    """End the process."""
    # A thread that hangs in a read of a dead file system would keep a normal exit waiting for ever; and where
    # nothing but this thread is left, taking
    # the interpreter apart is a tenth of a short run.
    if code in (INTERRUPTED, TERMINATED) or _nothing_left():
        console.flush()
        os._exit(code)
    sys.exit(code)


def _nothing_left() -> bool:
    """Whether an exit has only memory to give back: no thread to wait for, nothing that an engine, a profiler
    or a tracer wants to do at the end.
    """
    watched = sys.getprofile() is not None or sys.gettrace() is not None
    return (
        not watched
        and threading.active_count() == 1
        and not atexit._ncallbacks()  # noqa: SLF001 - nothing public tells
        and "mpi4py" not in sys.modules
    )


def execute(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    try:
        try:
            return _dispatch(console.named(argv))
        except CkptError as error:
            return _fail(argv, error)
        except OSError as error:
            return _fail(argv, _of_the_system(error))
        except typer.TyperException as error:
            return _usage(argv, error)
        except Exception as error:
            return _bug(argv, error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except CannotLook as error:  # even the answer that something failed could not be written
        console.problem("error", str(error), error.hint)
        return error.exit_code
    finally:
        if mounts := sys.modules.get("ckpt_tools.storage.stores.mounts"):
            mounts.configure()  # what one command was told is for no other of this process


def _dispatch(argv: list[str]) -> int:
    if (path := _only_a_path(argv)) is not None:
        from ckpt_tools.cli.look import look

        return look(path)
    _require_known(argv)
    if not argv:  # the help is part of an error here
        with redirect_stdout(sys.stderr):
            _read(["--help"])
        return UsageError.exit_code
    return _read(argv)


def _read(argv: list[str]) -> int:
    """Return the exit code of a line, as typer reads it. Its own ``main`` would take an EPIPE for damage."""
    try:
        with line().make_context("ckpt", argv) as context:
            return int(line().invoke(context) or 0)
    except typer.Exit as done:  # no command has run: typer showed something, or knows no such shell
        return UsageError.exit_code if done.exit_code else 0


def _require_known(argv: Sequence[str]) -> None:
    """Raises UsageError for a first word that is no command, and where the second word of two is mistyped,
    which would be taken for a directory.
    """
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        raise _no_command(argv[0])
    if len(argv) > 1 and not argv[1].startswith("-") and not os.path.lexists(argv[1]):
        from ckpt_tools.settings.resolve import nearest

        said = " ".join(argv[:2])
        seconds = [name for name in COMMANDS if name.startswith(f"{argv[0]} ") and name != said]
        if meant := nearest(said, seconds, 0.85):
            text = f"there is no 'ckpt {said}', and no such directory"
            raise UsageError(text, f"did you mean 'ckpt {meant}'?")


def _only_a_path(argv: Sequence[str]) -> str | None:
    """A path that stands where a command would; on a terminal nothing at all means the current directory,
    where that holds a checkpoint.
    """
    if len(argv) == 1:
        word = argv[0]
        is_path = is_url(word) or os.path.lexists(word) or "/" in word
        return word if is_path and word not in COMMANDS else None
    if argv or not console.terminal(sys.stdout):
        return None
    from ckpt_tools.api import scan

    try:
        return "." if scan().checkpoints else None
    except CkptError:
        return None


def _fail(argv: Sequence[str], error: CkptError) -> int:
    verbose = not {"-v", "--verbose"}.isdisjoint(argv)
    rule = f"rule {error.rule} ('ckpt explain {error.rule}' tells it)" if error.rule and verbose else ""
    console.problem("error", str(error), error.hint, also=rule)
    return _answer(argv, type(error).__name__, error)


def _of_the_system(error: OSError) -> CannotLook:
    """An error of a system call that nobody expected, such as a close() that fails: no bug, and no answer."""
    from ckpt_tools.storage.signed import redacted

    _debug(error)
    where = f"{error.filename}: " if error.filename else ""
    hint = "look for errors of the disk or the network file system (dmesg), then run this again"
    if "://" in where:
        hint = "see that the store answers, then run this again"
    return CannotLook(redacted(f"{where}{error.strerror or error}", os.environ), hint)


def _debug(error: Exception) -> None:
    """The traceback, for whoever asks for it."""
    if os.environ.get("CKPT_DEBUG"):
        import traceback

        from ckpt_tools.storage.signed import redacted

        console.err(redacted("".join(traceback.format_exception(error)), os.environ))


def _usage(argv: Sequence[str], error: typer.TyperException) -> int:
    """A mistake that typer has found, said as ours are."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    called = next((name for name in (" ".join(argv[:2]), *argv[:1]) if name in COMMANDS), "")
    command = getattr(context, "command_path", f"ckpt {called}".rstrip())
    hint = f"'{command} -h' shows how it is called"
    undashed = "run" in argv[:1] and "--" not in argv  # its flag may be one of the command to start
    if flag := getattr(error, "option_name", None) if "No such option" in message else None:
        known = [name for p in context.command.params for name in p.opts] if context else []
        meant = _flag_meant(flag, known, argv, 0.8 if undashed else 0.5)
        message = f"there is no flag {flag}" + (f"; did you mean {meant}?" if meant else "")
    elif found := _NEEDS_VALUE.match(message):
        message = f"{found[1]} needs a value"
    elif "unexpected extra argument" in message:
        message = f"there are more words than '{command}' takes: {message.partition('(s) (')[2].rstrip(')')}"
    if undashed:
        from ckpt_tools.cli.run import AFTER_DASHES

        hint = f"{AFTER_DASHES}; {hint}"
    return _fail(argv, UsageError(message, hint))


_NEEDS_VALUE = re.compile(r"Option '([^']+)' requires an argument")


def _flag_meant(flag: str, known: Sequence[str], argv: Sequence[str], alike: float) -> str | None:
    """The flag that was probably meant: one that has it as a word, or is like it. Of -rank the parser names
    one letter.
    """
    from ckpt_tools.settings.resolve import nearest

    single = [word for word in argv if word[:1] == "-" and word[1:2] != "-" and flag[-1] in word]
    short = [f"-{word.partition('=')[0]}" for word in single]
    word = flag.strip("-").rstrip("s")
    within = [name for name in known if word in name.strip("-").split("-")] if len(word) > 1 else []
    meant = next((name for name in short if name in known), None) or next(iter(within), None)
    return meant or nearest(flag, known, alike)


def _no_command(word: str) -> UsageError:
    """What to say of a first word that is no command, and no path alone."""
    from shlex import quote

    from ckpt_tools.settings.resolve import nearest

    if os.path.lexists(word):
        return UsageError(f"there is no command {word!r}", f"'ckpt ls {quote(word)}' lists what is there")
    meant = nearest(word, COMMANDS, 0.6) or nearest(word, os.listdir()[:_NAMES], 0.6)
    text = f"there is no command {word!r}, and no file or directory"
    hint = f"did you mean 'ckpt {quote(meant)}'?" if meant else "'ckpt -h' lists all commands"
    return UsageError(text, hint)


def _bug(argv: Sequence[str], error: Exception) -> int:
    """A traceback would end in exit 1, which means damage: a bug of ours must never look like a broken
    checkpoint.
    """
    from ckpt_tools.storage.signed import redacted

    what = redacted(f"{type(error).__name__}: {error}", os.environ)
    hint = "run the same command with CKPT_DEBUG=1 and report the traceback together with 'ckpt --version'"
    _debug(error)
    not_damage = "this is a bug in ckpt; it says nothing about your checkpoints"
    console.problem("internal error", what, hint, also=not_damage)
    return _answer(argv, "Bug", CkptError(what, hint))


def _answer(argv: Sequence[str], name: str, error: CkptError) -> int:
    """Whoever asked for a format to be read by a program gets the failure in that format too, on stdout;
    ``name`` is that of its class.
    """
    requested, command = console.requested_format(argv), "".join(argv[:1])
    if requested == "slurm":
        from ckpt_tools.output import shell

        text = shell.prolog_failure(str(error), error.hint)
    elif requested in COMMON or (requested and command in DOCUMENTS):
        from ckpt_tools.output import registry
        from ckpt_tools.output.failure import Failure, code_of
        from ckpt_tools.output.page import View

        failure = Failure(
            command, code_of(name), str(error), error.hint, error.exit_code, error.plan, error.rule
        )
        text = ""
        with suppress(CkptError):  # of a plug-in: that it fails has been said, or is less than what has
            found = registry.find(requested)
            text = found.render(failure, View(now=time.time())) if found else ""
    else:
        return error.exit_code
    file = console.requested_file(argv)
    if text and file is None:
        console.out(text)
    elif text:
        with suppress(CannotLook):  # where nothing can be written, that has been said: it is why we are here
            console.out(text, file)
    return error.exit_code
