"""One candidate in, a judgement out: over a run, reports and findings built in memory, below an empty
directory. No file is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ckpt_tools.discovery.completeness import expected
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common.layout import Complete, Layout, Piece
from ckpt_tools.layouts.common.piece import OWN, Readers
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.model.plan import Assignment, Resume
from ckpt_tools.model.report import Box, Level, Report, Unlisted
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.planning.choose import Judgement
from ckpt_tools.planning.equal_files import Contradiction
from ckpt_tools.planning.facts import Run
from ckpt_tools.planning.judge import Judge
from ckpt_tools.reading.scheduler import LEAST
from ckpt_tools.reading.session import Session

CRC = finding("crc-mismatch", "flipped", offset=3)
IN_USE = finding("in-use", "written to this minute")
UNREAD = finding("unreadable", "Permission denied")
NOTE = finding("not-needed", "holds no state")
LOST = finding("missing-part", "a chunk is gone")
COPY = finding("same-content", "byte for byte an older one")
WRONG_STEP = finding("step-mismatch", "of step 10", severity=Severity.ERROR)
EVERYTHING = Level.CONTENT
SHARED = Readers(replicated_over=("dp",))


class World:
    """A run of steps 10, 20 and 30 below ``root``, of which 20 is judged: by default one model file for each
    of two ranks, all sound.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.sizes = str(root), itertools.count(100)
        self.lacks: list[Finding] = []
        self.lost: list[Finding] = []
        self.layout = Layout(
            name="toy",
            title="",
            pieces=(
                Piece("model", "model", "{step}/model_{rank}.pt", readers=SHARED, formats=("toy",)),
                Piece("optim", "optimizer", "{step}/optim_{rank}.pt", readers=OWN, required=False),
                Piece("set", "model", "{step}/set"),
            ),
            resume=lambda _c, _root: Resume(None),
            reference="",
            limits=(),
            lacks=lambda _c, _others: iter(self.lacks),
            lost=lambda _c, _others: iter(self.lost),
        )
        self.names: Sequence[str] = ("model_0", "model_1")
        self.world, self.steps = 2, (10, 20, 30)
        self.found: list[Contradiction] = []
        self.asked: list[Sequence[Part]] = []
        self.selection = Selection(order="step")

    def open(self) -> Session:
        """The session, which has a good report on every file."""
        layouts = Layouts((self.layout,))
        self.selection = replace(self.selection, layouts=layouts)
        self.session = Session(self.root, ReadOptions(layouts=layouts))
        self.checkpoints = [self.checkpoint(step) for step in self.steps]
        self.session.parts = [p for c in self.checkpoints for p in c.parts]
        for p in self.session.parts:
            self.report(p)
        return self.session

    def checkpoint(self, step: int) -> Checkpoint:
        home = f"{self.root}/{step}"
        return Checkpoint("toy", "run", self.part(step, "model_0").kind, self.parts(step), home, step, step)

    def parts(self, step: int) -> tuple[Part, ...]:
        return tuple(self.part(step, name) for name in self.names)

    def part(self, step: int, name: str) -> Part:
        piece, _, rank = name.partition("_")
        home = f"{self.root}/{step}"
        made = Part(f"{home}/{name}", "toy", piece, self.layout.piece(piece).role, "run", self.root, home)
        return made._replace(step=step, rank=int(rank) if rank else None, size=next(self.sizes))

    def path(self, name: str) -> str:
        return f"{self.root}/20/{name}"

    def report(self, p: Part, *findings: Finding, verdict: Verdict = Verdict.OK, **more: Any) -> None:
        given = {"format": "toy", "level": EVERYTHING, "signature": "ab", **more}
        self.session.reports[p.path] = Report(
            path=p.path, size=p.size, verdict=verdict, findings=findings, **given
        )

    def broken(self, *names: str, why: Finding = CRC, verdict: Verdict = Verdict.BROKEN) -> None:
        for p in self.judged.parts:
            if p.name in names:
                self.report(p, why, verdict=verdict)

    @property
    def judged(self) -> Checkpoint:
        return next(c for c in self.checkpoints if c.step == 20)

    def judge(self) -> Judge:
        layouts = self.session.layouts
        run = Run(
            checkpoints=self.checkpoints,
            candidates=self.checkpoints,
            expected=expected(self.checkpoints, layouts, self.world),
            topology=Topology(self.world),
            saved=None,
        )
        judge = Judge(self.session, self.selection, run)
        # their own tests are in tests/layouts
        judge.find_contradictions = self.contradictions  # type: ignore[method-assign,assignment]
        return judge

    def contradictions(
        self, _named: object, _whole: object, planned: Sequence[Part], _bad: object = ()
    ) -> Iterator[Contradiction]:
        self.asked.append(planned)
        yield from self.found

    def judgement(self) -> Judgement:
        return self.judge().judge(self.judged)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.open()
    return made


