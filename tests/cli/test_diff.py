"""`ckpt diff`: what is compared with what, what differs and how far apart numbers are, and what could not be compared.
On real files.
"""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import re
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import run_helpers
import torch
import xxhash
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from in_process import executed
from places import FIXTURES
from run_helpers import flip
from safetensors.torch import save_file
from safetensors_writer import packed
from small_files import dcp, saved, tensor
from timed import lay

from ckpt_tools import Change, Level, Verdict, diff
from ckpt_tools.api import show
from ckpt_tools.checksum.sums import CHUNK, join_digests
from ckpt_tools.comparison import compare
from ckpt_tools.comparison.difference import File, match, same_value
from ckpt_tools.formats import Anatomy
from ckpt_tools.inspection.digests import SHARED, digests_of, file_digest, runs, runs_by_name, tensor_digests
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import BytesSource
from ckpt_tools.storage.local import BUFFER

DEMO = FIXTURES / "demo"
GOOD = sorted(p for p in (FIXTURES / "formats").glob("*/good/*") if not p.name.endswith(".key"))
TREES = sorted(FIXTURES.glob("layouts/*/*/tree"))


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in [n for n in os.environ if n.startswith("CKPT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(*argv):
    """(exit code, stdout, stderr) of ``ckpt diff``."""
    return executed(["diff", *map(str, argv)])


def copy(what: Path, to: Path) -> Path:
    if what.is_dir():
        return Path(shutil.copytree(what, to, symlinks=True))
    to.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(what, to))


def names(result, change):
    return {t.name for f in result.files for t in f.tensors if t.change is change}


def safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]], **metadata: str) -> Path:
    path.write_bytes(packed(tensors, metadata or None))
    return path


ONE = ("F32", (2,), b"\1\2\3\4\5\6\7\x08")
TWO = ("F32", (2,), b"\1\2\3\4\5\6\7\x09")


@pytest.mark.slow
def test_equal_bytes_have_equal_digests_in_every_format(tmp_path):
    state = {"w": torch.ones(2, 3), "b": torch.ones(5, dtype=torch.bfloat16), "none": torch.zeros(0, 3)}
    torch.save(state, tmp_path / "zip.pt")
    torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(state, tmp_path / "x.safetensors")
    of = {n: t.contiguous().view(torch.uint8).numpy().tobytes() for n, t in state.items()}
    for name in ("zip.pt", "legacy.pt", "x.safetensors"):
        found = tensor_digests(str(tmp_path / name), show(str(tmp_path / name))[1])
        assert found == {n: xxhash.xxh3_128_hexdigest(data) for n, data in of.items()}
    result = diff(str(tmp_path / "zip.pt"), str(tmp_path / "x.safetensors"))
    assert names(result, Change.SAME) == set(state) and result.complete
    torch.save(state, tmp_path / "other.pt")  # torch writes the file's name into the archive
    assert not diff(str(tmp_path / "zip.pt"), str(tmp_path / "other.pt")).differs


def test_shared_bytes_are_read_once(tmp_path):
    (path := tmp_path / "x").write_bytes(os.urandom(3 * BUFFER))
    tied = [Tensor(name, "uint8", (2 * BUFFER,), 2 * BUFFER, 5) for name in "ab"]
    seen: list[int] = []
    found = tensor_digests(str(path), Anatomy(tensors=[*tied, Tensor("c", "uint8", (9,), 9, 0)]), seen.append)
    assert found["a"] == found["b"] == xxhash.xxh3_128_hexdigest(path.read_bytes()[5 : 5 + 2 * BUFFER])
    assert sum(seen) == 2 * BUFFER + 5  # the first bytes of c, and all of a


