"""What a layout is: a frozen value that says with path templates how a directory is arranged, and how its framework is told what to resume."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ckpt_tools.model import Checkpoint, Finding, Kind, Part, Report, Resume, Scalar

COORDS = ("tp", "pp", "ep", "dp", "cp")
"""Parallel axes that a template may name besides the rank."""

_FIELD = re.compile(r"\{(\w+)(?::0(\d+)d)?\}")
_TEXT = {"prefix", "name", "tmp"}


def _compile(template: str) -> str:
    """A template as a regular expression: ``{step:07d}`` is at least seven digits, ``[…]`` is optional, ``{prefix}`` any text, ``{tmp}`` the literal ``_tmp``."""
    out, seen = [], set[str]()
    for i, piece in enumerate(re.split(r"(\{[^}]*\}|\[|\])", template)):
        if not i % 2:
            out.append(re.escape(piece))
        elif piece == "[":
            out.append("(?:")
        elif piece == "]":
            out.append(")?")
        else:
            m = _FIELD.fullmatch(piece)
            if m is None:
                raise ValueError(f"bad field {piece} in template {template}")
            name, width = m.groups()
            if name in seen:
                out.append(f"(?P={name})")
                continue
            seen.add(name)
            pattern = "_tmp" if name == "tmp" else "[^/]+?" if name in _TEXT else rf"\d{{{width},18}}" if width else r"\d{1,18}"
            out.append(f"(?P<{name}>{pattern})")
    return "".join(out)


@dataclass(frozen=True)
class Piece:
    """One kind of file in a layout.

    ``replicated_over`` names the axes along which ranks hold the same state; ``sharded`` says that no flag may ever make one rank's
    file stand in for another's. ``step_from`` "content" gives the piece a structure pass before grouping. A ``weak`` name
    (any ``x.ckpt``) makes the piece only when the content has one of ``formats``. ``required`` pieces make a checkpoint complete.
    ``everyone_saves`` says that each rank writes its own file although replicas hold the same: then a set with ranks missing, or off the
    save interval, was written by a dying job.
    """

    name: str
    role: str
    template: str
    formats: tuple[str, ...]
    kind: Kind = Kind.PERIODIC
    replicated_over: tuple[str, ...] = ()
    sharded: bool = False
    required: bool = True
    step_from: str = "name"
    weak: bool = False
    everyone_saves: bool = False

    @cached_property
    def depth(self) -> int:
        """Directory components in the template."""
        return self.template.count("/")

    @cached_property
    def directory(self) -> re.Pattern[str]:
        return re.compile(_compile(self.template.rpartition("/")[0]))

    @cached_property
    def file(self) -> re.Pattern[str]:
        return re.compile(_compile(self.template.rpartition("/")[2]))

    @cached_property
    def suffix(self) -> str:
        """The literal end of the name: a cheap test before the regular expression."""
        return re.split(r"[\]}]", self.template)[-1].rpartition("/")[2]


Metadata = Mapping[str, Scalar]
Steps = tuple[int | None, int | None, int | None]  # step, epoch, step_in_epoch


def nothing_to_check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """A layout whose content says nothing that its names could contradict."""
    return iter(())


def no_steps(part: Part, metadata: Metadata) -> Steps:
    """A layout whose content tells no step."""
    return part.step, part.epoch, part.step_in_epoch


def no_place(part: Part, siblings: Sequence[tuple[Part, Metadata]]) -> int | None:
    """A layout whose siblings tell nothing about a part's step."""
    return None


@dataclass(frozen=True)
class Layout:
    """How a directory is arranged.

    ``tracker`` is the file beside the checkpoints that names the latest, ``read_tracker`` turns its bytes into a step, "release" or None (garbage).
    ``steps`` reads (step, epoch, step_in_epoch) from a part's metadata, ``place`` works a part's step out
    from its siblings' metadata, nearest in time first. ``check`` compares names with contents over the parts of one run
    and yields (path, finding). ``resume`` tells the framework. ``committed`` says that a checkpoint not marked unfinished has all the files
    its writer meant to write, so a rank without one needs a replica. ``limits`` says what cannot be seen.
    """

    name: str
    title: str
    pieces: tuple[Piece, ...]
    resume: Callable[[Checkpoint, str | None], Resume]
    reference: str
    limits: tuple[str, ...]
    steps: Callable[[Part, Metadata], Steps] = no_steps
    place: Callable[[Part, Sequence[tuple[Part, Metadata]]], int | None] = no_place
    check: Callable[[Sequence[tuple[Part, Report]]], Iterator[tuple[str, Finding]]] = nothing_to_check
    tracker: str | None = None
    read_tracker: Callable[[bytes], int | str | None] | None = None
    epoch_base: int | None = None
    committed: bool = False
    reshardable: bool = False
    compare_steps: bool = True

    def piece(self, name: str) -> Piece:
        """The piece of that name. Raises KeyError."""
        for p in self.pieces:
            if p.name == name:
                return p
        raise KeyError(name)


def whole(value: Scalar) -> int | None:
    """A metadata scalar as an int when it is one (True is not)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
