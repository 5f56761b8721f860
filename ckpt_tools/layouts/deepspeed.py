"""DeepSpeed: ``<tag>/mp_rank_MM_model_states.pt`` with ZeRO's ``zero_pp_rank_D_mp_rank_MM_optim_states.pt``,
the tag named by ``latest``; its universal checkpoints; and OpenRLHF, which has its directories for two
models.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from ckpt_tools.layouts.common.counters import as_int, find_foreign
from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves, Tracker, name_home
from ckpt_tools.layouts.common.lost_files import loss
from ckpt_tools.layouts.common.saved_by import MOST_RANKS
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import names as names_of
from ckpt_tools.model.ranges import ranges, words
from ckpt_tools.model.report import Report

MARK = "_deepspeed"
"""Part of the names of DeepSpeed's pieces where they lie below a checkpoint of another framework."""
_STEPS = "global_steps"
_COUNTERS = {
    f"{name}{mark}": (counter,)
    for name, counter in (("model", _STEPS), ("zero3", _STEPS), ("optim", "optimizer_step"))
    for mark in ("", "_any", "_actor", "_critic")
}
"""Piece -> the metadata entry that holds its counter."""


def _check_tags(parts: Rows) -> Found:
    """Yield contradictions between files of a tag or between counters of all tags, and missing files."""
    homes = defaultdict[str, list[tuple[Part, Report]]](list)
    for part, report in parts:
        homes[part.folder.directory].append((part, report))
    for rows in homes.values():
        # the step in the tag proves nothing, as users choose tags
        steps = [(p, n) for p, r in rows if (n := as_int(r.metadata.get(_STEPS))) is not None]
        for p, n in steps:
            first, step = steps[0]
            if n not in (step, first.step):
                text = f"its {_STEPS} is {n}, that of {first.path.rpartition('/')[2]} is {step}"
                yield p.path, Flaw("step-mismatch", text)
        # a layer that is tied to another one, or in which nothing is trained, is named nowhere
        present = {dict(p.coords)["layer"] for p, _ in rows if p.role == "layer"}
        for p, r in rows:
            layers = r.metadata.get("param_shapes.layers")
            if isinstance(layers, str) and (gone := set(map(int, layers.split(","))) - present):
                text = f"it names parameters of layer {words(ranges(gone))}, of which there is no file"
                yield p.path, loss(text)
    yield from find_lost_optimizers(parts)
    found = list(find_foreign(parts, _COUNTERS, growing=False))
    yield from found
    yield from _find_misnamed_tags(parts, {path for path, _ in found})
    yield from find_missing(parts, _name_unlisted)


def _find_misnamed_tags(parts: Rows, reported: Collection[str]) -> Found:
    """Yield warnings about files of another step than their tag, the user's own word, if other tags agree."""
    steps = [(p, n) for p, r in parts if p.step and (n := as_int(r.metadata.get(_STEPS))) is not None]
    if any(p.step == n for p, n in steps):
        for p, n in steps:
            if p.step != n and p.path not in reported:
                text = f"the name says step {p.step}, the file's {_STEPS} is {n}, and elsewhere they are one"
                yield p.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def find_lost_optimizers(parts: Rows) -> Found:
    """Yield model files whose ``dp_world_size`` counts data parallel ranks without an optimizer file."""
    present = defaultdict[str, set[tuple[int | None, int | None]]](set)
    models = dict[str, tuple[Part, Report]]()
    for p, r in parts:
        home, coords = p.path.rpartition("/")[0], dict(p.coords)
        if p.piece.startswith("optim"):
            present[home].add((coords.get("dp"), coords.get("tp")))
        elif p.piece.startswith(("model", "zero3")) and "dp_world_size" in r.metadata:
            models.setdefault(home, (p, r))
    for home, (p, r) in models.items():
        dp, mp = (as_int(r.metadata.get(k)) or 1 for k in ("dp_world_size", "mp_world_size"))
        # with ZeRO the model states hold optimizer None: a save cut before its first optimizer file
        expected = home in present or r.metadata.get("optimizer", 0) is None
        if expected and 0 < dp * mp <= MOST_RANKS and (lost := ", ".join(_list_lost(dp, mp, present[home]))):
            text = f"dp_world_size is {dp}, but there is no optimizer file of {lost}"
            yield p.path, Flaw("missing-rank", text)


def _list_lost(dp: int, mp: int, present: Collection[tuple[int | None, int | None]]) -> Iterator[str]:
    """Yield, for each model parallel rank, the data parallel ranks without ``present`` files, in words."""
    for m in range(mp):
        if gone := [d for d in range(dp) if (d, m) not in present]:
            yield f"data parallel rank {words(ranges(gone))} of model parallel rank {m}"


def _find_lost_layers(c: Checkpoint, _beside: Saves) -> Flaws:
    """Yield pipeline layers of which another rank of the model parallel group has its slice."""
    slices = {p.coords: p for p in c.parts if p.role == "layer"}
    ranks = sorted({at for coords in slices for axis, at in coords if axis == "tp"})
    for coords, p in slices.items():
        for rank in ranks:
            other = tuple((axis, rank if axis == "tp" else at) for axis, at in coords)
            if other not in slices:
                text = f"there is no file like {p.name} of model parallel rank {rank}, which has other layers"
                yield loss(text, c.path)


