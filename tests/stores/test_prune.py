"""``ckpt prune`` of trees in a store: what goes, in which order, and what a command that dies leaves behind."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from run_helpers import ckpt, megatron
from stores.bucket import Bucket
from stores.faults import Before, Cut, Status
from stores.proxy import Proxy, Rule
from stores.s3 import of_user, reached, s3_of

from ckpt_tools.api import plan
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.guard.prune import Policy, prune
from ckpt_tools.model.answers import Changes
from ckpt_tools.model.selection import Selection

STEPS = (10, 20, 30, 40)


def pruned(bucket: Bucket, tmp_path: Path, last: int = 1, **more: Any) -> Changes:
    with reached(bucket, tmp_path):
        question = Selection(settle=0, order="step", cache=True)
        return prune(f"{bucket.url}/run", Policy(keep_last=last), selection=question, **more)


def gone(result: Changes) -> list[str]:
    return sorted(Path(c.path).name for c in result.to_do)


def steps(bucket: Bucket) -> set[str]:
    keys = bucket.keys()
    return {key.split("/")[1][-2:] for key in keys if "iter_" in key}


def chosen(bucket: Bucket, tmp_path: Path) -> int | None:
    with reached(bucket, tmp_path):
        try:
            return plan(f"{bucket.url}/run", Selection(settle=0, order="step")).resume_step
        except CkptError:
            return None


def filled(bucket: Bucket, tmp_path: Path) -> None:
    bucket.upload(megatron(tmp_path / "run", steps=STEPS), "run")


def test_what_no_flag_keeps_goes(s3: Bucket, tmp_path: Path) -> None:
    filled(s3, tmp_path)
    before = s3.keys()
    said = pruned(s3, tmp_path, 2)
    assert gone(said) == ["iter_0000010", "iter_0000020"] and s3.keys() == before
    assert gone(pruned(s3, tmp_path, 2, apply=True)) == gone(said)
    assert steps(s3) == {"30", "40"} and chosen(s3, tmp_path) == 40
    assert gone(pruned(s3, tmp_path, 2, apply=True)) == []


def test_versions_that_stay_are_said(versioned_s3: Bucket, tmp_path: Path) -> None:
    filled(versioned_s3, tmp_path)
    said = pruned(versioned_s3, tmp_path, apply=True)
    assert [f.code for f in said.findings] == ["versions-kept"]
    assert steps(versioned_s3) == {"40"}
    there = s3_of(versioned_s3)
    kept = there.client.list_object_versions(Bucket=there.bucket)
    assert len(kept["DeleteMarkers"]) == 6 and len(kept["Versions"]) == 9


def test_a_damaged_one_counts_for_nothing(s3: Bucket, tmp_path: Path) -> None:
    filled(s3, tmp_path)
    s3.put("run/iter_0000030/mp_rank_01/model_optim_rng.pt", b"PK\3\4 no more")
    said = pruned(s3, tmp_path, 2, apply=True)
    assert gone(said) == ["iter_0000010"]
    assert gone(pruned(s3, tmp_path, 2, damaged=True, apply=True)) == ["iter_0000030"]
    assert steps(s3) == {"20", "40"}


def test_pins_that_were_uploaded_count(s3: Bucket, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=STEPS)
    assert ckpt("pin", str(root / "iter_0000010")).returncode == 0
    s3.upload(root, "run")
    assert gone(pruned(s3, tmp_path, apply=True)) == ["iter_0000020", "iter_0000030"]


def test_what_a_decision_names_stays(s3: Bucket, tmp_path: Path) -> None:
    filled(s3, tmp_path)
    words = ("hook", f"{s3.url}/run", "--order", "step", "--max-step", "20")
    assert ckpt(*words, env=of_user(s3, tmp_path)).returncode == 0
    assert gone(pruned(s3, tmp_path, apply=True)) == ["iter_0000010", "iter_0000030"]


def test_files_of_somebody_else_keep_a_checkpoint(s3: Bucket, tmp_path: Path) -> None:
    """Those that are in one that stays as well go with it."""
    filled(s3, tmp_path)
    s3.put("run/iter_0000010/notes.txt", b"mine")
    for step in (20, 40):
        s3.put(f"run/iter_00000{step}/tokenizer.model", b"the same for all")
    assert gone(pruned(s3, tmp_path, 2, apply=True)) == ["iter_0000020"]
    assert steps(s3) == {"10", "30", "40"}


@pytest.mark.parametrize("key", ["mp_rank_01/model_optim_rng.pt", "new/of_somebody"])
def test_nothing_goes_where_somebody_writes(tmp_path: Path, proxy: Proxy, through: Bucket, key: str) -> None:
    """After all that was asked, in the last listing before the first of it would go."""
    filled(through, tmp_path)
    pruned(through, tmp_path)
    path = r"\?list-type=2&prefix=run(/|%2F)iter_0000010"  # of all that lies below it
    proxy.add(Rule(Before(lambda: through.put(f"run/iter_0000010/{key}", b"new")), path=path, times=1))
    with pytest.raises(UsageError, match="somebody else writes there"):
        pruned(through, tmp_path, apply=True)
    assert steps(through) == {"10", "20", "30", "40"} and not proxy.count("POST")


@pytest.mark.share(4)
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("fault", [Cut(), Status(403)], ids=["killed", "refused"])
def test_what_is_left_is_no_checkpoint(
    tmp_path: Path, proxy: Proxy, through: Bucket, at: int, fault: Any
) -> None:
    """The n-th request that deletes, and all after it, are refused, or never come back."""
    filled(through, tmp_path)
    proxy.add(Rule(fault, method="POST", first=at))
    proxy.add(Rule(fault, method="DELETE"))
    with pytest.raises(CannotLook, match="cannot be deleted") if at < 3 else nullcontext():
        pruned(through, tmp_path, apply=True)
    assert chosen(through, tmp_path) == 40
    # nothing else can be used: what is left of the others is taken for no checkpoint
    through.put("run/iter_0000040/mp_rank_00/model_optim_rng.pt", b"PK\3\4")
    assert chosen(through, tmp_path) == (30 if at == 1 else None)
    whole = "run/iter_0000040/mp_rank_00/model_optim_rng.pt"
    through.put(whole, (tmp_path / whole).read_bytes())
    proxy.clear()
    pruned(through, tmp_path, damaged=True, apply=True)
    assert steps(through) == {"40"}
    assert not any(".ckpt" in key for key in through.keys())  # noqa: SIM118 - no mapping
