"""Orbax: a checkpoint is found whatever its directory is called, and what lies beside it never becomes part of
it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from fixture_trees import pairs, tree_of
from places import FIXTURES
from told_trees import answer

from ckpt_tools import plan, scan
from ckpt_tools.errors import NoneUsable, UsageError

ORBAX = FIXTURES / "layouts/orbax"
BARE = ORBAX / "standard/tree/step_200"
WITH_ITEMS = (ORBAX / "items/tree/30", ORBAX / "parts/tree/latest", ORBAX / "prefixed/tree/run_00000030")
NAMES = {"7": 7, "run_00000007": 7, "checkpoint-7": 7, "my_run_7": 7, "final": None, "epoch_7": None}


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("source", "name"),
    pairs([BARE, *WITH_ITEMS, ORBAX / "zarr2/tree/15"], list(NAMES), pytest.mark.slow),
    ids=lambda value: value if isinstance(value, str) else value.parts[-3],
)
def test_it_is_found_whatever_it_is_called(source: Path, name: str, tmp_path: Path) -> None:
    home = shutil.copytree(source, tmp_path / "run" / name)
    for root in (home, home.parent, tmp_path):
        made = plan(str(root))
        assert made.checkpoint is not None
        assert (made.resume.path, made.checkpoint.step) == (str(home), NAMES[name]), root
        assert all(path.startswith(str(home)) for path in made.files())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "marked"), [("7", True), ("run", True), ("run_7", True), ("run", False), ("run_7", False)]
)
def test_checkpoints_of_a_run_beside_another_are_never_items_of_one(
    run: str, marked: bool, tmp_path: Path
) -> None:
    """Old versions of Orbax write no _CHECKPOINT_METADATA: then a number alone tells a manager's directory,
    and ``7/5`` is an item.
    """
    shutil.copytree(ORBAX / "items/tree/30", tmp_path / "30")
    for name in ("5", "10"):
        shutil.copytree(BARE, tmp_path / run / name)
        if not marked:
            (tmp_path / run / name / "_CHECKPOINT_METADATA").unlink()
    homes = {c.path for c in scan(str(tmp_path)).checkpoints}
    assert homes == {str(tmp_path / "30"), *(str(tmp_path / run / name) for name in ("5", "10"))}


@pytest.mark.slow
def test_a_lone_tree_of_an_older_version_misses_its_manifest(tmp_path: Path) -> None:
    """Before 0.12 _METADATA does not say that there is one."""
    home = Path(shutil.copytree(BARE, tmp_path / "step_200"))
    tree = json.loads((home / "_METADATA").read_text())
    (home / "_METADATA").write_text(json.dumps({k: v for k, v in tree.items() if k != "use_ocdbt"}))
    os.utime(home / "_METADATA", ns=((home / "manifest.ocdbt").stat().st_mtime_ns,) * 2)
    assert plan(str(tmp_path)).resume_step == 200
    (home / "manifest.ocdbt").unlink()
    with pytest.raises(NoneUsable, match="missing-part"):
        plan(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("other", "told"), [(2, False), (4, True)])
def test_a_process_without_its_place_in_the_data_is_missed(other: int, told: bool, tmp_path: Path) -> None:
    """Whose files there were, the names say; a job of another size has other files."""
    root = tree_of("orbax/random", tmp_path)
    for step, of in (("20", other), ("30", 2)):
        (one,) = (root / step / "data").glob("process_*.json")
        for process in range(of):
            shutil.copy2(one, one.with_name(f"process_{process}-of-{of}.json"))
        one.unlink()
    assert answer(root).startswith("30")
    (root / "30/data/process_1-of-2.json").unlink()
    assert re.match(r"30 .*\+missing-part" if told else r"20 -missing-part", answer(root))


def test_no_hint_leads_to_one_item_of_a_save(tmp_path: Path) -> None:
    root = Path(shutil.copytree(ORBAX / "parts/tree", tmp_path / "run"))
    (root / "latest/_CHECKPOINT_METADATA").unlink()
    with pytest.raises(UsageError, match="no steps compare them") as asked:
        plan(root)
    assert "--exclude" not in asked.value.hint, "opt or params alone is a part of a save"
