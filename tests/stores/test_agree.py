"""Two nodes that agree on a checkpoint in a store, which both of them see whole."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run_helpers import SAY, ckpt, megatron
from stores.bucket import Bucket
from stores.environment import of_user


def test_two_nodes_come_to_one_checkpoint(s3: Bucket, tmp_path: Path) -> None:
    s3.upload(megatron(tmp_path / "run", world=4), "run")

    def node(n: int) -> tuple[int, str, str]:
        nodes = ("--agree", "--nodes", "2", "--node", str(n), "--world-size", "4", "--timeout", "1000")
        words = ("run", f"{s3.url}/run", "--order", "step", *nodes, "--job", "j")
        env = {**of_user(s3, tmp_path / f"{n}")}
        done = ckpt(*words, "--plan-dir", str(tmp_path / "shared"), "--", *SAY, env=env)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(node, range(2)))
    assert [code for code, _, _ in answers] == [0, 0], answers
    told = [json.loads(out)[1] for _, out, _ in answers]
    assert [t["CKPT_ARGS"] for t in told] == [f"--load {s3.url}/run --ckpt-step 20"] * 2
    assert told[0]["CKPT_FINGERPRINT"] == told[1]["CKPT_FINGERPRINT"]
