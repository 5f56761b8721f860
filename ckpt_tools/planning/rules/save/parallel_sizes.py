"""``save/parallel-sizes``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from ckpt_tools.errors import CkptError
from ckpt_tools.layouts import Piece
from ckpt_tools.layouts.common.saved_by import read_sizes
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Known
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of
from ckpt_tools.planning.rules.save.rank_mismatch import count_of_one_model, counts_experts

HIGHEST = "highest rank on disk"
"""The source of a number of ranks that is too small if the file of the highest rank is lost."""


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield one hit per save whose files tell sizes that contradict each other or their paths."""
    doubtful: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for p, report in facts.rows:
        sizes = read_sizes([report]) if p.home and p.coords and report.format else {}
        if "world" in sizes and (why := _find_contradiction(p, sizes, facts.layouts.piece_of(p))):
            doubtful[p.home].append((p.path, why))
    for (path, why), *others in doubtful.values():
        more = f" (so do {len(others)} more of its checkpoint)" if others else ""
        yield Hit(path, why + more, of_file=True)


def _find_contradiction(part: Part, sizes: Mapping[str, int], piece: Piece) -> str:
    """Return how one file's parallel sizes contradict each other or its path; "" if they do not."""
    model, world = count_of_one_model(sizes), sizes["world"]
    if "tp" in sizes and world % model:
        cut = " ".join(f"{axis}={sizes[axis]}" for axis in ("tp", "pp", "cp") if sizes.get(axis, 1) > 1)
        return f"the file says {cut}, {model} ranks, and that {world} ranks saved it"
    for axis, at in part.coords:
        if at >= sizes.get(axis, at + 1) and not (axis == "pp" and counts_experts(sizes)):
            return f"the path says {axis}={at}, the file that there are {sizes[axis]}"
    for axis in ("tp", "pp"):
        if f"{{{axis}" in piece.template and axis not in dict(part.coords) and sizes.get(axis, 1) > 1:
            return f"the path names no {axis}, the file says that there are {sizes[axis]}"
    return ""


def ask_for_world_size(size: int, world: int, newest: Checkpoint, chosen: Checkpoint) -> CkptError:
    text = f"it is unclear how many ranks the job has: newer saves, such as {newest.path} ({newest.label}),"
    text += f" have files of {size} ranks, and {world} is only the highest rank on disk"
    hint = f"add --world-size {size} if the job has {size} ranks now, or --world-size {world}"
    return error_of(RULE, Hit(newest.path, text, f"{hint} to resume from {chosen.label}"))


def ask_for_axis(axis: str, size: int, order: str) -> CkptError:
    """Return the question where an axis is in the rank order of --parallel, which leaves it out."""
    text = f"--parallel order={order} does not say where {axis} is, whose size is {size}"
    return error_of(RULE, Hit("", text, "name every axis whose size is above 1, fastest first"))


def ask_for_multiple(world: Known, grid: int) -> CkptError:
    text = f"--parallel makes up {grid} ranks, and {world.value} ({world.provenance}) are no"
    return error_of(RULE, Hit("", f"{text} multiple of it", "correct --parallel, or add --world-size N"))


def warn_of_inferred(world: Known, pieces: Iterable[Piece], root: str) -> Iterator[Finding]:
    """Yield that only names tell the number of ranks, if each rank has required files of its own."""
    if world.provenance == HIGHEST and any(piece.required and not piece.readers.shared for piece in pieces):
        text = f"{world.value} ranks, from the highest rank on disk"
        yield finding_of(RULE, Hit(root, text, code="world-size-inferred"))


RULE = Rule(
    id="save/parallel-sizes",
    codes=("parallel-sizes", "world-size-inferred", "lone-number"),
    effect=Effect.ASK,
    answer="--world-size N, --parallel tp=N,pp=N",
    check=check,
    why="""\
How many ranks there are is not told, or told in two ways. A lost highest rank cannot be seen where
only the highest name on disk tells the number. One newer save without its highest ranks was cut off;
at least two with all files of a smaller job are a question: the job may have fewer ranks now, and would
start from an older save.
For: Megatron's args (tp, pp, cp) after a conversion; directories thinned out by hand;
elastic jobs that went on with fewer nodes.
""",
)
