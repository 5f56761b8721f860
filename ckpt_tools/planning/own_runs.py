"""Which of several runs are runs of their own, between which only the caller can choose."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common.bare_names import (
    LAST_WORDS,
    METRICS,
    calls_a_save,
    is_called_after_a_role,
    read_bare_name,
)
from ckpt_tools.layouts.common.directories import is_of_a_hub, is_of_the_best
from ckpt_tools.layouts.common.held import holds_of
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind

Runs = Mapping[tuple[str, str], Sequence[Checkpoint]]
"""(layout, run) -> its finished checkpoints."""


def shares(runs: Runs, layouts: Layouts) -> set[tuple[str, str]]:
    """Those in which a replica keeps what only it needs, beside the saves of a run."""
    homes = {run: {_directory(c) for c in members} for run, members in runs.items()}
    return {
        run
        for run, mine in homes.items()
        if (named := layouts[run[0]].shares) and all(named.fullmatch(os.path.basename(home)) for home in mine)
        if any(run[0] == o[0] and {*map(os.path.dirname, mine)} <= homes[o] for o in runs if o != run)
    }


_KEPT = re.compile("milestones?", re.IGNORECASE)
"""What a directory is called in which a run keeps some of its saves longer than the others."""


def kept_longer(runs: Runs) -> set[tuple[str, str]]:
    """Those in such a directory among the saves of another run that are of no later step and time."""
    return {
        run
        for run, members in runs.items()
        if all(_KEPT.fullmatch(os.path.basename(_directory(c))) for c in members)
        for other, saves in runs.items()
        if other[0] == run[0] and {_directory(c) for c in saves} == {os.path.dirname(_directory(members[0]))}
        if max(c.order for c in members) <= max(c.order for c in saves)
        if max(c.mtime_ns for c in members) <= max(c.mtime_ns for c in saves)
    }


def no_saves(runs: Runs) -> set[tuple[str, str]]:
    """Those below the directory of another run's training states, in one that is called an export or after an
    evaluation, and with nothing of a state but weights.
    """
    return {run for run, members in runs.items() if _are_no_states(members) and _is_below_states(run, runs)}


def _are_no_states(members: Sequence[Checkpoint]) -> bool:
    bare = all((held := holds_of(c)) and not (held.optimizer or held.counters) for c in members)
    return bare and all(_is_of_no_saves(os.path.basename(_directory(c))) for c in members)


def _is_of_no_saves(directory: str) -> bool:
    evaluated = not METRICS.isdisjoint(re.findall("[a-z]+", directory.lower()))
    return evaluated or read_bare_name(directory).kind is Kind.RELEASE or is_of_a_hub(directory)


def _is_below_states(run: tuple[str, str], runs: Runs) -> bool:
    states = tuple(f"{at}/" for at in _of_states(run, runs))
    return all(_directory(c).startswith(states) for c in runs[run])


def _of_states(run: tuple[str, str], runs: Runs) -> set[str]:
    """The directories of other runs' training states."""
    others = (c for other, members in runs.items() if other[0] == run[0] and other != run for c in members)
    return {_directory(c) for c in others if (held := holds_of(c)) and held.optimizer}


def exports_beside(runs: Runs, layouts: Layouts) -> dict[tuple[str, str], Finding]:
    """Weights alone in a directory that is called by nothing but an export, beside that of another run's
    training states (``export/`` beside ``checkpoints/``); and models in a layout that holds nothing else, and
    of which nothing tells a step, beside states of one's own loop: what it began with, or has exported.
    """
    called = "it holds a model alone in a directory that is called an export, beside states of training"
    alone = "it holds a model alone, and tells no step, beside states of training"
    out = dict[tuple[str, str], Finding]()
    for run, members in runs.items():
        export = _are_no_states(members) and all(_is_export_beside(c, run, runs) for c in members)
        if export or _is_model_beside_states(run, runs, layouts):
            text = called if export else alone
            out[run] = finding("passed-over", text, path=members[0].path, severity=Severity.NOTE)
    return out


def _is_model_beside_states(run: tuple[str, str], runs: Runs, layouts: Layouts) -> bool:
    told = any((c.step, c.epoch, c.generation) != (None, None, None) for c in runs[run])
    if told or not layouts[run[0]].models_alone or _have_states_beside(runs[run], layouts):
        return False
    others = (c for other, members in runs.items() if other != run for c in members)
    return any((held := holds_of(c)) and held.optimizer for c in others)


def _is_export_beside(c: Checkpoint, run: tuple[str, str], runs: Runs) -> bool:
    above, name = os.path.split(_directory(c))
    said = read_bare_name(name)
    called = (said.kind is Kind.RELEASE and not said.words) or is_of_a_hub(name)
    return called and above in map(os.path.dirname, _of_states(run, runs))


