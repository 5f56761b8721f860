"""JSON members: read as Python reads them, refused where Python refuses them, in bounded time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counted import at_most
from helpers import bad, look
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.api import verify
from ckpt_tools.formats import BY_NAME, Anatomy, Damage
from ckpt_tools.formats.common.json_text import MAX_DEPTH, MAX_SIZE, parse, read_json
from ckpt_tools.inspection.recognise import allow_by_name
from ckpt_tools.model.finding import Verdict

FMT = BY_NAME["json_member"]
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXTS, v, max_size=4), max_leaves=12
)
MI = 1 << 20


def codes(data: bytes) -> set[str]:
    return {f.code for f in look(data, FMT)}


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES) | st.lists(VALUES), st.booleans(), st.sampled_from([None, 2]))
def test_what_python_writes_is_good(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    data = text.encode(errors="replace")  # a lone surrogate, which no file can hold unescaped
    assert codes(data) <= {"odd-header", "unfinished-save"} and FMT.magic(data[:64])


@given(
    st.text(st.sampled_from('{}[]",:0123456789.eE+-truefalsnNI \n\t\\u\x00\ud800/ab'), max_size=30)
    | st.text('{}[]",:1a\\', max_size=12)
)
def test_python_and_we_agree(text: str) -> None:
    def refuses(read: Callable[[], object], error: type[Exception]) -> bool:
        try:
            read()
        except error:
            return True
        return False

    data = text.encode("utf-8", "surrogatepass")
    assert refuses(lambda: json.loads(data.decode()), ValueError) is refuses(lambda: parse(data, []), Damage)


@pytest.mark.parametrize(
    ("text", "code", "at"),
    [
        (b'{"a": 1', "truncated", 7), (b'{"a": tr', "truncated", 8), (b'{"a": "\\u12', "truncated", 11),
        ('{"ä": 1} x'.encode(), "trailing-data", 10), ('{"ä" 1}'.encode(), "bad-header", 6), (b'{"a": 1}\0\0', "trailing-data", 8),
        (b'{"a": 1, "a": 2}', "duplicate-key", 9), (b"\xef\xbb\xbf{}", "bad-header", 0), (b'{"a": "\xff"}', "bad-header", 7),
    ],
)  # fmt: skip
def test_damage_has_its_place(text: bytes, code: str, at: int) -> None:
    assert [(f.code, f.offset) for f in look(text, FMT)] == [(code, at)]


def test_the_scalars_that_tell_progress() -> None:
    anatomy = Anatomy()
    text = b'{"sharded_backend": "torch_dist", "iteration": 7, "epoch": NaN, "step": {}, "last_step": "a\\u0000b"}'
    look(text, FMT, anatomy)
    assert anatomy.metadata == {"sharded_backend": "torch_dist", "iteration": 7, "epoch": "nan"}


OURS = (
    "trainer_state.json tokenizer.json _CHECKPOINT_METADATA _sharding process_12 .zattrs adapter_config.json"
)
OTHERS = "model.safetensors.index.json integrity.json package.json process _METADATA .zarray zarr.json my_config.json"


@pytest.mark.parametrize("name", f"{OURS} {OTHERS}".split())
def test_its_names(name: str) -> None:
    assert [*allow_by_name(name)] == [FMT] if name in OURS.split() else FMT not in allow_by_name(name)


@pytest.mark.share(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "again", "mi", "end"),
    [
        (b"", b"[", 50, b""), (b"", b'{"a":', 1, b""), (b"", b"[", 1, b"]" * MI), (b'["', b'\\"', 1, b""), (b'["', b"\\", 1, b""),
        (b"", b'"', 1, b""), (b"[", b"9", 1, b"]"), (b"[", b"{},", 8, b"{}]"), (b"{", b"\0", 10, b""), (b"[1", b",1", 16, b"]"),
        (b"[", b"-", 1, b""), (b"", b" ", 20, b"{"),
    ],
    ids=lambda d: repr(d[:8]) if isinstance(d, bytes) else None,
)  # fmt: skip
def test_bombs_cost_little(begin: bytes, again: bytes, mi: int, end: bytes) -> None:
    with at_most(20_000):
        assert bad(look(begin + again * (mi * MI) + end, FMT))


def test_the_deepest_that_is_read() -> None:
    assert codes(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) == set()
    assert codes(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)) == {"bad-header"}
    assert codes(json.dumps(["[{" * 2000, '\\"' * 2000]).encode()) == set()  # brackets in texts are none


@pytest.mark.slow
def test_a_vocabulary_is_read_with_little_work() -> None:
    words = {f"wörd{i}": i for i in range(120_000)}
    merges = [[f"a{i}", f"b{i}"] for i in range(120_000)]
    data = json.dumps({"model": {"vocab": words, "merges": merges}}, ensure_ascii=False).encode()
    with at_most(1_000_000):
        assert codes(data) == set()


def test_a_file_too_large_is_not_read() -> None:
    huge: Any = SimpleNamespace(size=MAX_SIZE + 1, bytes_read=0)  # nothing can be read of it
    with pytest.raises(Damage) as e:
        read_json(huge)
    assert e.value.finding.code == "too-complex"


def test_a_trainer_state_without_a_step_is_something_else(tmp_path: Path) -> None:
    for name in ("trainer_state.json", "config.json"):
        (tmp_path / name).write_text('{"_from_model_config": true, "eos_token_id": 2}\n')
    seen = verify([str(tmp_path)], settle=0).files
    found = {f.report.path.rpartition("/")[2]: [x.code for x in f.report.findings] for f in seen}
    assert found == {"config.json": [], "trainer_state.json": ["bad-header"]}


def test_an_entry_that_is_required_is_not_looked_for_in_settings(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}\n')
    assert verify([str(tmp_path)], settle=0, require=("model",)).verdict is Verdict.OK
