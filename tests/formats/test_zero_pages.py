"""Lost pages among numbers are found, and zeros that somebody wrote are no alarm."""

from __future__ import annotations

from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.formats.common.zeros import MANY, PAGE, find_lost_pages, find_zero_pages, join_runs
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import BytesSource

np: Any = pytest.importorskip("numpy")


def found(data: bytes, *tensors: Tensor) -> list[Finding]:
    return list(find_lost_pages(BytesSource(data), tensors, find_zero_pages(0, memoryview(data))))


def normal(*shape: int) -> Any:
    return (np.random.default_rng(1).normal(size=shape) * 0.02).astype("<f4")


def lost(data: bytes, *pages: int) -> bytes:
    out = bytearray(data)
    for page in pages:
        out[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    return bytes(out)


def test_a_lost_page() -> None:
    data = b"\1" * 1000 + normal(90, 100).tobytes()
    t = Tensor("layer.weight", "float32", (90, 100), 36_000, 1000)
    assert found(data, t) == []
    for page in range(1, 8):
        (f,) = found(lost(data, page), t)
        assert (f.code, f.offset) == ("zero-pages", page * PAGE)
        assert "'layer.weight'" in f.message
    (f,) = found(lost(data, 3, 4), t)
    assert (f.offset, f.message.split()[0]) == (3 * PAGE, str(2 * PAGE))


def test_a_page_across_two_tensors() -> None:
    weight, bias = normal(30, 100), normal(2000)
    data = b"\1" * 1000 + weight.tobytes() + bias.tobytes()
    tensors = Tensor("w", "float32", (30, 100), 12_000, 1000), Tensor("b", "float32", (2000,), 8000, 13_000)
    assert [f.offset for f in found(lost(data, 3), *tensors)] == [3 * PAGE]
    assert found(lost(data, 4), *tensors) == []  # in a vector alone


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float8_e4m3fn"])
def test_other_types_prove_nothing(dtype: str) -> None:
    data = lost(b"\1" * 40_000, 3)
    assert found(data, Tensor("w", dtype, (100, 100), 40_000, 0)) == []


def test_patterns_are_no_accidents() -> None:
    data = b"\1" * 1000 + normal(900, 100).tobytes()
    t = Tensor("w", "float32", (900, 100), 360_000, 1000)
    assert len(found(lost(data, *range(1, 2 * MANY, 2)), t)) == MANY
    assert found(lost(data, *range(1, 2 * MANY + 2, 2)), t) == []


def pruned(where: Any, numbers: Any) -> Any:
    return np.where(where, 0, numbers).astype("<f4")


DICE = np.random.default_rng(2).random((200, 1024))
GOOD = {
    "lower triangle": np.tril(np.ones((2048, 2048), "<f4")),
    "upper triangle": np.triu(normal(1024, 1024)),
    "identity": np.eye(1024, dtype="<f4"),
    "padded columns": np.pad(normal(96, 3072), ((0, 0), (0, 1024))),
    "padded rows": np.pad(normal(96, 4096), ((0, 4), (0, 0))),
    "a token's row": pruned(np.arange(100)[:, None] == 50, normal(100, 1024)),
    "two heads": pruned(
        (np.arange(4096) // 1024 == 2) & (np.arange(100)[:, None] // 2 == 3), normal(100, 4096)
    ),
    "half pruned": pruned(DICE < 0.5, normal(200, 1024)),
    "nearly all pruned": pruned(DICE < 0.995, normal(200, 1024)),
    "zeros": np.zeros((100, 1024), "<f4"),
    "a pruned filter": pruned(np.arange(64)[:, None, None, None] == 9, normal(64, 128, 3, 3)),
}


@pytest.mark.parametrize("name", GOOD)
def test_zeros_that_somebody_wrote(name: str) -> None:
    """At every kind of alignment, the worst included: the tensor begins with a page."""
    numbers = GOOD[name]
    assert not numbers.all()
    for offset in PAGE, PAGE + 8, PAGE + 64, 2 * PAGE - 512:
        data = b"\1" * offset + numbers.tobytes() + b"\1" * PAGE
        assert found(data, Tensor("w", "float32", numbers.shape, numbers.nbytes, offset)) == []


KINDS = st.lists(st.sampled_from([b"\0", b"\1"]), max_size=12)


@examples(100)
@given(KINDS, st.integers(0, 2 * PAGE), st.integers(1, 3 * PAGE))
def test_pages_are_found_however_the_bytes_are_cut(kinds: list[bytes], shift: int, step: int) -> None:
    """Whole pages of zeros, as far as each piece holds them whole; all of them when the pieces are pages."""
    data = b"".join(k * PAGE for k in kinds)
    runs = [(i * PAGE, (i + 1) * PAGE) for i, k in enumerate(kinds) if k == b"\0"]
    assert list(find_zero_pages(0, memoryview(data))) == join_runs(runs)
    assert list(find_zero_pages(shift, memoryview(data)[shift:])) == join_runs(
        r for r in runs if r[0] >= shift
    )
    pieces = [
        r for at in range(0, len(data), step) for r in find_zero_pages(at, memoryview(data)[at : at + step])
    ]
    assert all(data[a:b] == bytes(b - a) and a % PAGE == b % PAGE == 0 for a, b in pieces)
    if step % PAGE == 0:
        assert join_runs(pieces) == join_runs(runs)
