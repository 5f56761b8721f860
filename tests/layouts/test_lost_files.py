"""What is gone of a checkpoint, or holds only zeros, is missed where the saves beside it have it: by ``verify`` as
well as by ``plan``.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise, one_of_each, tree_of
from told_trees import answer, plant, verified

from ckpt_tools import plan, verify
from ckpt_tools.discovery.group import group
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.zeros import all_zero
from ckpt_tools.formats.dcp.torchsnapshot import PLAIN, Entry, check_file
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.planning.engine import check_together
from ckpt_tools.reading.opening import open_session
from ckpt_tools.storage import BytesSource


@pytest.mark.parametrize(("middle", "zeros"), [(b"", True), (b"\1", False)])
def test_all_of_a_file_is_read_before_it_is_called_zeros(middle: bytes, zeros: bool) -> None:
    """Its ends are looked at with everything else, the rest only where they and the other saves say so."""
    source = BytesSource(bytes(2 << 20) + middle + bytes(2 << 20))
    entry = Entry(0, None, "w", PLAIN, "uint8", (source.size,))
    anatomy = Anatomy()
    assert list(check_file(source, anatomy, [entry])) == []
    assert anatomy.metadata == {"zeros": True}
    assert all_zero(source) is zeros


EXEMPT = {"flax/gda", "lightning/sharded"}
"""Of a directory of arrays alone, and of one without its index, nothing tells that it was a checkpoint."""
LOST = {"missing-part", "missing-rank"}
SEVERAL = [
    pytest.param(case, id=name) for case in CASES if (name := "/".join(case.parts[-3:-1])) not in EXEMPT
]


@pytest.mark.share(6)
@pytest.mark.slow
@pytest.mark.parametrize("case", one_of_each(SEVERAL))
def test_verify_misses_what_makes_plan_give_up_a_checkpoint(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    made = asked(root)
    paths = sorted(path for path in (made.files() if made else ()) if Path(path).is_file() and not Path(path).is_symlink())  # fmt: skip
    if len(paths) < 2 or made is None or made.checkpoint is None:
        return
    Path(random.Random(case.parts[-2]).choice(paths)).unlink()
    now = asked(root)
    given_up = [r for r in (now.rejected if now else ()) if r.checkpoint.path == made.checkpoint.path]
    if any(f.code in LOST for r in given_up for f in r.findings):
        assert verify(str(root)).verdict is not Verdict.OK


def asked(root: Path) -> LoadPlan | None:
    try:
        return plan(str(root))
    except NoneUsable as error:
        return error.plan
    except CkptError:
        return None


@pytest.mark.slow
def test_the_step_that_an_index_lists_is_that_of_its_save(tmp_path: Path) -> None:
    index = tree_of("axlearn/steps", tmp_path) / "step_00000020/index"
    index.write_text(index.read_text().replace('["step", 20]', '["step", 10]'))
    assert answer(index.parents[1]) == "step_00000010 -step-mismatch"


def test_a_text_that_all_other_saves_have_is_missed(tmp_path: Path) -> None:
    """Nerogar/OneTrainer#498: meta.json is written last, and the job died before it."""
    for n in (100, 200, 300):
        plant(tmp_path, f"step_{n}/state.pt:state{n} step_{n}/meta.json=")
    assert answer(tmp_path) == "step_300"
    (tmp_path / "step_300/meta.json").unlink()
    assert (answer(tmp_path), verified(tmp_path)) == ("step_300 +missing-part", "suspect missing-part")
    s = open_session(str(tmp_path), ReadOptions())
    older = [c for c in group(s.parts, s.layouts) if c.step == 100]
    assert check_together(s, False, saves=older) == [], "of one save that is asked about"
