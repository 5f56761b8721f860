"""MindSpore's strategy files: the groups they give, what is said about wrong ones, and a plan that follows
them.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from fixture_trees import files_of, tree
from helpers import look
from hypothesis import given
from hypothesis import strategies as st
from mindspore_writer import field, varint
from places import FORMAT_FILES

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.formats import FORMATS, HEAD, Anatomy
from ckpt_tools.formats.mindspore.mindspore_strategy import FORMAT, strategy_groups
from ckpt_tools.formats.mindspore.strategy_groups import (
    Layout,
    from_json,
    make_layout,
    stage_groups,
)
from ckpt_tools.inspection.recognise import allow_by_name
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection

GOOD = FORMAT_FILES / "mindspore_strategy" / "good"
PAIRS, QUADS = ((0, 4), (2, 6), (1, 5), (3, 7)), ((0, 2, 4, 6), (1, 3, 5, 7))
ALL, ALONE = (tuple(range(8)),), tuple((r,) for r in range(8))


def layout(devices: list[int], axes: list[int], step: int = 0, size: int = 0, name: str = "w") -> Layout:
    return make_layout(name, devices, [axes], step, size)


# The expected groups are MindSpore's own answers (get_parameter_redundancy and _get_cur_rank_dp).


OF_ONE: list[tuple[Any, ...]] = [
    ([4, 2], [0, -1], 0, 0, QUADS), ([4, 2], [-1, -1], 0, 0, ALL), ([2, 2, 2], [1, 0], 0, 0, PAIRS), ([4, 2], [0, -1], 1, 2, PAIRS),
    ([4, 2], [0, -1], 1, 4, ALONE), ([4, 2], [-1, -1], 2, -1, PAIRS), ([4, 2], [-1, -1], 0, -1, ALONE),
    ([4, 2], [], 0, 0, ALL), ([], [], 0, 0, ((0,),)),  # a scalar; and only pipeline parallelism
    ([4, 2], [0, -1], 1, 3, ALONE),  # four ranks are no three shards: MindSpore gives the parameter no group
]  # fmt: skip
"""The layout of one parameter, and its groups."""


@pytest.mark.parametrize(
    ("layouts", "groups"),
    [
        *(([layout(*one)], groups) for *one, groups in OF_ONE),
        ([layout([4, 2], [-1]), layout([4, 2], [0, -1])], QUADS),
        ([layout([4, 2], [-1]), layout([4, 2], [0, -1]), layout([4, 2], [0], 2, 2)], PAIRS),
        ([layout([4, 2], [0]), layout([4, 2], [1], name="accu_grads.w"), layout([4, 2], [1, 0], name="inputs0")], QUADS),
        ([layout([4, 2], [0]), layout([4, 2], [1])], ALONE),  # not nested
        ([layout([4, 2], [0], name="accu_grads.w")], ALONE),  # nothing tells
        # one tensor axis cut along two axes of the grid
        ([make_layout("w", [2, 2, 2], [[2, 0], [-1]], 0, 0)], ((0, 2), (1, 3), (4, 6), (5, 7))),
    ],
)  # fmt: skip
def test_groups_of_a_rank_are_the_smallest_of_its_parameters(
    layouts: list[Layout], groups: tuple[tuple[int, ...], ...]
) -> None:
    assert sorted(stage_groups(layouts)) == sorted(groups)


GRIDS = st.lists(st.integers(1, 4), max_size=4).filter(lambda d: len(d) < 4 or d[0] < 3)


@given(GRIDS, st.data())
def test_laws_of_groups(devices: list[int], data: st.DataObject) -> None:
    """Every rank is in one group, and in a group all agree on every axis along which any parameter is cut."""
    axes, step = st.lists(st.integers(-1, len(devices) - 1), max_size=3), st.integers(0, 4)
    size, count = st.sampled_from([0, 0, 2, 3, -1]), data.draw(st.integers(1, 4))
    layouts = [layout(devices, *map(data.draw, (axes, step, size))) for _ in range(count)]
    groups = stage_groups(layouts)
    assert sorted(r for group in groups for r in group) == list(range(math.prod(devices)))
    cut = set[int]().union(*(e.split for e in layouts))
    for group in groups:
        for axis in cut:
            stride = math.prod(devices[len(devices) - axis :])
            assert len({r // stride % devices[-1 - axis] for r in group}) == 1


@pytest.mark.parametrize(
    "name",
    ["strategy.json", "config.json", "src_strategy_0.json.bak", "my_src_strategy_0.json", "trading_strategy.json"],
)  # fmt: skip
def test_other_json_is_not_accused(name: str, tmp_path: Path) -> None:
    assert FORMAT not in allow_by_name(name)
    (tmp_path / name).write_text('{"strategy": "dollar cost averaging"}')
    ours = [r.report for r in verify([str(tmp_path)], settle=0).files if r.report.format == FORMAT.name]
    assert not [f for report in ours for f in report.findings]


def test_the_strategies_of_operators_alone_are_no_damage() -> None:
    """What save_operator_strategy_file writes has no layouts of parameters."""
    text = b'{"current_stage":0,"parallel_out_strategy_item":{},"parallel_strategy_item":{"MatMul-op0":{"parallel_strategy":[[2,1]],"stage":0}}}'
    assert FORMAT.magic(text[:HEAD]) and {f.code for f in look(text, FORMAT)} == {"not-checksummed"}
    with pytest.raises(ValueError, match="fields"):
        from_json(json.loads(text))


def group_file(groups: dict[str, list[int]], restore: list[int] | None) -> bytes:
    def ranks(numbers: list[int]) -> bytes:
        return b"".join(b"\x08" + varint(n) for n in numbers)

    items = (field(1, field(1, name.encode()) + field(2, ranks(of))) for name, of in groups.items())
    return b"".join(items) + (b"" if restore is None else field(2, ranks(restore)))


NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=30)
RANKS = st.integers(0, 9999)
GROUPS = st.dictionaries(NAMES, st.lists(RANKS, min_size=1, max_size=40, unique=True), min_size=1, max_size=5)


@pytest.mark.slow
@examples(150)
@given(GROUPS, st.none() | st.lists(RANKS, max_size=40))
def test_group_files_are_known(groups: dict[str, list[int]], restore: list[int] | None) -> None:
    data, anatomy = group_file(groups, restore), Anatomy()
    assert next(f for f in FORMATS if f.magic(data[:HEAD])) is FORMAT
    assert {f.code for f in look(data, FORMAT, anatomy)} == {"not-checksummed"}
    assert anatomy.metadata["groups"] == len(groups)


def test_dims_that_fill_the_head_are_no_ranks() -> None:
    for count in range(5, 60):
        # five dims, as a convolution in three dimensions has
        dims = b"\x08\x80\x04\x08\x80\x08\x08\x03\x08\x04\x08\x05"
        tensor = dims + field(2, b"Float32") + b"\x1a\xff\xff\x03"
        value = field(1, b"n" * count) + b"\x12" + varint(len(tensor) + 65535) + tensor
        assert not FORMAT.magic((b"\x0a" + varint(len(value) + 65535) + value)[:HEAD]), count


FIELDS = st.sampled_from([
    "parallel_layout_item", "parallel_strategy_item", "stage", "dev_matrix", "tensor_map", "opt_weight_shard_step", "opt_weight_shard_size",
    "w",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(FIELDS, v),
)


@pytest.mark.slow
@given(JSON)
def test_random_json_is_refused_or_makes_sense(value: Any) -> None:
    for v in (value, {"parallel_layout_item": value}, {"parallel_layout_item": {"w": value}}):
        with suppress(ValueError):
            assert from_json(v).layouts


def put(directory: Path, **files: str) -> Path:
    """A directory with copies of fixtures: name (without .ckpt) -> fixture."""
    directory.mkdir(exist_ok=True)
    for name, fixture in files.items():
        shutil.copy(GOOD / f"{fixture}.ckpt", directory / f"{name}.ckpt")
    return directory


def test_one_file_for_each_stage_or_rank_or_one_merged(tmp_path: Path) -> None:
    stages = (*PAIRS, *(tuple(r + 8 for r in group) for group in PAIRS))
    for number, files in enumerate((
        {"strategy_first": "stage0", "strategy_second": "stage1"},
        {f"src_strategy_{r}": f"stage{r // 8}" for r in range(16)},
        {"merged": "merged"},
    )):  # fmt: skip
        assert sorted(strategy_groups(str(put(tmp_path / f"{number}", **files)), 16)) == sorted(stages)
    for names in (["src_strategy_0", "src_strategy_8"], ["src_merged_strategy"]):  # the same as JSON
        (home := tmp_path / names[0]).mkdir()
        for name in names:
            shutil.copy(GOOD / f"{name}.json", home)
        assert sorted(strategy_groups(str(home), 16)) == sorted(stages)
    assert strategy_groups(str(put(tmp_path / "old", a="stage0-1.1")), 8) == QUADS


def test_a_file_without_a_stage_goes_by_the_rank_in_its_name(tmp_path: Path) -> None:
    assert strategy_groups(str(put(tmp_path / "a", any_name="layouts-only")), 8) == ALONE
    names = {f"ckpt_strategy_rank_{r}_rank_{r}": "layouts-only" for r in (5, 12)}
    assert len(strategy_groups(str(put(tmp_path / "b", **names)), 16)) == 16
    with pytest.raises(UsageError, match="does not say which pipeline stage"):
        strategy_groups(str(put(tmp_path / "c", any_name="layouts-only")), 16)


def test_json_files_and_what_lies_beside_them(tmp_path: Path) -> None:
    shutil.copy(GOOD / "src_strategy_0.json", tmp_path)
    (tmp_path / "config.json").write_text("{")
    shutil.copy(GOOD / "groups.ckpt", tmp_path / "group_strategy.ckpt")
    shutil.copy(GOOD / "src_strategy_0.json", tmp_path / "src_strategy_0.txt")
    for name in ("net-1_1", "strategy-net-1_1"):
        shutil.copy(FORMAT_FILES / "mindspore_ckpt/good/tiny-crc.ckpt", tmp_path / f"{name}.ckpt")
    (tmp_path / "strategy.ckpt.d").mkdir()
    assert sorted(strategy_groups(str(tmp_path), 8)) == sorted(PAIRS)


@pytest.mark.parametrize(
    ("files", "world", "says"),
    [
        ({}, 4, "no MindSpore strategy file"),
        ({"a": "dp2-mp2", "b": "stage0"}, 8, "there are stages of 4 devices (a.ckpt) and 8 devices (b.ckpt)"),
        ({"a": "stage0"}, 12, "a stage has 8 devices, which 12 ranks do not fill"),
        ({"a": "stage0"}, 4, "a stage has 8 devices, which 4 ranks do not fill"),
        ({"a": "stage0"}, 16, "no file is of pipeline stage 1 (ranks 8 to 15)"),
        ({"a": "stage0", "b": "stage1"}, 8, "b.ckpt is of stage 1, which 8 ranks in stages of 8 devices do not have"),
        ({"src_strategy_0": "stage0", "src_strategy_1": "layouts-only"}, 8, "src_strategy_0.ckpt and src_strategy_1.ckpt group the ranks of stage 0 differently"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_a_question(
    tmp_path: Path, files: dict[str, str], world: int, says: str
) -> None:
    with pytest.raises(UsageError) as e:
        strategy_groups(str(put(tmp_path / "s", **files)), world)
    assert str(e.value) == f"--strategy-dir {tmp_path / 's'}: {says}" or says in str(e.value)
    assert e.value.hint


CUT = (GOOD / "stage0.ckpt").read_bytes()[:-1]
DAMAGED_JSON = (
    b'{"parallel_layout_item": ', b'{"parallel_layout_item": {}}', b'{"parallel_layout_item": [1]}',
    b"[" * 100_000 + b'"parallel_layout_item"',
)  # fmt: skip
DAMAGED = [
    *((".ckpt", content) for content in (b"", bytes(64), b"\x08\x01", CUT)),
    *((".json", text) for text in DAMAGED_JSON),
]


@pytest.mark.parametrize(("suffix", "content"), DAMAGED, ids=lambda v: repr(v[:30]))
def test_a_damaged_file_is_never_passed_over(tmp_path: Path, suffix: str, content: bytes) -> None:
    put(tmp_path, src_strategy_1="stage0")
    (tmp_path / f"src_strategy_0{suffix}").write_bytes(content)
    with pytest.raises(UsageError, match=rf"src_strategy_0\{suffix} is damaged"):
        strategy_groups(str(tmp_path), 8)


def test_no_directory_and_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path / "none", GOOD / "merged.ckpt"):
        with pytest.raises(UsageError, match="no such directory"):
            strategy_groups(str(place), 8)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(CannotLook, match="Permission denied"):
        strategy_groups(str(tmp_path), 8)


@pytest.mark.slow
def test_a_plan_follows_the_strategy_files(tmp_path: Path) -> None:
    root = tree("pangu", tmp_path)
    strategy = str(put(tmp_path / "strategy", **{f"src_strategy_{r}": "dp2-mp2" for r in range(4)}))
    made = plan(str(root), Selection(kind=Kind.DYING_GASP, strategy_dir=strategy))
    assert files_of(made, root)["3"] == ["rank_1/pangu1-2_3_breakpoint.ckpt"]
    (loaded,) = made.by_rank[3].files
    assert loaded.substituted and loaded.source_rank == 1
    assert loaded.reason.startswith(f"the strategy files in {strategy}; ")
    groups = {"": ((0, 1), (2, 3))}
    asked = Selection(kind=Kind.DYING_GASP, strategy_dir=strategy, replica_groups=groups)
    assert files_of(plan(str(root), asked), root)["3"] == ["rank_2/pangu2-2_3_breakpoint.ckpt"]
    with pytest.raises(UsageError, match="which 6 ranks do not fill"):
        plan(str(root), Selection(world_size=6, strategy_dir=strategy))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["strategy", "tree", "tree/rank_0"])
def test_strategy_files_beside_checkpoints_are_not_accused(tmp_path: Path, where: str) -> None:
    root = tree("pangu", tmp_path)
    before = {f.code for r in verify([str(root)]).files for f in r.report.findings}
    put(tmp_path / where, src_strategy_0="dp2-mp2", merged="merged")
    result = verify([str(tmp_path)])
    mine = [r.report for r in result.files if r.report.format == "mindspore_strategy"]
    assert len(mine) == 2 and {r.verdict for r in mine} == {Verdict.OK}
    assert {f.code for r in result.files for f in r.report.findings} == before | {"not-checksummed"}
    assert plan(str(root)).checkpoint is not None
