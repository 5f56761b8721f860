"""Lists of ranks, places, files and runs are told in full, in text and in JSON, and the cause comes before
what follows from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from run_helpers import SAY, broken, ckpt, megatron

from ckpt_tools.api import plan, verify
from ckpt_tools.discovery import completeness
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import LoadPlan, Rejected, Resume
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json as emit_json
from ckpt_tools.output import plan as table
from ckpt_tools.output.page import View
from ckpt_tools.planning.assign import Groups, assign
from ckpt_tools.planning.engine import find_gaps
from ckpt_tools.planning.facts import Evidence, Tensors

WORLD = 1024
_LIST = re.compile(r"\brank (\d+)|[\d,]+ of 1,024 ranks: ([\d–, ]*\d)|ranks ([\d–, ]*\d) \([\d,]+ of 1,024\)")


def ranks_in(text: str) -> set[int]:
    """What a person reads: all ranks that the first list of ranks in a text names."""
    m = _LIST.search(text)
    assert m is not None, text
    pairs = [piece.split("–") for piece in (m[1] or m[2] or m[3]).split(", ")]
    return {n for pair in pairs for n in range(int(pair[0]), int(pair[-1]) + 1)}


def ranks_of(finding: dict[str, list[list[int]]]) -> set[int]:
    return {n for first, last in finding["ranks"] for n in range(first, last + 1)}


def save(ranks: set[int], step: int = 10) -> Checkpoint:
    made = partial(
        Part, layout="mindspore", piece="model_rank", role="model", run="run", base="/r", step=step
    )
    parts = [made(f"/r/rank_{r}/net-1_{step}.ckpt", rank=r) for r in sorted(ranks)]
    return Checkpoint("mindspore", "run", Kind.PERIODIC, tuple(parts), "/r", step, step)


def answers(c: Checkpoint, findings: list[Finding]) -> Iterator[set[int]]:
    """The ranks that every form of an answer tells."""
    made = LoadPlan("/r", None, Resume(None), rejected=(Rejected(c, tuple(findings)),), candidates=(c,))
    for view in (View(), View(width=200), View(verbose=True)):
        text = table.render(made, view)
        yield ranks_in(" ".join(text.partition("Skipped: ")[2].split()))
    (lost,) = json.loads(emit_json.render(made))["rejected"][0]["findings"]
    yield ranks_of(lost)
    (sent,) = msgspec.json.decode(msgspec.json.encode(findings))
    assert msgspec.convert(sent, Finding) == findings[0]


MISSING = st.one_of(
    st.sets(st.integers(0, WORLD - 1), min_size=1, max_size=WORLD - 1),
    st.builds(
        lambda a, n, step: set(range(a, min(WORLD, a + n), step)),
        st.integers(0, 1000),
        st.integers(1, WORLD - 1),
        st.integers(1, 3),
    ),
)
EXAMPLES = examples(20)


@pytest.mark.slow
@EXAMPLES
@given(MISSING)
def test_ranks_without_a_file_are_all_told(missing: set[int]) -> None:
    everyone, c = set(range(WORLD)), save(set(range(WORLD)) - missing, 20)
    findings = find_gaps(c, completeness.expected([save(everyone), c], BUILT_IN, WORLD))
    assert list(answers(c, findings)) == [missing] * 4
    silent = Evidence(lambda p: Tensors(""), lambda r, p: [])
    planned = assign(c, Groups(Topology(WORLD), Selection()), {}, silent).findings
    assert list(answers(c, planned)) == [missing] * 4


def unfolded(text: str) -> Iterator[str]:
    for name in re.findall(r"(?:[^,{ ]|\{[^}]*\})+", text):
        m = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
        for piece in m[2].split(", ") if m else []:
            first, _, last = piece.partition("–")
            width = len(first) if first.startswith("0") and first != "0" else 0
            yield from (
                f"{m[1]}{str(n).zfill(width)}{m[3]}" for n in range(int(first), int(last or first) + 1)
            )
        if m is None:
            yield name


NAMES = st.one_of(
    st.from_regex(r"[a-c_]{0,2}[0-9]{0,3}[a-c.-]{0,2}[0-9]{0,3}", fullmatch=True).filter(bool),
    st.builds("__{}_{}.distcp".format, st.integers(0, 40), st.integers(0, 2)),
    st.builds("model-{:05d}-of-{:05d}.safetensors".format, st.integers(0, 40), st.integers(9, 11)),
)


@pytest.mark.slow
@examples(200)
@given(st.sets(NAMES, max_size=60))
def test_folded_names_are_the_names(names: set[str]) -> None:
    assert set(unfolded(ranges.names(names))) == names


@EXAMPLES
@given(st.sets(st.sampled_from(list(product(range(3), range(9)))), min_size=1))
def test_places_are_all_told(lost: set[tuple[int, int]]) -> None:
    read = set()
    for place in ranges.places((("tp", t), ("pp", p)) for t, p in lost).split(", "):
        m = re.fullmatch(r"tp=(\d+) pp=(.+)", place)
        assert m is not None
        pairs = [piece.split("–") for piece in m[2].split(",")]
        read |= {(int(m[1]), n) for pair in pairs for n in range(int(pair[0]), int(pair[-1]) + 1)}
    assert read == lost


def test_files_that_an_index_misses_are_all_told(tmp_path: Path) -> None:
    shards = [f"model-{i:05d}-of-00100.safetensors" for i in range(1, 101)]
    index = {"metadata": {"total_size": 0}, "weight_map": {f"w{i}": name for i, name in enumerate(shards)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = [f for r in verify(str(tmp_path)).files for f in r.report.findings]
    said = " ".join(f.message for f in found if f.code == "missing-part")
    quoted = set(re.findall(r"'(.*?)'", said))
    assert quoted | set(unfolded(said.rpartition(": ")[2])) == set(shards)


def damaged(root: Path) -> Path:
    megatron(root, (10, 20), world=8)
    for rank in (1, 2, 3, 6):
        broken(root, 20, rank)
    return root


@pytest.mark.slow
def test_one_line_for_each_damaged_file_and_one_for_what_follows(tmp_path: Path) -> None:
    made = plan(str(damaged(tmp_path)), Selection(order="step"))
    (lost,) = made.rejected
    # causes first, in JSON as well
    assert [f.code for f in lost.findings] == ["truncated"] * 4 + ["missing-rank"]
    lines = table.render(made).splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 4
    (follows,) = [line for line in lines if line.startswith("so ")]
    assert "ranks 1–3, 6 (4 of 8) have no good model file" in follows
    assert not any("missing-rank" in line for line in lines)


@pytest.mark.slow
def test_the_one_line_of_run_has_the_count(tmp_path: Path) -> None:
    root, plans = damaged(tmp_path / "run"), tmp_path / "plans"
    done = ckpt("run", root, "--plan-dir", plans, "--order", "step", "--", *SAY)
    (line,) = [line for line in done.stderr.splitlines() if "step 20 was skipped (" in line]
    assert "ranks 1–3 and 6 have no good copy; " in line and "truncated" in line


@pytest.mark.parametrize("count", [2, 17, 300])
def test_every_run_is_named(count: int) -> None:
    text = completeness.listed(("megatron", f"exp/run-{i}") for i in range(count))
    names = set(unfolded(text.partition(": ")[2].replace(" (layout megatron)", "")))
    assert names == {f"exp/run-{i}" for i in range(count)}
