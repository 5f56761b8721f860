"""A bit that is flipped between the store and here leads to no older checkpoint, no verdict and no seal: what
gives orders is read so that a flip shows, and what looks damaged is read once more, whoever reads it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from places import FIXTURES
from scheduled import Threads
from stores.asking import as_user, ask
from stores.bucket import Bucket
from stores.calls import URL, Call, Calls, Fault

from ckpt_tools import api
from ckpt_tools.model.report import Level
from ckpt_tools.reading.engines import Engine
from ckpt_tools.storage import attempts
from ckpt_tools.storage.stores import mounts

ROOT = f"{URL}/run"
STATES = (".pt", ".pth", ".bin", ".safetensors", ".distcp")
TREES = {
    "megatron/tp": ("--order", "tracker"),
    "deepspeed/zero1": ("--order", "tracker"),
    "dcp/two": (),
    "hf-trainer/sharded": (),
    "tensorflow/manager": (),
}


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Fault | None], Calls]]:
    """Makes the bucket whose calls meet a fault: a directory of this machine, whose ETags prove nothing."""
    for name in ("user", "top"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(attempts, "pause", lambda _seconds: None)
    now = [Calls(tmp_path / "top")]
    monkeypatch.setattr(mounts, "opened", lambda *_: now[0])

    def made(fault: Fault | None) -> Calls:
        now[0] = Calls(tmp_path / "top", fault)
        mounts.forget()
        return now[0]

    with as_user(tmp_path / "user", Bucket(URL, "", {}, None)):  # type: ignore[arg-type]
        yield made


def flips(calls: list[Call], keys: tuple[str, ...] = ()) -> Iterator[Fault]:
    """Other bytes in the first and in the second answer about each key, and in each answer others."""
    of = dict.fromkeys(c.key for c in calls if c.kind == "read" and (not keys or c.key in keys))
    for key in of:
        for what in ("flipped", "other digits"):
            yield from (Fault(what, Call("read", key, number), stays=False) for number in (1, 2))
        yield Fault("other digits", Call("read", key, 1), stays=True)


@pytest.mark.share(3)
@pytest.mark.parametrize("case", TREES)
def test_what_gives_orders(case: str, tmp_path: Path, behind: Callable[[Fault | None], Calls]) -> None:
    tree = FIXTURES / f"layouts/{case}/tree"
    shutil.copytree(tree, tmp_path / "top/run")
    words = ("plan", ROOT, "--json", "--level", "structure", *TREES[case])
    orders = tuple(
        f"run/{path.relative_to(tree)}"
        for path in tree.rglob("*")
        if path.is_file() and path.suffix not in STATES
    )
    calls = behind(None).calls
    usual = ask(*words)
    assert usual.code == 0
    tried = list(flips(calls, orders))
    assert tried
    for fault in tried:
        behind(fault)
        said = ask(*words)
        assert fault.met or fault.call.number > 1, fault
        same = said.code == 0 and said.json["fingerprint"] == usual.json["fingerprint"]
        assert same or said.code == 5, (fault, said.text)


def test_what_workers_read(tmp_path: Path, behind: Callable[[Fault | None], Calls]) -> None:
    shutil.copytree(FIXTURES / "layouts/megatron/tp/tree/iter_0000030", tmp_path / "top/run/iter_0000030")
    calls = behind(None).calls
    key = "run/iter_0000030/mp_rank_00/model_optim_rng.pt"
    with Threads() as threads:
        engine = Engine(threads, "threads")
        api.verify([ROOT], Level.CONTENT, engine=engine)
        numbers = [c.number for c in calls if c.kind == "read" and c.key == key]
        for number in numbers[:: max(1, len(numbers) // 4)]:
            fault = Fault("garbled", Call("read", key, number), stays=False)
            behind(fault)
            done = api.verify([ROOT], Level.CONTENT, engine=engine)
            verdicts = {
                row.report.path.rpartition("/run/")[2]: row.report.verdict.value for row in done.files
            }
            assert fault.met and verdicts.pop(key[4:]) in ("ok", "unknown"), (fault, done)
            assert set(verdicts.values()) == {"ok"}
