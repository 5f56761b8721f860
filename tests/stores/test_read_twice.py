"""A bit that is flipped between the store and here leads to no older checkpoint, no verdict and no seal: what
gives orders is read so that a flip shows, and what looks damaged is read once more, whoever reads it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import FIXTURES
from scheduled import Threads
from stores.asking import NEWEST, ask
from stores.calls import URL, Call, Desk, Fault, desk_of

from ckpt_tools import api
from ckpt_tools.model.report import Level
from ckpt_tools.reading.engines import Engine

ROOT = f"{URL}/run"
STATES = (".pt", ".pth", ".bin", ".safetensors", ".distcp")
TREES = {
    "megatron/tp": ("--order", "tracker"), "deepspeed/zero1": ("--order", "tracker"), "dcp/two": (), "hf-trainer/sharded": (),
    "tensorflow/manager": (),
}  # fmt: skip


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    """Its bucket is a directory of this machine, whose ETags prove nothing."""
    with desk_of(FIXTURES / f"layouts/{request.param}/tree", tmp_path) as made:
        made.fresh()
        yield made


def flips(calls: list[Call], keys: tuple[str, ...] = ()) -> Iterator[Fault]:
    """Other bytes in the first and in the second answer about each key, and in each answer others."""
    of = dict.fromkeys(c.key for c in calls if c.kind == "read" and (not keys or c.key in keys))
    for key in of:
        for what in ("flipped", "other digits"):
            yield from (Fault(what, Call("read", key, number), stays=False) for number in (1, 2))
        yield Fault("other digits", Call("read", key, 1), stays=True)


@pytest.mark.share(3)
@pytest.mark.parametrize(("desk", "more"), TREES.items(), ids=TREES, indirect=["desk"])
def test_what_gives_orders(desk: Desk, more: tuple[str, ...]) -> None:
    words = ("plan", ROOT, "--json", "--level", "structure", *more)
    files = (path for path in desk.tree.rglob("*") if path.is_file() and path.suffix not in STATES)
    orders = tuple(f"run/{path.relative_to(desk.tree)}" for path in files)
    calls = desk.behind(None).calls
    usual = ask(*words)
    assert usual.code == 0
    tried = list(flips(calls, orders))
    assert tried
    for fault in tried:
        desk.behind(fault)
        said = ask(*words)
        assert fault.met or fault.call.number > 1, fault
        same = said.code == 0 and said.json["fingerprint"] == usual.json["fingerprint"]
        assert same or said.code == 5, (fault, said.text)


@pytest.mark.parametrize("desk", ["megatron/tp"], indirect=True)
def test_what_workers_read(desk: Desk) -> None:
    for save in ("iter_0000010", "iter_0000020"):
        shutil.rmtree(desk.top / "run" / save)
    calls, key = desk.behind(None).calls, f"run/{NEWEST}"
    with Threads() as threads:
        engine = Engine(threads, "threads")
        api.verify([ROOT], Level.CONTENT, engine=engine)
        numbers = [c.number for c in calls if c.kind == "read" and c.key == key]
        for number in numbers[:: max(1, len(numbers) // 4)]:
            fault = Fault("garbled", Call("read", key, number), stays=False)
            desk.behind(fault)
            done = api.verify([ROOT], Level.CONTENT, engine=engine)
            reports = (row.report for row in done.files)
            verdicts = {r.path.rpartition("/run/")[2]: r.verdict.value for r in reports}
            assert fault.met and verdicts.pop(NEWEST) in ("ok", "unknown"), (fault, done)
            assert set(verdicts.values()) == {"ok"}
