"""``ckpt seal`` of trees in a store: one PUT for each seal, which replaces what was seen and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_helpers import ckpt, megatron
from stores.bucket import Bucket
from stores.faults import Before, Corrupt, Status
from stores.proxy import Proxy, Rule
from stores.s3 import of_user, s3_of

from ckpt_tools import guard

SEAL = "run/iter_0000020/.ckpt-seal.json"
FILE = "run/iter_0000020/mp_rank_01/model_optim_rng.pt"


def sealed(bucket: Bucket, tmp_path: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = ckpt("seal", f"{bucket.url}/run", "--json", *words, env=of_user(bucket, tmp_path))
    assert done.returncode == code, (done.stdout, done.stderr)
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def states(body: dict[str, Any]) -> dict[str, str]:
    return {Path(row["path"]).name: row["state"] for row in body["checkpoints"]}


def verified(bucket: Bucket, tmp_path: Path, *words: str) -> tuple[int, set[str]]:
    done = ckpt("verify", f"{bucket.url}/run", "--json", *words, env=of_user(bucket, tmp_path))
    body = json.loads(done.stdout)
    found = [f for row in body["files"] for f in row["findings"]] + body["findings"]
    return done.returncode, {f["code"] for f in found if f["severity"] != "note"}


@pytest.mark.share(2)
@pytest.mark.parametrize("bucket", ["s3", "rclone_s3"], indirect=True)
def test_what_is_sealed_in_a_store_is_held_to_it(bucket: Bucket, tmp_path: Path) -> None:
    bucket.upload(megatron(tmp_path / "run"), "run")
    assert states(sealed(bucket, tmp_path)) == {"iter_0000010": "sealed", "iter_0000020": "sealed"}
    keys = bucket.keys()
    assert SEAL in keys and len(keys) == 7
    assert set(states(sealed(bucket, tmp_path)).values()) == {"already"}
    assert verified(bucket, tmp_path) == (0, set())
    bucket.put(FILE, (tmp_path / FILE.replace("rank_01", "rank_00")).read_bytes())
    code, codes = verified(bucket, tmp_path)
    assert code == 1 and "seal-mismatch" in codes
    assert states(sealed(bucket, tmp_path, code=1))["iter_0000020"] == "broken"


def test_a_tree_that_was_sealed_on_a_disk_verifies_in_a_store(s3: Bucket, tmp_path: Path) -> None:
    """And its seals are replaced when that is asked for."""
    guard.seal(megatron(tmp_path / "run"))
    s3.upload(tmp_path / "run", "run")
    for words, state in ((), "already"), (("--again", "--digest", "sha256"), "sealed"):
        assert verified(s3, tmp_path) == (0, set())
        assert set(states(sealed(s3, tmp_path, *words)).values()) == {state}
    assert verified(s3, tmp_path) == (0, set())


@pytest.mark.exhaustive
def test_nothing_is_written_with_dry_run_and_away_with_seal_dir(s3: Bucket, tmp_path: Path) -> None:
    s3.upload(megatron(tmp_path / "run"), "run")
    before, away = s3.keys(), tmp_path / "seals"
    assert set(states(sealed(s3, tmp_path, "--dry-run")).values()) == {"would-seal"}
    assert set(states(sealed(s3, tmp_path, "--seal-dir", str(away))).values()) == {"sealed"}
    assert s3.keys() == before
    bucket = s3.url.removeprefix("s3://")
    assert (away / "s3:" / bucket / SEAL).is_file()
    assert set(states(sealed(s3, tmp_path, "--seal-dir", str(away))).values()) == {"already"}
    s3.put(FILE, (tmp_path / FILE.replace("20", "10")).read_bytes())
    assert verified(s3, tmp_path, "--seal-dir", str(away))[0] == 1


def test_the_seal_of_somebody_else_is_not_replaced(tmp_path: Path, proxy: Proxy, through: Bucket) -> None:
    """It came after the listing, in the last moment before ours."""
    through.upload(megatron(tmp_path / "run", steps=(20,)), "run")
    proxy.add(Rule(Before(lambda: through.put(SEAL, b"theirs")), method="PUT", path=SEAL))
    done = ckpt("seal", f"{through.url}/run", env=of_user(through, tmp_path))
    assert done.returncode == 5 and "somebody else" in done.stderr, done.stderr
    there = s3_of(through).client.get_object(Bucket=s3_of(through).bucket, Key=SEAL)
    assert there["Body"].read() == b"theirs"
    assert proxy.count("PUT") == 1


@pytest.mark.share(2)
@pytest.mark.parametrize("before", [False, True], ids=["a new one", "one in place of another"])
def test_a_seal_that_something_else_took_is_not_said_to_be_there(
    before: bool, proxy: Proxy, through: Bucket, tmp_path: Path
) -> None:
    """What answers each PUT, as a store would, is none."""
    through.upload(megatron(tmp_path / "run"), "run")
    if before:
        sealed(through, tmp_path)
    proxy.add(Rule(Status(200, (("ETag", '"0"'),)), method="PUT"))
    words = ("--again", "--also", "sha256") if before else ()
    body = sealed(through, tmp_path, *words, code=5)
    assert body["error"]["exit_code"] == 5, body


def test_a_file_replaced_while_it_is_sealed_is_in_use(tmp_path: Path, proxy: Proxy, through: Bucket) -> None:
    """After it was read: what is sworn to is looked at again when all of it was."""
    through.upload(megatron(tmp_path / "run", steps=(20,)), "run")
    first, done = FILE.replace("rank_01", "rank_00"), list[bool]()

    def replace() -> None:
        if not done:
            done.append(True)
            through.put(first, (tmp_path / FILE).read_bytes())

    # the listing of both directories is the last thing that is asked before the seal
    proxy.add(Rule(Before(replace), method="GET", path=FILE, first=2))
    asked = ckpt("seal", f"{through.url}/run", "--json", env=of_user(through, tmp_path))
    keys = through.keys()
    assert done and SEAL not in keys, asked.stderr
    assert json.loads(asked.stdout)["summary"]["in-use"] == 1


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["model.safetensors", "model-data"], ids=["a known format", "any file"])
def test_what_is_not_what_the_store_has_is_not_sworn_to(
    tmp_path: Path, proxy: Proxy, through: Bucket, name: str
) -> None:
    """A bit flips on the way in a file that has no checksum of its own; the next time it is sealed."""
    through.put("run/checkpoint-20/trainer_state.json", b'{"global_step": 20, "epoch": 1.0}')
    header = b'{"w":{"dtype":"U8","shape":[90000],"data_offsets":[0,90000]}}'
    data = len(header).to_bytes(8, "little") + header + bytes(range(250)) * 360
    through.put("run/checkpoint-20/model.safetensors", data)
    through.put(f"run/checkpoint-20/{name}", data)
    proxy.add(Rule(Corrupt(50_000), method="GET", path=name))
    done = ckpt("seal", f"{through.url}/run", "--json", env=of_user(through, tmp_path))
    assert done.returncode == 5, (done.stdout, done.stderr)
    assert "not those that the store says it has" in done.stdout and "seal" not in " ".join(through.keys())
    proxy.clear()
    sealed(through, tmp_path)
    assert "seal" in " ".join(through.keys())


# ---- fragments, one of each rank


FRAGMENTS = "run/iter_0000020/.ckpt-seal.d/rank-0000"


@pytest.fixture
def by_ranks(s3: Bucket, tmp_path: Path) -> Bucket:
    """A checkpoint that its two ranks have sealed on a disk, uploaded."""
    home = megatron(tmp_path / "run", steps=(20,)) / "iter_0000020"
    for rank in range(2):
        file = home / f"mp_rank_0{rank}/model_optim_rng.pt"
        guard.seal(home, rank=rank, world_size=2, files=[str(file)])
    s3.upload(tmp_path / "run", "run")
    assert {f"{FRAGMENTS}{rank}.json" for rank in range(2)} <= set(s3.keys())
    return s3


def test_fragments_become_one_seal(by_ranks: Bucket, tmp_path: Path) -> None:
    before = set(by_ranks.keys())
    sealed(by_ranks, tmp_path, "--merge", "--dry-run")
    assert set(by_ranks.keys()) == before
    assert verified(by_ranks, tmp_path) == (0, set())
    assert set(states(sealed(by_ranks, tmp_path, "--merge")).values()) == {"merged"}
    assert set(by_ranks.keys()) == {k for k in before if not k.startswith(FRAGMENTS)} | {SEAL}
    assert verified(by_ranks, tmp_path) == (0, set())


def test_while_a_rank_is_missing_nothing_is_merged(by_ranks: Bucket, tmp_path: Path) -> None:
    by_ranks.delete(f"{FRAGMENTS}1.json")
    before = by_ranks.keys()
    assert set(states(sealed(by_ranks, tmp_path, "--merge")).values()) == {"unfinished"}
    assert by_ranks.keys() == before


@pytest.mark.share(2)
@pytest.mark.parametrize(("method", "code"), [("PUT", 5), ("POST", 0)])
def test_without_the_right_to_merge_no_seal_is_lost(
    by_ranks: Bucket, tmp_path: Path, proxy_of: Callable[[Bucket], Proxy], method: str, code: int
) -> None:
    """Neither where nothing may be written, nor where nothing may be deleted: fragments then lie beside what
    replaces them, and say the same.
    """
    before, proxy = set(by_ranks.keys()), proxy_of(by_ranks)
    proxy.add(Rule(Status(403), method=method))
    done = ckpt(
        "seal", f"{by_ranks.url}/run", "--merge", env=of_user(by_ranks.through(proxy.endpoint), tmp_path)
    )
    assert done.returncode == code, done.stderr
    assert proxy.count(method) > 0
    assert set(by_ranks.keys()) == before | ({SEAL} if code == 0 else set())
    assert verified(by_ranks, tmp_path) == (0, set())
