"""torch.distributed.checkpoint and Megatron-core's integrity.json: what the laws of test_formats.py cannot
say.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import math
import pickle
import random
import shutil
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_files
from counted import at_most
from examples import examples
from helpers import bad, codes, findings, flipped, look
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES
from safetensors_writer import packed
from scripts import loaded

from ckpt_tools.api import plan, verify
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.tensors import find_incomplete, find_untiled
from ckpt_tools.formats.dcp import dcp, metadata
from ckpt_tools.formats.json_files import mcore_integrity
from ckpt_tools.formats.safetensors import safetensors_index
from ckpt_tools.inspection.check import regions_of
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Box, Guard, Tensor

GOOD = FORMAT_FILES / "dcp" / "good"


make = loaded(FORMAT_FILES.parent / "make_dcp.py")
# an object, and a float32 tensor of shape (4, 3)
STEP, CHUNK, _ = make.entries(GOOD / "no_collectives" / "__0_0.distcp")


def read(data: bytes) -> tuple[Anatomy, list[Finding]]:
    anatomy = Anatomy()
    return anatomy, look(data, dcp.FORMAT, anatomy)


def broken(path: Path) -> set[str]:
    """What changes the verdict of some file."""
    return {f.code for entry in verify([str(path)], settle=0).files for f in bad(list(entry.report.findings))}


def member(anatomy: Anatomy, name: str, data: bytes) -> tuple[Anatomy, list[Finding]]:
    out, said = Anatomy(), anatomy.members[name]
    return out, list(findings(data, dcp.FORMAT, out, [said._replace(whole=True)]))


def save(path: Path, files: dict[str, bytes]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)


def one(name: str = "a", **more: Any) -> bytes:
    """A .metadata of one tensor of one chunk."""
    tensors = {name: ("float32", (4, 3), {(0, 0): (4, 3)})}
    return make.metadata(tensors, [], {(name, (0, 0)): ("__0_0.distcp", 0, len(CHUNK))}, **more)


def noted(**more: Any) -> set[str]:
    """All that is said of it, notes too."""
    return {f.code for f in read(one(**more))[1]}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(protocol: int) -> None:
    anatomy, found = read(data := one(protocol=protocol))
    assert (bad(found), list(anatomy.members)) == ([], ["__0_0.distcp"]) and dcp.FORMAT.magic(data[:64])


@pytest.mark.parametrize("protocol", [2, 4])
def test_members_of_enumerations_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    """As Python 3.11.0 to 3.11.3 pickles them, and so Debian 12: ``getattr(class, name)`` in place of
    ``class(value)``.
    """
    encoding = importlib.import_module("torch.distributed.checkpoint.metadata")._MEM_FORMAT_ENCODING
    monkeypatch.setattr(encoding, "__reduce_ex__", lambda self, _: (getattr, (type(self), self._name_)))
    save(tmp_path, small_files.dcp.__wrapped__(10))  # not the one that other tests share
    metadata = (tmp_path / ".metadata").read_bytes()
    assert b"getattr" in metadata and b"TORCH_CONTIGUOUS_FORMAT" in metadata
    assert codes(read(metadata)[1]) == broken(tmp_path) == set()
    made = plan(str(tmp_path))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    old = pickle.dumps(pickle.loads(metadata), protocol=protocol)
    assert b"getattr" in old and bad(read(old)[1]) == []
    for name in (b"TORCH_CONTIGUOUS_FORMAX", b"__class________________"):
        assert "bad-header" in codes(read(metadata.replace(b"TORCH_CONTIGUOUS_FORMAT", name))[1])


def put_class(module: str, name: str, **attributes: Any) -> Any:
    """A class in a module of its own; torch_names, which is at work when this is called, restores the
    modules.
    """
    sys.modules[module] = types.ModuleType(module)
    out = type(name, (), {"__module__": module, "__qualname__": name, **attributes})
    setattr(sys.modules[module], name, out)
    return out


def test_the_classes_and_attributes_of_torch_2_0_are_known() -> None:
    def older(known: dict[str, Any], root: Any) -> None:
        module = "torch.distributed._shard.sharded_tensor.metadata"
        values = root.state_dict_metadata["a"].properties.values
        told = {"__getstate__": lambda _: (*values[:3], 0, False), "__setstate__": None}
        root.state_dict_metadata["a"].properties = put_class(module, "TensorProperties", **told)()
        del root.planner_data

    assert noted(edit=older) == {"not-checksummed"}


@pytest.mark.parametrize("added", [None, 3, (3, 1), "x", {"a": 1}], ids=str)
@pytest.mark.parametrize("which", ["root", "entry", "chunk", "key", "value", "meta", "properties"])
def test_what_a_later_version_adds_is_no_damage(which: str, added: object) -> None:
    """Torch 2.15 did so with the properties: whoever cannot read its files takes all of them for damaged."""

    def edit(known: dict[str, Any], root: Any) -> None:
        entry = root.state_dict_metadata["a"]
        key, value = next(iter(root.storage_data.items()))
        root.storage_meta = known["StorageMeta"](checkpoint_id="x", save_id=None, load_id=None, modules=[])
        chunk, meta = entry.chunks[0], root.storage_meta
        objects = {"root": root, "entry": entry, "chunk": chunk, "key": key, "value": value, "meta": meta}
        if which in objects:
            objects[which].quite_new = added
        else:
            entry.properties.values += ((3, 1), added)

    assert noted(edit=edit) == {"not-checksummed"}


@pytest.mark.parametrize("strides", [3, (3, -1), (3, "x"), (1,) * 100], ids=repr)
def test_strides_are_lengths(strides: object) -> None:
    def edit(known: dict[str, Any], root: Any) -> None:
        root.state_dict_metadata["a"].properties.values += (strides,)

    found = read(one(edit=edit))[1]
    assert any(f.code == "bad-header" and "the strides of 'a'" in f.message for f in found)


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_the_path_of_the_save_needs_no_trust(module: str) -> None:
    def edit(known: dict[str, Any], root: Any) -> None:
        path = put_class(module, "PosixPath", __reduce__=lambda self: (type(self), ("/", "x")))
        told = {"checkpoint_id": path(), "save_id": make.UUID, "load_id": None, "modules": []}
        root.storage_meta = known["StorageMeta"](**told)

    assert noted(edit=edit) == {"not-checksummed"}


def test_a_rank_alone_may_hold_a_part_of_each_tensor() -> None:
    tensors = {n: ("float32", (8, 3), {(4, 0): (4, 3)}) for n in ("a", "b")}
    places = {(n, (4, 0)): ("__1_0.distcp", i * 900, 900) for i, n in enumerate(tensors)}
    assert bad(read(make.metadata(tensors, [], places))[1]) == []


def test_a_data_file_needs_its_index() -> None:
    for rank, name in (("0", "__0_0.distcp"), ("12", "optimizer__12_3.distcp")):
        assert dcp.FORMAT.index_of(name) == (".metadata", f"__{rank}.metadata")
    assert dcp.FORMAT.index_of("weights.distcp") == (".metadata",)
    assert dcp.FORMAT.index_of("common.pt") == dcp.FORMAT.index_of(".metadata") == ()


def test_an_unused_writers_empty_file_is_no_damage(tmp_path: Path) -> None:
    shutil.copytree(GOOD / "single", tmp_path, dirs_exist_ok=True)
    (tmp_path / "__0_1.distcp").touch()
    seen = verify([str(tmp_path)], settle=0)
    assert {f.severity for entry in seen.files for f in entry.report.findings} <= {0, 1}
    assert seen.verdict is not Verdict.BROKEN


def test_a_swap_of_entries_of_different_type_is_seen(tmp_path: Path) -> None:
    kinds = {"a": "float32", "b": "bfloat16"}
    tensors = {n: (kind, (4, 3), {(0, 0): (4, 3)}) for n, kind in kinds.items()}
    places = {(n, (0, 0)): ("__0_0.distcp", i * len(CHUNK), len(CHUNK)) for i, n in enumerate(kinds)}
    meta = make.metadata(tensors, [], places)
    save(tmp_path, {".metadata": meta, "__0_0.distcp": CHUNK * 2})
    (entry,) = [e for e in verify([str(tmp_path)], settle=0).files if e.report.path.endswith("distcp")]
    assert {f.code for f in entry.report.findings} == {"tensor-size"}
    assert "'b' is float32 [4, 3] here" in entry.report.findings[0].message


def cut(shape: tuple[int, ...], rng: random.Random, pieces: int) -> list[Box]:
    """Boxes made by cutting a shape again and again: they tile it."""
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(pieces):
        i = rng.randrange(len(boxes))
        b = boxes[i]
        if dims := [d for d in range(len(shape)) if b.stop[d] - b.start[d] > 1]:
            d = rng.choice(dims)
            at = rng.randrange(b.start[d] + 1, b.stop[d])
            stop, start = (*b.stop[:d], at, *b.stop[d + 1 :]), (*b.start[:d], at, *b.start[d + 1 :])
            boxes[i : i + 1] = [Box(b.start, stop), Box(start, b.stop)]
    rng.shuffle(boxes)
    return boxes


def cells(b: Box) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(a, z) for a, z in zip(b.start, b.stop, strict=True)))


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


@pytest.mark.slow
@examples(500)
@given(shape=SHAPES, seed=st.integers(0, 1 << 30), pieces=st.integers(0, 20), edits=st.integers(1, 3))
def test_tiling_agrees_with_counting_cells(
    shape: tuple[int, ...], seed: int, pieces: int, edits: int
) -> None:
    rng = random.Random(seed)
    boxes = cut(shape, rng, pieces)
    assert find_untiled(shape, boxes) is None
    for _ in range(edits):  # move, drop, double, stretch
        i, d = rng.randrange(len(boxes)), rng.randrange(len(shape))
        b = boxes[i]
        what = rng.randrange(4)
        if what == 0 and len(boxes) > 1:
            del boxes[i]
        elif what == 1:
            boxes.append(b)
        elif what == 2:
            boxes[i] = Box(b.start, (*b.stop[:d], b.stop[d] + 1, *b.stop[d + 1 :]))
        else:
            boxes[i] = Box((*b.start[:d], max(0, b.start[d] - 1), *b.start[d + 1 :]), b.stop)
    counted = Counter(c for b in boxes for c in cells(b))
    exact = set(counted.values()) == {1} and counted.keys() == set(cells(Box((0,) * len(shape), shape)))
    found = find_untiled(shape, boxes)
    assert exact == (found is None) or (found is not None and found.kind == "complex")
    if found and found.kind == "overlap":
        assert max(counted.values()) > 1
    if found and found.kind == "hole":
        assert len(counted) < math.prod(shape)


BOX = Box((0, 0), (3, 2))


@pytest.mark.parametrize(
    ("shape", "boxes", "found"),
    [
        ((3, 2), [BOX, Box((3, 0), (3, 2)), Box((1, 1), (1, 2))], None),  # empty ones lie anywhere inside
        ((3, 2), [BOX, Box((4, 0), (4, 2))], ("bounds", 1)),
        ((0, 2), [Box((0, 0), (0, 2))], None),
        ((0, 3), [Box((0, 0), (0, 2))], ("hole", -1)),
        ((), [Box((), ())], None),
        ((), [], ("hole", -1)),
        ((), [Box((), ()), Box((), ())], ("overlap", 1)),
    ],
)
def test_chunks_of_nothing(shape: tuple[int, ...], boxes: list[Box], found: tuple[str, int] | None) -> None:
    assert find_untiled(shape, boxes) == found


def _grid(n: int, m: int) -> list[Box]:
    return [Box((3 * i, 5 * j), (3 * i + 3, 5 * j + 5)) for i in range(n) for j in range(m)]


def _ranges(n: int, m: int) -> list[Box]:
    """Megatron's flattened ranges: a grid of fragments, each cut differently along its last axis."""
    out = []
    for i in range(n):
        at = [0, *sorted(random.Random(i).sample(range(1, 10_000), m - 1)), 10_000]
        out += [Box((i, a), (i + 1, b)) for a, b in itertools.pairwise(at)]
    return out