def test_what_has_no_place_has_no_digest():
    source = BytesSource(bytes(range(100)))
    tensors = [
        Tensor("meta", "float32", (4,), 0), Tensor("hidden", "float32", (4,), 16), Tensor("strided", "uint8", (4,), 4, 10, "", ((10, 0),)),
        Tensor("behind", "uint8", (4,), 4, 98), Tensor("before", "uint8", (4,), 4, -1),
        Tensor("twice", "uint8", (1,), 1, 3), Tensor("twice", "uint8", (1,), 1, 7), Tensor("half", "uint8", (1,), 1, 3),
        Tensor("half", "uint8", (1,), 1, None), Tensor("none", "uint8", (0, 4), 0),
    ]  # fmt: skip
    wanted = {"twice": b"\3\7", "none": b""}
    assert digests_of(source, tensors) == {name: xxhash.xxh3_128_hexdigest(of) for name, of in wanted.items()}
    assert runs(tensors[3], 102) == ((98, 4),)


def test_overlapping_views_cannot_make_a_small_file_expensive():
    source = BytesSource(bytes(10_000))
    views = [Tensor(f"v{i}", "uint8", (9_000,), 9_000, i) for i in range(1_000)]
    done = digests_of(source, views)
    assert source.bytes_read <= SHARED * 10_000
    assert 0 < len(done) < len(views)


@pytest.mark.slow
def test_the_digest_of_a_file_never_changes(tmp_path):
    """Seals hold it: these values are what xxhsum 0.8.1 makes of the recipe in the documentation."""
    with (tmp_path / "x").open("wb") as f:  # two chunks and a little, almost all zeros that take no space
        f.write(b"first")
        f.seek(2 * CHUNK)
        f.write(b"last")
    (tmp_path / "empty").touch()
    chunks = (
        "5749c60db100fb553e3cff374eda9bdf 8c5a2179ae9f1c910939aaa27d431ff2 ee41d6104252544473aefec01537518b"
    )
    whole = "3ebcbbff23ff951c9113458a7868436c"
    assert file_digest(str(tmp_path / "x")) == whole == join_digests(2 * CHUNK + 4, tuple(chunks.split()))
    assert file_digest(str(tmp_path / "empty")) == "2982a5d84bcba88cde7ba530541728ab"


@pytest.mark.slow
@pytest.mark.parametrize("io", ["auto", "direct"])
@pytest.mark.parametrize("jobs", [1, 3])
def test_digests_do_not_depend_on_who_reads(tmp_path, monkeypatch, io, jobs):
    """Every byte is read once, by several threads or helpers; the digest of a tensor in pieces is that of all."""
    monkeypatch.setattr("ckpt_tools.checksum.sums.CHUNK", 3 * BUFFER)
    data, path = os.urandom(11 * BUFFER + 7), tmp_path / "x"
    path.write_bytes(data)
    seen: list[int] = []
    digest = file_digest(str(path), seen.append, jobs=jobs, io=io)
    ranges = range(0, len(data), 3 * BUFFER)
    parts = [xxhash.xxh3_128_hexdigest(data[at : at + 3 * BUFFER]) for at in ranges]
    assert digest == join_digests(len(data), parts) and sum(seen) == len(data)
    seen.clear()
    places = [(5, 100), (105, 4 * BUFFER), (6 * BUFFER, 5 * BUFFER + 7)]
    tensors = [Tensor(f"t{i}", "uint8", (n,), n, at) for i, (at, n) in enumerate(places)]
    split = ((5 * BUFFER, 10), (5 * BUFFER + 20, 20))
    tensors += [Tensor("split", "uint8", (30,), 30, 5 * BUFFER, "", split)]
    found = tensor_digests(str(path), Anatomy(tensors=tensors), seen.append, jobs=jobs, io=io)
    pieces = {t.name: t.pieces or ((t.offset, t.nbytes),) for t in tensors}
    joined = {name: b"".join(data[at : at + n] for at, n in of) for name, of in pieces.items()}
    assert found == {name: xxhash.xxh3_128_hexdigest(of) for name, of in joined.items()}
    assert sum(seen) == sum(t.nbytes for t in tensors)