def finals(runs: Runs) -> dict[tuple[str, str], Finding]:
    """Those that a run's script saved at its end, once more than its callbacks. They never win, since only
    their place tells whose they are.
    """
    text = "it is called final, and of the same step as the last of the run's regular saves"
    note = partial(finding, "passed-over", text, severity=Severity.NOTE)
    return {run: note(path=members[0].path) for run, members in runs.items() if _is_final(run, runs)}


def _is_final(run: tuple[str, str], runs: Runs) -> bool:
    """Whether it is one file, called ``final``, above the directory of another run, and of its highest step:
    a directory, or a file of another step, may as well be an experiment's.
    """
    one, *more = runs[run]
    if more or one.parts[0].home or read_bare_name(os.path.basename(one.path)).kind is not Kind.RELEASE:
        return False
    below = [members for other, members in runs.items() if other[0] == run[0] and other != run]
    return any(
        {os.path.dirname(_directory(c)) for c in members} == {_directory(one)}
        and max(c.order[0] for c in members) == one.order[0] >= 0
        for members in below
    )


def own_runs(runs: Runs, layouts: Layouts) -> Runs:
    """Without those in a directory that is called the best, beside or below that of a run, without the model
    alone that the saves of a run have exported, without the saves below the one that is called the last, and
    without what a framework keeps beside the state that it goes on from.
    """
    return {
        run: members
        for run, members in runs.items()
        if not (
            _best_of_another(run, runs)
            or _export_of_another(run, runs, layouts)
            or _beside_states(run, runs)
            or _below_the_last(run, runs)
            or _renewed_beside(run, runs)
            or _kept_beside(run, runs, layouts)
        )
    }


def several(runs: Runs) -> bool:
    """Whether they are several: a lone run of dying gasps (as a fault-tolerance layer saves them) belongs to
    the lone periodic one beside it.
    """
    gasps = [run for run, members in runs.items() if all(c.kind is Kind.DYING_GASP for c in members)]
    return len(runs) > 1 and not (len(runs) == 2 and len(gasps) == 1)


def of_own(own: Runs, finished: Sequence[Checkpoint]) -> list[Checkpoint]:
    """What may be resumed from: their checkpoints, and whole states that only their directory calls the best.
    A run goes on from the newest of both.
    """
    layouts = {layout for layout, _ in own}
    return [
        c for c in finished if (c.layout, c.run) in own or (c.layout in layouts and c.kind is Kind.PERIODIC)
    ]


