"""Files that follow no known layout: which of them make up one checkpoint, of which run and step, by their
names and contents.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.layouts.common.bare_names import (
    ALIASES,
    LAST_WORDS,
    bare_name_of,
    is_under_way,
    read_bare_name,
    stem_of,
    together,
)
from ckpt_tools.layouts.common.held import piece_for
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.reading.bare_file import Bare, numbers_in, numbers_of, read_bare_file
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.step_folders import in_step_folders
from ckpt_tools.reading.told_apart import (
    with_measures_joined,
    with_parts_apart,
    with_phases_joined,
    written_over_by_runs,
)
from ckpt_tools.reading.units import with_units

_MOST = 512
"""Files of a directory that are inspected, the newest ones: who keeps thousands beside each other keeps data
there.
"""
_COUNT, _NUMBER = re.compile(r"(?<![\d.])\d+(?![\d]|\.\d)"), re.compile(r"\d+(\.\d+)?")
_OBJECTS = (".joblib", ".pkl")
"""Endings of files that may be a model as a whole."""
_EXPORTS = frozenset({"model", "models", "weights", "pytorch_model", "net", "state_dict", "model_weights"})


class _Save(NamedTuple):
    """What the files of one save have in common; ``number`` is their (step, epoch), or their word and the
    rest of their names.
    """

    run: tuple[str, ...]
    kind: Kind
    rolling: bool
    number: tuple[object, object]
    path: str = ""


def settle_bare_files(s: Session) -> None:
    """Give the parts of the files' layout their roles, kinds, runs and steps; what is no checkpoint's is none
    of them.
    """
    by_home: dict[str, list[Part]] = defaultdict(list)
    for p in in_step_folders(s.found.parts, lambda p: numbers_in(p, s)):
        by_home[p.base].append(p)
    kept: list[Part] = []
    for parts in by_home.values():
        newest = {p.path for p in sorted(parts, key=lambda p: -p.mtime_ns)[:_MOST]}
        bare = _states([(p, read_bare_file(p, s, p.path in newest)) for p in parts], s)
        in_runs = _trained_on(with_units(_with_runs(_in_pairs(_like_their_peers(bare)))))
        of_saves = _of_the_newest(_of_the_last(in_runs))
        for save in _saves(_with_roles_of_their_own(_beside_a_model(of_saves))).values():
            kept += _parts_of(save)
    s.found.parts = kept


def _states(read: Sequence[tuple[Part, Bare | None]], s: Session) -> list[Bare]:
    """The files of one directory that are checkpoints: by what they hold, or because they have the name of
    one more save of those that are, and hold what no save does.
    """
    bare = [b for _, b in read if b is not None]
    known = {b.pattern for b in bare if b.holds is not None and b.holds.weights}
    for p, held in sorted(read, key=lambda row: row[0].path):
        if held is not None:
            continue
        named = Bare(p, name := bare_name_of(p), role=name.role or "model")
        if p.path in s.reports and name.numbered and named.pattern in known:
            bare.append(named)
        else:
            s.make_bare(p)
    return bare


def _like_their_peers(bare: Sequence[Bare]) -> list[Bare]:
    """A file that cannot be read has the role that those of the same name have in other saves."""
    roles: dict[str, set[str]] = defaultdict(set)
    for b in bare:
        if b.holds is not None and numbers_of(b):
            roles[b.pattern].add(b.role)
    unread = [b for b in bare if b.holds is None and numbers_of(b) and len(roles[b.pattern]) == 1]
    told = {b.part.path: next(iter(roles[b.pattern])) for b in unread}
    return [replace(b, role=told.get(b.part.path, b.role)) for b in bare]


# --- which run


def _in_pairs(bare: Sequence[Bare]) -> list[Bare]:
    """Two networks that are trained together (``G_200.pth``, ``D_200.pth``) are of one run."""
    told = together(b.name for b in bare)
    return [_one_of_two(b, *told[b.name.words]) if b.name.words in told else b for b in bare]


def _one_of_two(b: Bare, words: tuple[str, ...], network: str) -> Bare:
    role = b.role if not network else network if b.role == "model" else f"{network}_{b.role}"
    return replace(b, name=b.name._replace(words=words), role=role)


def _with_runs(bare: Sequence[Bare]) -> list[Bare]:
    """Words in numbered names that mean nothing keep runs apart; what has no number, and what is no model,
    belongs to the one run that there is.
    """
    bare, told_apart = _told_apart(with_phases_joined(with_measures_joined(bare)))
    models = _regular_models(bare)
    runs = told_apart | {b.name.words for b in models or bare if b.name.numbered}
    if len(runs) > 1 and _in_folders_of_one_run(bare):
        return [_in_folder(b) for b in bare]
    trained = _trained(bare, [b for b in bare if b.name.words in told_apart] + models, runs)
    if len(runs) > 1 and len(trained) == 1:
        return [_in_run_of(b, next(iter(trained))) for b in bare]
    lone = next(iter(runs)) if len(runs) == 1 else ()
    return [replace(b, run=b.name.words if b.name.words in runs else lone, kind=b.name.kind) for b in bare]


def _regular_models(bare: Sequence[Bare]) -> list[Bare]:
    return [b for b in bare if b.name.numbered and b.name.kind is Kind.PERIODIC and b.role == "model"]


def _in_folders_of_one_run(bare: Sequence[Bare]) -> bool:
    """Whether all lie in directories of saves that are called alike, and by nothing but a number."""
    folders = {read_bare_name(b.part.home.rpartition("/")[2]) for b in bare}
    alike = len({said.pattern for said in folders}) == 1 and not any(said.words for said in folders)
    return alike and all(b.part.home for b in bare)


def _in_folder(b: Bare) -> Bare:
    """A file in the directory of one save: of several models there, each is of it (``step_100/unet.pt``)."""
    role = _own_name(b) if b.role == "model" and b.name.words else b.role
    return replace(b, name=b.name._replace(words=()), role=role, kind=b.name.kind)


def _trained(
    bare: Sequence[Bare], models: Sequence[Bare], runs: set[tuple[str, ...]]
) -> set[tuple[str, ...]]:
    """The runs that have an optimizer: in their models, else in files of its own."""
    together = {b.name.words for b in models if b.holds and b.holds.optimizer}
    return together or {b.name.words for b in bare if b.role == "optimizer"} & runs


def _in_run_of(b: Bare, trained: tuple[str, ...]) -> Bare:
    """A file beside the one run that is trained: under another name its weights are an export of a part of
    it.
    """
    exported = b.is_export and b.name.words != trained
    return replace(b, run=trained, kind=Kind.RELEASE if exported else b.name.kind)


def _told_apart(bare: Sequence[Bare]) -> tuple[list[Bare], set[tuple[str, ...]]]:
    """Two models of one number, kind and content under two names (``model_200``, ``ckpt_200``) are of two
    runs, which are then called by these; so are two whose names differ in numbers alone (``net_lr1``,
    ``net_lr2``, or two dates).
    """
    called = _names_of_runs(bare)
    named = [replace(b, name=b.name._replace(words=called.get(b.part.path, b.name.words))) for b in bare]
    named, of_parts = with_parts_apart(named)
    return named, {*called.values(), *of_parts, *written_over_by_runs(named)}


def _names_of_runs(bare: Sequence[Bare]) -> dict[str, tuple[str, ...]]:
    """What the runs are called that are told apart, by the paths of their files."""
    alike: dict[tuple[object, ...], list[Bare]] = defaultdict(list)
    for b in bare:
        if (content := _distinguishing(b)) is not None:
            alike[content].append(b)
    clash = {b.pattern for same in alike.values() if len({b.pattern for b in same}) > 1 for b in same}
    called: dict[str, tuple[str, ...]] = {b.part.path: (b.name.pattern,) for b in bare if b.pattern in clash}
    for same in filter(_differ_in_numbers, alike.values()):
        called |= {b.part.path: (stem_of(b.part.name),) for b in same}
    return called


def _differ_in_numbers(same: Sequence[Bare]) -> bool:
    """Whether they are models beside each other whose names are one but for their numbers."""
    models = {numbers_of(b) for b in same if b.role == "model" and not (b.part.home or b.name.shard)}
    return len({b.pattern for b in same}) == 1 and len(models) > 1


def _distinguishing(b: Bare) -> tuple[object, ...] | None:
    """What no two files of one run have in common; None for a file of which that cannot be said."""
    name = b.name
    if b.holds is None:
        return None
    if name.numbered and b.role == "model":
        return name.words, name.kind, name.step, name.epoch, name.number, b.holds.optimizer
    told = (b.step, b.epoch) != (None, None)
    if told and not name.says_something and (name.words or numbers_of(b)):
        return b.step, b.epoch, b.role, b.holds.optimizer
    return None


# --- which checkpoint


def _trained_on(bare: Sequence[Bare]) -> list[Bare]:
    """A state that is called final is no export where its optimizer has done more than that of any save with
    a number: training went on after these.
    """
    done: dict[tuple[str, ...], int] = defaultdict(int)
    for b in bare:
        if b.name.numbered and b.kind is Kind.PERIODIC and b.count is not None:
            done[b.run] = max(done[b.run], b.count)
    return [
        replace(b, kind=Kind.PERIODIC)
        if b.kind is Kind.RELEASE and b.is_state and b.count is not None and 0 < done[b.run] < b.count
        else b
        for b in bare
    ]


def _with_roles_of_their_own(bare: Sequence[Bare]) -> list[Bare]:
    """Several files of one save that are no copies of each other, such as two optimizers' states: each is
    loaded. Of a whole state and its weights alone one is.
    """
    names: dict[tuple[_Save, str], set[str]] = defaultdict(set)
    for b in bare:
        names[_save_of(b), b.role].add(_own_name(b))
    several = {(save.run, role) for (save, role), own in names.items() if len(own) > 1}
    return [
        replace(b, role=_own_name(b)) if (b.run, b.role) in several and not _may_be_copy(b) else b
        for b in bare
    ]


def _own_name(b: Bare) -> str:
    """The name of a file without what differs from save to save: ``optim_encoder``; of averages, which are
    told apart by their decay, ``ema_0.999``.
    """
    inside = stem_of(b.part.path.removeprefix(f"{b.part.home or b.part.base}/")).lower()
    words = (_COUNT if b.role == "ema" else _NUMBER).sub("", inside)
    return "_".join(word for word in re.split(r"[-_ =/]+", words) if word.strip(".") and word not in ALIASES)


def _may_be_copy(b: Bare) -> bool:
    """Whether a file is a state or weights, of which two files of one save have the same."""
    return b.role == "model" and not b.part.path.lower().endswith(_OBJECTS)


def _saves(bare: Iterable[Bare]) -> dict[_Save, list[Bare]]:
    """Files that are saved together: of one number, or written over under the same word."""
    out: dict[_Save, list[Bare]] = defaultdict(list)
    for b in bare:
        out[_save_of(b)].append(b)
    for save, same in list(out.items()):
        if save.rolling and _has_several(same):
            del out[save]
            out.update(_apart(save, same))
    return out


def _has_several(files: Sequence[Bare]) -> bool:
    return max(Counter(b.role for b in files).values()) > 1


def _apart(save: _Save, files: Sequence[Bare]) -> Iterator[tuple[_Save, list[Bare]]]:
    """Files whose names have the same numbers (``model_1_100.pt``, ``optim_1_100.pt``) are of one save,
    whatever these count; others are one each.
    """
    alike: dict[tuple[int, ...], list[Bare]] = defaultdict(list)
    for b in files:
        alike[numbers_of(b)].append(b)
    for some in alike.values():
        for group in [[b] for b in some] if _has_several(some) else [some]:
            yield save._replace(path=group[0].part.path), group


def _of_the_last(bare: Sequence[Bare]) -> list[Bare]:
    """What is written over and is no model (``optimizer.pth``) is of the save that is called the last
    (``last_model.pth``), where no model is called by less.
    """
    regular = [b for b in bare if b.rolling and b.kind is Kind.PERIODIC and not b.part.home]
    called = {b.name.alias for b in regular if b.role == "model"}
    if len(called) != 1 or called.isdisjoint(LAST_WORDS):
        return list(bare)
    alias = called.pop()
    of_it = {b.part.path for b in regular if not b.name.alias}
    return [replace(b, name=b.name._replace(alias=alias)) if b.part.path in of_it else b for b in bare]


def _of_the_newest(bare: Sequence[Bare]) -> list[Bare]:
    """An optimizer's state that is written over beside models that are kept is of one of the last."""
    if all(b.role != "optimizer" or not b.rolling for b in bare):
        return list(bare)
    from ckpt_tools.reading.rolling_states import beside_their_models  # few loops have one

    return beside_their_models(bare)


