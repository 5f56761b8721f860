"""Files that people's own training loops save under the names of loops.toml; their content tells the rest."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import product
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import EPOCHS, STEPS, find_foreign, find_misnamed, read_count
from ckpt_tools.layouts.common.layout import Flaws, Found, Metadata, Rows, Saves, Steps, Tracker, read_entry
from ckpt_tools.layouts.common.lost_files import PIECES, ROLLING, Holds, get_holds, loss, weights_of_a_trainer
from ckpt_tools.layouts.common.piece import COPIES, Changes, Claim, Piece
from ckpt_tools.layouts.common.templates import Outlines, read_path
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.tables import read_table

_FORMATS = (
    *("torch_zip", "torch_legacy", "torch_tar", "mindspore_ckpt", "safetensors", "npz", "npy", "eqx"),
    *("pickle_plain", "joblib", "paddle_tensors", "zip_archive", "hdf5"),
)

_INSIDE = ("{name}", "{name}/{name}")
"""How files lie in the directory of a save: in it, or one directory deeper."""
_OF_THE_BEST = "best/"
_LONGEST = 255
"""The most characters of a file's name."""


class Loop(Struct, frozen=True, dict=True):
    """A naming convention of loops.toml. ``told``: the files tell if its number is a step or an epoch."""

    name: str
    templates: tuple[str, ...]
    kind: Kind
    rolling: bool
    told: bool
    export: bool
    dated: bool
    role: str

    @cached_property
    def numbered(self) -> bool:
        return not (self.rolling or self.dated)

    def pieces(self) -> Iterator[Piece]:
        for i, template in enumerate(self.templates):
            kind = Kind.BEST if template.startswith(_OF_THE_BEST) else self.kind
            yield _make_piece(f"{self.name}/{i}" if i else self.name, template, kind)


def _make_piece(name: str, template: str, kind: Kind = Kind.PERIODIC) -> Piece:
    """Return a kind of file that counts as a checkpoint only if its content is one (``Claim.WEAK``)."""
    return Piece(name, "model", template, _FORMATS, kind, COPIES, required=False, claim=Claim.WEAK)


@cache
def _load_table() -> Mapping[str, Any]:
    return read_table("ckpt_tools.layouts", "loops.toml")


@cache
def loops() -> tuple[Loop, ...]:
    """Return the conventions of loops.toml, in the order in which they are tried."""
    return tuple(map(_read_loop, _load_table()["loop"]))


def _read_loop(table: Mapping[str, Any]) -> Loop:
    """Return the convention that a table of loops.toml describes, with one template for each way to lie."""
    endings = [f".{e}" if e else "" for e in table.get("endings", _load_table()["endings"])]
    template = table["template"].replace("{role}", f"<{'|'.join(_load_table()['roles'])}>")
    ending = f"<{'|'.join(endings)}>" if any(endings) else ""
    names = [f"{template}{inside}" for inside in _INSIDE] if template.endswith("/") else [template]
    if names == [template] and re.search(r"\{(?:step|epoch)\b", template):
        names.append(f"{_OF_THE_BEST}{template}")
    return Loop(
        table["name"],
        tuple(f"{name}{ending}" for name in names),
        Kind(table.get("kind", "periodic")),
        table.get("rolling", False),
        table.get("unit") == "told",
        table.get("export", False),
        "{date}" in template and "{step}" not in template,
        table.get("role", ""),
    )


@cache
def _map_pieces() -> Mapping[str, Loop]:
    return {piece.name: loop for loop in loops() for piece in loop.pieces()}


def get_loop(p: Part) -> Loop:
    """Return the convention by whose name a part was found, before its content has told its piece."""
    return _map_pieces()[p.piece]


@cache
def _list_templates() -> tuple[Sequence[tuple[Loop, tuple[str, ...]]], Outlines]:
    """Return each convention's templates, split at slashes, and the outlines of their last names."""
    names = [(loop, tuple(p.template.split("/"))) for loop in loops() for p in loop.pieces()]
    return names, Outlines(templates[-1] for _, templates in names)


def read_convention(path: str) -> tuple[Loop | None, Mapping[str, str | None]]:
    """Return the convention that the end of a path fits, and its numbers; (None, {}) if none fits."""
    names, (conventions, outlines) = path.split("/"), _list_templates()
    for i in outlines.find(names[-1]):
        loop, templates = conventions[i]
        if len(templates) <= len(names) and (fields := read_path(templates, names)) is not None:
            return loop, fields
    return None, {}


def are_of_one_convention(a: Part, b: Part) -> bool:
    """Return True if two files have names of one convention."""
    return read_convention(a.path)[0] is read_convention(b.path)[0] is not None