def codes(made: Judgement) -> list[str]:
    return [f.code for f in made.findings]


def loads(made: Judgement) -> dict[int, list[str]]:
    assert made.assignment is not None
    return {rank: [load.part.name for load in some] for rank, some in made.assignment.loads.items()}


def changed(made: World, **changes: Any) -> World:
    """The same world with other files or another question."""
    for name, value in changes.items():
        setattr(made, name, value)
    made.open()
    return made


def test_sound_files_are_loaded_by_their_ranks_and_were_read(world: World) -> None:
    made = world.judgement()
    assert made.usable and made.read and not made.findings
    assert loads(made) == {0: ["model_0"], 1: ["model_1"]}
    assert world.session.bytes_total == 0  # all that was to be read is in the reports
    changed(world, selection=Selection(order="step", level=Level.STRUCTURE))
    made = world.judgement()
    assert made.usable and not made.read, "at structure nothing was read"


@pytest.mark.parametrize("world_size", [LEAST - 1, LEAST])
@pytest.mark.parametrize("level", [Level.PRESENCE, Level.STRUCTURE, Level.CONTENT])
def test_many_files_are_read_ahead_and_of_the_damaged_no_contents(
    world: World, monkeypatch: pytest.MonkeyPatch, world_size: int, level: Level
) -> None:
    """The structure of all, and then the contents of those whose structure is sound, where they are many."""
    names = [f"model_{rank}" for rank in range(world_size)]
    changed(world, names=names, world=world_size, selection=Selection(order="step", level=level))
    world.broken("model_3")
    asked: list[tuple[Level, int]] = []
    monkeypatch.setattr(
        "ckpt_tools.planning.judge.prefetch", lambda _s, parts, level: asked.append((level, len(parts)))
    )
    assert world.judgement().usable
    structure = min(level, Level.STRUCTURE)
    rounds = [(structure, world_size), (structure, world_size - 1)]  # the second without the damaged one
    if level is Level.CONTENT and world_size == LEAST:
        rounds.insert(1, (level, world_size - 1))
    assert asked == rounds


def test_progress_is_measured_by_what_is_left_to_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _known, shallow = world.judged.parts
    world.report(shallow, level=Level.STRUCTURE)
    expected_, have = list[str](), world.session.report

    def report(p: Part, level: Level) -> Report:
        """Contents are sound wherever they are asked for."""
        if world.session.reports[p.path].level < level:
            world.report(p)
        return have(p, level)

    monkeypatch.setattr(world.session, "expect", lambda parts: expected_.extend(p.name for p in parts))
    monkeypatch.setattr(world.session, "report", report)
    assert world.judgement().usable and expected_ == [shallow.name]


# ---- complete


def test_what_a_shared_set_lacks_rejects_it_and_what_ranks_lack_is_left_to_them(world: World) -> None:
    """Of a set, nobody would notice that a rank's file is gone; where ranks have files, each is asked about
    its own, and a replica may stand in.
    """
    changed(world, names=("model_0",))
    made = world.judgement()
    assert made.usable and loads(made) == {0: ["model_0"], 1: ["model_0"]}


@pytest.mark.parametrize("names", [("set",), ("set", "model_0")])
def test_what_only_the_run_misses_rejects_where_all_files_are_shared(
    world: World, monkeypatch: pytest.MonkeyPatch, names: Sequence[str]
) -> None:
    changed(world, names=names)
    gone = finding("missing-rank", "no file of rank 1", severity=Severity.ERROR)
    hint = finding("missing-rank", "no file of rank 2", severity=Severity.WARNING)
    monkeypatch.setattr("ckpt_tools.planning.judge.find_gaps", lambda _c, _run: [hint, gone])
    made = world.judgement()
    assert made.usable is (len(names) == 2)
    assert made.usable or made.findings == (gone,)