def _beside_a_model(bare: Sequence[Bare]) -> list[Bare]:
    """Files that are written over with a model: words in their names that no model has say what they hold,
    also where they cannot be read. What no word calls otherwise is of the only model that there is.
    """
    rolling = [b for b in bare if b.rolling]
    models = {b.name.words for b in rolling if b.holds and b.holds.weights}
    roles: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for b in rolling:
        roles[b.name.words].add(b.role)
    only = next(iter(models)) if len(models) == 1 else ()
    nameless = roles[()].isdisjoint({"model", *roles[only]})
    beside = dict[str, Bare]()
    for b in rolling:
        if nameless and b.name.words == b.run == ():
            beside[b.part.path] = _beside(b, only)
        elif b.name.words not in models and not _lost_its_model(roles[b.name.words], roles[b.run]):
            beside[b.part.path] = _beside(b, b.run) if b.run in models else b
    return [beside.get(b.part.path, b) for b in bare]


def _lost_its_model(roles: set[str], of_the_run: set[str]) -> bool:
    """Whether files of one name are those of another save: each is there once more beside the model."""
    return len(roles) > 1 and roles < of_the_run


def _beside(b: Bare, words: tuple[str, ...]) -> Bare:
    role = _own_name(b) if b.holds is None and b.role == "model" else b.role
    return replace(b, name=b.name._replace(words=words), role=role)


