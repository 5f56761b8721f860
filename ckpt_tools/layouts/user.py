"""A user's own layouts: ``[[layout]]`` tables of ckpt.toml in the same template language
(docs/adding-a-layout.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from ckpt_tools.layouts import Layouts, use
from ckpt_tools.layouts.common.counters import EPOCHS, STEPS, check_steps, find_misnamed, read_steps
from ckpt_tools.layouts.common.layout import (
    Compared,
    Complete,
    Counting,
    Found,
    Layout,
    Rows,
    Tracker,
    name_home,
    read_last_name,
    read_number,
)
from ckpt_tools.layouts.common.piece import Changes, Piece, Readers, Stage, Where
from ckpt_tools.layouts.common.templates import COORDS, TEXTS, compile_template
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Resume

_UNIT = "write {epoch} in the template if its number counts epochs, or name what counts with step_keys"
_Word = Annotated[str, Meta(min_length=1)]


class PieceTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table ``[[layout.piece]]``."""

    template: str = ""
    role: _Word = "model"
    formats: tuple[_Word, ...] | None = None
    kind: Kind = Kind.PERIODIC
    replicated_over: tuple[_Word, ...] = ()
    sharded: bool = False
    shared: bool = False
    single: bool = False
    required: bool = True
    loaded: bool = True
    unfinished: bool = False
    here: bool = False


class LayoutTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table ``[[layout]]``."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]*\Z")]
    piece: Annotated[tuple[PieceTable, ...], Meta(min_length=1)]
    title: _Word = ""
    tracker: _Word = ""
    tracker_holds: Literal["step", "name"] = "step"
    reshardable: bool = False
    committed: bool = False
    commit: _Word = ""
    needs: tuple[_Word, ...] = ()
    step_keys: tuple[_Word, ...] = ()
    epoch_keys: tuple[_Word, ...] = ()
    epoch_base: int | None = None
    resume_args: tuple[_Word, ...] = ()


_LONGEST, _MOST_TEXTS, _MOST_TOGETHER, _DEEPEST = 1024, 2, 3, 8
_TEXT = re.compile(r"\{(?:" + "|".join(TEXTS) + r")\}")
_RUN = re.compile(r"(?:[][0-9]*\{[^}]*\}){" + str(_MOST_TOGETHER + 1) + "}")
_TOLD = ("{path}", "{base}", "{step}", "{epoch}")
_ARGUMENT = re.compile(r"(?<!\$)\{\w+\}")  # ${HOME} is the shell's


def load(tables: object, known_formats: Sequence[str] = ()) -> Layouts:
    """Return the layouts of ``[[layout]]`` tables, and the built-in ones after them; try them from now on.
    Raise ValueError that says which key of which table is wrong.
    """
    if not isinstance(tables, list):
        raise ValueError("layout is a list of tables: write [[layout]]")  # noqa: TRY004 - the caller waits for ValueError
    own = tuple(_read_layout(table, i, known_formats) for i, table in enumerate(tables, 1))
    names = [layout.name for layout in Layouts(own)]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise ValueError(f"there are two layouts called {twice!r}: choose another name")
    use(own)
    return Layouts(own)


def _read_layout(table: object, number: int, known_formats: Sequence[str]) -> Layout:
    """Return the layout of the table ``number`` of ckpt.toml. Raise ValueError if it is wrong."""
    try:
        t = convert(table, LayoutTable)
    except ValidationError as e:
        raise ValueError(f"layout {number}: {e}; docs/adding-a-layout.md has all keys") from e
    where = f"layout {t.name}"
    rows = enumerate(t.piece, 1)
    pieces = tuple(_read_piece(p, f"{where}, piece {i}", i, known_formats) for i, p in rows)
    _check_table(t, {p.role for p in pieces}, where)
    keys = {"step": t.step_keys, "epoch": t.epoch_keys, "by_name": False}
    read = {"read": read_number} if t.tracker_holds == "step" else {"read": read_last_name, "name": name_home}
    return Layout(
        name=t.name,
        title=t.title or t.name,
        pieces=pieces,
        resume=partial(_resume, t.resume_args),
        reference="ckpt.toml",
        limits=("only what its table says is checked",),
        steps=partial(
            read_steps, **(keys if t.step_keys or t.epoch_keys else {"step": STEPS, "epoch": EPOCHS})
        ),
        check=partial(_check_steps, t.step_keys, t.epoch_keys),
        tracker=Tracker(t.tracker, **read),
        complete=Complete(commit=t.commit, needs=t.needs, by_name=t.committed),
        counting=Counting(first_epoch=t.epoch_base),
        reshardable=t.reshardable,
        compared=Compared.BY_PIECE,
    )


