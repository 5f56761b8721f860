"""Which files beside each other are of runs, or of parts of one save, and no later saves of another."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from ckpt_tools.layouts.common.bare_names import read_bare_name
from ckpt_tools.layouts.common.names_apart import APART_NS, Words, are_of_several, of_folds
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.reading.bare_file import Bare, numbers_of

_TOGETHER_NS = 2_000_000_000
"""The time within which one save writes its files: nobody trains from one save to the next in it."""
_COUNTED = re.compile(r"([a-z]+)(\d{1,4})")


_PHASE = "swa"
"""The word of a second phase of training, in which weights are averaged."""


def with_phases_joined(bare: Sequence[Bare]) -> list[Bare]:
    """Saves of a second phase (MACE's ``x_epoch-9_swa.pt``) are of the run of the first, where they count on
    from there: all are later by their numbers, and of no number of the first.
    """
    phases: dict[Words, list[Bare]] = defaultdict(list)
    for b in bare:
        if b.name.numbered and b.is_state and b.kind is Kind.PERIODIC:
            phases[b.name.words].append(b)
    joined = dict[str, Bare]()
    for words, second in phases.items():
        rest = tuple(word for word in words if word != _PHASE)
        first = phases.get(rest, []) if rest != words else []
        if first and max(map(numbers_of, first)) < min(map(numbers_of, second)):
            joined |= {b.part.path: replace(b, name=b.name._replace(words=rest)) for b in second}
    return [joined.get(b.part.path, b) for b in bare]


_MEASURE = re.compile(r"([a-z])\d+")


def with_measures_joined(bare: Sequence[Bare]) -> list[Bare]:
    """Files whose names tell how good each is, by a letter and a number for several measures (CHGNet's
    ``epoch1_e80_f190.pth.tar``), are of one run: no two of one kind tell the same step or epoch.
    """
    families: dict[tuple[Words, Kind], list[Bare]] = defaultdict(list)
    for b in bare:
        measures = sum(_MEASURE.fullmatch(word) is not None for word in b.name.words)
        if measures > 1 and (b.name.step, b.name.epoch) != (None, None):
            families[_without_values(b.name.words), b.name.kind].append(b)
    joined = dict[str, Bare]()
    for (words, _), same in families.items():
        if len({(b.name.step, b.name.epoch, b.pattern) for b in same}) == len(same):
            joined |= {b.part.path: replace(b, name=b.name._replace(words=words)) for b in same}
    return [joined.get(b.part.path, b) for b in bare]


def _without_values(words: Words) -> Words:
    return tuple(_MEASURE.sub(r"\1", word) for word in words)


def written_over_by_runs(bare: Sequence[Bare]) -> set[Words]:
    """The words of models that are written over, each by a run of its own: of states that training can go on
    from, where there are several (``resnet_last.pt``, ``vit_last.pt``) or one lies beside the numbered saves
    of another (``resnet_100.pt``), and of all models of folds and seeds.
    """
    models = [b for b in bare if b.role == "model" and b.name.words]
    rolling = [b for b in models if b.rolling]
    numbered = {word for b in models if not b.rolling for word in b.name.words}
    states = [b for b in rolling if b.is_state] or _states_in_two(rolling, bare)
    return _of_states(states, numbered) | of_folds({b.name.words for b in rolling})


def _states_in_two(rolling: Sequence[Bare], bare: Sequence[Bare]) -> list[Bare]:
    """Models that count how far they were, or with an optimizer of their name beside each (``vit.pdparams``,
    ``vit.pdopt``), where they were not written at one time, as those of one save are.
    """
    trained = {b.name.words for b in bare if b.rolling and b.holds and b.holds.optimizer}
    states = [b for b in rolling if b.holds and (b.holds.counters or b.name.words in trained)]
    times = [b.part.mtime_ns for b in states]
    return states if times and max(times) - min(times) >= APART_NS else []


def _of_states(states: Sequence[Bare], numbered: set[str]) -> set[Words]:
    """The words of those that are each of a run of its own."""
    words = {b.name.words for b in states}
    return words if are_of_several(words) else {b.name.words for b in states if _is_of_another(b, numbered)}


def _is_of_another(b: Bare, numbered: set[str]) -> bool:
    """Whether a state that is called ``last`` or ``best`` shares no word with the numbered ones."""
    return bool(numbered) and b.name.says_something and numbered.isdisjoint(b.name.words)


def with_parts_apart(bare: Sequence[Bare]) -> tuple[list[Bare], set[Words]]:
    """Files that are counted from 0 or 1 on (``agent_0.pt``, ``agent_1.pt``), where none tells its number
    inside, and all were written within a moment, or their directory (``step_10/``) or what they tell counts
    further: each number is one more word of the name. Then those words.
    """
    families: dict[tuple[str, ...], dict[str, tuple[int, Bare]]] = defaultdict(dict)
    for b in bare:
        if (told := _counted(b)) is not None:
            words, number = told
            families[words][b.part.path] = number, b
    apart = _in_grids(bare)
    for words, rows in families.items():
        if _may_be_parts(list(rows.values())):
            apart |= {path: _of_part(b, words, number) for path, (number, b) in rows.items()}
    return [apart.get(b.part.path, b) for b in bare], {b.name.words for b in apart.values()}


def _in_grids(bare: Sequence[Bare]) -> dict[str, Bare]:
    """Files with two numbers that nothing explains (``state_0_30.pt``, ``state_1_30.pt``), of which one
    counts parts of a save from 0 or 1 on, as many in each, and the other one saves.
    """
    families: dict[str, list[tuple[tuple[int, int], Bare]]] = defaultdict(list)
    for b in bare:
        numbers = numbers_of(b)
        if len(numbers) == 2 and not (b.name.numbered or b.part.home):
            families[b.pattern].append(((numbers[0], numbers[1]), b))
    apart = dict[str, Bare]()
    for rows in families.values():
        if (place := next((i for i in (0, 1) if _is_grid(rows, i)), None)) is not None:
            apart |= {b.part.path: _of_part(b, b.name.words, n[place], n[1 - place]) for n, b in rows}
    return apart


def _is_grid(rows: Sequence[tuple[tuple[int, int], Bare]], place: int) -> bool:
    saves: dict[int, dict[int, Bare]] = defaultdict(dict)
    for numbers, b in rows:
        saves[numbers[1 - place]][numbers[place]] = b
    there = {number for parts in saves.values() for number in parts}
    whole = [parts for parts in saves.values() if there == set(parts)]
    half = 2 * len(whole) >= len(saves)  # a save may have been cut short, or its files be lost
    return half and _counts_on(there) and all(_are_of_one_save(list(parts.values())) for parts in whole)


def _are_of_one_save(parts: Sequence[Bare]) -> bool:
    return len({(b.steps, b.epoch, b.count) for b in parts}) == 1 and _together([b.part for b in parts])


def _counts_on(numbers: set[int]) -> bool:
    first = min(numbers)
    return len(numbers) > 1 and first <= 1 and numbers == set(range(first, first + len(numbers)))


def _counted(b: Bare) -> tuple[tuple[str, ...], int] | None:
    """The words of a name and its only number, whose unit it does not tell."""
    if b.name.number is not None:
        return b.name.words, b.name.number
    found = [m for word in b.name.words if (m := _COUNTED.fullmatch(word))]
    if b.name.numbered or len(found) != 1:
        return None
    return tuple(_COUNTED.sub(r"\1", word) for word in b.name.words), int(found[0][2])


def _may_be_parts(rows: Sequence[tuple[int, Bare]]) -> bool:
    numbers = {number for number, _ in rows}
    if not _counts_on(numbers):
        return False
    if any(b.holds is None or _tells(b, number) for number, b in rows):
        return False
    bare = [b for _, b in rows]
    together = _together([b.part for b in bare]) and not _one_by_one(bare)
    return together or _as_far(bare, max(numbers)) or _of_a_save(bare, max(numbers))


def _of_a_save(bare: Sequence[Bare], highest: int) -> bool:
    """Whether their directory is called after a step or epoch that no number has reached."""
    said = read_bare_name(bare[0].part.base.rpartition("/")[2])
    at = said.epoch if said.step is None else said.step
    return at is not None and at > highest


def _one_by_one(bare: Sequence[Bare]) -> bool:
    """Whether they tell how far each was trained, and one of them by half as much again as another: parts of
    a save are trained together, and saves one after the other.
    """
    done = [d for b in bare if (d := b.count if b.step is None else b.step) is not None]
    return len(done) == len(bare) and 2 * max(done) >= 3 * min(done) > 0


def _together(parts: Sequence[Part]) -> bool:
    times = [p.mtime_ns for p in parts]
    return 0 < max(times) - min(times) < _TOGETHER_NS


def _tells(b: Bare, number: int) -> bool:
    return number in (*b.steps, b.count) or (b.epoch is not None and abs(b.epoch - number) <= 1)


def _as_far(bare: Sequence[Bare], highest: int) -> bool:
    """Whether all tell one epoch or step, which no number has reached: each was trained that far."""
    told = {b.step if b.epoch is None else b.epoch for b in bare}
    far = told.pop()
    return not told and far is not None and far > highest


def _of_part(b: Bare, words: tuple[str, ...], number: int, save: int | None = None) -> Bare:
    return replace(b, name=b.name._replace(words=(*words, str(number)), number=save))
