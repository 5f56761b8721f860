"""One candidate in, a judgement out: over a run, reports and findings built in memory, below an empty
directory. No file is read.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ckpt_tools.discovery.completeness import expect_sizes
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.layouts.common.piece import OWN, Readers
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.model.plan import Assignment, Resume
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.planning.choose import Judgement
from ckpt_tools.planning.equal_files import Contradiction
from ckpt_tools.planning.facts import Run
from ckpt_tools.planning.judge import Judge
from ckpt_tools.reading.scheduler import LEAST
from ckpt_tools.reading.session import Session

CRC = finding("crc-mismatch", "flipped", offset=3)
UNREAD = finding("unreadable", "Permission denied")
COPY = finding("same-content", "byte for byte an older one")
WRONG_STEP = finding("step-mismatch", "of step 10", severity=Severity.ERROR)
SHARED = Readers(replicated_over=("dp",))


class World:
    """A run of steps 10, 20 and 30 below ``root``, of which 20 is judged: by default one model file for each
    of two ranks, all sound.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.sizes = str(root), itertools.count(100)
        pieces = (
            Piece("model", "model", "{step}/model_{rank}.pt", readers=SHARED, formats=("toy",)),
            Piece("optim", "optimizer", "{step}/optim_{rank}.pt", readers=OWN, required=False),
        )
        resume = Resume(None)
        self.layout = Layout(
            "toy", "", pieces=pieces, resume=lambda _c, _root: resume, reference="", limits=()
        )
        self.selection, self.found = Selection(order="step"), list[Contradiction]()
        self.open("model_0", "model_1")

    def open(self, *names: str, world: int = 2, **asked: Any) -> None:
        """The session, which has a good report on every file."""
        layouts, self.world = Layouts((self.layout,)), world
        self.selection = replace(self.selection, layouts=layouts, **asked)
        self.session = Session(self.root, ReadOptions(layouts=layouts))
        self.checkpoints = []
        for step in (10, 20, 30):
            parts, home = tuple(self.part(step, name) for name in names), f"{self.root}/{step}"
            self.checkpoints.append(Checkpoint("toy", "run", parts[0].kind, parts, home, step, step))
        self.judged = self.checkpoints[1]
        self.session.parts = [p for c in self.checkpoints for p in c.parts]
        for p in self.session.parts:
            self.report(p)

    def part(self, step: int, name: str) -> Part:
        piece, _, rank = name.partition("_")
        home = f"{self.root}/{step}"
        made = Part(f"{home}/{name}", "toy", piece, self.layout.piece(piece).role, "run", self.root, home)
        return made._replace(step=step, rank=int(rank), size=next(self.sizes))

    def path(self, name: str) -> str:
        return f"{self.root}/20/{name}"

    def report(self, p: Part, *findings: Finding, verdict: Verdict = Verdict.OK) -> None:
        said = {"format": "toy", "level": Level.CONTENT, "signature": "ab"}
        made = Report(path=p.path, size=p.size, verdict=verdict, findings=findings, **said)  # type: ignore[arg-type]
        self.session.reports[p.path] = made

    def broken(self, *names: str, why: Finding = CRC, verdict: Verdict = Verdict.BROKEN) -> None:
        for p in self.judged.parts:
            if p.name in names:
                self.report(p, why, verdict=verdict)

    def judge(self, saved: int | None = None) -> Judge:
        runs = self.checkpoints
        lacking = expect_sizes(runs, self.session.layouts, self.world)
        run = Run(runs, candidates=runs, expected=lacking, topology=Topology(self.world), saved=saved)
        judge = Judge(self.session, self.selection, run)
        # their own tests are in tests/layouts
        judge.find_contradictions = lambda *_: self.found  # type: ignore[method-assign]
        return judge

    def judgement(self) -> Judgement:
        return self.judge().judge(self.judged)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("size", [LEAST - 1, LEAST])
