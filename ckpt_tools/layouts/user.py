"""A user's own layouts: ``[[layout]]`` tables of ckpt.toml in the same template language
(docs/adding-a-layout.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from ckpt_tools.layouts import Layouts, use
from ckpt_tools.layouts.common.counters import (
    EPOCHS,
    STEPS,
    find_misnamed,
    named_epochs,
    named_steps,
    read_steps,
)
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
_LAYOUT = {
    "name": str,
    "title": str,
    "tracker": str,
    "tracker_holds": str,
    "reshardable": bool,
    "committed": bool,
    "commit": str,
    "needs": list,
    "step_keys": list,
    "epoch_keys": list,
    "epoch_base": int,
    "resume_args": list,
    "piece": list,
}
_PIECE = {
    "template": str,
    "role": str,
    "formats": list,
    "kind": str,
    "replicated_over": list,
    "sharded": bool,
    "shared": bool,
    "single": bool,
    "required": bool,
    "loaded": bool,
    "unfinished": bool,
    "here": bool,
}
_READERS = ("sharded", "shared", "single")

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


def _check_keys(table: object, allowed: Mapping[str, type], where: str) -> dict[str, Any]:
    """Return the table. Raise ValueError for an unknown key, or a value of the wrong type or empty."""
    if not isinstance(table, dict):
        raise ValueError(f"{where} is not a table")  # noqa: TRY004 - as above
    for key, value in table.items():
        if key not in allowed:
            raise ValueError(f"{where}: unknown key {key!r}; known: {', '.join(allowed)}")
        if type(value) is not allowed[key]:
            raise ValueError(f"{where}: {key} must be {allowed[key].__name__}, not {value!r}")
        if value == "":
            raise ValueError(f"{where}: {key} is empty")
        if isinstance(value, list) and key != "piece" and not all(isinstance(v, str) and v for v in value):
            raise ValueError(f"{where}: {key} must be a list of words")
    return table


def _read_layout(table: object, number: int, known_formats: Sequence[str]) -> Layout:
    t = _check_keys(table, _LAYOUT, f"layout {number}")
    name = t.get("name", "")
    where = f"layout {name or number}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise ValueError(f"{where}: name must be of a-z, 0-9, - and _")
    if not t.get("piece"):
        raise ValueError(f"{where}: it needs at least one [[layout.piece]] with a template")
    made = (_check_piece(p, f"{where}, piece {i}", i, known_formats) for i, p in enumerate(t["piece"], 1))
    pieces = tuple(made)
    _check_table(t, {p.role for p in pieces}, where)
    step_keys, epoch_keys = tuple(t.get("step_keys", ())), tuple(t.get("epoch_keys", ()))
    by_name = t.get("tracker_holds") == "name"
    return Layout(
        name=name,
        title=t.get("title", name),
        pieces=pieces,
        resume=partial(_resume, tuple(t.get("resume_args", ()))),
        reference="ckpt.toml",
        limits=("only what its table says is checked",),
        steps=partial(read_steps, step=step_keys, epoch=epoch_keys, by_name=False)
        if step_keys or epoch_keys
        else partial(read_steps, step=STEPS, epoch=EPOCHS),
        check=partial(_check, step_keys, epoch_keys),
        tracker=Tracker(t.get("tracker", ""), read_last_name, name_home)
        if by_name
        else Tracker(t.get("tracker", ""), read_number),
        complete=Complete(
            commit=t.get("commit", ""), needs=tuple(t.get("needs", ())), by_name=t.get("committed", False)
        ),
        counting=Counting(first_epoch=t.get("epoch_base")),
        reshardable=t.get("reshardable", False),
        compared=Compared.BY_PIECE,
    )


def _check_table(t: Mapping[str, Any], roles: set[str], where: str) -> None:
    """Raise ValueError if the keys of a layout's table contradict its pieces, or have impossible values."""
    for key in ("commit", "needs"):
        for role in [t[key]] if isinstance(t.get(key), str) else t.get(key, ()):
            if role not in roles:
                raise ValueError(f"{where}: {key} names the role {role!r}, which no piece has")
    if "/" in t.get("tracker", ""):
        raise ValueError(f"{where}: tracker is a file's name, not the path {t['tracker']!r}")
    for arg in t.get("resume_args", ()):
        if odd := next((m for m in _ARGUMENT.findall(arg) if m not in _TOLD), None):
            raise ValueError(f"{where}: resume_args knows {', '.join(_TOLD)}, not {odd}")
    holds = t.get("tracker_holds", "step")
    if holds not in ("step", "name"):
        raise ValueError(f"{where}: tracker_holds is 'step' or 'name' (of the directory), not {holds!r}")