@pytest.mark.parametrize("severity", [Severity.ERROR, Severity.WARNING])
def test_a_role_that_is_gone_rejects_it(
    world: World, monkeypatch: pytest.MonkeyPatch, severity: Severity
) -> None:
    why = finding("missing-part", "no model file", severity=severity)
    monkeypatch.setattr("ckpt_tools.planning.judge.find_gaps", lambda _c, _run: [why])
    made = world.judgement()
    assert not made.usable and made.findings == (why,) and not made.read


def test_what_its_layout_finds_gone_rejects_it_and_a_warning_is_said(world: World) -> None:
    world.lost = [replace(LOST, severity=Severity.ERROR)]
    assert not (made := world.judgement()).usable and made.findings == tuple(world.lost)
    world.lost = [replace(LOST, severity=Severity.WARNING)]
    assert (made := world.judgement()).usable and made.findings == tuple(world.lost)
    world.lacks = [LOST]
    assert not (made := world.judgement()).usable and made.findings == (LOST,)


def seals(**about: Sequence[Finding]) -> Any:
    """What seals say, by path; a seal is read when a file that it may name is asked about."""
    read = set[str]()
    return SimpleNamespace(
        read=read,
        claims=read.add,
        about={p: tuple(fs) for p, fs in about.items()},
        leaves_out=lambda _path, _home: False,
    )


def test_sealed_files_that_are_gone_reject_it_once(world: World) -> None:
    gone = finding("missing-part", "sealed, and not there", severity=Severity.ERROR)
    old = finding("missing-part", "a seal of another version", severity=Severity.WARNING)
    home, path = f"{world.root}/20", world.path("model_1")
    world.session.indexes.seals = seals(**{home: [gone], path: [old]})
    made = world.judgement()
    assert not made.usable and made.findings == (gone,)  # two files lie in that directory
    assert world.session.indexes.seals.read == {world.path("model_0"), path}
    world.session.indexes.seals = seals(**{home: [old], path: [old]})
    made = world.judgement()
    assert made.usable and made.findings == (old,)


def test_what_its_directory_hides_rejects_it_only_where_leave_was_given_to_pass_over(world: World) -> None:
    unseen = [Unseen(f"{world.root}/20/below", "Permission denied"), Unseen(f"{world.root}/2", "Gone")]
    world.session.found.unseen.extend(unseen)
    assert world.judgement().usable
    world.selection = replace(world.selection, skip_unreadable=True)
    made = world.judgement()
    (hidden,) = made.findings
    assert (made.usable, hidden.code, hidden.path) == (False, "unreadable", unseen[0].path)
    assert hidden.severity is Severity.ERROR
    lone = tuple(p._replace(home="") for p in world.judged.parts)  # without a directory of their own
    assert world.judge().judge(replace(world.judged, parts=lone)).usable


# ---- sound, and consistent


@pytest.mark.slow
def test_a_damaged_file_is_replaced_and_where_none_is_left_it_loses(world: World) -> None:
    world.broken("model_1")
    made = world.judgement()
    assert made.usable and made.read and loads(made) == {0: ["model_0"], 1: ["model_0"]}
    world.broken("model_0")
    made = world.judgement()
    assert not made.usable and {"missing-rank", "crc-mismatch"} <= {*codes(made)}


def test_what_is_said_of_a_file_that_is_not_loaded(world: World) -> None:
    """A warning is an error where it keeps the file from being loaded, and contents of one whose structure is
    damaged are not asked for.
    """
    changed(world, names=("optim_0",), world=1)
    world.report(world.judged.parts[0], IN_USE, NOTE, verdict=Verdict.BROKEN)
    made = world.judgement()
    told = [(f.code, f.severity) for f in made.findings if f.code != "missing-rank"]
    assert not made.usable and told == [("in-use", Severity.ERROR)]
    world.report(world.judged.parts[0], CRC, verdict=Verdict.BROKEN, level=Level.STRUCTURE)
    made = world.judgement()
    assert not made.usable and not made.read


@pytest.mark.parametrize(
    ("names", "level", "usable"),
    [
        (("model_0", "model_1"), Level.CONTENT, True),  # rank 0's stands in
        (("model_0",), Level.CONTENT, False),
        (("model_0",), Level.STRUCTURE, False),
        (("model_0",), Level.PRESENCE, True),  # nobody has looked
        (("optim_0",), Level.CONTENT, True),  # written in any format
    ],
)
def test_a_file_in_a_format_that_its_piece_is_not_written_in_is_not_loaded(
    world: World, names: Sequence[str], level: Level, usable: bool
) -> None:
    changed(world, names=names, world=len(names), selection=Selection(order="step", level=level))
    last = world.judged.parts[-1]
    world.report(last, format="other")
    assert world.judgement().usable is usable


