"""The values level: counts agree with numpy's own functions, flipped exponent bits are found, and what good
checkpoints hold is no alarm.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES

from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.tensors import KINDS, list_chosen, value
from ckpt_tools.inspection import tensor_values as module
from ckpt_tools.inspection.check import inspect
from ckpt_tools.inspection.tensor_values import CHUNK, LISTED, Stats, values
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Level, Tensor
from ckpt_tools.storage import BytesSource

np: Any = pytest.importorskip("numpy")
torch: Any = pytest.importorskip("torch")
WIDTHS = {"float64": "<f8", "float32": "<f4", "float16": "<f2"}


def run(data: bytes, *tensors: Tensor) -> tuple[list[Finding], list[Stats]]:
    anatomy = Anatomy()
    anatomy.tensors = list(tensors)
    return list(values(BytesSource(data), anatomy)), anatomy.stats


def one(data: bytes, dtype: str, *shape: int) -> tuple[set[str], Stats]:
    """The codes that are more than notes, and the counts, of a file that is one tensor."""
    found, stats = run(data, Tensor("w", dtype, shape or (len(data) // KINDS[dtype].width,), len(data), 0))
    return {f.code for f in found if f.severity > Severity.NOTE}, stats[0]


def encoded(numbers: Any, dtype: str) -> Any:
    """Bit patterns of numbers, bfloat16 rounded to nearest."""
    if dtype == "bfloat16":
        rounded = torch.from_numpy(np.asarray(numbers, "f4").copy()).to(torch.bfloat16)
        return rounded.view(torch.uint16).numpy()
    return np.asarray(numbers).astype(WIDTHS[dtype]).view(WIDTHS[dtype].replace("f", "u"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", ["float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float16", "bfloat16"]
)
def test_every_pattern_of_the_small_types(dtype: str) -> None:
    """All of them in one tensor, against torch."""
    kind = KINDS[dtype]
    raw = np.arange(1 << 8 * kind.width, dtype=f"<u{kind.width}")
    wide = torch.from_numpy(raw.copy()).view(getattr(torch, dtype)).float().numpy()
    finite = wide[np.isfinite(wide)]
    smallest = 2.0 ** (1 - kind.bias)
    _, s = one(raw.tobytes(), dtype)
    assert (s.count, s.nan, s.inf) == (raw.size, np.isnan(wide).sum(), np.isinf(wide).sum())
    assert (s.zeros, s.denormal) == ((wide == 0).sum(), ((finite != 0) & (abs(finite) < smallest)).sum())
    assert (s.min, s.max) == (finite.min(), finite.max())
    for pattern in raw[np.isfinite(wide)]:
        assert value(int(pattern), kind) == wide[pattern]


@st.composite
def floats(draw: st.DrawFn) -> tuple[str, bytes]:
    dtype = draw(st.sampled_from(sorted(WIDTHS)))
    kind = KINDS[dtype]
    bits = 8 * kind.width
    around = (kind.special + d for d in (-1, 0, 1))
    odd = st.sampled_from([0, 1 << (bits - 1), *around, 1, (1 << kind.mantissa) - 1])
    patterns = draw(st.lists(st.integers(0, (1 << bits) - 1) | odd, min_size=1, max_size=30))
    return dtype, b"".join(p.to_bytes(kind.width, "little") for p in patterns)


@examples(100)
@given(floats())
def test_any_patterns_are_counted_as_numpy_counts_them(drawn: tuple[str, bytes]) -> None:
    dtype, data = drawn
    x = np.frombuffer(data, WIDTHS[dtype])
    finite = x[np.isfinite(x)]
    _, s = one(data, dtype)
    assert (s.count, s.nan, s.inf, s.zeros) == (x.size, np.isnan(x).sum(), np.isinf(x).sum(), (x == 0).sum())
    assert s.denormal == ((finite != 0) & (abs(finite) < np.finfo(x.dtype).smallest_normal)).sum()
    assert (s.min, s.max) == ((finite.min(), finite.max()) if finite.size else (None, None))


@pytest.mark.parametrize("dtype", sorted(WIDTHS))
def test_the_distribution_of_few_numbers_is_that_of_all(dtype: str) -> None:
    x = np.random.default_rng(7).normal(0, 0.02, 500).astype(WIDTHS[dtype])
    x[:5] = [0, np.nan, np.inf, -np.inf, -8]
    _, s = one(x.tobytes(), dtype)
    finite = x[np.isfinite(x) & (x != 0)].astype("f8")
    finite = finite[abs(finite) >= np.finfo(x.dtype).smallest_normal]
    powers, counts = np.unique(np.frexp(finite)[1] - 1, return_counts=True)
    assert list(s.magnitudes) == list(zip(powers.tolist(), counts.tolist(), strict=True))


@pytest.mark.slow
def test_a_distribution_is_small_however_wide_and_however_many_numbers() -> None:
    x = 2.0 ** np.random.default_rng(7).integers(-1000, 1000, 3_000_000)
    _, s = one(x.astype("<f8").tobytes(), "float64")
    assert 32 < len(s.magnitudes) <= module.POWERS + 1
    assert sum(n for _, n in s.magnitudes) < x.size / 10
    spread = [n for _, n in s.magnitudes[1:-1]]
    assert max(spread) < 5 * min(spread)
    assert one(np.zeros(100, "<f4").tobytes(), "float32")[1].magnitudes == ()
    lone = np.full(100_000, 0.01, "<f4")
    lone[77_777] = -1e30
    assert one(lone.tobytes(), "float32")[1].magnitudes[-1][1] == 1


def test_counts_and_places_across_chunks() -> None:
    x = np.ones(3 * CHUNK // 4 + 17, "<f4")
    x[[CHUNK // 4 - 1, CHUNK // 4, -1]] = np.nan
    x[5] = -np.inf
    x[-2] = 0
    found, stats = run(b"\x01" * 3 + x.tobytes(), Tensor("w", "float32", x.shape, x.nbytes, 3))
    assert (stats[0].nan, stats[0].inf, stats[0].zeros, stats[0].count) == (3, 1, 1, x.size)
    assert {f.code: f.offset for f in found} == {"nan-values": 3 + CHUNK - 4, "inf-values": 3 + 20}
    assert [f.severity for f in found] == [Severity.WARNING, Severity.NOTE]


def test_shared_bytes_count_once() -> None:
    """Views of one storage: the whole, a part, the same under another name, and as another type."""
    data = np.arange(1, 101, dtype="<f4").tobytes()
    names = [("head", 0, 400), ("tied", 0, 400), ("tail", 200, 200), ("overlap", 300, 100), ("bits", 0, 4)]
    tensors = [Tensor(n, "float32", (size // 4,), size, at) for n, at, size in names]
    found, stats = run(data + data[:40], *tensors, Tensor("rest", "float32", (20,), 80, 360))
    assert [(s.name, s.count) for s in stats] == [("head", 100), ("rest", 10)]
    assert not found


def test_what_is_not_in_the_file_is_passed_over() -> None:
    data = np.ones(10, "<f4").tobytes()
    rows = [("beyond", 11, 44, 0), ("nowhere", 10, 40, None), ("before", 2, 8, -4), ("huge", 1 << 60, 1 << 62, 8), ("odd", 1, 7, 32)]  # fmt: skip
    tensors = [Tensor(n, "float32", (count,), size, at) for n, count, size, at in rows]
    assert [(s.name, s.count) for s in run(data, *tensors)[1]] == [("odd", 1)]
    # the first that holds those bytes
    assert run(data, Tensor("text", "string", (), 40, 0), *tensors)[1] == []


def test_complex_numbers_are_two_each() -> None:
    _, s = one(np.array([1 + 2j, complex("nan"), -3j], "<c8").tobytes(), "complex64", 3)
    assert (s.count, s.nan, s.min, s.max) == (6, 1, -3.0, 2.0)


def test_progress_and_bytes_read() -> None:
    x = np.ones(CHUNK, "<f4")
    source, seen, anatomy = BytesSource(x.tobytes()), list[int](), Anatomy()
    anatomy.tensors = [Tensor("w", "float32", x.shape, x.nbytes, 0)]
    list(values(source, anatomy, seen.append))
    assert sum(seen) == source.bytes_read == x.nbytes
    assert max(seen) <= CHUNK <= 1 << 20


def test_many_damaged_tensors_are_counted_and_long_names_cut() -> None:
    n = LISTED + 5
    nan = struct.pack("<f", math.nan)
    found, stats = run(nan * n, *(Tensor(f"w{i}", "float32", (1,), 4, 4 * i) for i in range(n)))
    assert (len(stats), len(found), found[-1].message) == (n, LISTED + 1, "and 5 more tensors")
    found, _ = run(nan, Tensor("n" * 10_000, "float32", (1,), 4, 0))
    assert len(found[0].message) < 300


def test_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "ckpt_tools.inspection.tensor_values")
    report, _ = inspect(str(FORMAT_FILES / "torch_zip/good/dtypes.pt"), Level.VALUES)
    found = [f for f in report.findings if f.code == "needs-extra"]
    assert [f.severity for f in found] == [Severity.NOTE] and report.level is Level.CONTENT
    assert "pip install 'ckpt-tools[values]'" in found[0].hint


WEIGHTS: dict[str, Callable[[Any, int], Any]] = {
    "weights": lambda rng, n: rng.normal(size=n) * 0.02,
    "second moments": lambda rng, n: (rng.normal(size=n) * 1e-5) ** 2,
    "norms": lambda rng, n: 1 + rng.normal(size=n) * 0.1,
}


@pytest.mark.share(3)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_flip_of_the_highest_exponent_bit_is_found(dtype: str, weights: str) -> None:
    """It multiplies a number below 2 by 2**128 (float32): the only bit of the exponent that does so to nearly
    every weight.
    """
    rng, kind, found = np.random.default_rng(2), KINDS[dtype], 0
    for _ in range(25):
        bits = encoded(WEIGHTS[weights](rng, 4096), dtype).copy()
        i = rng.integers(bits.size)
        bits[i] ^= bits.dtype.type(1 << (8 * kind.width - 2))
        codes, s = one(bits.tobytes(), dtype, 64, 64)
        found += codes != set()
        assert s.absurd <= 1
    assert found >= 24  # 1.0 becomes infinity, which is a note


def test_the_place_of_an_absurd_value() -> None:
    x = np.random.default_rng(1).normal(size=(2000, 100)).astype("<f4") * 0.02
    x[1234, 56] = 3.1e37
    (found,), stats = run(x.tobytes(), Tensor("layer.weight", "float32", x.shape, x.nbytes, 0))
    assert (found.code, found.offset, stats[0].absurd) == ("absurd-values", (1234 * 100 + 56) * 4, 1)
    assert "'layer.weight'" in found.message and "3.1e+37" in found.message


RNG = np.random.default_rng(4)
NORMAL, BIG = RNG.normal(size=(64, 64)), float(np.finfo("f4").max)
CAUSAL = np.triu(np.ones((64, 64), bool), 1)
GOOD: dict[str, tuple[Any, str]] = {
    "mask of -inf": (np.where(CAUSAL, -np.inf, 0), "float32"),
    "mask of the lowest float": (np.where(CAUSAL, -BIG, NORMAL), "float32"),
    "mask of the lowest bfloat16": (np.where(CAUSAL, -3.3895313892515355e38, NORMAL), "bfloat16"),
    "mask of the lowest half": (np.where(CAUSAL, -65504, NORMAL), "float16"),
    "mask of -1e9": (np.where(CAUSAL, -1e9, NORMAL), "float32"),
    "one -1e30": (np.where(np.arange(4096).reshape(64, 64) == 77, -1e30, NORMAL), "float32"),
    "mask of -1e38 in bfloat16": (np.where(CAUSAL, -1e38, NORMAL), "bfloat16"),
    "mask of -0.7 max": (np.where(CAUSAL, -0.7 * BIG, NORMAL), "float32"),
    "mask of an odd constant": (np.where(CAUSAL, -1.2345e33, NORMAL), "float32"),
    "loss scale of half": (np.full(1, 65536.0), "float32"),
    "second moments around 1e-30": (np.abs(NORMAL) * 1e-30, "float32"),
    "second moments from 1e-40 to 1e-4": (10.0 ** RNG.uniform(-40, -4, 4096), "float32"),
    "unused embedding rows": (np.where(np.arange(64)[:, None] < 60, 0, NORMAL), "float32"),
    "unused rows that decayed": (np.where(np.arange(64)[:, None] < 60, NORMAL * 1e-38, NORMAL), "float32"),
    "step counters": (np.arange(4096) * 1e5, "float32"),
    "cumulative sums": (np.cumsum(np.abs(NORMAL) * 1e6), "float32"),
    "cumulative squares": (np.cumsum((NORMAL * 1e8) ** 2), "float32"),
    "all diverged": (np.abs(NORMAL) * 1e30, "float32"),
    "time stamps in ns among small statistics": (np.where(np.arange(4096) == 5, 1.7e18, NORMAL.ravel()), "float32"),
    "running variances of half": (np.where(np.arange(128) == 5, 6e4, 1e-3), "float16"),
    "outlier features of half": (np.where(np.arange(4096).reshape(64, 64) == 9, 300.0, NORMAL), "float16"),
    "few values": (np.array([1.0, 2.0, 3e37]), "float32"),
    "ones": (np.ones(4096), "float32"),
    "zeros": (np.zeros(4096), "bfloat16"),
    "doubles": (NORMAL * 1e-200, "float64"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good_values_are_no_alarm(name: str) -> None:
    numbers, dtype = GOOD[name]
    codes, s = one(encoded(numbers, dtype).tobytes(), dtype, *np.shape(numbers))
    assert (codes, s.absurd, s.nan) == (set(), 0, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_few_patterns_are_taken_for_chosen(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped bit must not hide among the round numbers; and ordinary weights are read once."""
    kind = KINDS[dtype]
    absurd = [p for p in list_chosen(kind) if p >> kind.mantissa >= kind.absurd + kind.bias]
    assert len(absurd) / (kind.special - ((kind.absurd + kind.bias) << kind.mantissa)) < 0.01
    monkeypatch.setattr(module, "_find_absurd", None)
    one(encoded(np.random.default_rng(3).normal(size=4096), dtype).tobytes(), dtype, 64, 64)


def test_kinds_are_what_torch_says() -> None:
    for name, kind in KINDS.items():
        info, bounds = torch.finfo(getattr(torch, name)), (kind.special - 1, 1 << kind.mantissa)
        told = (8 * kind.width, *(value(bits, kind) for bits in bounds))
        assert told == (info.bits, info.max, info.smallest_normal), name