def passed_over(finished: Sequence[Checkpoint], kept: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Those that were left out, and are of a later step than all that may be resumed from, or lie in a
    directory that is called so: the rest of a save may be lost.
    """
    furthest, keys = max((c.order for c in kept), default=()), {c.key for c in kept}
    homes = {c.parts[0].home for c in kept}
    for c in finished:
        if c.key in keys:
            continue
        if c.order > furthest:
            what = "only the best so far" if c.kind is Kind.BEST else "it holds a model alone"
            text = f"it is of a later step than the run's regular saves, but {what}"
            yield finding("passed-over", text, path=c.path, severity=Severity.WARNING)
        elif any(_is_called_later(above, homes) for above in _and_above(c.parts[0].home)):
            text = "it holds a model alone, in a directory that is called as a later save than all others"
            yield finding("passed-over", text, path=c.path, severity=Severity.WARNING)


def _is_called_later(directory: str, homes: Collection[str]) -> bool:
    """Whether it lies beside such directories, is called as they are, and counts further than each."""
    alike = [home for home in homes if _called(home) == _called(directory) != ""]
    return bool(alike) and all(_counted(home) < _counted(directory) for home in alike)


def _counted(directory: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]{1,18}", os.path.basename(directory))]


def _best_of_another(run: tuple[str, str], runs: Runs) -> bool:
    """Whole states lie beside the run's other saves (Lightning's callbacks each have their directory), or
    below these (a manager of TensorFlow's of its own).
    """
    homes = {_directory(c) for c in runs[run]}
    if not all(map(is_of_the_best, homes)):
        return False
    above = {os.path.dirname(home) for home in homes}
    others = (members for other, members in runs.items() if other[0] == run[0] and other != run)
    regular = [{_directory(c) for c in members if c.kind is Kind.PERIODIC} for members in others]
    if all(c.kind is Kind.BEST for c in runs[run]):
        return above in regular
    return len(regular) == 1 and above in (regular[0], {os.path.dirname(home) for home in regular[0]})


def _export_of_another(run: tuple[str, str], runs: Runs, layouts: Layouts) -> bool:
    """Whether its directories are called like those of the states of another run among which they lie, or lie
    within such; or each lies beside the directory of states, and is called after a step of theirs.
    """
    if not layouts[run[0]].models_alone or _have_states_beside(runs[run], layouts):
        return False
    states = [members for (layout, _), members in runs.items() if not layouts[layout].models_alone]
    return any(
        all(not called.isdisjoint(map(_called, _and_above(c.parts[0].home))) for c in runs[run])
        for called in ({_called(c.parts[0].home) for c in members} - {""} for members in states)
    ) or any(all(_is_of_a_step(c.parts[0].home, members) for c in runs[run]) for members in states)


def _have_states_beside(checkpoints: Sequence[Checkpoint], layouts: Layouts) -> bool:
    """Whether a loop of one's own keeps more than models in their directories."""
    return any(layouts.piece_of(p).companion for c in checkpoints for p in c.parts)


def _is_of_a_step(home: str, states: Sequence[Checkpoint]) -> bool:
    """Whether a directory (XTuner's ``hf-30``) ends with the step of one of the states."""
    steps, beside = {c.step for c in states}, f"{os.path.dirname(states[0].parts[0].base)}/"
    below = home.removeprefix(beside) if home.startswith(beside) else ""
    ends = (re.search(r"(?<![0-9])[0-9]{1,18}$", name) for name in below.split("/"))
    return any(int(end[0]) in steps for end in ends if end)


def _and_above(directory: str) -> Iterator[str]:
    while directory.strip("/"):
        yield directory
        directory = os.path.dirname(directory)


def _beside_states(run: tuple[str, str], runs: Runs) -> bool:
    """Whether it holds exports alone, in a directory called as that of another run's states and a word:
    ``checkpoint_network`` beside ``checkpoint``; or nothing of a state (``checkpoint_buffers``).
    """
    played = _hold_nothing_trained(runs[run])
    if not played and any(c.kind is not Kind.RELEASE for c in runs[run]):
        return False
    mine = runs[run][0].parts[0]
    states = (c.parts[0] for o in runs if o[0] == run[0] for c in runs[o][:1] if c.kind is Kind.PERIODIC)
    return any(mine.base.startswith(f"{p.base}_") and (played or mine.prefix == p.prefix) for p in states)


def _hold_nothing_trained(members: Sequence[Checkpoint]) -> bool:
    """Whether those of the files that can be read hold neither a model nor an optimizer's state."""
    read = [held for c in members if (held := holds_of(c))]
    return bool(read) and not any(held.weights or held.optimizer for held in read)


def _below_the_last(run: tuple[str, str], runs: Runs) -> bool:
    """Whether its directory has only a name for saves or models, and all that lies above it is called the
    last and counts in the same unit: ``last.pth`` beside ``models/model_epoch_40.pth``.
    """
    homes, units = {_directory(c) for c in runs[run]}, {c.unit for c in runs[run]}
    name = os.path.basename(min(homes))
    if len(homes) > 1 or len(units) > 1 or units == {""}:
        return False
    above = [members for o, members in runs.items() if o[0] == run[0] and _lie_in(members, min(homes))]
    called = is_called_after_a_role(name) or calls_a_save(name)
    return called and len(above) == 1 and all(c.unit in units and _is_last(c) for c in above[0])


_RENEWED = ("-meta", "_meta")


def _renewed_beside(run: tuple[str, str], runs: Runs) -> bool:
    """Whether it is the one state that is written over more often than others are kept, in a directory that
    is called as theirs and so: score_sde's ``checkpoints-meta`` beside ``checkpoints``.
    """
    one, *more = runs[run]
    beside = {_directory(c) for o, members in runs.items() if o[0] == run[0] and o != run for c in members}
    called = [at for end in _RENEWED if (at := _directory(one).removesuffix(end)) != _directory(one)]
    return not more and any(at in beside for at in called)


def _kept_beside(run: tuple[str, str], runs: Runs, layouts: Layouts) -> bool:
    """Whether the state from which its framework goes on by itself lies beside it, or beside its directory,
    and was written no earlier.
    """
    homes = {_directory(c) for c in runs[run]}
    beside = homes | set(map(os.path.dirname, homes))
    newest = max(c.mtime_ns for c in runs[run])
    return any(
        run[0] in layouts[layout].keeps
        and {*map(_directory, members)} <= beside
        and newest <= max(c.mtime_ns for c in members)
        for (layout, _), members in runs.items()
    )


def _lie_in(members: Sequence[Checkpoint], below: str) -> bool:
    return {_directory(c) for c in members} == {os.path.dirname(below)}


def _is_last(c: Checkpoint) -> bool:
    said = [read_bare_name(p.name) for p in c.parts]
    return not c.parts[0].home and all(name.alias in LAST_WORDS and not name.numbered for name in said)


def _called(directory: str) -> str:
    """Its path without numbers in its name; "" where it has none."""
    above, _, name = directory.rpartition("/")
    return f"{above}/{re.sub('[0-9]+', '', name)}" if re.search("[0-9]", name) else ""


def _directory(c: Checkpoint) -> str:
    """The directory that a checkpoint lies in."""
    return os.path.dirname(c.parts[0].home or c.parts[0].path)
