"""``ckpt diff --level values``: how far apart the numbers of changed tensors are. On files of torch."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from in_process import executed

from ckpt_tools import Level, diff

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
    code, out, _ = executed(["diff", str(a), str(b), "--level", "values", "--json"])
    tensors = {t["name"]: t["largest_difference"] for t in json.loads(out)["files"][0]["tensors"]}
    assert (code, tensors) == (1, {"w": 0.5, "v": "Infinity"})


def test_the_first_line_tells_it(tmp_path: Path) -> None:
    a = save(tmp_path / "a.pt", w=torch.zeros(3), v=torch.zeros(3), same=torch.ones(3))
    b = save(tmp_path / "b.pt", w=torch.ones(3) / 4, v=torch.ones(3) / 8, same=torch.ones(3))
    _, out, _ = executed(["diff", str(a), str(b), "--level", "values"])
    assert out.startswith("they differ: 2 changed of 3 tensors; the largest difference is 0.25, in 'w'\n")
    assert "largest" not in executed(["diff", str(a), str(b)])[1]