def _read_steps_in_name(p: Part) -> Steps:
    """Return the step or epoch in a part's own name; if ``told``, only as the part's content counts it."""
    loop, fields = read_convention(p.path)
    step, epoch = (int(n) if (n := fields.get(key)) else None for key in ("step", "epoch"))
    if loop is not None and loop.told and step != p.step:
        step, epoch = None, step if step == p.epoch else None
    return step, epoch, None


def _read_steps(part: Part, metadata: Metadata) -> Steps:
    """Return the step and epoch in the name; where it has neither, those in the file."""
    if (part.step, part.epoch) != (None, None):
        return part.step, part.epoch, None
    return read_count(metadata, STEPS), read_count(metadata, EPOCHS), None


def _check_counters(parts: Rows) -> Found:
    """Yield files of another file's step or epoch, and files of one save that are further apart than 1."""
    yield from find_misnamed(parts, _read_steps_in_name)
    saves = defaultdict[tuple[str, object], dict[int, Part]](dict)
    for (p, r), (unit, keys) in product(parts, (("step", STEPS), ("epoch", EPOCHS))):
        count = read_count(r.metadata, keys)
        if count is not None and (p.step, p.epoch) != (None, None):
            saves[unit, (p.run, p.kind, p.step, p.epoch)][count] = p
    for (unit, _), by_count in saves.items():
        low, high = min(by_count), max(by_count)
        if high - low > 1:  # each save writes over them, and the job died between the two
            text = f"it is of {unit} {low}, {by_count[high].name} of {unit} {high}"
            yield by_count[low].path, Flaw(f"{unit}-mismatch", text)
    yield from find_foreign(parts, {"optimizer": ("optimizer_step",)})


_CONTENTS = "weights of a model", "optimizer's state", "count of steps or epochs"
_WEIGHTS, _OPTIMIZER, _COUNTS = _CONTENTS


class _Holdings(NamedTuple):
    """What a save's files hold, and whether all of them could be read."""

    what: frozenset[str]
    all_read: bool


def _list_holdings(c: Checkpoint) -> _Holdings:
    """Return what a save's files hold together: contents, with a number for each further role of files with
    weights or an optimizer's state, and the roles that a convention or the lack of both tells.
    """
    read = [(p, holds) for p in c.parts if (holds := get_holds(p)) is not None]
    what, roles = set[str](), set[tuple[str, str]]()
    for p, holds in read:
        contents = [content for content, is_held in zip(_CONTENTS, holds, strict=True) if is_held]
        what.update(contents)
        if _is_told_by_role(p, holds):
            what.add(p.role)
        elif not p.piece.startswith(ROLLING) or _is_written_over(c):  # else it stands in for another file
            roles.update((content, p.role) for content in contents if content is not _COUNTS)
    count = Counter(content for content, _ in roles)
    what |= {f"{content} {n}" for content, most in count.items() for n in range(2, most + 1)}
    return _Holdings(frozenset(what), len(read) == len(c.parts))


def _is_told_by_role(p: Part, holds: Holds) -> bool:
    """Return True if a file's role says what it is: its convention has one, or it holds no state."""
    loop = read_convention(p.path)[0]
    return not (holds.weights or holds.optimizer) or (loop is not None and loop.role == p.role)


def _find_lost_contents(c: Checkpoint, others: Saves) -> Flaws:
    """Yield what a save lacks: weights, what all others hold, or an optimizer's state that one may hold."""
    own, all_read = _list_holdings(c)
    if not all_read or c.kind is Kind.RELEASE:
        return
    beside = [(o, _list_holdings(o)) for o in _list_run(c, others)]
    alike = [held.what for o, held in beside if held.all_read and o.kind is c.kind and _WEIGHTS in held.what]
    gone = {_WEIGHTS}
    if c.kind is Kind.PERIODIC and alike:
        gone |= frozenset.intersection(*alike)
    if "scheduler" in own or any(_may_hold_optimizer(held, c, o) for o, held in beside):
        gone |= {_OPTIMIZER}
    gone -= own
    for content in sorted(gone - {_WEIGHTS, _OPTIMIZER} or gone):
        yield loss(f"{_name_in_message(c)} {_explain_loss(content, c, own, beside)}", c.parts[0].path)


def _explain_loss(
    content: str, c: Checkpoint, own: frozenset[str], beside: Sequence[tuple[Checkpoint, _Holdings]]
) -> str:
    """Return how the lack of a content shows, for a message: by a save ``beside`` it, or by a schedule."""
    if o := next((o for o, held in beside if content in held.what), None):
        if content in _CONTENTS:
            return f"holds no {content}, which {_name_in_message(o)} beside it has"
        roles = {p.role for p in c.parts}
        lost = next((p for p in o.parts if p.role not in roles), o.parts[-1])
        return f"has no file like {lost.name}, which {_name_in_message(o)} beside it has"
    cause = ""
    if content == _OPTIMIZER:
        cause = ", and a save beside it that may have held one cannot be read"
    if content == _OPTIMIZER and "scheduler" in own:
        cause = ", with which a schedule is saved: add --exclude GLOB for the schedule if the job saves none"
    return f"holds no {content}{cause}"