def test_a_file_that_changes_meanwhile_is_told(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(2 * BUFFER))
    with pytest.raises(OSError, match="changed") as e:
        file_digest(str(path), lambda n: path.write_bytes(bytes(2 * BUFFER + 1)) and None)
    assert e.value.errno == errno.ESTALE


@pytest.mark.share(60)
@pytest.mark.slow
@pytest.mark.parametrize("what", [*GOOD, *TREES, DEMO], ids=lambda path: "-".join(path.parts[-3:]))
@pytest.mark.parametrize(
    "level", [pytest.param(Level.STRUCTURE, marks=pytest.mark.exhaustive), Level.CONTENT]
)
def test_a_copy_is_the_same(what, level, tmp_path):
    result = diff(str(what), str(copy(what, tmp_path / "copy" / what.name)), level)
    assert result.files and not result.differs
    hidden = {}
    for f in result.files:
        hidden[f.a.path] = {t.name for t in f.tensors if t.change is Change.NOT_COMPARED}
        told = {t.name for t in f.tensors}
        assert f.b and not f.metadata and names(result, Change.SAME) | hidden[f.a.path] >= told
    digests = sum(1 for f in result.files for t in f.tensors if t.a and t.a.digest)
    if level is Level.STRUCTURE:
        assert not digests
        return
    placed = False
    for f in result.files:  # only what the file does not place (strided, meta) cannot be told
        tensors = show(f.a.path)[1].tensors
        placed |= any(t.offset is not None for t in tensors)
        assert f.change is (Change.NOT_COMPARED if hidden[f.a.path] else Change.SAME)
        assert not hidden[f.a.path] & set(runs_by_name(tensors, f.a.size))
    assert digests or not placed  # of data below its index, a lone file shows nothing


_KINDS = "safetensors mindspore_ckpt torch_zip torch_legacy torch_tar tf_bundle dcp safetensors_index"
_SETS = [p for p in GOOD if p.parts[-3] in _KINDS.split()]


@cache
def _spots() -> list[tuple[Path, str, str, tuple[tuple[int, int], ...]]]:
    """(what is compared, file in it, tensor, its runs) of every tensor with bytes in the fixtures."""
    out = []
    for what in _SETS:
        for path in [p for p in sorted(what.rglob("*")) if p.is_file()] if what.is_dir() else [what]:
            report, anatomy = show(str(path))
            own = str(path.relative_to(what)) if what.is_dir() else ""
            runs = runs_by_name(anatomy.tensors, report.size)
            out += [(what, own, name, at) for name, at in runs.items() if at]
    return out


@pytest.mark.slow
@examples(150)
@given(st.data())
def test_one_flipped_byte_is_one_changed_tensor(tmp_path_factory, data):
    what, own, name, at = data.draw(st.sampled_from(_spots()))
    offset, n = data.draw(st.sampled_from(at))
    byte = offset + data.draw(st.integers(0, n - 1))
    other = copy(what, tmp_path_factory.mktemp("flip") / what.name)
    path = other / own if own else other
    good = show(str(path))
    flip(path, byte, data.draw(st.integers(1, 255)))
    result = diff(str(what), str(other))
    runs_of = runs_by_name(good[1].tensors, good[0].size)
    here = {t for t, at in runs_of.items() if any(a <= byte < a + m for a, m in at)}  # tied ones as well
    assert name in here
    changed = [(f, t.name) for f in result.files for t in f.tensors if t.change is Change.CHANGED]
    # a TensorFlow string's length: the structure shows it already
    if show(str(path))[0].verdict is Verdict.BROKEN:
        assert not names(result, Change.SAME) & here
    else:
        assert {(os.path.basename(f.b.path), t) for f, t in changed} == {(path.name, t) for t in here}
    assert result.differs or any(r.verdict is Verdict.BROKEN for r in result.reports)
    assert all(f.change is Change.SAME for f in result.files if os.path.basename(f.b.path) != path.name)


