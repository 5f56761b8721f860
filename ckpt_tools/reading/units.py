"""Which step or epoch a file that follows no known layout is of: what the number in its name counts, by what
the files of its run tell inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ckpt_tools.layouts.common.bare_names import BareName
from ckpt_tools.model.frozen import replace
from ckpt_tools.reading.bare_file import Bare


def with_units(bare: Sequence[Bare]) -> list[Bare]:
    """Every number in a name as a step or an epoch, run by run."""
    runs: dict[tuple[str, ...], list[Bare]] = {}
    for b in bare:
        runs.setdefault(b.run, []).append(b)
    return [b for run in runs.values() for b in _with_unit(run)]


def _with_unit(run: Sequence[Bare]) -> list[Bare]:
    """A number in a name is the step unless the contents of the run's files make it an epoch, or count
    otherwise: then it only says which files are of one save, whose step one of them tells.
    """
    unit = _unit(run)
    steps = {b.name.number: b.step for b in run if b.step is not None} if not unit else {}
    named = _as_names_count([replace(b, name=_numbered(b.name, unit, steps)) for b in run])
    counts = [(b.name.step, b.count) for b in named if b.name.step is not None and b.count is not None]
    one_update_per_step = bool(counts) and all(step == count for step, count in counts)
    if not one_update_per_step:
        return named
    return [_with_count(b) for b in named]


def _as_names_count(run: Sequence[Bare]) -> list[Bare]:
    """Files without a number as names count: ``last.pth`` that tells epoch 2 is later than ``epoch_2.pth``
    that tells epoch 1.
    """
    epochs, steps = _ahead((b.name.epoch, b.epoch) for b in run), _ahead((b.name.step, b.step) for b in run)
    return [b if b.name.numbered else _moved(b, epochs, steps) for b in run]


def _ahead(rows: Iterable[tuple[int | None, int | None]]) -> int:
    """How far names are ahead of contents: 1, -1, or 0 where nothing tells it."""
    ahead = Counter(named - told for named, told in rows if named is not None and told is not None)
    return ahead.most_common(1)[0][0] if ahead and _is_one_distance(ahead) else 0


def _moved(b: Bare, epochs: int, steps: int) -> Bare:
    epoch = b.epoch if b.epoch is None else b.epoch + epochs
    return replace(b, epoch=epoch, steps=tuple(step + steps for step in b.steps))


def _with_count(b: Bare) -> Bare:
    """A file that tells no step, with that of its optimizer."""
    if b.steps or b.name.numbered or b.count is None:
        return b
    return replace(b, steps=(b.count,))


def _unit(run: Sequence[Bare]) -> str:
    """What the numbers in names count, by what the files tell inside: steps, epochs, or neither ("")."""
    rows = [(b, b.name.number) for b in run if b.name.number is not None]
    if any(number in (*b.steps, b.count) for b, number in rows):
        return "step"
    ahead = Counter(n - b.epoch for b, n in rows if b.epoch is not None)
    steps = [(n, b.step) for b, n in rows if b.step is not None]
    if ahead:
        return "epoch" if _is_one_distance(ahead) else "" if steps else "step"
    return "epoch" if any(step >= n for n, step in steps) else "step"


def _is_one_distance(ahead: Counter[int]) -> bool:
    """Whether most names are as far ahead of their contents as each other, which counts from 0 or from 1."""
    distance, rows = ahead.most_common(1)[0]
    return abs(distance) <= 1 and 2 * rows > ahead.total()


def _numbered(name: BareName, unit: str, steps: Mapping[int | None, int]) -> BareName:
    if name.number is None:
        return name
    step = name.number if unit == "step" else steps.get(name.number)
    return name._replace(number=None, step=step, epoch=name.number if unit == "epoch" else None)