@pytest.mark.share(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "boxes", "kinds"),
    [
        ((900, 500), _grid(300, 100), [None]),
        ((900, 500), _grid(300, 100)[1:], ["hole"]),
        ((300, 10_000), _ranges(300, 100), [None]),
        ((30_000, 1), [Box((i, 0), (30_000, 1)) for i in range(30_000)], ["overlap"]),
        ((30_000, 30_000), [Box((i, i), (i + 2, i + 2)) for i in range(29_999)], ["overlap", "complex"]),
        ((300, 300), [Box((i % 200, i // 200), (i % 200 + 90, i // 200 + 90)) for i in range(30_000)], ["overlap", "complex"]),
        ((1 << 60, 1 << 60), [Box((0, 0), (1 << 60, 1 << 60))] * 30_000, ["overlap"]),
    ],
)  # fmt: skip
def test_many_chunks_take_little_work(shape: tuple[int, ...], boxes: list[Box], kinds: list[Any]) -> None:
    with at_most(3_000_000):
        found = find_untiled(shape, boxes)
        assert (found and found.kind) in kinds


@pytest.mark.parametrize(
    "named",
    ["os:system", "builtins:eval", "torch.distributed.checkpoint.filesystem:os.system", "pathlib:Path.unlink", "pathlib:os.system"],
)  # fmt: skip
def test_the_modules_of_a_metadata_excuse_nothing(named: str) -> None:
    # STACK_GLOBAL, EMPTY_TUPLE, REDUCE, POP
    call = b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in named.split(":")) + b"\x93)R0"
    assert codes(read(b"\x80\x04" + one()[11:-1] + call + b".")[1]) == {"unsafe-pickle"}  # without its frame


@pytest.mark.exhaustive
@pytest.mark.slow
def test_one_region_named_by_many_entries_is_looked_at_once() -> None:
    n = 5000
    places = {(f"t{i}", (0, 0)): ("__0_0.distcp", 0, len(CHUNK)) for i in range(n)}
    data = make.metadata({f"t{i}": ("float32", (4, 3), {(0, 0): (4, 3)}) for i in range(n)}, [], places)
    with at_most(10_000_000):
        anatomy, found = read(data)
        assert "bad-header" in codes(found)
        part, found = member(anatomy, "__0_0.distcp", CHUNK)
        assert not part.sums


@pytest.mark.slow
def test_the_findings_of_a_broken_index_are_few() -> None:
    places = {(f"t{i}", (0, 0)): ("__0_0.distcp", i, 1) for i in range(3000)}
    found = read(make.metadata({}, [], places))[1]
    assert len(found) < 60


@pytest.mark.slow
@examples(60)
@given(data=st.data())
def test_a_random_save_is_whole_and_every_flip_in_its_values_is_seen(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    files, places, tensors = defaultdict[str, bytes](bytes), dict[Any, Any](), dict[str, Any]()

    def put(key: Any, data: bytes) -> None:
        path = f"__{rng.randrange(3)}_0.distcp"
        places[key] = (path, len(files[path]), len(data))
        files[path] += data

    for name in [f"m.{i}" for i in range(rng.randrange(1, 5))]:
        at = [(4 * i, 0) for i in range(rng.randrange(1, 4))]
        tensors[name] = ("float32", (4 * len(at), 3), dict.fromkeys(at, (4, 3)))
        for place in at:
            put((name, place), CHUNK)
    put(("step", None), STEP)
    planner = {n: tuple(n.split(".")) for n in [*tensors, "step"]}
    anatomy, found = read(make.metadata(tensors, ["step"], places, planner=planner, version="1.0.0"))
    assert bad(found) == []
    for name, content in files.items():
        part, found = member(anatomy, name, content)
        assert bad(found) == []
        chunks = [p for (_, at), (p, _, _) in places.items() if at is not None]
        assert sum(t.nbytes for t in part.tensors) == 48 * chunks.count(name)
        assert codes(member(anatomy, name, flipped(content, rng.randrange(8 * len(content))))[1])


def test_an_empty_file_may_be_listed(tmp_path: Path) -> None:
    (tmp_path / "__0_1.distcp").write_bytes(b"")
    listed = {"algorithm": "sha256", "files": {"__0_1.distcp": hashlib.sha256().hexdigest()}}
    (tmp_path / "integrity.json").write_text(json.dumps(listed, indent=2))
    assert broken(tmp_path) == set()


@pytest.mark.parametrize("text", ['{"schema_version": 1}', "{}", '{"violations": [], "ok": true}'])
def test_another_programs_integrity_json_is_left_alone(text: str) -> None:
    anatomy = Anatomy()
    assert (bad(look(text.encode(), mcore_integrity.FORMAT, anatomy)), anatomy.members) == ([], {})


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
LISTED = st.dictionaries(NAMES, st.binary(max_size=8), min_size=1, max_size=5)


@pytest.mark.slow
@examples(50)
@given(LISTED, st.sampled_from([2, 4, None]))
def test_what_megatron_could_write_is_good(files: dict[str, bytes], indent: int | None) -> None:
    anatomy = Anatomy()
    listed = {"algorithm": "sha256", "files": {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}}
    found = look(json.dumps(listed, indent=indent).encode(), mcore_integrity.FORMAT, anatomy)
    assert (bad(found), set(anatomy.members)) == ([], set(files))
    for name, data in files.items():
        assert codes(member(anatomy, name, data)[1]) == set()
        assert codes(member(anatomy, name, data + b"x")[1])


@pytest.mark.exhaustive
def test_a_map_of_very_many_places_ends() -> None:
    places = b"".join(b"M" + n.to_bytes(2, "little") + b"0" for n in range(1 << 16)).replace(b"0", b"\x94")
    data = b"\x80\x04" + places * 2 + b"."
    anatomy = Anatomy(regions=[])
    metadata.explain(data, anatomy, (), (), sizes=False)
    regions = regions_of(anatomy, len(data))
    assert len(regions) < 2 * metadata.MAX_SPOTS + 3
    assert regions[-1].guard is Guard.UNPROTECTED
    assert regions[-1].length > len(data) // 3


class Searched(bytes):
    """Text that counts how far it was searched."""

    steps = 0

    def find(self, sub: bytes, start: int = 0) -> int:  # type: ignore[override]
        at = super().find(sub, start)
        self.steps += (len(self) if at < 0 else at + len(sub)) - start
        return at


@pytest.mark.slow
@pytest.mark.parametrize("escaped", [False, True])
def test_many_bad_digests_are_looked_up_in_linear_time(escaped: bool) -> None:
    names = [f"__{n}_0.distcp" for n in range(5000)]
    lines = [json.dumps(n).replace("_", "\\u005f" if escaped else "_") + ': "0"' for n in names]
    text = Searched(('{"algorithm": "sha256", "files": {' + ", ".join(lines) + "}}").encode())
    found = list(mcore_integrity._claim_files(json.loads(text)["files"], text, Anatomy()))
    assert len(found) == len(names)
    assert text.steps < (21 if escaped else 1) * len(text)
    assert escaped or [f.offset for f in found[:20]] == [text.index(f'"{n}"'.encode()) for n in names[:20]]


def _info(text: str) -> tuple[dict[str, Box], list[Finding]]:
    anatomy = Anatomy(tensors=[Tensor("w", "float32", (4, 3), 48)])
    found = list(safetensors_index.read_boxes(text, anatomy, 8))
    return anatomy.places, found


@pytest.mark.parametrize(
    "text",
    ["", "[", "{}", '{"w": 1}', '{"w": {}}', '{"w": {"saved_offsets": [4]}}', '{"w": {"saved_offsets": [4, -1]}}', '{"w": {"saved_offsets": [4, 1.5]}}',
     '{"v": {"saved_offsets": [4, 0]}}', '{"w": {"saved_offsets": [4, 0]}, "x": {"saved_offsets": [0]}}', '{"w": {"saved_offsets": [4, true]}}'],
)  # fmt: skip
def test_damaged_sharding_info_is_seen(text: str) -> None:
    assert "bad-header" in codes(_info(text)[1])


def test_pieces_of_all_files_must_fill_the_tensor() -> None:
    first, second, other = ({"w": Box((a, 0), (b, 3))} for a, b in ((0, 4), (4, 7), (5, 8)))
    assert list(find_incomplete([first, second])) == []
    for pieces in ([second], [first, other], [first, first], [first, {"w": Box((4,), (7,))}]):
        assert codes(find_incomplete(pieces)) == {"bad-header"}


def _hf_shard(path: Path, at: list[int]) -> None:
    """A file as DCP's Hugging Face writer leaves it: where its four rows begin in the whole."""
    told = json.dumps({"w": {"saved_offsets": at}})
    path.write_bytes(packed({"w": ("F32", [4, 3], b"\1\1\1\1" * 12)}, {"DCP_SHARDING_INFO": told}))


def test_hugging_face_shards_fill_their_tensors(tmp_path: Path) -> None:
    def wrong() -> list[tuple[str, str | None]]:
        return [(f.code, f.path) for f in verify([str(tmp_path)], settle=0).findings]

    paths = [tmp_path / f"shard-0000{i}-model-00001-of-00001.safetensors" for i in (1, 2, 3)]
    for i, path in enumerate(paths):
        _hf_shard(path, [4 * i, 0])
    assert wrong() == []
    paths[1].unlink()
    assert wrong() == [("bad-header", str(tmp_path))]
    _hf_shard(paths[1], [5, 0])
    assert wrong() == [("bad-header", str(tmp_path))]
    _hf_shard(paths[1], [4])
    assert broken(tmp_path) == {"bad-header"}


@pytest.mark.parametrize("name", [b"m\xed\xa0\x80l.w", b"mo\x1b[2.w"])
def test_half_a_pair_or_a_control_character_in_a_name_is_escaped(name: bytes, tmp_path: Path) -> None:
    home = Path(shutil.copytree(FORMAT_FILES / "dcp/good/single", tmp_path / "run"))
    data = (home / ".metadata").read_bytes()
    (home / ".metadata").write_bytes(data.replace(b"model.w", name, 1))
    messages = [f.message for f in verify(str(home)).in_files]
    assert messages
    assert all(map(str.isprintable, messages)), messages