def test_structure_does_not_see_it(tmp_path):
    a = FIXTURES / "formats/safetensors/good/tiny.safetensors"
    b = copy(a, tmp_path / "b.safetensors")
    flip(b, b.stat().st_size - 1)
    assert run(a, b)[0] == 1
    code, out, _ = run(a, b, "--level", "structure")
    assert code == 0 and "the same names, types, shapes and metadata" in out


def test_added_removed_reshaped_changed(tmp_path):
    here = dict.fromkeys(("same", "shape", "type", "bytes", "gone"), ONE)
    there = {
        "same": ONE,
        "shape": ("F32", (1, 2), ONE[2]),
        "type": ("I32", (2,), ONE[2]),
        "bytes": TWO,
        "new": ONE,
    }
    a = safetensors(tmp_path / "a.safetensors", here, run="1", left="x")
    b = safetensors(tmp_path / "b.safetensors", there, run="2", right="y")
    (f,) = diff(str(a), str(b)).files
    assert {t.name: str(t.change) for t in f.tensors} == {
        "same": "same", "shape": "reshaped", "type": "reshaped", "bytes": "changed", "gone": "removed", "new": "added",
    }  # fmt: skip
    said = {(m.key, str(m.change), m.a, m.b) for m in f.metadata}
    assert said == {
        ("run", "changed", "1", "2"),
        ("left", "removed", "x", None),
        ("right", "added", None, "y"),
    }
    code, out, err = run(a, b)
    assert (code, err) == (1, "")
    assert re.search(r"reshaped +type +float32 2 +int32 2$", out, re.MULTILINE)
    assert re.search(r"added +new +– +float32 2$", out, re.MULTILINE)
    assert "same" not in [line.split()[0] for line in out.splitlines() if line]
    assert "6 tensors: 1 same, 1 changed, 2 reshaped, 1 added, 1 removed" in out
    assert re.search(r"same +same +float32 2", run(a, b, "-v")[1])
    value = json.loads(run(a, b, "--json")[1])
    assert (value["schema"], value["same"]) == ("ckpt-tools/diff/v1", False)
    assert value["summary"]["tensors"].items() >= {"changed": 1, "removed": 1, "same": 1}.items()
    (f,) = value["files"]
    assert (f["a"]["path"], f["b"]["path"], f["change"]) == (str(a), str(b), "changed")
    tensors = {t.pop("name"): t for t in f["tensors"]}
    side = {"dtype": "float32", "shape": [2], "nbytes": 8}
    one, other = ({**side, "digest": xxhash.xxh3_128_hexdigest(of[2])} for of in (ONE, TWO))
    assert tensors["bytes"] == {"change": "changed", "largest_difference": None, "a": one, "b": other}
    assert tensors["gone"]["b"] is None
    assert {"key": "left", "change": "removed", "a": "x", "b": None} in f["metadata"]


def test_metadata_values_that_compare_oddly():
    nan = float("nan")
    assert all(same_value(a, b) for a, b in ((nan, nan), (1, 1.0), (None, None)))
    assert not any(same_value(a, b) for a, b in ((True, 1), (0, False), ("1", 1), (nan, 1.0)))


@pytest.mark.slow
def test_steps_in_the_names_of_a_layout_do_not_matter():
    result = diff(str(DEMO / "iter_0000010"), str(DEMO / "iter_0000020"))
    assert len(result.files) == 4
    assert all(f.a and f.b and os.path.basename(f.a.path) == os.path.basename(f.b.path) for f in result.files)
    assert names(result, Change.CHANGED)
    assert {m.key for f in result.files for m in f.metadata} >= {"iteration"}


def test_prefixes_without_a_layout(tmp_path):
    """TensorFlow's users name a checkpoint by what its files have in common."""
    home = FIXTURES / "formats/tf_bundle/good/manager"
    for f in home.glob("ckpt-2.*"):
        copy(f, tmp_path / "b" / f.name.replace("ckpt-2", "ckpt-7"))
        copy(f, tmp_path / "a" / f.name)
    assert run(home / "ckpt-2", tmp_path / "b/ckpt-7")[0] == 0
    # and as directories, where the names hold the step
    result = diff(str(tmp_path / "a"), str(tmp_path / "b"))
    assert len(result.files) == 2
    assert not result.differs


