"""Run one command line and return its exit code. Only the module of the requested command is imported."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import typer

from ckpt_tools import __version__
from ckpt_tools.cli import console
from ckpt_tools.cli.command import COMMANDS, Command, Commands
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
    single = bool(argv) and argv[0] in COMMANDS and not completes
    if not completes:
        _require_known(argv)
    within = WITHIN.get((argv[0], argv[1])) if single and len(argv) > 1 else None
    words = (2 if within else 1) if single else 0
    parser = _parser(within or argv[0]) if single else _parser(*COMMANDS)
    result = parser(argv[words:], prog_name=" ".join(["ckpt", *argv[:words]]), standalone_mode=False)
    if not argv:
        return (
            UsageError.exit_code
        )  # versions of typer differ in whether the help text that they show here is an error
    return result if isinstance(result, int) else 0


def _require_known(argv: Sequence[str]) -> None:
    """Raises UsageError for a first word that is no command, and where the second word of two is mistyped,
    which would be taken for a directory.
    """
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
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
        return word if is_path and word not in COMMANDS else None
    if argv or not console.terminal(sys.stdout):
        return None
    from ckpt_tools.api import scan

    try:
        return "." if scan().checkpoints else None
    except CkptError:
        return None


@cache
def _parser(*names: str) -> Callable[..., Any]:
    """What reads and runs the command lines of these commands, made once in a process: an app of one command
    takes no command name.
    """
    # Without rich_markup_mode=None typer imports rich for every help text and error, without
    # pretty_exceptions_enable=False for every crash.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    settings = {"help_option_names": ["-h", "--help"]}
    for name in names:
        module = import_module(f"ckpt_tools.cli.{name}")
        app.command(name, cls=getattr(module, "CLASS", Command), context_settings=settings)(
            getattr(module, name)
        )
    if len(names) > 1:
        app.callback(cls=Commands, context_settings=settings, no_args_is_help=True)(_top)
    return typer.main.get_command(app)


def parameters(name: str, words: Sequence[str]) -> dict[str, Any]:
    """What a command line of one command says, flag by flag, without running it. Raises ValueError."""
    try:
        return dict(_parser(name).make_context(f"ckpt {name}", list(words)).params)  # type: ignore[attr-defined]
    except Exception as error:
        if hasattr(error, "show"):  # see execute()
            raise ValueError(getattr(error, "message", str(error))) from error
        raise


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


def _top(
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


def _fail(argv: Sequence[str], error: CkptError) -> int:
    console.problem("error", str(error), error.hint)
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
    command = getattr(context, "command_path", " ".join(["ckpt", *[w for w in argv[:1] if w in COMMANDS]]))
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

        failure = Failure(command, code_of(name), str(error), error.hint, error.exit_code, error.plan)
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
