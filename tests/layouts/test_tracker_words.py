"""What a tracker says against what is there, for every layout whose framework writes one: never an older
checkpoint, and never without a word (docs/design.md, section 4, rules 8 and 10).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise, one_of_each
from recorded import TREES as PLANNED

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.layouts import BUILT_IN, LAYOUTS
from ckpt_tools.model.plan import LoadPlan

TRACKERS = {layout.name: layout.tracker.file for layout in LAYOUTS if layout.tracker.file}
WORDS = ("behind", "ahead", "garbage", "empty")
TREES = [
    pytest.param(case, id=f"{case.parent.parent.name}-{case.parent.name}")
    for case in CASES
    if any((case.parent / "tree").rglob(TRACKERS.get(case.parent.parent.name, "no tracker")))
    and f"layouts/{case.parts[-3]}/{case.parts[-2]}/tree" in PLANNED
]


def findings(made: LoadPlan) -> set[tuple[str, str]]:
    return {(f.code, f.message) for f in (*made.warnings, *(f for r in made.rejected for f in r.findings))}


def written(made: LoadPlan, word: str) -> bytes | None:
    """What the tracker holds then; None where there is no such checkpoint to name."""
    newest, *older = made.candidates
    layout = BUILT_IN[newest.layout]
    if word == "behind":
        said = layout.tracker.name(older[0]) if older else None
    elif word == "ahead":
        now = layout.tracker.name(newest)
        said = now + 1000 if isinstance(now, int) else re.sub(r"\d+(?=\D*$)", "9999", now or "")
        said = None if said == now else said
    else:
        return b"\xff\xfe\x00!" if word == "garbage" else b""
    return None if said is None else layout.tracker.write(said)


@pytest.mark.share(18)
@pytest.mark.parametrize("case", one_of_each(TREES, pytest.mark.slow))
def test_a_tracker_that_disagrees_is_never_followed_and_never_silent(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    tracker = next(root.rglob(TRACKERS[case.parent.parent.name]))
    before, held = plan(str(root)), tracker.read_bytes()
    tried = {word: said for word in WORDS if (said := written(before, word)) not in (None, held)}
    assert "garbage" in tried
    for word, said in tried.items():
        tracker.write_bytes(said)
        try:
            after = plan(str(root))
        except (UsageError, NoneUsable):  # somebody is asked, or what the tracker names is damage
            continue
        assert after.checkpoint and before.checkpoint, word
        assert after.checkpoint.path == before.checkpoint.path, word
        assert findings(after) - findings(before), word
