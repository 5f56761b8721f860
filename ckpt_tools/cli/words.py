"""What a command declares of the words that it takes, and the reading of a well-formed command line.

typer reads every other line, and says all that is said of one (typer_app.py). Importing it takes a third of a
short run, on every rank of a job, and so does converting texts to texts, which refuses file names that are
not UTF-8. tests/cli/test_words.py holds the two readings against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

from msgspec import Struct

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


class Argument(Struct, frozen=True):
    """A word that is known by its place. ``after_dashes``: all words after ``--``, a command of its own."""

    metavar: str
    help: str
    after_dashes: bool = False


class Option(Struct, frozen=True):
    """A flag with its names, of one letter after one dash or longer after two; ``metavar`` stands for its
    value.
    """

    names: tuple[str, ...]
    help: str
    metavar: str | None = None


def option(*names: str, help: str, metavar: str | None = None) -> Option:
    """An option by its names."""
    return Option(names, help, metavar)


class Parameter(Struct, frozen=True):
    """A parameter of a command's function. ``kind`` is the type of its values: bool, str, list[str], or one
    of the latter two or None.
    """

    name: str
    kind: Any
    declared: Option | Argument
    default: Any = None
    required: bool = False

    @property
    def several(self) -> bool:
        return self.kind == list[str] or list[str] in get_args(self.kind)


def command(name: str) -> Callable[..., Any]:
    """The function of a command, or of the second of two words by both (``hook_install``)."""
    found: Callable[..., Any] = getattr(import_module(f"ckpt_tools.cli.{name}"), name)
    return found


def parameters(command: Callable[..., Any]) -> tuple[Parameter, ...]:
    """What a command takes, in the order of its help: as it says itself, or by its signature."""
    known: tuple[Parameter, ...] | None = getattr(command, "parameters", None)
    if known is not None:
        return known
    from inspect import signature

    return tuple(
        _parameter(p.name, p.annotation, p.default, required=p.default is p.empty)
        for p in signature(command, eval_str=True).parameters.values()
    )


def from_annotations(annotations: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The parameters of a command that needs none of them."""
    return tuple(
        _parameter(name, kind, False if kind.__origin__ is bool else None)
        for name, kind in annotations.items()
    )


def _parameter(name: str, annotated: Any, default: Any, *, required: bool = False) -> Parameter:
    kind, declared = annotated.__origin__, annotated.__metadata__[0]
    return Parameter(name, kind, declared, default=None if required else default, required=required)


class _Unusual(Exception):
    """typer must read this line: it asks for help, or has a mistake."""


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line up to the first ``--``, and what follows."""
    own = list(words)
    return (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [])


def wrapped(known: Sequence[Parameter]) -> Parameter | None:
    """The parameter that takes another command, of a command that starts one."""
    return next((p for p in known if isinstance(p.declared, Argument) and p.declared.after_dashes), None)


def read(known: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any] | None:
    """The value of each parameter that a command line gives; None where typer must read it."""
    other = wrapped(known)
    if other is None:
        return _read(known, words)
    own, command = split(words)
    values = _read([p for p in known if p is not other], own)
    return None if values is None else {**values, other.name: command}


def _read(known: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any] | None:
    flags = {name: p for p in known if isinstance(p.declared, Option) for name in p.declared.names}
    values = {p.name: p.default for p in known}
    places = [p for p in known if isinstance(p.declared, Argument)]
    rest, placed = iter(words), list[str]()
    try:
        for word in rest:
            if word == "--":
                placed += rest
            elif word[:1] != "-" or word == "-":
                placed.append(word)
            elif word[:2] == "--":
                _long(word, flags, rest, values)
            else:
                _letters(word[1:], flags, rest, values)
        return {**values, **_by_place(places, placed)}
    except _Unusual:
        return None


def _long(word: str, flags: Mapping[str, Parameter], rest: Iterator[str], values: dict[str, Any]) -> None:
    name, equals, value = word.partition("=")
    flag = _known(name, flags)
    if flag.kind is not bool:
        _give(flag, value if equals else _next(rest), values)
    elif equals:
        raise _Unusual
    else:
        values[flag.name] = True


def _letters(
    letters: str, flags: Mapping[str, Parameter], rest: Iterator[str], values: dict[str, Any]
) -> None:
    """Flags of one letter behind one dash; what follows one that takes a value is its value."""
    for at, letter in enumerate(letters, 1):
        flag = _known(f"-{letter}", flags)
        if flag.kind is not bool:
            return _give(flag, letters[at:] or _next(rest), values)
        values[flag.name] = True
    return None


def _known(name: str, flags: Mapping[str, Parameter]) -> Parameter:
    if name not in flags:
        raise _Unusual
    return flags[name]


def _next(rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None:
        raise _Unusual
    return value


def _give(flag: Parameter, value: str, values: dict[str, Any]) -> None:
    values[flag.name] = [*(values[flag.name] or ()), value] if flag.several else value


def _by_place(places: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any]:
    """The values of arguments, of which the last may take several words."""
    given: dict[str, Any] = dict(zip((p.name for p in places), words, strict=False))
    if places and places[-1].several and len(words) >= len(places):
        given[places[-1].name] = list(words[len(places) - 1 :])
    elif len(words) > len(places):
        raise _Unusual
    if any(p.required and p.name not in given for p in places):
        raise _Unusual
    return given
