"""Two read command lines: cli/words.py those that are well formed, typer all others. They agree."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.core import TyperCommand

from ckpt_tools.cli import dispatch, words
from ckpt_tools.cli.typer_app import parser
from ckpt_tools.errors import UsageError

NAMES = (*words.COMMANDS, *dispatch.WITHIN.values())
VALUE = st.sampled_from(["a", "7", "", "-", "--", "-q", "--json", "--rank", "x=y", "é\N{SNOWMAN}", "-x y"])


@cache
def flags(name: str) -> dict[str, words.Parameter]:
    known = words.parameters(words.command(name))
    return {flag: p for p in known if isinstance(p.declared, words.Option) for flag in p.declared.names}


def letters(name: str) -> str:
    return "".join(flag[1] for flag in flags(name) if len(flag) == 2)


@st.composite
def lines(draw: st.DrawFn, name: str) -> list[str]:
    """A command line as somebody types it, of which some are wrong."""
    out = list[str]()
    known = sorted(flags(name))
    for _ in range(draw(st.integers(0, 5))):
        flag = draw(st.sampled_from(known)) if known else "--none"
        how = draw(st.sampled_from(["apart", "joined", "alone", "letters", "word", "mistyped"]))
        value = draw(VALUE)
        out += {
            "apart": [flag, value],
            "joined": [f"{flag}={value}"],
            "alone": [flag],
            "letters": [
                f"-{draw(st.text(letters(name) + 'z', max_size=3)) if letters(name) else 'z'}{value}"
            ],
            "word": [value],
            "mistyped": [flag[:-1]],
        }[how]
    return [word for word in out if word not in ("-h", "--help")]


def read_by_typer(name: str, line: list[str]) -> dict[str, Any] | None:
    try:
        params = parser(name).make_context(f"ckpt {name}", list(line)).params
        return {key: None if value == () else value for key, value in params.items()}  # its empty list
    except Exception as error:
        if hasattr(error, "show") or isinstance(error, UsageError):
            return None
        raise


@pytest.mark.parametrize("name", NAMES)
@given(st.data())
def test_what_is_read_quickly_is_what_typer_reads(name: str, data: st.DataObject) -> None:
    """And where one finds a mistake, so does the other: it is typer that says which."""
    line = data.draw(lines(name))
    assert words.read(words.parameters(words.command(name)), line) == read_by_typer(name, line), line


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_for_typer(name: str, word: str) -> None:
    assert isinstance(parser(name), TyperCommand)
    assert words.read(words.parameters(words.command(name)), ["a", word]) is None


def test_a_word_before_the_dashes_says_nothing_to_run(capfd: pytest.CaptureFixture[str]) -> None:
    """Not dropped without a word: it may be a flag's value, or a second ROOT."""
    assert dispatch.execute(["run", "a", "b", "--", "echo"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("ckpt: error: there are more words before -- than 'ckpt run' takes: b\nhint: ")