def test_a_file_that_only_an_index_names_may_be_in_any_format(world: World) -> None:
    data = world.part(20, "model_1")._replace(role="data")
    whole = replace(world.judged, parts=(*world.judged.parts[:1], data))
    world.report(data, format="other")
    made = world.judge().judge(whole)
    assert made.usable


def test_contradictions_are_asked_about_what_would_be_loaded_until_nothing_is_wrong(world: World) -> None:
    world.found = [Contradiction(world.path("model_1"), WRONG_STEP)]
    made = world.judgement()
    assert made.usable and loads(made) == {0: ["model_0"], 1: ["model_0"]}
    assert [[p.name for p in planned] for planned in world.asked] == [["model_0", "model_1"], ["model_0"]]


def test_a_contradiction_is_said_of_its_file_beside_what_else_is_wrong(world: World) -> None:
    path = world.path("model_1")
    world.found = [Contradiction(path, replace(COPY, severity=Severity.WARNING))]
    made = world.judgement()
    assert made.usable and [(f.code, f.path) for f in made.findings] == [("same-content", path)]
    changed(world, names=("optim_0",), world=1)
    world.broken("optim_0")
    world.found = [Contradiction(world.path("optim_0"), WRONG_STEP)]
    made = world.judgement()
    assert not made.usable and {"crc-mismatch", "step-mismatch"} <= {*codes(made)}


def test_a_file_of_zeros_is_not_loaded_and_one_that_may_be_is_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, path = list[int | None](), world.path("model_1")

    def zeroed(severity: Severity, path: str | None) -> Judgement:
        def find(_s: object, _c: object, others: Sequence[Checkpoint]) -> Sequence[Finding]:
            beside[:] = [other.step for other in others]
            return [finding("zero-filled", "all zeros", path=path, severity=severity)]

        monkeypatch.setattr("ckpt_tools.planning.judge.find_zeroed", find)
        return world.judgement()

    made = zeroed(Severity.WARNING, path)
    assert made.usable and codes(made) == ["zero-filled"] and loads(made)[1] == ["model_1"]
    assert beside == [10, 30], "compared with the saves before and after"
    assert loads(zeroed(Severity.ERROR, path))[1] == ["model_0"]
    assert loads(zeroed(Severity.ERROR, None))[1] == ["model_1"]  # of no file


def test_tensors_whose_pieces_leave_holes_reject_it(world: World) -> None:
    home = f"{world.root}/20"
    half, other = Box((0,), (2,)), Box((3,), (4,))
    world.session.places[home] = {world.path("model_0"): {"w": half}, world.path("model_1"): {"w": other}}
    made = world.judgement()
    assert not made.usable and made.read
    assert [(f.code, f.path) for f in made.findings] == [("bad-header", home)]
    world.session.places[home][world.path("model_1")] = {"w": Box((2,), (4,))}
    world.session.places[f"{world.root}/10"] = {"/a": {"w": Box((1,), (2,))}}  # of another directory
    assert world.judgement().usable
    world.session.places[home][world.path("model_1")] = {"w": other}
    world.broken("model_0", "model_1")  # of which one would fill the hole
    made = world.judgement()
    assert not made.usable and "bad-header" not in codes(made) and "crc-mismatch" in codes(made)


# ---- what the caller must say


@pytest.mark.slow
def test_ranks_without_a_group_are_asked_about_unless_another_node_may_have_their_files(world: World) -> None:
    world.layout = replace(
        world.layout,
        complete=Complete(by_name=True),
        pieces=(Piece("model", "model", "{step}/model_{rank}.pt", readers=OWN),),
    )
    changed(world, names=("model_0",))
    with pytest.raises(UsageError, match="group"):
        world.judgement()
    world.selection = replace(world.selection, ranks=frozenset({0, 1}))
    assert not world.judgement().usable
    world.selection = replace(world.selection, ranks=frozenset({0}))
    assert world.judgement().usable


