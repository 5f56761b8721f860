"""A node that is broken, of another version or taken over: whatever it says, the others ask (exit 2) and
follow nothing of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hostile_peer
import pytest
from hostile_peer import GONE, Lie
from places import TESTS
from run_helpers import CLEAN, SAY, broken, megatron
from two_nodes import WORLD, Nodes, free_port

from ckpt_tools import job
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.job import reported, wire
from ckpt_tools.job.boards import Files
from ckpt_tools.job.exchange import Meeting, meeting
from ckpt_tools.job.fetch import NotBrought, bring
from ckpt_tools.model.codec import decode_object, encode_object
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import FileLoad, RankLoad
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection

REFUSED = "says what no node of this job says"
LISTING, JUDGED, WANTED, OFFERS = 1, 2, 3, 4


class Two:
    """Two nodes in this process, each with its disk, that meet in a directory."""

    def __init__(self, tmp: Path) -> None:
        self.nodes, self.tmp = Nodes(tmp), tmp

    def decide(self, **options: Any) -> list[Any]:
        """What each of them came to: the decision, or its error."""

        def one(n: int) -> Any:
            mine = job.Options(
                agree=True, plan_dir=str(self.nodes.shared), job="j", node=n, nodes=2, timeout=600, **options
            )
            try:
                return job.decide(str(self.nodes.disks[n]), Selection(world_size=WORLD), mine)
            except Exception as error:
                return error

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, range(2)))


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def moved(two: Two) -> str:
    """Rank 2 has its file on the other node's disk; the command that brings it."""
    shutil.move(
        two.nodes.disks[1] / "iter_0000020/mp_rank_02", two.nodes.disks[0] / "iter_0000020/mp_rank_02"
    )
    script = two.tmp / "bring.sh"
    script.write_text(f'#!/bin/sh\necho "$1 $2" >>{two.tmp}/asked\nexec cp "$2" "$3"\n')
    script.chmod(0o755)
    return str(script)


def test_two_honest_nodes(two: Two) -> None:
    first, second = two.decide(transfer=moved(two))
    assert first.decision.step == second.decision.step == 20
    brought = second.decision.files(2)[0]["path"]
    assert brought.startswith(str(two.nodes.shared)) and brought.endswith(
        "iter_0000020/mp_rank_02/model_optim_rng.pt"
    )
    assert os.stat(brought).st_mtime_ns == second.decision.files(2)[0]["mtime_ns"]