@pytest.mark.slow
def test_several_checkpoints_are_matched_by_step(tmp_path):
    b = copy(DEMO, tmp_path / "b")
    shutil.rmtree(b / "iter_0000010/mp_rank_01")
    shutil.rmtree(b / "iter_0000020/mp_rank_00")
    for sides, lone in (((DEMO, b), Change.REMOVED), ((b, DEMO), Change.ADDED)):
        assert Counter(f.change for f in diff(*map(str, sides)).files) == {Change.SAME: 4, lone: 4}


@pytest.mark.slow
def test_two_files_are_compared_whatever_they_are_called(tmp_path):
    one, two = (
        copy(DEMO / "iter_0000010/mp_rank_00/model_optim_rng_0.pt", tmp_path / n)
        for n in ("rank_1.pt", "step_7/rank_2.pt")
    )
    result = diff(str(one), str(two))
    assert [(f.a.path, f.b.path) for f in result.files] == [(str(one), str(two))] and not result.differs


def test_what_an_index_names_belongs_to_it(tmp_path):
    home = FIXTURES / "formats/safetensors_index/good/safetensors"
    other = copy(home, tmp_path / "b")
    shard = min(other.glob("*.safetensors"))
    flip(shard, shard.stat().st_size - 1)
    result = diff(str(home / "model.safetensors.index.json"), str(other / "model.safetensors.index.json"))
    assert [os.path.basename(f.a.path) for f in result.files if f.change is Change.CHANGED] == [shard.name]
    assert len(result.files) == 3


@pytest.mark.slow
def test_distributed_checkpoints_of_one_state_are_the_same(tmp_path):
    """Each save has an id of its own in ``.metadata``: its bytes differ, the state does not."""
    saves = {"one": ("step", 0.5), "two": ("step", 0.5), "other": ("last_step", 0.25)}
    for name, (key, seed) in saves.items():
        lay(tmp_path / name, dcp.__wrapped__(5, 1, key, seed))
    assert (tmp_path / "one/.metadata").read_bytes() != (tmp_path / "two/.metadata").read_bytes()
    assert run(tmp_path / "one", tmp_path / "two", "--strict")[0] == 0
    changed = names(diff(str(tmp_path / "one"), str(tmp_path / "other")), Change.CHANGED)
    assert changed == {"model.w0", "model.w1"}


def _file(name: str, piece: str = "", **told) -> File:
    return File(
        f"/x/{name}", name, 1, Part(f"/x/{name}", "l", piece, "model", "", "/x", **told) if piece else None
    )


def _named(pairs):
    return {(a and a.name, b and b.name) for a, b in pairs}


def test_what_matches_what():
    """By piece though the prefix differs; by step where there are several; nothing by guess."""
    one = [_file("a-1", "p", prefix="a", step=1), _file("a-1-best", "q", prefix="a", step=1)]
    two = [_file("b-2", "p", prefix="b", step=2), _file("b-2-best", "q", prefix="b", step=2)]
    assert _named(match(one, two)) == {("a-1", "b-2"), ("a-1-best", "b-2-best")}
    steps = [
        [_file(f"{run}-{n}", "p", prefix=run, step=n) for n in (1, 2)] + [_file(f"{run}.{k}.log")]
        for run, k in (("a", 5), ("b", 6))
    ]
    assert _named(match(*steps)) == {("a-1", "b-1"), ("a-2", "b-2"), ("a.5.log", None), (None, "b.6.log")}
    ranks = match([_file("l", "p", rank=0), _file("m", "q", rank=0)], [_file("n", "r", rank=0)])
    assert _named(ranks) == {("l", None), ("m", None), (None, "n")}