def _save_of(b: Bare) -> _Save:
    if b.name.numbered:
        return _Save(b.run, b.kind, b.rolling, (b.name.step, b.name.epoch))
    return _Save(b.run, b.kind, b.rolling, (b.name.alias, b.name.words if b.name.words != b.run else ()))


def _parts_of(save: Sequence[Bare]) -> Iterator[Part]:
    """The files of one checkpoint,
    with what they tell together: names before contents, models before others.
    """
    in_order = sorted(save, key=lambda b: (b.role != "model", b.part.path))
    first = in_order[0]
    step = _known([*(b.name.step for b in in_order), *(b.step for b in in_order)])
    epoch = _known([*(b.name.epoch for b in in_order), *(b.epoch for b in in_order)])
    kind = _kind_of(save)
    for b in save:
        words = "_".join(b.run)
        over = b.rolling or (b.role != "model" and not bare_name_of(b.part).numbered)
        yield b.part._replace(
            piece=piece_for(b.holds, over) if b.holds else b.part.piece,
            role=b.role,
            kind=kind,
            run=_run_name(b.part.run, words),
            prefix=stem_of(first.part.path.rpartition("/")[2]) if b.rolling else words,
            step=step,
            epoch=epoch,
            unfinished=is_under_way(b.part.home),
        )


def _known(numbers: Iterable[int | None]) -> int | None:
    return next((n for n in numbers if n is not None), None)


def _run_name(directory: str, words: str) -> str:
    if not words:
        return directory
    return words if directory == "." else f"{directory}/{words}"


def _kind_of(save: Sequence[Bare]) -> Kind:
    """What the name says, but for an export that is none: a state that training can go on from, and that
    tells how far it was, is the last save of a job that came to its end (nnU-Net's checkpoint_final.pth).
    """
    kind, held = save[0].kind, [b.holds for b in save if b.holds]
    whole = all(any(which) for which in zip(*held, strict=True))
    if kind is Kind.RELEASE and held and whole:
        return Kind.PERIODIC
    return Kind.RELEASE if _exported(save) else kind


def _exported(save: Sequence[Bare]) -> bool:
    """Weights of no step under a name that only says that it is a model."""
    first = save[0]
    if not first.rolling or first.name.alias or first.kind is not Kind.PERIODIC:
        return False
    if not all(b.is_export and b.holds and not b.holds.counters for b in save):
        return False
    return all(
        b.name.shard or b.role == "ema" or stem_of(b.part.path.rpartition("/")[2]).lower() in _EXPORTS
        for b in save
    )