SAYS: dict[str, tuple[int, Sequence[str | int], Any]] = {
    "a host that is an option": (LISTING, ["host"], "-oProxyCommand=reboot"),
    "a host for a shell": (LISTING, ["host"], "a;reboot"),
    "a host of two lines": (LISTING, ["host"], "a\nb"),
    "a host that is a number": (LISTING, ["host"], 5),
    "no host": (LISTING, ["host"], GONE),
    "more than there is": (LISTING, ["command"], "reboot"),
    "ranks without end": (LISTING, ["ranks"], [2, 1 << 62]),
    "ranks of the other node": (LISTING, ["ranks"], [0, 2]),
    "ranks that are none": (LISTING, ["ranks"], [2]),
    "a candidate above the root": (
        LISTING,
        ["candidates", 0, "id"],
        '["megatron", "../..", "", 20, null, null, null]',
    ),
    "a candidate elsewhere": (
        LISTING,
        ["candidates", 0, "id"],
        '["megatron", "/etc", "", 20, null, null, null]',
    ),
    "a candidate that is code": (LISTING, ["candidates", 0, "id"], "__import__('os').system('reboot')"),
    "a candidate that is nested": (LISTING, ["candidates", 0, "id"], "[" * 4000),
    "a path above the root": (LISTING, ["candidates", 0, "path"], "../../etc"),
    "a path elsewhere": (LISTING, ["candidates", 0, "path"], "/etc"),
    "a time that is none": (LISTING, ["candidates", 0, "mtime"], "now"),
    "a kind that is none": (LISTING, ["candidates", 0, "kind"], "mine"),
    "a step beyond all": (LISTING, ["candidates", 0, "step"], 1 << 80),
    "candidates that are none": (LISTING, ["candidates"], {"a": 1}),
    "an earlier start that is none": (LISTING, ["earlier"], [1, 2]),
    "neither yes nor no": (JUDGED, ["ok"], "yes"),
    "a finding of no kind": (JUDGED, ["findings", "+"], {"code": "truncated"}),
    "findings that are none": (JUDGED, ["findings"], "none"),
    "ranks wanted that are none": (WANTED, ["want"], ["2"]),
    "ranks wanted below zero": (WANTED, ["want"], [-1]),
    "a file above the target": (OFFERS, ["rows", 0, "below"], "../../../evil"),
    "a file that leads up": (OFFERS, ["rows", 0, "below"], "a/../../evil"),
    "a file elsewhere": (OFFERS, ["rows", 0, "below"], "/tmp/evil"),
    "a file without a name": (OFFERS, ["rows", 0, "below"], ""),
    "a file with NUL": (OFFERS, ["rows", 0, "below"], "a\0b"),
    "a file of two lines": (OFFERS, ["rows", 0, "below"], "a\nb"),
    "a file under another name": (OFFERS, ["rows", 0, "below"], "evil"),
    "a file of another node": (OFFERS, ["rows", 0, "node"], 1),
    "a file of no node": (OFFERS, ["rows", 0, "node"], 7),
    "a path that is an option": (OFFERS, ["rows", 0, "part", "path"], "-rf"),
    "a path that leads up": (OFFERS, ["rows", 0, "part", "path"], "/a/../b"),
    "a directory elsewhere": (OFFERS, ["rows", 0, "part", "home"], "/etc"),
    "a directory above": (OFFERS, ["rows", 0, "part", "home"], "../.."),
    "a base above": (OFFERS, ["rows", 0, "part", "base"], "x/../.."),
    "a piece of no layout": (OFFERS, ["rows", 0, "part", "piece"], "evil"),
    "another layout": (OFFERS, ["rows", 0, "part", "layout"], "dcp"),
    "a size that is none": (OFFERS, ["rows", 0, "part", "size"], -1),
    "a part with more": (OFFERS, ["rows", 0, "part", "command"], "reboot"),
    "a file of no rank": (OFFERS, ["rows", 0, "ranks"], []),
}
LOADED = 3
"""The exchange of what each rank loads, where all is sound at once."""
LATE: dict[str, tuple[int, Sequence[str | int], Any]] = {
    "what a rank of another node loads": (LOADED, ["ranks", 0, "rank"], 0),
    "a file that is relative": (LOADED, ["ranks", 0, "files", 0, "path"], "../x"),
    "a variable": (LOADED, ["ranks", 0, "files", 0, "LD_PRELOAD"], "x.so"),
    "a level that is none": (LOADED, ["ranks", 0, "files", 0, "level"], 99),
    "a fingerprint for a shell": (LOADED, ["fingerprint"], "$(reboot)"),
    "no ranks": (LOADED, ["ranks"], GONE),
    "anything when all is done": (LOADED + 1, ["env"], {"LD_PRELOAD": "x.so"}),
}


