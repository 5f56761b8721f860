"""What the path of a directory alone tells: its step, where no file in it could be seen, and its purpose."""

from __future__ import annotations

import re
from collections.abc import Container
from functools import lru_cache

from ckpt_tools.layouts.common.layout import Layout
from ckpt_tools.layouts.common.templates import NUMBERS, compile_template

_NOT_STEP = re.compile(r"\{(?:" + "|".join(n for n in NUMBERS if n != "step") + r")\b")


@lru_cache(8)
def _patterns(layouts: tuple[Layout, ...]) -> tuple[tuple[re.Pattern[str], ...], tuple[re.Pattern[str], ...]]:
    """Names of directories that tell a step, and those that tell another number (of a rank, of a shard)."""
    names = {
        name
        for layout in layouts
        for piece in layout.pieces
        for name in piece.template.split("/")[:-1]
        if name.count("[") == name.count("]")
    }
    telling = [name for name in names if "{step" in name and "{step_in_epoch" not in name]
    others = [name for name in names if _NOT_STEP.search(name) and name not in telling]
    telling = [name for name in telling if "{prefix}" not in name]  # rank_3 fits {prefix}_{step}
    steps, numbers = (
        tuple(re.compile(compile_template(name)) for name in sorted(found)) for found in (telling, others)
    )
    return steps, numbers


def step_in_path(
    path: str, root: str, layouts: tuple[Layout, ...], stepped: Container[str] = ()
) -> int | None:
    """The step that the innermost of the directories from ``root`` down to ``path`` tells by its name,
    None when none does.

    A name that some layout also reads as another number (``20``, where each node has a directory) tells none,
    unless its directory is one of ``stepped``: those whose other entries are known to be named after steps.
    """
    steps, numbers = _patterns(layouts)
    above = path
    while len(above) > len(root):
        above, _, name = above.rpartition("/")
        told = {int(m["step"]) for pattern in steps if (m := pattern.fullmatch(name)) and m["step"]}
        if len(told) == 1 and (above in stepped or not any(pattern.fullmatch(name) for pattern in numbers)):
            return told.pop()
    return None


def is_of_the_best(directory: str) -> bool:
    """Whether it is called after the best so far (``best``, ``best_models``): its files are of a run whose
    other saves lie beside or above it.
    """
    return directory.rpartition("/")[2].lower().startswith("best")