def _check_table(t: LayoutTable, roles: set[str], where: str) -> None:
    """Raise ValueError if the keys of a layout's table contradict its pieces, or have impossible values."""
    for key, named in (("commit", (t.commit,) if t.commit else ()), ("needs", t.needs)):
        if wrong := next((role for role in named if role not in roles), None):
            raise ValueError(f"{where}: {key} names the role {wrong!r}, which no piece has")
    if "/" in t.tracker:
        raise ValueError(f"{where}: tracker is a file's name, not the path {t.tracker!r}")
    if wrong := next((m for m in _ARGUMENT.findall(" ".join(t.resume_args)) if m not in _TOLD), None):
        raise ValueError(f"{where}: resume_args knows {', '.join(_TOLD)}, not {wrong}")


def _read_piece(t: PieceTable, where: str, number: int, known_formats: Sequence[str]) -> Piece:
    """Return the piece of a table, which messages call ``where``. Raise ValueError if it is wrong."""
    template = t.template.removeprefix("{run}/")  # runs are named by the directories above it
    try:
        check_template(template)
    except ValueError as e:
        raise ValueError(f"{where}: {e}") from e
    if known_formats and (wrong := next((f for f in t.formats or () if f not in known_formats), None)):
        raise ValueError(f"{where}: there is no format {wrong!r}; 'ckpt formats' lists them")
    if wrong := next((a for a in t.replicated_over if a not in COORDS), None):
        raise ValueError(f"{where}: replicated_over names axes among {', '.join(COORDS)}, not {wrong!r}")
    return Piece(
        f"piece{number}",
        t.role,
        template,
        t.formats or (),
        t.kind,
        Readers(t.shared, t.sharded, t.single, t.replicated_over),
        required=t.required,
        loaded=t.loaded,
        stage=Stage.UNDER_WAY if t.unfinished else Stage.ANY,
        changes=Changes.PER_SAVE if t.loaded or t.formats is not None else Changes.MARK,
        where=Where.HERE if t.here else Where.NAMED,
    )


def check_template(template: str) -> None:
    """Raise ValueError for a wrong template, name by name, as they are matched in a tree."""
    if len(template) > _LONGEST:
        raise ValueError(f"a template of {len(template)} characters is longer than {_LONGEST}")
    for name in template.split("/"):
        if name in ("", ".", ".."):
            raise ValueError("a template is a path below the run's directory")
        text = re.sub(r"\{[^}]+\}|<[^<>]+>", "", name)
        while (shorter := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
            text = shorter
        if bracket := re.search(r"[][{}<>]", text):
            raise ValueError(f"{bracket[0]} in {name!r} has no partner within that name")
        _check_bounds(name)
        try:
            re.compile(compile_template(name))
        except (OverflowError, re.error) as e:
            raise ValueError(str(e)) from e


def _check_bounds(name: str) -> None:
    """Raise ValueError for a template's name that text may fit in so many ways that matching never ends."""
    if (texts := len(_TEXT.findall(name))) > _MOST_TEXTS:
        raise ValueError(f"{name!r} has {texts} fields of any text, where {_MOST_TEXTS} can be told apart")
    if _RUN.search(re.sub(r"\[[^][{}]*\]", "", name)):
        raise ValueError(f"{name!r} has more than {_MOST_TOGETHER} fields with nothing between them")
    depth = deepest = 0
    for c in name:
        depth += (c == "[") - (c == "]")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise ValueError(f"{name!r} nests {deepest} deep, where {_DEEPEST} is enough for any name")


def _check_steps(step_keys: Sequence[str], epoch_keys: Sequence[str], parts: Rows) -> Found:
    """Yield files that contradict the step or epoch in their name; as warnings if the layout has no keys."""
    if not step_keys and not epoch_keys:
        for path, flaw in find_misnamed(parts, lambda p: (p.step, p.epoch, p.step_in_epoch)):
            yield path, replace(flaw, severity=Severity.WARNING, hint=_UNIT)
    yield from check_steps(parts, step_keys, " or ".join(step_keys))
    yield from check_steps(parts, epoch_keys, " or ".join(epoch_keys), unit="epoch")


def _resume(args: Sequence[str], checkpoint: Checkpoint, path: str | None) -> Resume:
    """Return ``resume_args`` with the plan's values filled in; none if they need a path not shared."""
    path = path or checkpoint.parts[0].home or None
    if path is None and any("{path}" in a for a in args):
        return Resume(None)
    arguments = (path, checkpoint.parts[0].base, checkpoint.step, checkpoint.epoch)
    values = {key: "" if value is None else str(value) for key, value in zip(_TOLD, arguments, strict=True)}
    return Resume(path, tuple(_ARGUMENT.sub(lambda m: values[m[0]], a) for a in args))