@pytest.mark.parametrize("level", [Level.PRESENCE, Level.STRUCTURE, Level.CONTENT])
def test_many_files_are_read_ahead_and_of_the_damaged_no_contents(
    world: World, monkeypatch: pytest.MonkeyPatch, size: int, level: Level
) -> None:
    """The structure of all, and then the contents of those whose structure is sound, where they are many."""
    world.open(*(f"model_{rank}" for rank in range(size)), world=size, level=level)
    world.broken("model_3")
    asked: list[tuple[Level, int]] = []
    name = "ckpt_tools.planning.judge.prefetch"
    monkeypatch.setattr(name, lambda _s, parts, level: asked.append((level, len(parts))))
    assert world.judgement().usable
    structure = min(level, Level.STRUCTURE)
    rounds = [(structure, size), (structure, size - 1)]  # the second without the damaged one
    if level is Level.CONTENT and size == LEAST:
        rounds.insert(1, (level, size - 1))
    assert asked == rounds


def test_what_its_directory_hides_rejects_it_only_where_leave_was_given_to_pass_over(world: World) -> None:
    unseen = [Unseen(f"{world.root}/20/below", "Permission denied"), Unseen(f"{world.root}/2", "Gone")]
    world.session.found.unseen.extend(unseen)
    assert world.judgement().usable
    world.selection = replace(world.selection, skip_unreadable=True)
    made = world.judgement()
    told = [(f.code, f.path, f.severity) for f in made.findings]
    assert (made.usable, told) == (False, [("unreadable", unseen[0].path, Severity.ERROR)])
    lone = tuple(p._replace(home="") for p in world.judged.parts)  # without a directory of their own
    assert world.judge().judge(replace(world.judged, parts=lone)).usable


def test_another_world_is_asked_about_before_anything_is_found_wrong(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that a replica stands in for are not what this job leaves unread."""
    world.broken("model_1")
    asked: list[bool] = []

    def check(_c: object, made: Assignment, *_: object) -> list[Finding]:
        asked.append(any(load.substituted for some in made.loads.values() for load in some))
        return []

    monkeypatch.setattr("ckpt_tools.planning.rules.save.topology_mismatch.check", check)
    assert world.judge(saved=3).judge(world.judged).usable and asked == [False]


def test_a_candidate_that_loses_for_an_equal_file_alone_is_asked_about(world: World) -> None:
    world.open("optim_0", "optim_1")
    twin = world.checkpoints[0].parts[1]
    world.found = [Contradiction(world.path("optim_1"), replace(COPY, severity=Severity.ERROR), twin)]
    with pytest.raises(UsageError, match="byte for byte the same"):
        world.judgement()
    world.broken("optim_0")  # loses all the same
    assert not world.judgement().usable
    world.report(world.judged.parts[0])
    world.found.append(Contradiction(world.path("optim_1"), CRC))  # and for another reason
    assert not world.judgement().usable


def unreadable(world: World, *names: str) -> None:
    world.broken(*names, why=UNREAD, verdict=Verdict.UNKNOWN)


def test_a_file_that_cannot_be_read_is_no_reason_to_go_back(world: World) -> None:
    world.open("optim_0", "optim_1")
    unreadable(world, "optim_1")
    with pytest.raises(CannotLook, match="Permission denied") as raised:
        world.judgement()
    assert world.path("optim_1") in str(raised.value)
    assert (made := raised.value.plan) is not None and made.root == world.session.root
    assert [r.checkpoint.step for r in made.rejected] == [20] and made.rejected[0].findings
    world.selection = replace(world.selection, skip_unreadable=True)  # with leave to pass over it
    assert not world.judgement().usable
    world.selection = replace(world.selection, skip_unreadable=False)
    world.broken("optim_0")  # it loses in any case
    assert not world.judgement().usable


def test_what_was_concluded_beside_others_may_be_so_for_want_of_what_cannot_be_read(world: World) -> None:
    """Where a file is wrong only beside others of which one cannot be read, that one might have cleared it;
    not so one that is wrong by itself as well.
    """
    world.open("optim_0", "optim_1")
    unreadable(world, "optim_1")
    world.found = [Contradiction(world.path("optim_0"), WRONG_STEP)]
    with pytest.raises(CannotLook):
        world.judgement()
    world.broken("optim_0")
    assert not world.judgement().usable


def test_it_names_the_unread_file_that_would_be_loaded(world: World) -> None:
    """Of two that cannot be read, the one that the plan asks for: rank 0's stands in for the other."""
    world.open("model_0", "optim_0", "model_1")
    unreadable(world, "model_0", "model_1", "optim_0")
    with pytest.raises(CannotLook) as raised:
        world.judgement()
    assert world.path("model_0") in str(raised.value)
