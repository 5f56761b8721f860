"""DeepSpeed: ``<tag>/mp_rank_MM_model_states.pt`` with ZeRO's ``zero_pp_rank_D_mp_rank_MM_optim_states.pt``,
the tag named by ``latest``.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ckpt_tools.layouts.common.counters import borrowed
from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, Metadata, Steps, Tracker, whole
from ckpt_tools.layouts.common.piece import SHARDED, SHARED, Content, Piece, Readers, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import names as names_of
from ckpt_tools.model.ranges import ranges, words
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")
STEP = "<global_step|global_step_|step|step_|step-|checkpoint-|checkpoint_|iter_>{step}"
MARK = "_deepspeed"
"""In the names of its pieces where they lie below a checkpoint of another framework."""
_TENSORS_IN = {"model": ("layer",), "zero3": ("optimizer",)}
"""Where the tensors of a piece are with pipelines, and with ZeRO-3."""
_WORLD = 1 << 20
"""No job has more ranks."""
Rows = Sequence[tuple[Part, Report]]
Found = Iterator[tuple[str, Flaw]]


def _steps(part: Part, metadata: Metadata) -> Steps:
    said = whole(metadata.get("global_steps"))
    return (part.step if said is None else said), part.epoch, None


_COUNTERS = {
    f"{name}{mark}": (counter,)
    for name, counter in (("model", "global_steps"), ("zero3", "global_steps"), ("optim", "optimizer_step"))
    for mark in ("", "_any", "_actor", "_critic")
}
"""Piece -> what its counter is called."""


def _check(parts: Rows) -> Found:
    """The files of each tag against each other, and the counters of all tags."""
    homes: dict[str, list[tuple[Part, Report]]] = {}
    for part, report in parts:
        homes.setdefault(part.folder.directory, []).append((part, report))
    for rows in homes.values():
        yield from _steps_differ(rows)
        yield from _optimizers_gone(rows)
        yield from _layers_gone(rows)
    told = list(borrowed(parts, _COUNTERS, growing=False))
    yield from told
    yield from _renamed(parts, {path for path, _ in told})
    yield from missed(parts, _listed_nowhere)


def _renamed(parts: Rows, told: Collection[str]) -> Found:
    """Tags of another step than their files, where others of the run are ``global_steps`` itself, as engines
    call them; the tag is the user's own word, so a warning.
    """
    counted = [
        (p, n) for p, r in parts if p.step and (n := whole(r.metadata.get("global_steps"))) is not None
    ]
    if any(p.step == n for p, n in counted):
        for p, n in counted:
            if p.step != n and p.path not in told:
                text = (
                    f"the name says step {p.step}, the file's global_steps is {n}, and elsewhere they are one"
                )
                yield p.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def _steps_differ(rows: Rows) -> Found:
    """Files of one tag with another ``global_steps`` than its first;
    the tag itself is the user's own word.
    """
    told = [(p, n) for p, r in rows if (n := whole(r.metadata.get("global_steps"))) is not None]
    if not told:
        return
    first, step = told[0]
    for p, n in told:
        if n not in (step, first.step):
            text = f"its global_steps is {n}, that of {first.path.rpartition('/')[2]} is {step}"
            yield p.path, Flaw("step-mismatch", text)


def _optimizers_gone(rows: Rows) -> Found:
    """Optimizer files of data parallel ranks that a model file promises, and that are not there."""
    optimizers = [dict(p.coords) for p, _ in rows if p.piece.startswith("optim")]
    present = {(coords.get("dp"), coords.get("tp")) for coords in optimizers}
    for p, r in rows:
        # with ZeRO the model states hold optimizer None: a save cut before its first optimizer file
        expected = present or r.metadata.get("optimizer", 0) is None
        if p.piece.startswith(("model", "zero3")) and expected and (sizes := _data_by_model(r)):
            dp, mp = sizes
            gone = ((m, [d for d in range(dp) if (d, m) not in present]) for m in range(mp))
            if lost := {m: ranks for m, ranks in gone if ranks}:
                text = f"dp_world_size is {dp}, but there is no optimizer file of {_spelled(lost)}"
                yield p.path, Flaw("missing-rank", text)
            return


def _layers_gone(rows: Rows) -> Found:
    """Pipeline layers of which a stage's model states name parameters, and that have no file. One that is
    tied to another one, or in which nothing is trained, is named nowhere.
    """
    there = {dict(p.coords)["layer"] for p, _ in rows if p.role == "layer"}
    for p, r in rows:
        told = r.metadata.get("param_shapes.layers")
        if isinstance(told, str) and (gone := set(map(int, told.split(","))) - there):
            text = f"it names parameters of layer {words(ranges(gone))}, of which there is no file"
            yield p.path, Flaw("missing-part", text)


def _lost(c: Checkpoint, _beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Pipeline layers that one rank of a model parallel group has and another one has not: each rank of it
    saves its slice of each. Layers without a state count as well, so a gap between numbers says nothing.
    """
    slices = {p.coords: p for p in c.parts if p.role == "layer"}
    ranks = sorted({at for coords in slices for axis, at in coords if axis == "tp"})
    for coords, p in slices.items():
        for rank in ranks:
            other = tuple((axis, rank if axis == "tp" else at) for axis, at in coords)
            if other not in slices:
                text = f"there is no file like {p.name} of model parallel rank {rank}, which has other layers"
                yield Flaw("missing-part", text, path=c.path)


