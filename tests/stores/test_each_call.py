"""Whichever of a command's calls to a store goes wrong: the answer is the usual one, that nobody could look, or
what is seen; nothing older is chosen without a word, nothing half written is taken for whole, and the next
command goes on where this one was ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import FIXTURES
from stores.asking import Said, ask
from stores.calls import FAULTS, Call, Desk, Fault, contents, desk_of
from stores.commands import READERS

TREES = {
    "megatron": ("megatron/tp", "iter_0000010", "iter_0000030", "mp_rank_00/model_optim_rng.pt"),
    "trainer": ("hf-trainer/trainer", "checkpoint-15", "checkpoint-20", "model.safetensors"),
    "deepspeed": ("deepspeed/zero1", "", "", ""),
    "dcp": ("dcp/two", "", "", ""),
}
HAVE_TRACKERS = ("megatron", "deepspeed")
OF_ANY = {
    **{
        name: line for name, line in READERS.items() if name not in ("show", "verify a file", "diff", "watch")
    },
    "plan or none": "plan @ --allow none,missing --json",
    "hook --stage": "hook @ --stage home/ssd --json --plan-dir home/plans",
    "seal --seal-dir": "seal @ --seal-dir home/seals --json",
    "watch": "watch @ --once --state-dir home/watched",
    "watch --seal": "watch @ --once --seal --settle 0s --state-dir home/watched",
    "seal": "seal @ --json",
    "prune": "prune @ --keep-last 1 --apply --json --state-dir home/pruned",
    "report": "report @ -o home/page.html",
}
OF_TWO = {
    "show": "show @/{new}/{file} --json",
    "verify a file": "verify @/{new}/{file} --level content --json",
    "diff": "diff @/{old} @/{new} --json",
    "diff LOCAL": "diff {local}/{new} @/{new} --json",
}
ARCHIVES = (".pt", ".pth", ".bin", ".distcp")
ONCE = ("denied", "refused", "stalled")
NOBODY_KNOWS = (*ONCE, "broken off", "expired")
"""What tells nothing of whether an object has changed."""
CHOOSE = ("plan", "latest", "hook", "stage")
WRITE = ("seal", "watch --seal", "prune")


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    case, old, new, file = TREES[request.param]
    with desk_of(FIXTURES / f"layouts/{case}/tree", tmp_path) as made:
        made.words = {"old": old, "new": new, "file": file, "local": str(made.tree)}
        yield made


def faults(calls: list[Call], turn: int, *, every: bool) -> Iterator[Fault]:
    """By day one fault of a call of each kind, the first or the last, others from one command to the next; at
    night all of the first call about each key and of the last one, from which on nothing stays.
    """
    known: dict[Any, list[Call]] = {}
    for call in calls:
        known.setdefault(call[:2] if every else call.kind, []).append(call)
    for of in known.values():
        for call in {of[0]: None, of[-1]: None} if every else [of[-(turn % 2)]]:
            all_of = [(what, False) for what in FAULTS[call.kind]]
            if not every or call is of[0]:  # what was refused once nobody asks for again
                all_of += [(what, True) for what in FAULTS[call.kind] if not every or what not in ONCE]
            for what, then in all_of if every else [all_of[turn * 5 % len(all_of)]]:
                yield Fault(what, call, then)


def expiries(calls: list[Call], turn: int, *, every: bool) -> Iterator[Fault]:
    """The credentials expire before one of the calls: at night before some all over the command, by day
    before one further on from one command to the next.
    """
    for call in calls[:: 1 + len(calls) // 10] if every else [calls[turn % len(calls)]]:
        yield Fault("expired", call, stays=True, of_store=True)


def states(said: Said) -> Any:
    """How many checkpoints are good, bad, waiting … after the last pass of ``ckpt watch``."""
    events = [json.loads(line) for line in said.printed.splitlines()]
    return [event["checkpoints"] for event in events if event["type"] == "pass"][-1]


def newest(files: dict[str, bytes], usual: dict[str, bytes]) -> dict[str, bytes]:
    """What the command left where nothing went wrong, without seals."""
    return {name: files.get(name, b"") for name in usual if ".ckpt-seal" not in name}


def check_answer(command: str, fault: Fault, said: Said, usual: Said, *, as_kept: bool) -> None:
    assert said.code != 70 and "Traceback" not in said.error, said.text
    if as_kept:  # as if the store had it so: told of what holds tensors, and never less than that
        told = said.code != usual.code or said.step == usual.step or "skipped" in said.error
        assert told or not fault.call.key.endswith(ARCHIVES), said.text
        return
    allowed = {usual.code, 5}
    if command.startswith("diff") and fault.what in ("gone", "empty"):
        allowed.add(2)  # there is nothing of that name
    if command.startswith("diff") and fault.what == "flipped":
        allowed.add(1)  # two files that differ: no checksum says which is right
    assert said.code in allowed, said.text
    if command.startswith(CHOOSE) and said.code == 0:
        assert said.step == usual.step, said.text
    if command.startswith("seal") and said.code == 0 and fault.what in NOBODY_KNOWS:
        assert said.json["summary"]["in-use"] == 0, said.text
    if command.startswith("watch") and said.code == 0 and fault.what in NOBODY_KNOWS:
        assert states(said) == states(usual), said.text
    if command.startswith("verify") and said.code == 0:
        flipped = ["suspect"] * (fault.what == "flipped")  # a tracker's digit
        assert said.json["verdict"] in (usual.json["verdict"], *flipped)
        assert len(said.json["files"]) == len(usual.json["files"])


def shows(desk: Desk, fault: Fault) -> bool:
    """Whether the bytes that came tell by themselves that one of them has flipped: those between the records of
    an archive do not.
    """
    key, (start, came) = fault.call.key, fault.came
    if not key.endswith(ARCHIVES) or not came:
        return key.endswith((*ARCHIVES, ".ckpt-seal.json"))
    data = (desk.tree / key.removeprefix("run/")).read_bytes()
    path = desk.home / "home" / key.rpartition("/")[2]
    path.write_bytes(data[:start] + came + data[start + len(came) :])
    return ask("verify", str(path), "--level", "content").code != 0


def check_stage(desk: Desk, said: Said, usual: dict[str, bytes]) -> None:
    """A directory with the name of a whole one is whole."""
    home = desk.home / "home/ssd"
    for whole in home.glob("*") if home.exists() else ():
        if re.search(r"-[0-9a-f]{16}$", whole.name):
            assert said.code == 0
            assert {k: v for k, v in contents(whole).items() if k != ".ckpt-stage.json"} == usual


def check_store(
    desk: Desk, command: str, line: str, said: Said, usual: dict[str, bytes], last: Any, *, judged_bad: bool
) -> None:
    """What lies there now is sound, and what the command has not done the next one does."""
    assert newest(contents(desk.top), usual) == newest(usual, usual), said.text
    if command != "prune":  # which leaves what is no checkpoint any more to the next one
        assert desk.ask("verify @ --level content --json").code == 0
    assert desk.ask("plan @ --json").step == last
    again = desk.ask(line)
    assert again.code == 0, again.text
    if not judged_bad:  # which is looked at again with the next scrub
        assert contents(desk.top).keys() == usual.keys(), again.text


def go_through(desk: Desk, command: str, turn: int, *, every: bool) -> int:
    desk.fresh()
    usual = desk.ask(line := LINES[command].format(**desk.words))
    assert usual.code in (0, 1) and "Traceback" not in usual.error, usual.text
    calls, left = desk.store.calls, contents(desk.top)
    staged = [contents(p) for p in (desk.home / "home").glob("ssd/*-*") if p.name != ".ckpt-stage"]
    whole = {k: v for files in staged for k, v in files.items() if k != ".ckpt-stage.json"}
    last, met = desk.ask("plan @ --json").step, 0
    for fault in (*faults(calls, turn, every=every), *expiries(calls, turn, every=every)):
        desk.fresh()
        said = desk.ask(line, fault)
        met += bool(fault.met)
        try:
            # nothing tells that it is not what this store has
            as_kept = fault.what == "flipped" and (fault.stays or not shows(desk, fault))
            check_answer(command, fault, said, usual, as_kept=as_kept)
            if as_kept:
                continue
            if said.step in (None, usual.step):  # an older one was chosen, and said why
                check_stage(desk, said, whole)
            if command in WRITE:
                judged_bad = command == "watch --seal" and (said.code == 1 or fault.what == "flipped")
                check_store(desk, command, line, said, left, last, judged_bad=judged_bad)
        except AssertionError as e:
            raise AssertionError(f"{command}: {fault}") from e
    return met


LINES = {**OF_ANY, **OF_TWO}
DAILY = [pytest.param("megatron", name, id=name) for name in LINES]
SAME = ("plan", "latest", "hook", "hook --stage", "seal --seal-dir", "watch", "report")
"""Commands that make the calls of others: those of one tree are enough."""
NIGHTLY = [
    pytest.param(tree, name, id=f"{tree}-{name}", marks=pytest.mark.exhaustive)
    for tree in TREES
    for name in (LINES if TREES[tree][1] else OF_ANY)
    if (name != "plan of the tracker" or tree in HAVE_TRACKERS) and (name not in SAME or tree == "megatron")
]


@pytest.mark.share(6)
@pytest.mark.parametrize(("desk", "command"), DAILY, indirect=["desk"])
def test_one_call_that_goes_wrong(desk: Desk, command: str) -> None:
    assert go_through(desk, command, list(LINES).index(command), every=False)


@pytest.mark.parametrize(("desk", "command"), NIGHTLY, indirect=["desk"])
def test_each_call_that_goes_wrong(desk: Desk, command: str) -> None:
    assert go_through(desk, command, 0, every=True)


@pytest.mark.parametrize("what", ["denied", "gone"])
@pytest.mark.parametrize("desk", ["dcp"], indirect=True)
def test_who_watches_takes_an_index_that_nobody_can_read_for_no_damage(desk: Desk, what: str) -> None:
    """Not where its verdict is known of an earlier command, either."""
    desk.fresh()
    assert desk.ask(LINES["watch --seal"]).code == 0
    desk.fresh()
    fault = Fault(what, Call("read", "run/step-10/.metadata", 1), stays=True)
    said = desk.ask(LINES["watch --seal"], fault)
    assert fault.met and said.code != 1, said.text
    events = [event for line in said.printed.splitlines() if "step" in (event := json.loads(line))]
    assert {event["step"]: event["state"] for event in events} == {10: "unknown", 20: "good"}