def _may_hold_optimizer(held: _Holdings, c: Checkpoint, o: Checkpoint) -> bool:
    """Return True if ``o`` holds an optimizer's state; or is unreadable, larger and of another convention."""
    if held.all_read or _OPTIMIZER in held.what:
        return _OPTIMIZER in held.what
    named = (min(x.parts, key=lambda p: p.piece.startswith(ROLLING)) for x in (c, o))
    own_loop, other_loop = (read_convention(p.path)[0] for p in named)
    own_size, other_size = (sum(p.size for p in x.parts) for x in (c, o))
    return own_loop is not other_loop and (other_size > own_size or other_size <= 0)


def _list_run(c: Checkpoint, others: Saves) -> Iterator[Checkpoint]:
    """Yield other saves of its run; newer ones without rolling files, which no older save can have."""
    for o in others:
        if o is c or (o.layout, o.run) != (c.layout, c.run) or o.kind is Kind.RELEASE:
            continue
        lasting = tuple(p for p in o.parts if not p.piece.startswith(ROLLING))
        yield replace(o, parts=lasting) if lasting and o.order > c.order else o


def _find_lost_states(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield what a Trainer's weights alone lack, and what saves with a number ``beside`` the save hold."""
    yield from weights_of_a_trainer(c, beside)
    numbered = [o for o in beside if not _is_written_over(o)]
    if numbered and c.kind is Kind.PERIODIC and not _is_written_over(c):
        yield from _find_lost_contents(c, numbered)


def _is_written_over(c: Checkpoint) -> bool:
    """Return True if the run's next save writes over all files of a checkpoint."""
    return all(p.piece.startswith(ROLLING) for p in c.parts)


def _name_in_message(c: Checkpoint) -> str:
    """Return what messages call a checkpoint: its directory, its only file, or its step or epoch."""
    if c.parts[0].home:
        return c.path.rpartition("/")[2]
    return c.label if c.parts[1:] else c.parts[0].name


def _list_pieces() -> Iterator[Piece]:
    """Yield the pieces of all names in loops.toml, and of all contents."""
    for loop in loops():
        yield from loop.pieces()
    for name in PIECES:  # of several files the first good one is loaded: pieces that hold most come first
        piece = _make_piece(name, "placed by its content/")  # this template fits no file's name
        yield piece
        yield replace(piece, name=f"{ROLLING}{name}", changes=Changes.ROLLING)


def read_tracker(data: bytes) -> str | None:
    """Return the checkpoint's name in a tracker's text, which may be a path; None for any other text."""
    name = data.decode("utf-8", "surrogateescape").strip().rstrip("/").rpartition("/")[2]
    if not 0 < len(name) <= _LONGEST or not name.isprintable() or name.isdigit():
        return None
    is_file = name.endswith(tuple(f".{ending}" for ending in _load_table()["endings"]))
    return name if is_file or re.search(r"\d", name) else None


def _read_paddlespeech(data: bytes, _base: str) -> str | None:
    """Return the file of the latest save (TAG.pdparams) that PaddleSpeech's speech recognition lists."""
    tag = re.search(rb"(?:^|\n)model_checkpoint_path:(\w+)\s*\Z", data)
    return f"{tag[1].decode()}.pdparams" if tag else None


def _read_records(data: bytes, _base: str) -> str | None:
    """Return the name of the latest snapshot that PaddleSpeech's speech synthesis records, or None."""
    last = data.strip().rpartition(b"\n")[2]
    path = read_entry(last, "path") if read_entry(last, "iteration") is not None else None
    return read_tracker(path.encode("utf-8", "replace")) if isinstance(path, str) else None


def name_saved(checkpoint: Checkpoint) -> str:
    """Return what a tracker calls a checkpoint: its directory, else its model file, rather a lasting one."""
    first = min(checkpoint.parts, key=lambda p: (p.role != "model", p.piece.startswith(ROLLING)))
    return (first.home or first.path).rpartition("/")[2]


_TEXTS = ("latest", "latest.txt", "last.txt", "last_checkpoint.txt", "latest_ckpt.txt")
"""Names of such tracker files of training loops, beside ``latest_checkpoint.txt``."""
FILES = declare(
    "files",
    "files",
    pieces=tuple(_list_pieces()),
    steps=_read_steps,
    check=_check_counters,
    lacks=_find_lost_contents,
    lost=_find_lost_states,
    tracker=Tracker(
        file="latest_checkpoint.txt",
        read=read_tracker,
        others=(
            *((name, lambda data, _base: read_tracker(data)) for name in _TEXTS),
            ("checkpoint_latest", _read_paddlespeech),
            ("records.jsonl", _read_records),
        ),
        name=name_saved,
        any_file=True,
        always=False,
    ),
)