def without_model(c: Checkpoint, _beside: Sequence[Checkpoint] = (), mark: str = MARK) -> Iterator[Flaw]:
    """What an engine saved below another framework's checkpoint (pieces with this ``mark``), where the states
    of its model are gone: its loader opens them first, and a model beside them does not replace them.
    """
    saved = {p.piece.partition(mark)[0] for p in c.parts if mark in p.piece}
    if "optim" in saved and saved.isdisjoint(("model", "zero3")):
        text = "there is no file of model states (mp_rank_00_model_states.pt) with those of the optimizer"
        yield Flaw("missing-part", text, path=c.path)


def _data_by_model(report: Report) -> tuple[int, int] | None:
    """(data, model) parallel sizes, where a file tells any that a job can have."""
    dp, mp = (whole(report.metadata.get(k)) or 1 for k in ("dp_world_size", "mp_world_size"))
    return (dp, mp) if "dp_world_size" in report.metadata and 0 < dp * mp <= _WORLD else None


def _spelled(lost: Mapping[int, Sequence[int]]) -> str:
    """Data parallel ranks by their model parallel rank."""
    return ", ".join(
        f"data parallel rank {words(ranges(ranks))} of model parallel rank {m}" for m, ranks in lost.items()
    )


_NEAR = 4
"""Saves, the nearest in time, whose files tell which ones a save has."""
Name = Callable[[Part], "str | None"]
"""What a file that no index lists is called in every checkpoint; None for one that does not count."""


def _listed_nowhere(p: Part) -> str | None:
    return p.name if p.role in ("layer", "expert", "expert_optimizer") else None


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    return lacking(c, others, _listed_nowhere)


def lacking(c: Checkpoint, others: Sequence[Checkpoint], name: Name) -> Iterator[Flaw]:
    """What ``missed`` finds, of one checkpoint and by names alone: the same files are needed where those of
    other checkpoints are damaged, and where they are too many to be read for it.
    """
    own = _named(c.parts, name)
    run = (o for o in others if o is not c and (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind))
    near = sorted(run, key=lambda o: abs(o.mtime_ns - c.mtime_ns))[:_NEAR]
    saves = [*filter(None, (_named(o.parts, name) for o in near))]
    usual = Tally(said for names in saves for said in names)
    gone = sorted(said for said, n in usual.items() if said not in own and 2 * n > len(saves))
    if own and gone:
        yield Flaw("missing-part", _not_there(gone), path=next(iter(own.values())).path)


def missed(parts: Rows, name: Name) -> Found:
    """Files that most other checkpoints of the run have and one has not, but for one without any such."""
    homes: dict[str, list[Part]] = {}
    for part, _ in parts:
        homes.setdefault(part.home, []).append(part)
    saves = [*filter(None, (_named(same, name) for same in homes.values()))]
    usual = Tally(said for names in saves for said in names)
    for names in saves:
        if gone := sorted(said for said, n in usual.items() if said not in names and 2 * n >= len(saves)):
            yield next(iter(names.values())).path, Flaw("missing-part", _not_there(gone))


def _named(parts: Sequence[Part], name: Name) -> dict[str, Part]:
    return {said: p for p in parts if (said := name(p)) is not None}


def _not_there(gone: Sequence[str]) -> str:
    return f"{names_of(gone)} of its checkpoint is not there, though the run's other checkpoints have it"


def read_tracker(data: bytes) -> str | None:
    text = data.decode("utf-8", "replace").strip()
    return text if 0 < len(text) <= 255 and not any(c in text for c in "\n/\0") else None


def tag(checkpoint: Checkpoint) -> str:
    """The name of the checkpoint's own directory."""
    return checkpoint.parts[0].home.rpartition("/")[2]


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(
        checkpoint.path,
        ("--load_dir", checkpoint.parts[0].base, "--tag", tag(checkpoint)),
        {"CKPT_LOAD_DIR": checkpoint.parts[0].base, "CKPT_TAG": tag(checkpoint)},
    )


def _pieces() -> Iterator[Piece]:
    zero = "[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}"
    for name, role, template, readers in (
        ("model", "model", "mp_rank_{tp:02d}_model_states.pt", Readers(replicated_over=("dp", "cp"))),
        ("zero3", "model", f"{zero}_model_states.pt", SHARDED),
        ("optim", "optimizer", f"{zero}_optim_states.pt", SHARDED),
        ("layer", "layer", "layer_{layer:02d}[-model_{tp:02d}]-model_states.pt", SHARED),
        ("expert", "expert", "[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt", SHARED),
        ("expert_optim", "expert_optimizer", "expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt", SHARED),
    ):
        content = Content(tensors_in=_TENSORS_IN.get(name, ()))
        yield Piece(name, role, template, FORMATS, readers=readers, unasked=True, content=content)


PIECES = tuple(_pieces())
"""The files of a checkpoint in its directory."""
LAYOUT = Layout(
    name="deepspeed",
    title="DeepSpeed ZeRO",
    pieces=(*nest(STEP, PIECES), *nest("{name}", PIECES, "_any")),
    resume=_resume,
    steps=_steps,
    check=_check,
    lost=_lost,
    lacks=_lacks,
    tracker=Tracker(file="latest", read=read_tracker, name=tag, early=True),
    complete=Complete(needs=("model",)),
    # scripts that the engine puts beside its saves
    beside=Beside(stateless=("zero_to_fp32.py", "zero_to_torch.py")),
    reference=(
        "deepspeed/runtime/engine.py save_checkpoint, _get_ckpt_name, _get_zero_ckpt_name; 'latest' is "
        "written before other ranks are done"
    ),
    limits=(
        (
            "only the model states carry global_steps; the optimizer files carry the optimizer's own count, "
            "where it has one"
        ),
        "pipeline layers and experts are loaded by the ranks that hold them: the plan lists them for all",
    ),
)