@pytest.mark.share(6)
@pytest.mark.parametrize("case", [*SAYS, *LATE])
def test_what_a_node_says_is_not_followed(two: Two, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Node 1, or node 0 where it has the file that is wanted, lies to the other one: both end with 2 and the
    reason, and nothing is written anywhere.
    """
    number, at, value = {**SAYS, **LATE}[case]
    transfer = moved(two) if case in SAYS else ""
    liar = 0 if number == OFFERS and case in SAYS else 1
    hostile_peer.tell(Lie(liar, number, at, value), monkeypatch.setattr)
    before = {p for p in two.tmp.rglob("*") if two.nodes.shared not in p.parents}
    errors = two.decide(transfer=transfer)
    honest = errors[1 - liar]
    assert isinstance(honest, UsageError) and (
        REFUSED in str(honest) or "not all ranks once" in str(honest)
    ), honest
    assert isinstance(errors[liar], Exception)
    assert {p for p in two.tmp.rglob("*") if two.nodes.shared not in p.parents} <= {*before, two.nodes.shared}
    assert not list(two.tmp.rglob("*evil*")) and not (two.tmp / "asked").exists()


TELLS: dict[str, tuple[int, Sequence[str | int], Any]] = {
    "a checkpoint of ours is none": (LISTING, ["order", 0], GONE),
    "no checkpoint anywhere": (LISTING, ["order"], []),
    "one checkpoint twice": (LISTING, ["order", 1, "id"], '["megatron", ".", "", 20, null, null, null]'),
    "we lack what we have": (LISTING, ["order", 0, "without"], [[1, False]]),
    "a node that is none lacks it": (LISTING, ["order", 0, "without"], [[9, False]]),
    "hosts that are options": (LISTING, ["hosts"], ["-a", "-b"]),
    "one host too many": (LISTING, ["hosts", "+"], "c"),
    "other ranks for us": (LISTING, ["ranks", 1], [0, 4]),
    "a path elsewhere": (LISTING, ["order", 0, "path"], "/etc"),
    "it is not usable, and nothing is wrong": (JUDGED, ["lacking"], [0]),
    "it is not usable here": (JUDGED, ["lacking"], [1]),
    "not usable without a node": (JUDGED, ["ok"], False),
    "a rank twice": (LOADED, ["ranks", "+"], {"rank": 0, "files": []}),
    "a rank of ours is missing": (LOADED, ["ranks", 2], GONE),
    "another rank of ours": (LOADED, ["ranks", 0, "rank"], 2),
    "a rank of nobody": (LOADED, ["ranks", "+"], {"rank": 77, "files": []}),
    "a file on a host of nobody": (LOADED, ["ranks", 0, "files", 0, "node"], "elsewhere"),
    "a fingerprint for a shell": (LOADED, ["fingerprint"], "$(reboot)"),
    "variables": (LOADED, ["env"], {"LD_PRELOAD": "x.so"}),
    "variables when all is done": (LOADED + 1, ["env"], {"LD_PRELOAD": "x.so"}),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("case", TELLS)
def test_what_the_first_node_tells_is_not_followed(
    two: Two, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    number, at, value = TELLS[case]
    hostile_peer.tell(Lie(0, number, at, value, told=True), monkeypatch.setattr)
    error = two.decide()[1]
    assert isinstance(error, UsageError) and REFUSED in str(error), error


def test_a_first_node_that_calls_sound_what_is_broken_here(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(two.nodes.disks[1], 20, 2)
    real = Meeting._conclude

    def concluding(self: Meeting, answer: Any) -> None:
        real(
            self,
            {"ok": True, "read": True, "findings": [], "lacking": []} if self.round == JUDGED else answer,
        )

    monkeypatch.setattr(Meeting, "_conclude", concluding)
    error = two.decide()[1]
    assert isinstance(error, UsageError) and REFUSED in str(error), error


def test_what_our_ranks_load_is_what_we_have_found(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile_peer.tell(
        Lie(0, LOADED, ["ranks", 2, "files", 0, "path"], "/etc/passwd", told=True), monkeypatch.setattr
    )
    mine = two.decide()[1]
    assert [f["path"] for f in mine.decision.files(2)] == [
        str(two.nodes.disks[1] / "iter_0000020/mp_rank_02/model_optim_rng.pt")
    ]


# -- a decision that one node makes for all ------------------------------------------------------------------


def test_a_decision_of_the_first_node_sets_no_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that share ROOT, and meet because their id may come back: the first one decides, the others check
    what they are told.
    """
    root = megatron(tmp_path / "run")

    def decide(lie: Lie | None) -> list[Any]:
        if lie:
            hostile_peer.tell(lie, monkeypatch.setattr)

        def one(n: int) -> Any:
            line = [
                "torchrun",
                "--nnodes=2",
                "--nproc-per-node=1",
                "--rdzv-id=same",
                f"--node-rank={n}",
                "train.py",
            ]
            try:
                return job.decide(
                    str(root), Selection(), job.Options(plan_dir=str(tmp_path / "plans"), timeout=600), line
                )
            except CkptError as error:
                return error

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, range(2)))

    assert [t.decision.step for t in decide(None)] == [20, 20]
    for at, value in (
        (["resume", "env"], {"LD_PRELOAD": "/tmp/evil.so"}),
        (["resume", "env"], {"PATH": "/tmp"}),
        (["resume", "env"], {"CKPT_TAG": "evil"}),
        (["resume", "args"], "--load"),
        (["resume", "args"], ["--load", "/etc"]),
        (["resume", "args", "+"], "--exec=evil"),
        (["resume", "path"], "/etc"),
        (["resume", "path"], "relative"),
        (["ranks"], []),
        (["ranks", 0, "files"], []),
        (["checkpoint"], None),
        (["decision"], {"root": "/"}),
    ):
        with monkeypatch.context() as patch:
            hostile_peer.tell(Lie(0, 1, at, value, told=True), patch.setattr)
            error = decide(None)[1]
            assert isinstance(error, UsageError) and REFUSED in str(error), (at, error)


