"""Whichever of a command's calls to a store goes wrong: the answer is the usual one, that nobody could look, or
what is seen; nothing older is chosen without a word, nothing half written is taken for whole, and the next
command goes on where this one was ended. A bit that is flipped on its way leads to no older checkpoint and no verdict:
what gives orders is read so that a flip shows, and what looks damaged is read once more, whoever reads it. Nothing is
deleted on the ground of what could not be read. And in a tree of any layout, whichever object may not be read, is gone,
replaced or breaks off, the plan is the same, or that nobody could look.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import CASES, FIRST
from places import FIXTURES
from stores.asking import NEWEST, READERS, Said, ask
from stores.calls import FAULTS, URL, Call, Desk, Fault, contents, desk_of

from ckpt_tools import api
from ckpt_tools.model.report import Level
from ckpt_tools.reading.engines import Engine

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
    "prune": "prune @ --keep-last 1 --apply --json",
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
    case, old, new, file = TREES.get(request.param, (request.param, "", "", ""))
    with desk_of(FIXTURES / f"layouts/{case}/tree", tmp_path) as made:
        made.words = {"old": old, "new": new, "file": file, "local": str(made.tree)}
        made.fresh()
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
    if command == "prune":  # what is no checkpoint any more stays, and nothing else is lost
        judged_bad = contents(desk.top).keys() >= usual.keys()
    else:
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
    assert desk.ask(LINES["watch --seal"]).code == 0
    desk.fresh()
    fault = Fault(what, Call("read", "run/step-10/.metadata", 1), stays=True)
    said = desk.ask(LINES["watch --seal"], fault)
    assert fault.met and said.code != 1, said.text
    events = [event for line in said.printed.splitlines() if "step" in (event := json.loads(line))]
    assert {event["step"]: event["state"] for event in events} == {10: "unknown", 20: "good"}


# ---- flipped on its way

ORDERS = {
    "megatron/tp": ("--order", "tracker"), "deepspeed/zero1": ("--order", "tracker"), "dcp/two": (), "hf-trainer/sharded": (),
    "tensorflow/manager": (),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize(("desk", "more"), ORDERS.items(), ids=ORDERS, indirect=["desk"])
def test_what_gives_orders(desk: Desk, more: tuple[str, ...]) -> None:
    """Other bytes in the first and in the second answer about each key, and in each answer others."""
    line = " ".join(("plan @ --json --level structure", *more))
    usual = desk.ask(line)
    assert usual.code == 0
    read = dict.fromkeys(call.key for call in desk.store.calls if call.kind == "read")
    orders = [key for key in read if not key.endswith((*ARCHIVES, ".safetensors"))]
    assert orders
    for key, what, number in product(orders, ("flipped", "other digits"), (1, 2, 0)):
        if number or what == "other digits":
            fault = Fault(what, Call("read", key, number), stays=not number)
            said = desk.ask(line, fault)
            assert fault.met or number == 2, fault
            same = said.code == 0 and said.json["fingerprint"] == usual.json["fingerprint"]
            assert same or said.code == 5, (fault, said.text)


@pytest.mark.parametrize("desk", ["megatron/tp"], indirect=True)
def test_what_workers_read(desk: Desk) -> None:
    for save in ("iter_0000010", "iter_0000020"):
        shutil.rmtree(desk.top / "run" / save)
    calls, key = desk.behind(None).calls, f"run/{NEWEST}"
    with ThreadPoolExecutor(2) as threads:
        engine = Engine(threads, "threads")
        api.verify([f"{URL}/run"], Level.CONTENT, engine=engine)
        numbers = [c.number for c in calls if c.kind == "read" and c.key == key]
        for number in numbers[:: max(1, len(numbers) // 4)]:
            fault = Fault("garbled", Call("read", key, number), stays=False)
            desk.behind(fault)
            done = api.verify([f"{URL}/run"], Level.CONTENT, engine=engine)
            reports = (row.report for row in done.files)
            verdicts = {r.path.rpartition("/run/")[2]: r.verdict.value for r in reports}
            assert fault.met and verdicts.pop(NEWEST) in ("ok", "unknown"), (fault, done)
            assert set(verdicts.values()) == {"ok"}


# ---- no reason to delete

PRUNE = "prune @ --keep-last 1 --damaged --apply --json"
UNREADABLE = [("denied", True), ("garbled", False), ("gone", True), ("refused", True), ("broken off", True)]
PRUNED = ("dcp/two", "megatron/tp", "hf-trainer/sharded", "tensorflow/manager", "deepspeed/zero1")
UNREAD = [
    pytest.param("dcp/two", r"/(\.metadata|__0_0.distcp)$", 2, id="prune"),
    *(pytest.param(case, "", None, id=f"{case}-prune", marks=pytest.mark.exhaustive) for case in PRUNED),
]
"""The tree, the keys that meet a fault, and how many faults."""


def left_by(desk: Desk, fault: Fault | None) -> set[str]:
    """The keys that are there after the command."""
    desk.fresh()
    said = desk.ask(PRUNE, fault)
    assert said.code != 70, said.text
    return set(contents(desk.top))


@pytest.mark.share(2)
@pytest.mark.parametrize(("desk", "of", "most"), UNREAD, indirect=["desk"])
def test_what_cannot_be_read_is_no_reason(desk: Desk, of: str, most: int | None) -> None:
    whole = {f"run/{path.relative_to(desk.tree)}" for path in desk.tree.rglob("*") if path.is_file()}
    left = left_by(desk, None)
    assert left < whole
    keys = dict.fromkeys(c.key for c in desk.store.calls if c.kind == "read" and re.search(of, c.key))
    assert keys
    for key in keys:
        for what, stays in UNREADABLE[:most]:
            fault = Fault(what, Call("read", key, 1), stays)
            now = left_by(desk, fault)
            assert fault.met and now in (whole, left), (fault, sorted(left - now))
            if stays and key in left:  # what all else would be kept for
                assert now == whole, fault


# ---- of any layout

REFUSING = ("denied", "replaced", "broken off", "gone")


def of_layouts() -> Iterator[Any]:
    """One object and one fault of each layout in turn; at night every object of every tree, gone and with one
    of the other faults in turn, which differ in their words alone.
    """
    for number, (layout, case) in enumerate(FIRST.items()):
        yield pytest.param(f"{layout}/{case.parent.name}", number, id=layout)
    for layout, name in (case.parts[-3:-1] for case in CASES):
        yield pytest.param(f"{layout}/{name}", None, id=f"{layout}-{name}", marks=pytest.mark.exhaustive)


def chosen(said: Said) -> Any:
    """The step, and the checkpoint. A copy may stand in for a file, and give its name to a bare one."""
    body, path = said.json, said.json["checkpoint"]["path"]
    loaded = {f["path"] for f in (*body["shared"], *(f for rank in body["ranks"] for f in rank["files"]))}
    return said.step, body["checkpoint"]["layout"], "" if path in loaded else path


@pytest.mark.share(12)
@pytest.mark.parametrize(("desk", "turn"), list(of_layouts()), indirect=["desk"])
def test_no_object_that_cannot_be_read_makes_another_plan(desk: Desk, turn: int | None) -> None:
    usual = desk.ask("plan @ --json")
    keys = list(dict.fromkeys(call.key for call in desk.store.calls if call.kind == "read"))
    if turn is None:
        tried = [(key, what) for n, key in enumerate(keys) for what in ("gone", REFUSING[n % 3])]
    else:
        tried = [(key, REFUSING[turn % 4]) for key in keys[turn % max(1, len(keys)) :][:1]]
    for key, what in tried:
        said = desk.ask("plan @ --json", Fault(what, Call("read", key, 0), stays=True))
        assert said.code in (usual.code, 5), (key, what, said.text)
        assert said.code or chosen(said) == chosen(usual), (key, what, said.text)
