"""The index of the layouts' names, by which only the layouts are imported that have files."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import LAYOUT_TREES

from ckpt_tools.layouts import BUILT_IN, LAYOUTS, ORDER, Layout, Layouts, Piece
from ckpt_tools.layouts.common.templates import compile_template, edges
from ckpt_tools.layouts.index import names_of, read_index

PIECES = [(layout, piece) for layout in LAYOUTS for piece in layout.pieces]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_index_says_what_the_layouts_say(layout: Layout) -> None:
    """Else a file of theirs would be nobody's: 'python docs/make.py' writes it."""
    index = {names.name: names for names in read_index().values()}
    as_written = [(p.name, p.template, p.weak, p.described) for p in layout.pieces]
    assert [(p.name, p.template, p.weak, p.described) for p in index[layout.name].pieces] == as_written
    assert index[layout.name]._replace(pieces=()) == names_of(layout)._replace(pieces=())
    assert len({name for name, *_ in as_written}) == len(as_written), "two pieces of one name"


def test_the_index_has_all_layouts_in_order() -> None:
    assert tuple(read_index()) == ORDER
    assert [names.name for names in BUILT_IN.names] == [layout.name for layout in LAYOUTS]


@given(st.sampled_from(PIECES), st.data())
def test_every_path_of_a_template_finds_its_layout(
    chosen: tuple[Layout, object], data: st.DataObject
) -> None:
    """Whatever a directory is called that a template of the layout describes."""
    layout, piece = chosen
    path = data.draw(st.from_regex(re.compile(compile_template(piece.template), re.ASCII), fullmatch=True))
    directory = f"/data/run/{path}".rpartition("/")[0]
    places = BUILT_IN.templates(listing=True).places(directory)
    assert any(place.layout is layout and place.piece is piece for place in places)


@given(st.sampled_from(PIECES), st.booleans(), st.data())
def test_what_a_template_fits_is_within_its_edges(
    chosen: tuple[Layout, Piece], ascii_only: bool, data: st.DataObject
) -> None:
    """Whatever the digits are written in: a template is never passed over that fits."""
    flags = re.ASCII if ascii_only else 0
    directory, _, file = chosen[1].template.rpartition("/")
    for template in filter(None, (directory, file)):
        pattern = re.compile(compile_template(template), flags)
        assert edges(template).fit(data.draw(st.from_regex(pattern, fullmatch=True)))


def test_few_templates_are_compiled_for_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expressions were a third of a start while each that might fit the beginning of a path was compiled."""
    compiled: list[object] = []
    compile_one = re.compile
    monkeypatch.setattr(re, "compile", lambda *given: [compiled.append(given), compile_one(*given)][1])
    templates = Layouts().templates()
    for path in ("/r/demo", "/r/demo/iter_0000010", "/r/demo/iter_0000010/mp_rank_00"):
        templates.places(path)
    assert 3 <= len(compiled) <= 25


def test_only_the_layouts_are_imported_that_have_files() -> None:
    tree = LAYOUT_TREES / "megatron/distopt/tree"
    code = (
        "import json, sys; from ckpt_tools.discovery.walk import discover\n"
        f"assert discover({str(tree)!r}).parts\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.startswith('ckpt_tools.layouts.'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.rpartition(".")[2] for name in json.loads(done.stdout)}
    assert loaded & set(ORDER) == {"megatron"}