# -- two real processes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("meet", ["files", pytest.param("torch", marks=pytest.mark.exhaustive)])
def test_a_real_node_that_lies(tmp_path: Path, meet: str) -> None:
    """One process runs the command, the other one takes part and then offers a file above the target."""
    if meet == "torch":
        pytest.importorskip("torch")
    two = Two(tmp_path)
    transfer = moved(two)
    where = (
        ["--rendezvous", f"127.0.0.1:{free_port()}", "--job", "j"]
        if meet == "torch"
        else ["--plan-dir", str(two.nodes.shared), "--job", "j"]
    )
    lie = json.dumps({"who": 0, "round": OFFERS, "at": ["rows", 0, "below"], "value": "../../../evil"})
    running = []
    for n in range(2):
        words = [
            "run",
            str(two.nodes.disks[n]),
            "--agree",
            "--nodes",
            "2",
            "--node",
            str(n),
            "--world-size",
            str(WORLD),
            "--transfer",
            transfer,
            *where,
        ]
        start = [sys.executable, *(["-m", "ckpt_tools"] if n else [hostile_peer.__file__, lie])]
        env = {**CLEAN, "XDG_STATE_HOME": str(tmp_path / f"state-{n}"), "OMP_NUM_THREADS": "1"}
        running.append(
            subprocess.Popen(
                [*start, *words, "--", *SAY],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    honest = running[1].communicate()
    running[0].communicate()
    assert running[1].returncode == 2 and honest[0] == "" and REFUSED in honest[1], honest
    assert not list(tmp_path.rglob("*evil*")) and not (tmp_path / "asked").exists()


# -- every field ---------------------------------------------------------------------------------------------

ROOT = str(TESTS / "cluster")
HERE = str(TESTS)
PART = Part(
    f"{ROOT}/iter_0000020/mp_rank_00/m.pt",
    "megatron",
    "model",
    "model",
    "run",
    ROOT,
    f"{ROOT}/iter_0000020",
    rank=0,
    coords=(("tp", 0),),
    step=20,
    size=5,
)
FOUND = (
    finding("truncated", "cut off", path="/r/x", ranks=((0, 3),))
    if "ranks" in finding.__code__.co_varnames
    else finding("truncated", "cut off")
)
LOAD = RankLoad(1, (FileLoad("model", "/r/x", 5, 6, Level.CONTENT, 0.5, 1),))
IDENTITY = json.dumps(["megatron", ".", "", 20, None, None, None])
WATCH = {"port": 5, "hosts": ["127.0.0.1", "::1"]}
NUMBER = "0" * 32
WHY = {"error": "e", "hint": "h", "exit_code": 5}
ENTRY = {"id": IDENTITY, "kind": "periodic", "step": 20, "path": "iter_0000020", "without": [[1, False]]}
OFFERED = {"node": 0, "below": "iter_0000020/mp_rank_00/m.pt", "part": wire.packed(PART, ROOT), "ranks": [0]}
JUDGEMENT = {"ok": False, "read": True, "findings": [encode_object(FOUND)]}
MESSAGES: dict[str, tuple[reported.Check, dict[str, Any]]] = {
    "an offer": (reported.OFFER, {"session": NUMBER, "members": [NUMBER, NUMBER], "watch": WATCH}),
    "no offer": (reported.FAILED_OFFER, {**WHY, "session": "", "members": [NUMBER, ""], "watch": {}}),
    "one that leaves": (reported.LEFT, {**WHY, "name": NUMBER, "first": ""}),
    "a failure": (reported.FAILED, WHY),
    "a listing": (
        reported.LISTING.said,
        {
            "host": "n1",
            "asked": "ab12",
            "ranks": [0, 2],
            "candidates": [
                {"id": IDENTITY, "mtime": 5, "kind": "periodic", "step": 20, "path": "iter_0000020"}
            ],
            "more": False,
            "earlier": [20, "/r", 1.5],
        },
    ),
    "an order": (
        reported.LISTING.told,
        {"order": [ENTRY], "hosts": ["n1", "n1#1"], "ranks": [[0, 2], [2, 4]]},
    ),
    "a judgement": (reported.JUDGEMENT.said, JUDGEMENT),
    "all judgements": (reported.JUDGEMENT.told, {**JUDGEMENT, "lacking": [1]}),
    "a wish": (reported.WANTED.said, {"want": [0, 1]}),
    "all wishes": (reported.WANTED.told, {"want": [[0], []]}),
    "an offer of files": (reported.OFFERS.said, {"rows": [OFFERED]}),
    "loads": (reported.LOADED.said, {"ranks": [wire.row(LOAD, "n1")], "fingerprint": "ab"}),
    "all loads": (reported.LOADED.told, {"ranks": [wire.row(LOAD, "n1#1")], "fingerprint": ""}),
    "nothing": (reported.NOTHING.told, {}),
}
WORSE: list[Any] = [
    None,
    True,
    1.5,
    -1,
    1 << 70,
    "",
    "../..",
    "/",
    "a\0b",
    "\ud800",
    "\x1b[2J\n",
    "-x",
    "$(x)",
    "x" * (1 << 21),
    [],
    {},
    [[]],
    [None],
    {"a": {}},
    ["x"] * 5,
]


def leaves(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where each value stands in a message, objects and lists too."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(*at,), *(found for key, item in inside for found in leaves(item, (*at, key)))][0 if at else 1 :]


def fits(check: reported.Check, message: object) -> bool:
    try:
        reported.value(json.dumps(message).encode(), check, "node 1", reported.ONE, check)
    except UsageError as error:
        refused = error
    else:
        return True
    assert refused.exit_code == 2 and str(refused).startswith("node 1 says") and len(str(refused)) < 1000
    return False


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_is_needed_and_no_other_is_taken(name: str) -> None:
    check, message = MESSAGES[name]
    assert fits(check, message)
    for at in leaves(message):
        if isinstance(at[-1], str):
            assert not fits(check, Lie(0, 0, at, GONE).said(message)), at
    for at in [(), *(at for at in leaves(message))]:
        held: Any = message
        for key in at:
            held = held[key]
        if isinstance(held, dict):
            assert not fits(check, Lie(0, 0, (*at, "more"), 1).said(message)), at


@pytest.mark.share(6)
@pytest.mark.parametrize("name", MESSAGES)
def test_whatever_stands_in_a_field_is_followed_only_where_it_can_be(name: str) -> None:
    """No value in any place leads to anything but a refusal or to what can be worked with; what passes can be
    printed.
    """
    check, message = MESSAGES[name]
    for at in leaves(message):
        for value in WORSE:
            new = Lie(0, 0, at, value).said(message)
            if not fits(check, new):
                continue
            _used(name, new)


def _used(name: str, message: dict[str, Any]) -> None:
    """What the code does with it."""
    if name == "a judgement":
        assert all(isinstance(decode_object(Finding, f), Finding) for f in message["findings"])
    if name == "an offer of files":
        for row in message["rows"]:
            part = wire.unpacked(row["part"], HERE)
            assert (
                part.base.startswith(HERE)
                and (not part.home or part.home.startswith(HERE))
                and isinstance(part.kind, Kind)
            )
            assert os.path.normpath(os.path.join("/t", row["below"])).startswith(
                "/t/"
            ) and part.path.startswith("/")
    if name == "all loads":
        assert all(isinstance(wire.load_of(row), RankLoad) for row in message["ranks"])
    if name == "a listing":
        assert all(isinstance(wire.parts_of(row["id"]), wire.Identity) for row in message["candidates"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[",
        b"[" * 200_000,
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"\xff",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"{" + b" " * 100,
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=REFUSED):
        reported.value(data, reported.NOTHING.said, "node 1", reported.ONE)


def test_more_bytes_than_a_node_may_say() -> None:
    with pytest.raises(UsageError, match="of 10 at most"):
        reported.value(b"{}" + b" " * 20, reported.NOTHING.said, "node 1", 10)


def test_an_error_of_another_node_cannot_steer_a_terminal(tmp_path: Path) -> None:
    def member(n: int) -> object:
        try:
            with meeting(Files(str(tmp_path / "m")), n, 2, 600) as m:
                return m.exchange(
                    {"error": "\x1b[2Jgone\r", "hint": "\x07ring", "exit_code": 5} if n else {}, lambda _: {}
                )
        except CkptError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(member, range(2))
    assert (
        isinstance(first, CannotLook)
        and str(first) == "node 1: \\x1b[2Jgone\\x0d"
        and first.hint == "\\x07ring"
    )
    assert isinstance(second, CannotLook)


def test_an_offer_of_an_earlier_start_or_version_is_passed_over(tmp_path: Path) -> None:
    """A directory of decisions outlives starts and versions: what lies there and does not name this process
    is none of its business.
    """
    board = Files(str(tmp_path / "m"))
    board.put("offer", b'{"session": 5, "members": ["0123456789abcdef"]}')
    board.put("join.0", b"0123456789abcdef")
    board.put("join.1", b'{"error": "x", "name": "0123456789abcdef"}')

    def member(n: int) -> object:
        with meeting(Files(str(tmp_path / "m")), n, 2, 600) as m:
            return m.exchange({}, lambda _: {})

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(member, range(2))) == [{}, {}]


# -- where files are brought to ------------------------------------------------------------------------------


@pytest.fixture
def carry(tmp_path: Path) -> Callable[[str], list[str]]:
    """A command for --transfer."""

    def make(body: str) -> list[str]:
        script = tmp_path / "carry.sh"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        return [str(script)]

    return make


BELOW = "iter_0000020/mp_rank_00/m.pt"


def test_a_file_is_brought_with_the_time_of_its_save(
    tmp_path: Path, carry: Callable[[str], list[str]]
) -> None:
    (tmp_path / "there").write_text("part")
    part = PART._replace(path=str(tmp_path / "there"), mtime_ns=1_600_000_000_123_456_789)
    st = bring(
        carry(f'echo "$1" >{tmp_path}/host; cp "$2" "$3"'),
        "n1",
        part,
        str(tmp_path / "to"),
        BELOW,
        timeout=600,
    )
    assert (
        (tmp_path / "to" / BELOW).read_text() == "part"
        and st.st_mtime_ns == part.mtime_ns
        and (tmp_path / "host").read_text() == "n1\n"
    )
    assert sorted(os.listdir(tmp_path / "to")) == ["iter_0000020"]  # nothing of the way there is left


@pytest.mark.parametrize("planted", ["iter_0000020", "iter_0000020/mp_rank_00"])
def test_a_link_below_the_target_leads_nowhere(
    tmp_path: Path, carry: Callable[[str], list[str]], planted: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / "to" / planted
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(NotBrought):
        bring(carry('echo x >"$3"'), "n1", PART, str(tmp_path / "to"), BELOW, timeout=600)
    assert not list(outside.iterdir())


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(
    tmp_path: Path, carry: Callable[[str], list[str]]
) -> None:
    target = tmp_path / "to" / BELOW
    target.parent.mkdir(parents=True)
    (tmp_path / "precious").write_text("mine")
    target.symlink_to(tmp_path / "precious")
    bring(carry('echo x >"$3"'), "n1", PART, str(tmp_path / "to"), BELOW, timeout=600)
    assert (
        (tmp_path / "precious").read_text() == "mine"
        and not target.is_symlink()
        and target.read_text() == "x\n"
    )


def test_a_target_that_is_a_link_is_refused(tmp_path: Path, carry: Callable[[str], list[str]]) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "to").symlink_to(tmp_path / "outside")
    with pytest.raises(NotBrought):
        bring(carry('echo x >"$3"'), "n1", PART, str(tmp_path / "to"), BELOW, timeout=600)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    "body", ['ln -s /etc/passwd "$3"', 'mkfifo "$3"', 'mkdir "$3"', "true", "exit 3", "kill -9 $$"]
)
def test_what_a_command_makes_and_is_no_file_is_not_taken(
    tmp_path: Path, carry: Callable[[str], list[str]], body: str
) -> None:
    with pytest.raises(NotBrought):
        bring(carry(body), "n1", PART, str(tmp_path / "to"), BELOW, timeout=600)
    assert not (tmp_path / "to" / BELOW).exists()


# -- names that are the same on every node -------------------------------------------------------------------


def test_names_lie_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    assert wire.name_of(str(root / "a/b"), str(root)) == "a/b" and wire.name_of(str(root), str(root)) == "."
    assert wire.name_of("/elsewhere/x", str(root)).endswith("^/elsewhere/x") and not wire.inside(
        "/elsewhere/x", str(root)
    )
    reported.here_or_below(wire.name_of("/elsewhere/x", str(root)), "")
    prefix = str(tmp_path / "ckpt")  # for ckpt_0 and ckpt_1
    assert wire.name_of(f"{prefix}_0/a", prefix) == "ckpt_0/a" and wire.inside(f"{prefix}_0/a", prefix)


def test_a_part_comes_back_with_the_directories_of_this_node(tmp_path: Path) -> None:
    root = str(tmp_path)
    part = wire.unpacked(json.loads(json.dumps(wire.packed(PART, ROOT))), root)
    assert part == PART._replace(base=root, home=f"{root}/iter_0000020")


def test_what_is_made_on_the_way_is_not_for_others_to_write(
    tmp_path: Path, carry: Callable[[str], list[str]]
) -> None:
    old = os.umask(0)
    try:
        bring(carry('echo x >"$3"'), "n1", PART, str(tmp_path / "a/to"), BELOW, timeout=600)
    finally:
        os.umask(old)
    made = [tmp_path / "a", *(p for p in (tmp_path / "a").rglob("*") if p.is_dir())]
    assert len(made) == 4 and all(not p.stat().st_mode & 0o022 for p in made)