_number = st.integers(0, 3)
_part = st.builds(
    lambda name, rank, tp, step, piece: File(
        f"/x/{name}", name, 1, Part(f"/x/{name}", "l", piece, "model", "", "/x", rank=rank, coords=(("tp", tp),), step=step)
    ),
    st.sampled_from(["a-1", "a-2", "b-1", "b-7"]), st.none() | _number, _number, st.none() | _number, st.sampled_from(["p", "q"]),
)  # fmt: skip
_bare = st.builds(
    lambda n, k, e: File(f"/y/{n}-{k}.{e}", f"{n}-{k}.{e}", 1),
    st.sampled_from("ab"),
    st.integers(0, 12),
    st.sampled_from("xy"),
)
_side = st.lists(_part | _bare, max_size=12)


@pytest.mark.slow
@given(_side, _side)
def test_every_file_is_in_exactly_one_pair_and_a_side_matches_itself(a, b):
    pairs = match(a, b)
    for i, side in enumerate((a, b)):
        assert Counter(id(p[i]) for p in pairs if p[i] is not None) == Counter(map(id, side))
    assert (None, None) not in pairs
    once = list({f.name: f for f in a}.values())
    assert all(one is other for one, other in match(once, once))


@pytest.mark.slow
def test_a_damaged_file_is_told_and_compared_as_far_as_it_goes():
    code, out, _ = run(DEMO / "iter_0000010", DEMO / "iter_0000020", "--json")
    cut = next(f for f in json.loads(out)["files"] if f["b"]["verdict"] == "broken")
    assert (code, cut["b"]["findings"][0]["code"], cut["change"]) == (1, "truncated", "not-compared")
    assert {t["change"] for t in cut["tensors"]} == {"not-compared"}, "a cut file's tensors were not removed"
    text = run(DEMO / "iter_0000010", DEMO / "iter_0000020")[1]
    assert "truncated" in text and f"1 damaged file in {DEMO / 'iter_0000020'}: 'ckpt verify " in text


def test_tensors_without_a_place(tmp_path):
    """Numbers inside a pickle: equal files are the same; in others only shapes are compared, and it is said."""
    a = FIXTURES / "formats/pickle_plain/good/tensors.pkl"
    b = copy(a, tmp_path / "b.pkl")
    assert run(a, b, "--strict")[0] == 0
    flip(b, b.read_bytes().index(b"\0<q") + 1)  # the high byte of the number 1 in float16
    code, out, _ = run(a, b)
    assert code == 1 and "other bytes" in out and "3 not compared" in out
    assert names(diff(str(a), str(b)), Change.NOT_COMPARED) == {"w", "p", "half"}


def test_an_expanded_tensor_is_stored_shorter(tmp_path):
    """Its bytes stand for several elements each: equal to another one, not comparable with a whole one."""
    made = {"a": torch.ones(1).expand(4), "b": torch.ones(1).expand(4), "c": torch.ones(4)}
    for name, expanded in made.items():
        torch.save({"e": expanded}, tmp_path / f"{name}.pt")
    for other, change in (("b.pt", Change.SAME), ("c.pt", Change.NOT_COMPARED)):
        assert names(diff(str(tmp_path / "a.pt"), str(tmp_path / other)), change) == {"e"}


