"""A layout worked out from the names of files that no layout explains, for ``ckpt layouts --guess``. Pure.

Numbers with a word beside them are what the word says. Of other numbers the one that counts from 0 within
every step is a rank. Names of which a number tells nothing get no template, but for a lone file. Files of one
number in one directory are one save, whatever words are in their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ckpt_tools.layouts.common import under_way
from ckpt_tools.layouts.common.layout import Piece
from ckpt_tools.model.frozen import frozen, replace

_WORDS = (
    (r"(tp|mp|tensor|tensor_parallel|model_parallel)(_?rank)?", "tp"),
    (r"(pp|pipeline|pipe)(_?rank)?", "pp"),
    (r"(dp|zero_pp|data_parallel)(_?rank)?", "dp"),
    (r"(cp|context_parallel)(_?rank)?", "cp"),
    (r"ep_?rank", "ep"),
    (r"world|world_?size|ws|nranks|num_ranks", "world"),
    (r"rank|gpu|proc|process|worker|device", "rank"),
    (r"node|host|machine", "node"),
    (r"shard|part|chunk", "shard"),
    (r"layer", "layer"),
    (r"expert", "expert"),
    (r"epochs?|ep|e", "epoch"),
    (r"(global_?)?steps?|iters?|iterations?|it|itr|updates?", "step"),
)
_BEFORE = tuple((re.compile(rf"(?:.*_)?(?:{words})"), field) for words, field in _WORDS)
_AFTER = re.compile(r"[ _.=-]?(epochs?|steps?|iters?|iterations?|updates?)(?![A-Za-z])")
_WHEN = frozenset(("step", "epoch"))
_WHOSE = frozenset(("tp", "pp", "dp", "cp", "ep", "rank", "node"))
_TRACKER = re.compile(r"latest|last|newest|current|recent|tracker|checkpoint|resume", re.IGNORECASE)
_SHOWN = 4
_NOTES = {
    "epoch": "{epoch}: {ep} instead, where 'ep' stands for ranks of expert parallelism",
    "of": "{shard} and {of}: {rank} and {world} instead, where each rank loads its own file",
    "rank": "{rank}: these numbers count from 0 within each step; no word says what they are",
    "step": "{step}: no word says what this number is; {epoch} instead, where it counts epochs",
}
_SEVERAL = "each save has a file of each piece; where these are several runs, describe one of them alone"
_UNSURE = (_NOTES["epoch"], _NOTES["rank"], _SEVERAL)
_UNTOLD = "?"


class _Row(NamedTuple):
    """One file: the directories above its checkpoint, and the numbers of its name."""

    path: str
    run: str
    numbers: tuple[str, ...]


@frozen
class GuessedPiece:
    """Files of one template. ``notes`` say what else their names could mean."""

    template: str
    role: str
    paths: tuple[str, ...]
    fields: frozenset[str]
    notes: tuple[str, ...]

    @property
    def unfinished(self) -> bool:
        return any(map(under_way.is_begun, self.template.split("/")))

    def matches(self, path: str) -> bool:
        piece = Piece("guess", self.role, self.template)
        names = path.split("/")[-piece.depth - 1 :]
        directory = "/".join(names[:-1])
        return bool(piece.directory.fullmatch(directory) and piece.file.fullmatch(names[-1]))


class Guess(NamedTuple):
    """``left_out`` are files of which no template could be made."""

    pieces: tuple[GuessedPiece, ...]
    left_out: tuple[str, ...]

    @property
    def is_sure(self) -> bool:
        """Whether all files have a place, which no note calls in doubt."""
        doubts = (note for p in self.pieces for note in p.notes if note in _UNSURE)
        return bool(self.pieces) and not self.left_out and not any(doubts)


def guess(paths: Sequence[str]) -> Guess:
    """The templates of files, from their paths below a root alone."""
    made: dict[str, GuessedPiece] = {}
    for texts, rows in _shapes(paths).items():
        if piece := _piece(_Shape(texts, rows)):
            known = made.get(piece.template)
            made[piece.template] = replace(piece, paths=(*known.paths, *piece.paths)) if known else piece
    counted = [p for p in made.values() if p.fields & _WHEN]
    pieces = counted or list(made.values())  # a name without a step would fit files of every step
    if not pieces and len(paths) == 1 and _is_plain(paths[0]):
        pieces = [_literal(paths[0])]
    kept = tuple(_with_roles(sorted(pieces, key=lambda p: "model" not in p.template)))
    taken = {path for p in kept for path in p.paths if p.matches(path)}
    return Guess(kept, tuple(path for path in paths if path not in taken))


class GuessedTracker(NamedTuple):
    """A file beside the checkpoints of each run that names the latest one; ``by_name``: by its directory."""

    name: str
    by_name: bool


def runs_of(guessed: Guess) -> tuple[str, ...]:
    """The directories of the runs, below the root."""
    return tuple(dict.fromkeys(_run_and_below(path)[0] for p in guessed.pieces for path in p.paths))


def tracker_of(guessed: Guess, texts: Mapping[str, Mapping[str, bytes]]) -> GuessedTracker | None:
    """The tracker, of small files in the directory of each run: one that is called so, and that in every run
    holds the number or the name of a checkpoint's directory or file.
    """
    saves = dict[str, set[str]]()
    for p in guessed.pieces:
        for path in p.paths:
            run, below = _run_and_below(path)
            saves.setdefault(run, set()).add(below.partition("/")[0])
    names = set.intersection(*(set(texts.get(run, ())) for run in saves)) if saves else set[str]()
    for name in sorted(filter(_TRACKER.search, names)):
        said = [(texts[run][name].strip(), saved) for run, saved in saves.items()]
        if all(text.decode(errors="replace").rstrip("/") in saved for text, saved in said):
            return GuessedTracker(name, by_name=True)
        if all(text.isdigit() and int(text) in _numbers(saved) for text, saved in said if len(text) < 19):
            return GuessedTracker(name, by_name=False)
    return None


def _numbers(saved: Collection[str]) -> set[int]:
    return {int(digits) for name in saved for digits in re.findall(r"\d{1,18}", name)}


def looks_like(paths: Sequence[str]) -> str:
    """Files in a few words, such as ``12 files step_*/rank_*.pt``."""
    patterns: dict[str, int] = {}
    for path in paths:
        pattern = "/".join(re.sub(r"\d+", "*", name) for name in path.split("/")[-2:])
        patterns[pattern] = patterns.get(pattern, 0) + 1
    shown = [
        f"{n:,} file{'s' if n > 1 else ''} '{pattern}'" for pattern, n in list(patterns.items())[:_SHOWN]
    ]
    more = len(patterns) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more kinds" if more else "")


# --- from paths to numbers


def _shapes(paths: Sequence[str]) -> Mapping[tuple[str, ...], list[_Row]]:
    """Rows of files whose paths differ in nothing but numbers and the directories of their runs, by the texts
    around the numbers.
    """
    shapes: dict[tuple[str, ...], list[_Row]] = {}
    for path in paths:
        run, below = _run_and_below(path)
        texts = re.split(r"\d+", below)
        if _is_plain(below):
            shapes.setdefault(tuple(texts), []).append(_Row(path, run, tuple(re.findall(r"\d+", below))))
    return shapes


def _is_plain(name: str) -> bool:
    """Return True if a name can stand in a template."""
    return name.isprintable() and not re.search(r"[][{}<>]", name)


def _literal(path: str) -> GuessedPiece:
    """Return the piece of one file alone, which every rank loads."""
    return GuessedPiece(path.rpartition("/")[2], "model", (path,), frozenset(), ())


def _run_and_below(path: str) -> tuple[str, str]:
    """A path cut where its checkpoint begins: at the first name with a number that a word explains, at the
    first with any number where no word says which is the step.
    """
    names = path.split("/")
    told = [_told(re.split(r"\d+", name)) for name in names]
    explained = any(_WHEN & set(fields) for fields in told)
    begins = (i for i, fields in enumerate(told) if (any(fields) if explained else fields))
    first = next(begins, len(names) - 1)
    return "/".join(names[:first]), "/".join(names[first:])


def _told(texts: Sequence[str]) -> list[str]:
    """The field of each number as the words beside it tell, "" where none does."""
    fields: list[str] = []
    for before, after in pairwise(texts):
        field = _told_before(before.rpartition("/")[2])
        if field == "of":
            last = fields[-1] if fields and "/" not in before else ""
            field = {"shard": "of", "rank": "world"}.get(last, "")
        if not field and (m := _AFTER.match(after)):
            field = "epoch" if m[1].startswith("epoch") else "step"
        fields.append(field)
    return fields


def _told_before(text: str) -> str:
    words = re.sub(r"[^a-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()).strip("_")
    if words == "of" or words.endswith("_of"):
        return "of"
    return next((field for pattern, field in _BEFORE if pattern.fullmatch(words)), "")


# --- from numbers to fields


@frozen
class _Shape:
    """Files whose names differ in their numbers: the ``texts`` around them, and a row for each file."""

    texts: tuple[str, ...]
    rows: Sequence[_Row]

    @cached_property
    def columns(self) -> list[tuple[int, ...]]:
        """The values of each number."""
        return [tuple(int(row.numbers[i]) for row in self.rows) for i in range(len(self.texts) - 1)]

    def varies(self, i: int) -> bool:
        return len(set(self.columns[i])) > 1

    def repeats(self, i: int, j: int) -> bool:
        """Whether the number ``i`` always is the earlier number ``j``, digit by digit where one name has
        both.
        """
        if any("/" in text for text in self.texts[j + 1 : i + 1]):
            return self.columns[i] == self.columns[j]
        return all(row.numbers[i] == row.numbers[j] for row in self.rows)


def _piece(shape: _Shape) -> GuessedPiece | None:
    """The template of files that differ in their numbers; None where their names do not tell one."""
    fields = _fields(shape)
    if not any(fields) or _UNTOLD in fields:
        return None
    return GuessedPiece(
        _written(shape, fields),
        "model",
        paths=tuple(row.path for row in shape.rows),
        fields=frozenset(filter(None, fields)),
        notes=tuple(_notes(shape, fields)),
    )


def _fields(shape: _Shape) -> list[str]:
    """The field of each number, "" where it is part of the name."""
    told = _told(shape.texts)
    fields = [
        "" if field in told[:i] and not shape.repeats(i, told.index(field)) else field
        for i, field in enumerate(told)
    ]
    if not _WHEN & set(fields) and (when := _step(shape, fields)) is not None:
        fields[when] = "step"
    if fields == [""] and len(shape.rows) == 1:  # the only number of a lone name
        fields = ["step"]
    for i, field in enumerate(fields):
        if not field and shape.varies(i):
            fields[i] = _unnamed(shape, fields, i)
    return fields


def _notes(shape: _Shape, fields: Sequence[str]) -> Iterator[str]:
    """What else the names could mean."""
    told = _told(shape.texts)
    unsaid = {field for field, said in zip(fields, told, strict=True) if field not in ("", said)}
    yield from (note for field, note in _NOTES.items() if field in unsaid)
    if "of" in fields:
        yield _NOTES["of"]
    if "epoch" in fields and re.search(r"(?:^|[^A-Za-z])ep$", shape.texts[fields.index("epoch")]):
        yield _NOTES["epoch"]


def _counts(values: Sequence[int]) -> bool:
    """Whether numbers are 0, 1, 2 … without a gap."""
    return sorted(set(values)) == list(range(len(set(values))))


def _step(shape: _Shape, fields: Sequence[str]) -> int | None:
    """The number without a word that can be no rank, or that alone varies beside ranks."""
    unnamed = [i for i, field in enumerate(fields) if not field and shape.varies(i)]
    steps = [i for i in unnamed if not _counts(shape.columns[i])]
    if not steps and len(unnamed) == 1 and _WHOSE & set(fields):
        return unnamed[0]
    return steps[-1] if steps else None


def _unnamed(shape: _Shape, fields: Sequence[str], i: int) -> str:
    """What a number that varies is although no word says so: a repetition or a rank, else nothing tells."""
    for j, field in enumerate(fields[:i]):
        if field and shape.repeats(i, j):
            return field
    taken = set(fields)
    ranked = not _WHEN & taken or (_WHOSE | {"shard"}) & taken
    return _UNTOLD if ranked or not _ranks(shape, fields, i) else "rank"


def _ranks(shape: _Shape, fields: Sequence[str], i: int) -> bool:
    """Whether a number counts from 0 within the saves, of which some may lack files."""
    when = [shape.columns[k] for k, field in enumerate(fields) if field in _WHEN]
    saves: dict[tuple[object, ...], list[int]] = {}
    for row, value, *step in zip(shape.rows, shape.columns[i], *when, strict=True):
        saves.setdefault((row.run, *step), []).append(value)
    counting = sum(_counts(values) and len(values) > 1 for values in saves.values())
    return _counts(shape.columns[i]) and 2 * counting >= len(saves)


def _written(shape: _Shape, fields: Sequence[str]) -> str:
    """The template, from the name with the first field on."""
    out = shape.texts[0]
    for i, field in enumerate(fields):
        numbers = {row.numbers[i] for row in shape.rows}
        number = f"{{{field}{_width(numbers)}}}"
        out += (number if field else shape.rows[0].numbers[i]) + shape.texts[i + 1]
    above = out[: out.index("{")].rpartition("/")[0]
    return out[len(above) + 1 :] if above else out


def _width(numbers: Collection[str]) -> str:
    """The width of a field whose numbers have zeros before them."""
    widths = {len(number) for number in numbers}
    padded = len(widths) == 1 and any(n.startswith("0") and len(n) > 1 for n in numbers)
    return f":0{min(widths)}d" if padded else ""


# --- from templates to pieces


def _with_roles(pieces: Sequence[GuessedPiece]) -> Iterator[GuessedPiece]:
    """Return the pieces: the first is the model, others have the words of their names as role. No two that a
    checkpoint may have have one role: then the loss of any is seen.
    """
    taken: set[str] = set()
    flat = [p for p in pieces if "/" not in p.template]
    notes = (_SEVERAL,) if len(flat) > 1 else ()
    for p in pieces:
        called, n = "_".join(_own_words(p.template)) or "model", 1
        role = called if taken else "model"
        while role in taken:
            n += 1
            role = f"{called}{n}"
        taken |= set() if p.unfinished else {role}
        yield p if p.unfinished else replace(p, role=role, notes=(*p.notes, *(notes if p in flat else ())))


def _own_words(template: str) -> Iterator[str]:
    """Words of a template that do not say what a number is."""
    for word in re.findall(r"[a-z]+", re.sub(r"\{.*?\}|\.\w+$", " ", template.lower())):
        if word not in ("world", "size", "of") and not _told_before(word):
            yield word


# --- from pieces to ckpt.toml


def toml(guessed: Guess, name: str = "guessed", tracker: GuessedTracker | None = None) -> str:
    """The tables ``[[layout]]`` and ``[[layout.piece]]`` of a guess."""
    lines = ["[[layout]]", f'name = "{name}"']
    if tracker is not None:
        lines.append(f"tracker = {_quoted(tracker.name)}   # it names the latest checkpoint")
        lines += ['tracker_holds = "name"'] if tracker.by_name else []
    lines.append('# resume_args = ["--resume", "{path}"]   # what the plan tells your trainer')
    if not any(p.fields & _WHEN for p in guessed.pieces):
        lines.append('# step_keys = ["step"]   # no name tells a step: what the files call it')
    for p in guessed.pieces:
        lines += _table(p)
    if guessed.left_out:
        lines += ["", f"# in no piece: {_listed(guessed.left_out)}"]
    return "\n".join(lines) + "\n"


def _table(p: GuessedPiece) -> Iterator[str]:
    yield ""
    yield "[[layout.piece]]"
    yield f"# {_listed(p.paths)}"
    yield from (f"# {note}" for note in p.notes)
    yield f"template = {_quoted(p.template)}"
    yield f"role = {_quoted(p.role)}"
    if p.fields & _WHOSE:
        yield "sharded = true   # no rank loads another's file"
    else:
        yield "shared = true   # every rank loads it"
    if p.unfinished:
        yield "unfinished = true   # its name is that of a save under way"


def _listed(paths: Sequence[str]) -> str:
    return f"{len(paths):,} file{'s' if len(paths) > 1 else ''}, such as {json.dumps(paths[0])[1:-1]}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
