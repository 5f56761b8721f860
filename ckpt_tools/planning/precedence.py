"""Which candidates rank behind the others, however new they are: exports, incomplete states, and files
without a place in the order of training.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.discovery.exclude import without
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common.bare_names import METRICS, NEVER_ALONE, bare_name_of, stem_of
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind
from ckpt_tools.planning.choose import rank

Signature = frozenset[tuple[str, tuple[int, ...]]]
"""The names and shapes of tensors."""


def in_order(
    candidates: Sequence[Checkpoint], layouts: Layouts, prefer: Kind | None = None
) -> list[Checkpoint]:
    """Those whose times and steps tell which is the newest: without what goes behind them in any case.

    All where the caller prefers a kind.
    """
    if prefer is not None:
        return list(candidates)
    first = [c for c in candidates if not layouts.of(c).later(c, candidates)]
    return first or list(candidates)


def ordered(
    candidates: Sequence[Checkpoint], layouts: Layouts, order: str, prefer: Kind | None = None
) -> list[Checkpoint]:
    """Best first, and behind them what goes last.

    Apart, because at one step a periodic checkpoint counts as no older than the best so far, which may be a
    copy of it.
    """
    first = in_order(candidates, layouts, prefer)
    known = {c.key for c in first}
    behind = [c for c in candidates if c.key not in known]
    return [*rank(first, order, prefer), *rank(behind, order)]


def passed_over(
    candidates: Sequence[Checkpoint], first: Sequence[Checkpoint], layouts: Layouts
) -> Iterator[Finding]:
    """Those that go last and are no older than all that go ``first``, with what they lack: a warning where
    they are of a later step.
    """
    known, newest = {c.key for c in first}, max(c.mtime_ns for c in first)
    furthest = max(c.order for c in first)
    for c in candidates:
        if c.key not in known and c.mtime_ns >= newest:
            severity = Severity.WARNING if c.order > furthest else Severity.NOTE
            lacks = list(layouts.of(c).lacks(c, candidates))
            yield from (replace(f, severity=severity) for f in lacks)
            if not lacks and (c.unit == "" or c.order > furthest):
                yield finding(
                    "passed-over", f"it is no older than the choice, but is called {c.kind}", path=c.path
                )


class Files(NamedTuple):
    """What the files of checkpoints below ``root`` tell: whether two are the ``same``, and whether nothing is
    known to be wrong with one by itself.
    """

    root: str
    same: Callable[[Checkpoint, Checkpoint], bool]
    signature: Callable[[Checkpoint], Signature]
    are_sound: Callable[[Checkpoint], bool]


def ask_where_unclear(
    candidates: Sequence[Checkpoint],
    first: Sequence[Checkpoint],
    layouts: Layouts,
    files: Files,
) -> set[CheckpointKey]:
    """Those of no place in the order of training that are the same as the newest of the others.

    Raises UsageError where a checkpoint may be the newest, and nothing tells.
    """
    known = set[CheckpointKey]()
    for c in candidates:
        if layouts.of(c).unclear(c, candidates):
            placed = rank([o for o in first if o.key != c.key] or first, "mtime")[0]
            if not files.same(c, placed):
                raise _in_doubt(c, placed, files)
            known.add(c.key)
    newest = rank(first, "mtime")[0]
    if models := _several_models(newest, first, files) or _half_of_two(newest, candidates):
        raise _in_doubt(*models, files) if models[0].parts[0].home else _are_one_save(*models)
    if (late := _out_of_turn(first, layouts)) is not None and not files.same(late.newest, late.highest):
        raise _named_out_of_turn(late)
    return known


def _several_models(
    newest: Checkpoint, first: Sequence[Checkpoint], files: Files
) -> tuple[Checkpoint, Checkpoint] | None:
    """The newest and another one, where all that both tell is that they hold other models or trees, by their
    signature or their names, and nothing of when they were saved.
    """
    alone = [c for c in first if max(c.order) < 0]
    if len(alone) < 2:
        return None
    from ckpt_tools.layouts.common.held import holds_of  # few trees have such

    held = holds_of(newest)
    told_by_name = newest.parts[0].home or (held is not None and held.weights and not held.counters)
    if newest not in alone or not told_by_name:
        return None
    alone = [c for c in alone if c.parts[0].home or holds_of(c) == held]
    mine, whole = files.signature(newest), bool(newest.parts[0].home)

    def is_another(c: Checkpoint) -> bool:
        apart = _named_apart(newest, c) and not files.same(newest, c)
        return apart or (
            _are_other_trees(mine, theirs := files.signature(c), whole=whole)
            and not (_says_all_of_a_run(newest) and _lies_in(theirs, mine))
        )

    return next(((newest, c) for c in alone if is_another(c)), None)


def _named_apart(c: Checkpoint, o: Checkpoint) -> bool:
    """Whether the names of two files have words of their own each (``cifar_best.pt``, ``mnist_best.pt``)."""
    from ckpt_tools.layouts.common.names_apart import are_of_several

    return not c.parts[0].home and are_of_several([bare_name_of(x.parts[0]).words for x in (c, o)])


def _are_other_trees(mine: Signature, theirs: Signature, *, whole: bool) -> bool:
    """Of ``whole`` directories, what one lacks may be lost."""
    return not (mine <= theirs or theirs <= mine) if whole else bool(mine and theirs) and mine != theirs


def _says_all_of_a_run(c: Checkpoint) -> bool:
    """Whether its name has no word of its own: ``checkpoint.pth``, beside ``policy.pth``."""
    return not (c.parts[0].home or bare_name_of(c.parts[0]).words)


def _lies_in(small: Signature, large: Signature) -> bool:
    """Whether one holds all tensors of the other, below one name (``model``): it is that model, as it was."""
    first, shape = min(small, default=("", ()))
    above = {n.removesuffix(first) for n, of in large if of == shape and n.endswith(f".{first}")}
    return bool(small) and any(large.issuperset((a + n, of) for n, of in small) for a in above)


def _half_of_two(
    newest: Checkpoint, candidates: Sequence[Checkpoint]
) -> tuple[Checkpoint, Checkpoint] | None:
    """A network that is never trained alone, and a model beside it, whatever kind that is taken for."""

    def is_second(c: Checkpoint) -> bool:
        return all(not NEVER_ALONE.isdisjoint(bare_name_of(p).words) for p in c.parts)

    if not is_second(newest) or any(bare_name_of(p).numbered for p in newest.parts):
        return None  # files with a number are put together by it
    from ckpt_tools.layouts.common.held import holds_of  # few trees have such

    beside = (c for c in candidates if (c.layout, c.run) == (newest.layout, newest.run) and not is_second(c))
    return next(((newest, c) for c in beside if (held := holds_of(c)) and held.weights), None)


def _are_one_save(newest: Checkpoint, other: Checkpoint) -> UsageError:
    path, beside = (c.parts[0].path for c in (newest, other))
    return UsageError(
        f"{path} and {beside} hold different models, and nothing tells whether they are of one save or"
        " of two runs",
        "say which one with --prefix PREFIX, or describe them as one save with [[layout]] in ckpt.toml:"
        " docs/adding-a-layout.md",
    )


class _OutOfTurn(NamedTuple):
    """The one that was written last, and the one of its name with the highest numbers in it."""

    newest: Checkpoint
    highest: Checkpoint


def _out_of_turn(candidates: Sequence[Checkpoint], layouts: Layouts) -> _OutOfTurn | None:
    """Where nothing but the numbers in names may tell the order, and these say that another than the one
    that was written last is later: training went back, or a copy has kept no times.
    """
    periodic = [c for c in candidates if c.kind is Kind.PERIODIC]
    newest = rank(periodic, "mtime")[0] if periodic else None
    if newest is None or (newest.step, newest.epoch) != (None, None) or layouts.of(newest).dated:
        return None
    highest = max((c for c in periodic if _alike(c) == _alike(newest)), key=_numbers)
    return _OutOfTurn(newest, highest) if _numbers(highest) > _numbers(newest) else None


def _alike(c: Checkpoint) -> tuple[object, ...]:
    """What those have in common that only the numbers in their names tell apart."""
    return c.layout, c.run, c.order, re.sub(r"\d+", "", _name(c))


_NO_COUNT = re.compile(rf"\d+\.\d+|(?:{'|'.join(METRICS)})[\W_]*\d+(?:\.\d+)?", re.IGNORECASE)
"""Numbers in a name that measure something."""


def _numbers(c: Checkpoint) -> list[int]:
    """Those in its name, whatever they count."""
    return [int(n[:18]) for n in re.findall(r"\d+", _NO_COUNT.sub(" ", stem_of(_name(c))))]


def _name(c: Checkpoint) -> str:
    """That of its directory; without one, of its first file and of the directory that this lies in."""
    home = c.parts[0].home
    return home.rpartition("/")[2] if home else "/".join(c.parts[0].path.split("/")[-2:])


def _in_doubt(unclear: Checkpoint, placed: Checkpoint, files: Files) -> UsageError:
    if unclear.step is not None:
        return UsageError(
            f"which checkpoint is the newest is in doubt: {unclear.path} is of a later epoch than others, but"
            " of no higher step: steps may count from the start of each epoch",
            "say --order mtime to resume from the one that was written last",
        )
    if unclear.parts[0].home and placed.step is None:
        text = f"{unclear.path} and {placed.path}: nothing tells whether they are one checkpoint or several"
        return UsageError(text, "give the directory that is meant as ROOT")
    name, other = (c.parts[0].path.rpartition("/")[2] for c in (unclear, placed))
    text = (
        f"which checkpoint is the newest is in doubt: {unclear.path} was written last, "
        f"but nothing tells its step; {placed.path} is of {placed.label}"
    )
    if damaged := [c.parts[0].path for c in (placed, unclear) if not files.are_sound(c)]:
        return UsageError(f"{text}; {' and '.join(damaged)}: damaged", "restore what is damaged")
    hint = f"say {without(files.root, placed, unclear.path, unclear.parts[0].path, label=other)}"
    if len(unclear.parts) == 1:  # of several, nothing tells that they are of one save
        hint += f", or --prefix {unclear.parts[0].prefix or name} to resume from {name}"
    return UsageError(text, hint)


def _named_out_of_turn(late: _OutOfTurn) -> UsageError:
    return UsageError(
        f"which checkpoint is the newest is in doubt: {late.newest.path} was written last, but"
        f" {late.highest.path} has a higher number in its name, and nothing tells what these count",
        "say --order mtime to resume from the one that was written last, or give the one that is meant as"
        " ROOT",
    )
