"""Run one command line and return its exit code. Only the module of the requested command is imported."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from ckpt_tools.cli import console, words
from ckpt_tools.cli.signals import INTERRUPTED, TERMINATED, Terminated
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.storage.urls import is_url

WITHIN = {("hook", "install"): "hook_install"}
"""Commands of two words; a directory of the second one's name is said as ./install."""

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
        except Exception as error:
            if hasattr(
                error, "show"
            ):  # typer's own usage errors; their classes are not part of its public interface
                return _usage(argv, error) if argv else _help(error)
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
    completes = "_CKPT_COMPLETE" in os.environ
    single = bool(argv) and argv[0] in words.COMMANDS and not completes
    if not completes:
        _require_known(argv)
    within = WITHIN.get((argv[0], argv[1])) if single and len(argv) > 1 else None
    if single:
        return _answered(within or argv[0], argv[: 2 if within else 1], argv[2 if within else 1 :])
    result = _by_typer(words.COMMANDS, ["ckpt"], argv)
    if not argv:
        return (
            UsageError.exit_code
        )  # versions of typer differ in whether the help text that they show here is an error
    return result


def _answered(name: str, called: Sequence[str], rest: Sequence[str]) -> int:
    """The exit code of one command, ``called`` by one or two words."""
    command = words.command(name)
    values = words.read(words.parameters(command), rest)
    if values is not None:
        return int(command(**values) or 0)
    return _by_typer((name,), ["ckpt", *called], rest)


def _by_typer(names: Sequence[str], called: Sequence[str], rest: Sequence[str]) -> int:
    """The same of a command line that asks for help, or has a mistake."""
    from ckpt_tools.cli.typer_app import parser

    result = parser(*names)(list(rest), prog_name=" ".join(called), standalone_mode=False)
    return result if isinstance(result, int) else 0


def _require_known(argv: Sequence[str]) -> None:
    """Raises UsageError for a first word that is no command, and where the second word of two is mistyped,
    which would be taken for a directory.
    """
    if argv and not argv[0].startswith("-") and argv[0] not in words.COMMANDS:
        raise _no_command(argv[0])
    if len(argv) > 1 and not argv[1].startswith("-") and not os.path.lexists(argv[1]):
        seconds = [second for first, second in WITHIN if first == argv[0] and second != argv[1]]
        if seconds:
            from ckpt_tools.settings.resolve import nearest

            if meant := nearest(argv[1], seconds, 0.75):
                text = f"there is no 'ckpt {argv[0]} {argv[1]}', and no such directory"
                raise UsageError(text, f"did you mean 'ckpt {argv[0]} {meant}'?")


def _only_a_path(argv: Sequence[str]) -> str | None:
    """A path that stands where a command would; on a terminal nothing at all means the current directory,
    where that holds a checkpoint.
    """
    if "_CKPT_COMPLETE" in os.environ:
        return None
    if len(argv) == 1:
        word = argv[0]
        is_path = is_url(word) or os.path.lexists(word) or "/" in word
        return word if is_path and word not in words.COMMANDS else None
    if argv or not console.terminal(sys.stdout):
        return None
    from ckpt_tools.api import scan

    try:
        return "." if scan().checkpoints else None
    except CkptError:
        return None


def parameters(name: str, said: Sequence[str]) -> dict[str, Any]:
    """What a command line of one command says, flag by flag, without running it. Raises ValueError."""
    values = words.read(words.parameters(words.command(name)), said)
    if values is not None:
        return values
    from ckpt_tools.cli.typer_app import parser

    try:
        return dict(parser(name).make_context(f"ckpt {name}", list(said)).params)
    except Exception as error:
        if hasattr(error, "show"):  # see execute()
            raise ValueError(getattr(error, "message", str(error))) from error
        raise


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


def _help(error: Exception) -> int:
    """What typer shows where there is no word at all."""
    shown = getattr(error, "format_message", None)
    console.err(f"{shown() if shown else error}\n")
    return UsageError.exit_code


def _usage(argv: Sequence[str], error: Exception) -> int:
    """A mistake that typer has found, said as ours are."""
    # A missing argument is named only in what is shown of the error.
    shown = getattr(error, "format_message", None)
    message = (shown() if shown else str(error)).rstrip(".")
    context = getattr(error, "ctx", None)
    command = getattr(
        context, "command_path", " ".join(["ckpt", *[w for w in argv[:1] if w in words.COMMANDS]])
    )
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
    meant = nearest(word, words.COMMANDS, 0.6) or nearest(word, os.listdir()[:_NAMES], 0.6)
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