def test_another_world_is_asked_about_before_anything_is_found_wrong(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that a replica stands in for are not what this job leaves unread."""
    judge = world.judge()
    judge.run = replace(judge.run, saved=3)
    world.broken("model_1")
    asked: list[bool] = []

    def check(_c: object, made: Assignment, *_: object) -> list[Finding]:
        asked.append(any(load.substituted for some in made.loads.values() for load in some))
        return []

    with monkeypatch.context() as patch:
        patch.setattr("ckpt_tools.planning.rules.save.topology_mismatch.check", check)
        assert judge.judge(world.judged).usable and asked == [False]
    changed(world, names=("optim_0", "optim_1"), world=1)
    judge = world.judge()
    judge.run = replace(judge.run, saved=2)
    with pytest.raises(UsageError, match="saved by 2 ranks, to be loaded by 1"):
        judge.judge(world.judged)


def test_code_that_no_list_has_is_asked_about_before_it_is_loaded(world: World) -> None:
    named = Unlisted("mine.Thing", True, 7)
    unknown = finding("unknown-global", "mine.Thing", severity=Severity.WARNING)
    world.report(world.judged.parts[0], unknown, unlisted=(named,))
    with pytest.raises(UsageError, match=r"mine\.Thing"):
        world.judgement()


# ---- twins


def copied(world: World, severity: Severity, name: str = "model_1") -> None:
    twin = next(c for c in world.checkpoints if c.step == 10).parts[1]
    world.found = [Contradiction(world.path(name), replace(COPY, severity=severity), twin)]


@pytest.mark.parametrize(
    ("severity", "name", "max_step", "asked"),
    [
        (Severity.NOTE, "model_1", None, True),
        (Severity.NOTE, "model_1", 20, False),  # taken as it is
        (Severity.NOTE, "model_1", 25, True),
        (Severity.NOTE, "elsewhere", None, False),  # nobody loads it
        (Severity.WARNING, "model_1", None, False),
    ],
)
def test_which_of_two_equal_files_is_the_copy_is_asked_where_it_would_be_loaded(
    world: World, severity: Severity, name: str, max_step: int | None, asked: bool
) -> None:
    copied(world, severity, name)
    world.selection = replace(world.selection, max_step=max_step)
    if not asked:
        assert world.judgement().usable
        return
    with pytest.raises(UsageError, match="byte for byte the same"):
        world.judgement()


@pytest.mark.slow
def test_a_candidate_that_loses_for_such_a_file_alone_is_asked_about(world: World) -> None:
    changed(world, names=("optim_0", "optim_1"))
    copied(world, Severity.ERROR, "optim_1")
    with pytest.raises(UsageError, match="byte for byte the same"):
        world.judgement()
    world.broken("optim_0")  # loses all the same
    made = world.judgement()
    assert not made.usable
    world.report(world.judged.parts[0])
    world.found.append(Contradiction(world.path("optim_1"), CRC))  # and for another reason
    assert not world.judgement().usable


# ---- known


def unreadable(world: World, *names: str) -> None:
    world.broken(*names, why=UNREAD, verdict=Verdict.UNKNOWN)


def test_a_file_that_cannot_be_read_is_no_reason_to_go_back(world: World) -> None:
    changed(world, names=("optim_0", "optim_1"))
    unreadable(world, "optim_1")
    with pytest.raises(CannotLook, match="Permission denied") as raised:
        world.judgement()
    assert world.path("optim_1") in str(raised.value)
    assert (made := raised.value.plan) is not None and made.root == world.session.root
    assert [r.checkpoint.step for r in made.rejected] == [20] and made.rejected[0].findings
    assert made.checkpoint is None and made.bytes_verified == world.session.reader.bytes_verified
    world.selection = replace(world.selection, skip_unreadable=True)  # with leave to pass over it
    assert not world.judgement().usable
    world.selection = replace(world.selection, skip_unreadable=False)
    world.broken("optim_0")  # it loses in any case
    assert not world.judgement().usable


def test_what_was_concluded_beside_others_may_be_so_for_want_of_what_cannot_be_read(world: World) -> None:
    """Where a file is wrong only beside others of which one cannot be read, that one might have cleared it;
    not so one that is wrong by itself as well.
    """
    changed(world, names=("optim_0", "optim_1"))
    unreadable(world, "optim_1")
    world.found = [Contradiction(world.path("optim_0"), WRONG_STEP)]
    with pytest.raises(CannotLook):
        world.judgement()
    world.broken("optim_0")
    assert not world.judgement().usable


def test_it_names_the_unread_file_that_would_be_loaded(world: World) -> None:
    """Of two that cannot be read, the one that the plan asks for: rank 0's stands in for the other."""
    changed(world, names=("model_0", "optim_0", "model_1"))
    unreadable(world, "model_0", "model_1", "optim_0")
    with pytest.raises(CannotLook) as raised:
        world.judgement()
    assert world.path("model_0") in str(raised.value)
