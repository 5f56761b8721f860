"""The exceptions that ckpt raises. A damaged checkpoint is a finding, never one of these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ckpt_tools.model.plan import LoadPlan

_WORD = 4096
"""The longest path that Linux takes; a longer word is in a variable by mistake."""


def cut(text: str) -> str:
    """Return a text without its middle if it is longer than any path: each rank would log it."""
    return text if len(text) <= _WORD else f"{text[:100]}…({len(text):,} characters)…{text[-100:]}"


def _cut_words(text: str) -> str:
    """Return a message whose overlong words are cut. Lists with blanks between their entries stay whole."""
    return text if len(text) <= _WORD else " ".join(map(cut, text.split(" ")))


_VALUE = r"(?!(?:to|or|and|with|if|for|names)\b)('[^']*'|\w(?:[\w./*:,;-]*[\w/*])?)"
_FLAG = re.compile(rf"'ckpt [^']*'|--([a-z][a-z-]*)(?:[ =]{_VALUE})?")


def name_parameters(hint: str) -> str:
    """Return a hint with parameters of ``Selection`` in place of flags: ``max_step=5``."""

    def parameter(m: re.Match[str]) -> str:
        if not m[1]:
            return m[0]  # a command of the shell
        name, value = m[1].replace("-", "_"), (m[2] or "").strip("'")
        if name == "allow":
            words = ", ".join(f"allow_{word}=True" for word in value.split(","))
            return words.replace("allow_unreadable", "skip_unreadable")
        text = repr(value) if value else "True"
        return f"{name}={value if value.isdigit() else text}"

    return _FLAG.sub(parameter, hint.replace("add --", "pass --"))


class CkptError(Exception):
    """Base of all errors: ``exit_code`` is for the command, ``hint`` says what to do next. A traceback shows
    the hint as well, with parameters in place of flags.

    ``plan`` is the plan without a checkpoint, with every rejected candidate, if choosing got that far.
    ``rule`` is the id of the rule that stops the command or asks, "" if it is no rule about checkpoints.
    """

    exit_code = 70
    hint = ""
    rule = ""

    def __init__(self, message: str, hint: str = "", plan: LoadPlan | None = None, *, rule: str = "") -> None:
        super().__init__(_cut_words(message))
        self.hint = _cut_words(hint or self.hint)
        self.plan = plan
        self.rule = rule or self.rule
        if hasattr(self, "add_note"):  # Python 3.11
            text = name_parameters(self.hint)
            self.add_note(f"hint: {text}{' (of Selection)' * (text != self.hint)}")


class UsageError(CkptError):
    """The request is wrong or incomplete: only the caller can correct it (exit 2)."""

    exit_code = 2
    hint = "see 'ckpt --help'"


class NotRecognised(UsageError):
    """There is no checkpoint, but something that may be one: only the caller can tell whether this is a first
    launch (exit 2).
    """

    rule = "tree/first-launch-leftovers"


class NoCheckpoint(CkptError):
    """No checkpoint exists (exit 3). Unfinished saves alone count as none."""

    exit_code = 3
    rule = "tree/nothing-there"
    hint = "for a first launch add --allow none; else check the path: 'ckpt ls' shows what is there"


class NoneUsable(CkptError):
    """Checkpoints exist, but none is usable (exit 4): starting fresh would throw training progress away."""

    exit_code = 4
    rule = "choice/none-usable"
    hint = "'ckpt verify ROOT' shows the damage; 'ckpt explain CODE' what a code means"


_OF_STORE = "check the URL and what docs/stores.md says of its store, then run it again"


class CannotLook(CkptError):
    """ROOT is missing, or reading failed (exit 5): nothing is known about the checkpoints."""

    exit_code = 5
    rule = "tree/could-not-look"
    hint = "check that the file system is mounted and readable, then run again"

    def __init__(self, message: str, hint: str = "", plan: LoadPlan | None = None, *, rule: str = "") -> None:
        super().__init__(message, hint or (_OF_STORE if "://" in message else ""), plan, rule=rule)


@contextmanager
def explain_refusal(what: str, hint: str = "") -> Iterator[None]:
    """Turn an OSError of the block into CannotLook: ``what`` is not done, and the system's reason."""
    try:
        yield
    except OSError as e:
        raise CannotLook(f"{what}: {e.strerror}", hint) from e


class NotNewest(CkptError):
    """The newest checkpoint is unusable and --no-fallback forbids an older one (exit 6)."""

    exit_code = 6
    rule = "choice/none-usable"
    hint = "drop --no-fallback to accept an older checkpoint"


class LoadFailed(NoneUsable):
    """``try_load`` found no candidate that loads; ``trail`` holds each (candidate, exception), in order."""

    def __init__(self, message: str, trail: tuple[tuple[str, BaseException], ...] = ()) -> None:
        super().__init__(message)
        self.trail = trail


BY_EXIT_CODE: dict[int, type[CkptError]] = {
    e.exit_code: e for e in (UsageError, NoCheckpoint, NoneUsable, CannotLook, NotNewest)
}
"""Exit code -> class, for a process that raises what another process ended with."""
