"""The names of the layouts: every path of a template finds its piece, in few steps."""

from __future__ import annotations

import itertools
import re

import pytest
from counted import calls

from ckpt_tools.formats import BY_NAME as FORMATS
from ckpt_tools.layouts import BUILT_IN, LAYOUTS, Layouts
from ckpt_tools.layouts.common.templates import DATE, FIELD, METRIC, TEXTS, TOKENS, compile_name

PIECES = [(layout, piece) for layout in LAYOUTS for piece in layout.pieces]


def test_no_word_of_a_piece_is_mistaken_for_a_format() -> None:
    """In layouts/data a word that is no field's value is one."""
    odd = {f for _, piece in PIECES for f in piece.formats} - FORMATS.keys()
    assert not odd
    assert not [piece.template for _, piece in PIECES if "(" in piece.template]  # nor is a key left


KNOWN = {"tmp": "_tmp", METRIC: "2.5", DATE: "2025-01-31", **dict.fromkeys(TEXTS, "x")}
"""What fields that stand for no digits alone may read."""


ODD_DIGITS = (("9", False), ("\N{ARABIC-INDIC DIGIT THREE}", True))
NIGHT = pytest.mark.exhaustive


def spelled(template: str, digit: str, *, optional: bool) -> str:
    """A path that a template describes: every number of one digit, and of several words the first one, or
    the last one where nothing optional is said.
    """
    out, left_out, said = "", 0, dict[str, str]()
    for word in filter(None, TOKENS.split(template)):
        if word in "[]":
            left_out += 0 if optional else (word == "[") - (word == "]")
        elif not left_out and word[0] == "<":
            out += word[1:-1].split("|")[0 if optional else -1]
        elif not left_out:
            field = FIELD.fullmatch(word)
            text = word if field is None else KNOWN.get(field[1])
            if text is None and field:  # the second time with zeros before it
                width = int(field[2] or 1)
                text = said[field[1]].rjust(width, "0") if field[1] in said else digit * width
                said[field[1]] = text
            out += text or ""
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("digit", "optional"), [("0", True), *(pytest.param(*row, marks=NIGHT) for row in ODD_DIGITS)]
)
def test_every_path_of_a_template_finds_its_piece(digit: str, optional: bool) -> None:
    """Whatever its digits are written in: names are compared with how templates begin and end before these
    are compiled. A volume is often mounted so that saves lie directly below the root directory.
    """
    templates = BUILT_IN.templates(listing=True)
    for (layout, piece), above in itertools.product(PIECES, ("/data/run", "")):
        path = f"{above}/{spelled(piece.template, digit, optional=optional)}"
        directory, _, name = path.rpartition("/")
        if directory:
            places = templates.places(directory)
            at = places.pieces.index(piece)
            assert (places[at].layout, places[at].piece) == (layout, piece)
            assert above or places[at].base == "/", path
            read = places.read_name(name, after=at - 1)
            assert read is not None and read.piece == at, path


def test_few_templates_are_compiled_for_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expressions were a third of a start while each that might fit the beginning of a path was compiled."""
    compiled: list[object] = []
    compile_one = re.compile
    monkeypatch.setattr(re, "compile", lambda *given: [compiled.append(given), compile_one(*given)][1])
    compile_name.cache_clear()
    templates = Layouts().templates()
    for path in ("/r/demo", "/r/demo/iter_0000010", "/r/demo/iter_0000010/mp_rank_00"):
        templates.places(path)
    assert 3 <= len(compiled) <= 28


def test_the_next_reading_of_a_name_does_not_begin_with_the_first() -> None:
    """A name that says little is read twenty times: what was tried is not tried again."""
    places, name = Layouts(BUILT_IN).templates().places("/run"), "step_00000010.ckpt"
    every, at = [], -1
    while (read := places.read_name(name, after=at)) is not None:
        every.append(at := read.piece)
    assert len(every) > 3 and every == sorted(set(every))
    first = calls(lambda: places.read_name(name))
    others = sum(calls(lambda at=at: places.read_name(name, after=at)) for at in every)
    assert others < 4 * first + 60 * len(every)