def _check_piece(table: object, where: str, number: int, known_formats: Sequence[str]) -> Piece:
    t = _check_keys(table, _PIECE, where)
    if (kind := t.get("kind", "periodic")) not in list(Kind):
        raise ValueError(f"{where}: kind is one of {', '.join(Kind)}, not {kind!r}")
    piece = _read_piece(t, number, Kind(kind))
    try:
        check_template(piece.template)
    except ValueError as e:
        raise ValueError(f"{where}: {e}") from e
    if known_formats and (odd := next((f for f in piece.formats if f not in known_formats), None)):
        raise ValueError(f"{where}: there is no format {odd!r}; 'ckpt formats' lists them")
    if odd := next((a for a in piece.readers.replicated_over if a not in COORDS), None):
        raise ValueError(f"{where}: replicated_over names axes among {', '.join(COORDS)}, not {odd!r}")
    return piece


def _read_piece(t: Mapping[str, Any], number: int, kind: Kind) -> Piece:
    over, loaded = tuple(t.get("replicated_over", ())), t.get("loaded", True)
    return Piece(
        f"piece{number}",
        t.get("role", "model"),
        t.get("template", "").removeprefix("{run}/"),  # runs are named by the directories above it
        tuple(t.get("formats", ())),
        kind,
        Readers(replicated_over=over, **{key: t[key] for key in _READERS if key in t}),
        required=t.get("required", True),
        loaded=loaded,
        stage=Stage.UNDER_WAY if t.get("unfinished") else Stage.ANY,
        changes=Changes.PER_SAVE if loaded or "formats" in t else Changes.MARK,
        where=Where.HERE if t.get("here") else Where.NAMED,
    )


def check_template(template: str) -> None:
    """Raise ValueError for a wrong template, name by name, as they are matched in a tree."""
    if len(template) > _LONGEST:
        raise ValueError(f"a template of {len(template)} characters is longer than {_LONGEST}")
    for name in template.split("/"):
        if name in ("", ".", ".."):
            raise ValueError("a template is a path below the run's directory")
        rest = re.sub(r"\{[^}]+\}|<[^<>]+>", "", name)
        while (shorter := re.sub(r"\[[^\[\]]*\]", "", rest)) != rest:
            rest = shorter
        if odd := re.search(r"[][{}<>]", rest):
            raise ValueError(f"{odd[0]} in {name!r} has no partner within that name")
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


def _check(step_keys: Sequence[str], epoch_keys: Sequence[str], parts: Rows) -> Found:
    """Yield files that contradict the step or epoch in their name; as warnings if the layout has no keys."""
    if not step_keys and not epoch_keys:
        for path, flaw in find_misnamed(parts, lambda p: (p.step, p.epoch, p.step_in_epoch)):
            yield path, replace(flaw, severity=Severity.WARNING, hint=_UNIT)
    yield from named_steps(parts, step_keys, " or ".join(step_keys))
    yield from named_epochs(parts, epoch_keys, " or ".join(epoch_keys))


def _resume(args: Sequence[str], checkpoint: Checkpoint, path: str | None) -> Resume:
    """Return ``resume_args`` with the plan's values filled in ("" for an unknown one); no arguments at all if
    one needs a path that ranks do not share.
    """
    path = path or checkpoint.parts[0].home or None
    if path is None and any("{path}" in a for a in args):
        return Resume(None)
    known = (path, checkpoint.parts[0].base, checkpoint.step, checkpoint.epoch)
    values = {key: "" if value is None else str(value) for key, value in zip(_TOLD, known, strict=True)}
    return Resume(path, tuple(_ARGUMENT.sub(lambda m: values[m[0]], a) for a in args))