def check_model(c: Checkpoint, _beside: Saves = (), mark: str = MARK) -> Flaws:
    """Yield a loss if an engine's save below another checkpoint (pieces with this ``mark``) has no model."""
    saved = {p.piece.partition(mark)[0] for p in c.parts if mark in p.piece}
    if "optim" in saved and saved.isdisjoint(("model", "zero3")):
        text = "there is no file of model states (mp_rank_00_model_states.pt) with those of the optimizer"
        yield loss(text, c.path)


_NEAR = 4
"""How many saves, the nearest in time, tell which files a save has."""
Name = Callable[[Part], "str | None"]
"""Returns the name that an unlisted file has in every checkpoint; None for a file that does not count."""


def _name_unlisted(p: Part) -> str | None:
    """Return the name of a file of a layer or an expert, which no other file lists; else None."""
    return p.name if p.role in ("layer", "expert", "expert_optimizer") else None


def find_lacking(c: Checkpoint, others: Saves, name: Name) -> Flaws:
    """Yield what ``find_missing`` would find for ``c``, by names in the nearest saves of its run alone."""
    run = (o for o in others if o is not c and (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind))
    near = sorted(run, key=lambda o: abs(o.mtime_ns - c.mtime_ns))[:_NEAR]
    saves = [*filter(None, (_map_names(o.parts, name) for o in near))]
    if own := _map_names(c.parts, name):
        yield from (loss(f.message, path) for path, f in _compare_saves([own], saves, len(saves) + 1))


def find_missing(parts: Rows, name: Name) -> Found:
    """Return losses of files that most checkpoints of the run have; one without any such file is skipped."""
    homes = defaultdict[str, list[Part]](list)
    for part, _ in parts:
        homes[part.home].append(part)
    saves = [*filter(None, (_map_names(same, name) for same in homes.values()))]
    return _compare_saves(saves, saves, len(saves))


def _compare_saves(asked: Sequence[dict[str, Part]], saves: Sequence[dict[str, Part]], total: int) -> Found:
    """Yield each of the ``asked`` saves that lacks file names which at least half of ``total`` saves have."""
    usual = Tally(name for names in saves for name in names)
    for names in asked:
        if gone := sorted(name for name, n in usual.items() if name not in names and 2 * n >= total):
            text = f"{names_of(gone)} is not in its checkpoint, and the run's other checkpoints have it"
            yield next(iter(names.values())).path, loss(text)


def _map_names(parts: Sequence[Part], name: Name) -> dict[str, Part]:
    """Return name -> part, for parts with a name."""
    return {its_name: p for p in parts if (its_name := name(p)) is not None}


def _read_tag(data: bytes) -> str | None:
    """Return the tag (the name of a directory) in the file ``latest``; None if it holds no such name."""
    text = data.decode("utf-8", "replace").strip()
    return text if 0 < len(text) <= 255 and not any(c in text for c in "\n/\0") else None


def _resume(checkpoint: Checkpoint, _path: str | None, *more: str) -> Resume:
    """Return the arguments of ``load_checkpoint``: the directory above the tag, and the tag."""
    base, tag = checkpoint.parts[0].base, name_home(checkpoint)
    arguments = ("--load_dir", base, "--tag", tag, *more)
    return Resume(checkpoint.path, arguments, {"CKPT_LOAD_DIR": base, "CKPT_TAG": tag})


DEEPSPEED = declare(
    "deepspeed",
    "deepspeed",
    resume=_resume,
    check=_check_tags,
    lost=_find_lost_layers,
    lacks=partial(find_lacking, name=_name_unlisted),
    tracker=Tracker(file="latest", read=_read_tag, name=name_home, early=True),
)


def _name_parameter(part: Part) -> str | None:
    """Return the path of a parameter's file below ``zero/``; None for any other file."""
    return part.path.removeprefix(f"{part.home}/zero/") if part.piece == "parameter" else None


def _check_universal(parts: Rows) -> Found:
    """Yield parameters that other checkpoints have; without any, files that all other parameters have."""
    gone = list(find_missing(parts, _name_parameter))
    yield from gone
    homes = defaultdict[str, dict[str, dict[str, Part]]](dict)
    for part in [p for p, _ in parts if p.piece == "parameter"] if not gone else ():
        homes[part.home].setdefault(part.folder.directory, {})[part.name] = part
    for parameters in homes.values():
        for directory, files in parameters.items():
            others = [set(names) for other, names in parameters.items() if other != directory]
            if lost := sorted(set[str]().union(*others[:1]).intersection(*others) - files.keys()):
                text = f"{', '.join(lost)} is not beside it, which every other parameter has"
                yield next(iter(files.values())).path, loss(text)


DEEPSPEED_UNIVERSAL = declare(
    "deepspeed",
    "deepspeed-universal",
    resume=lambda c, path: _resume(c, path, "--universal-checkpoint"),
    check=_check_universal,
    lacks=partial(find_lacking, name=_name_parameter),
)

_WORKERS = ("actor", "critic")


def _find_lost_workers(c: Checkpoint, _beside: Saves) -> Flaws:
    """Yield a loss for each of OpenRLHF's workers, which has an engine's save without model states."""
    for worker in _WORKERS:
        yield from check_model(c, mark=f"_{worker}")


OPENRLHF = declare(
    "deepspeed",
    "openrlhf",
    resume=lambda c, _path: Resume(c.parts[0].base),
    check=_check_tags,
    tracker=Tracker(
        others=tuple((f"_{worker}/latest", lambda data, _base: _read_tag(data)) for worker in _WORKERS),
        # the actor's and the critic's directory have the same tag
        name=lambda c: c.parts[0].path.split("/")[-2],
    ),
    lost=_find_lost_workers,
)
