"""Which files beside each other are of runs, or of parts of one save, and no later saves of another."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ckpt_tools.layouts.common.bare_names import read_bare_name
from ckpt_tools.layouts.common.names_apart import Words, are_of_several, of_folds
from ckpt_tools.model.part import Part
from ckpt_tools.reading.bare_file import Bare

_TOGETHER_NS = 2_000_000_000
"""The time within which one save writes its files: nobody trains from one save to the next in it."""
_APART_NS = 600 * 1_000_000_000
"""Files that one job writes over in turn are all there by then, in most."""
_COUNTED = re.compile(r"([a-z]+)(\d{1,4})")


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
    return states if times and max(times) - min(times) >= _APART_NS else []


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
    apart = dict[str, Bare]()
    for words, rows in families.items():
        if _may_be_parts(list(rows.values())):
            apart |= {path: _of_part(b, words, number) for path, (number, b) in rows.items()}
    return [apart.get(b.part.path, b) for b in bare], {b.name.words for b in apart.values()}


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
    first = min(numbers)
    if len(numbers) < 2 or first > 1 or numbers != set(range(first, first + len(numbers))):
        return False
    if any(b.holds is None or _tells(b, number) for number, b in rows):
        return False
    files = [b for _, b in rows]
    return (
        _together([b.part for b in files]) or _as_far(files, max(numbers)) or _of_a_save(files, max(numbers))
    )


def _of_a_save(bare: Sequence[Bare], highest: int) -> bool:
    """Whether their directory is called after a step or epoch that no number has reached."""
    said = read_bare_name(bare[0].part.base.rpartition("/")[2])
    at = said.epoch if said.step is None else said.step
    return at is not None and at > highest


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


def _of_part(b: Bare, words: tuple[str, ...], number: int) -> Bare:
    return replace(b, name=b.name._replace(words=(*words, str(number)), number=None))