def test_not_compared_is_not_the_same(tmp_path, monkeypatch):
    a = FIXTURES / "formats/safetensors/good/tiny.safetensors"
    monkeypatch.setattr(compare, "tensor_digests", lambda *_, **__: {})
    code, out, _ = run(a, a)
    assert code == 0
    assert out.startswith("no tensor could be compared")
    assert run(a, a, "--strict")[0] == 5
    assert json.loads(run(a, a, "--json")[1])["same"] is False


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EIO, "unreadable"), (errno.ESTALE, "in-use"), (0, "in-use")]
)
def test_what_cannot_be_read_is_5(tmp_path, monkeypatch, number, code):
    """Nor what was replaced after its header was read (0)."""
    a = FIXTURES / "formats/safetensors/good/tiny.safetensors"
    b = copy(a, tmp_path / "b.safetensors")
    real = compare.tensor_digests

    def broken(path, *rest, **more):
        if path == str(b):
            os.utime(b, ns=(1, 1))
            if number:
                raise OSError(number, os.strerror(number))
        return real(path, *rest, **more)

    monkeypatch.setattr(compare, "tensor_digests", broken)
    status, out, _ = run(a, b, "--json")
    (f,) = json.loads(out)["files"]
    assert (status, f["b"]["verdict"], f["b"]["findings"][-1]["code"]) == (5, "unknown", code)


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        ((DEMO, DEMO / "latest_checkpointed_iteration.txt"), 2, "is a file"),
        ((DEMO / "latest_checkpointed_iteration.txt", "nowhere"), 5, "does not exist"),
        (("empty", DEMO), 5, "no checkpoint file"), ((DEMO, "empty"), 5, "no checkpoint file"),
        ((DEMO, DEMO, "--level", "load"), 2, "structure, content or values"), ((DEMO, DEMO, "--level", "deep"), 2, "deep"),
        ((DEMO,), 2, "B"), ((DEMO, DEMO, DEMO), 2, ""),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, argv, code, says):
    (tmp_path / "empty").mkdir()
    status, out, err = run(*argv)
    assert (status, out) == (code, "") and says in err


def test_nothing_is_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    for name in ("a.pkl", "b.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps({"w": Evil()}))
    code, out, _ = run(tmp_path / "a.pkl", tmp_path / "b.pkl")
    assert code == 1 and "unsafe-pickle" in out and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", ["show", "diff"])
def test_what_other_commands_trust_is_no_matter(command: str, tmp_path: Path) -> None:
    (file := tmp_path / "step_1.pt").write_bytes(saved({"w": tensor(1)}))
    words = [command, *[str(file)] * (1 + (command == "diff"))]
    plain, told = run_helpers.ckpt(*words), run_helpers.ckpt(*words, env={"CKPT_TRUST": "global=foo.*"})
    said = [re.sub(r"in [\d.]+ s( \(.*?\))?", "", done.stdout) for done in (plain, told)]
    assert plain.returncode == told.returncode == 0 and said[0] == said[1]


TYPES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz int64 int8 uint8"


def save(path: Path, **tensors: torch.Tensor) -> Path:
    torch.save(tensors, path)
    return path


@pytest.mark.parametrize("name", TYPES.split())
def test_the_largest_difference_is_that_of_torch(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    made = torch.Generator().manual_seed(0)
    one, other = ((torch.rand(300_000, generator=made) * 100).to(dtype) for _ in range(2))
    found = diff(save(tmp_path / "a.pt", w=one), save(tmp_path / "b.pt", w=other), Level.VALUES)
    assert found.files[0].tensors[0].largest == (one.double() - other.double()).abs().max()


def test_a_number_and_no_number_are_infinitely_far_apart(tmp_path: Path) -> None:
    one = torch.tensor([1.0, math.nan, math.inf, 4.0])
    a = save(tmp_path / "a.pt", w=one, v=one)
    b = save(tmp_path / "b.pt", w=one + torch.tensor([0, 0, 0, 0.5]), v=torch.tensor([math.nan, 2, 3, 4]))
    code, out, _ = run(a, b, "--level", "values", "--json")
    tensors = {t["name"]: t["largest_difference"] for t in json.loads(out)["files"][0]["tensors"]}
    assert (code, tensors) == (1, {"w": 0.5, "v": "Infinity"})


def test_the_first_line_tells_the_largest_difference(tmp_path: Path) -> None:
    a = save(tmp_path / "a.pt", w=torch.zeros(3), v=torch.zeros(3), same=torch.ones(3))
    b = save(tmp_path / "b.pt", w=torch.ones(3) / 4, v=torch.ones(3) / 8, same=torch.ones(3))
    said = "they differ: 2 changed of 3 tensors; the largest difference is 0.25, in 'w'\n"
    assert run(a, b, "--level", "values")[1].startswith(said)
    assert "largest" not in run(a, b)[1]
