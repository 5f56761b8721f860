"""hf:// through huggingface_hub's own file system, against a mock of the Hub's HTTP API: the real one cannot be
started here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import LAYOUT_TREES
from run_helpers import CKPT, CLEAN
from stores.hugging_face import Hub, hugging_face

pytest.importorskip("huggingface_hub")
MODEL = "org/model"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hugging_face() as started:
        yield started


def ask(hub: Hub, home: Path, *words: str, **env: str) -> tuple[int, Any]:
    """The exit code and the JSON of a command in a process of its own: the client reads where the Hub is once."""
    env = {**CLEAN, "HOME": str(home), "HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_XET": "1", **env}
    done = subprocess.run([*CKPT, *words, "--json"], env=env, cwd=home, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def tree(case: str) -> Path:
    return LAYOUT_TREES / case / "tree"


def uploaded(hub: Hub, case: str) -> str:
    bucket = hub.bucket(MODEL)
    bucket.upload(tree(case))
    return bucket.url


def facts(files: Any) -> list[tuple[str, str]]:
    return sorted((os.path.basename(f["path"]), f["verdict"]) for f in files)


@pytest.mark.parametrize("case", ["sharded-safetensors/consolidated", "hf-trainer/trainer", "dcp/two"])
def test_the_answers_are_those_of_the_local_tree(case: str, hub: Hub, tmp_path: Path) -> None:
    url, local = uploaded(hub, case), str(tree(case))
    there, here = (ask(hub, tmp_path, "verify", root, "--no-cache") for root in (url, local))
    assert there[0] == here[0] and facts(there[1]["files"]) == facts(here[1]["files"])
    there, here = (ask(hub, tmp_path, "ls", root) for root in (url, local))
    assert [(c["step"], c["layout"]) for c in there[1]["checkpoints"]] == [
        (c["step"], c["layout"]) for c in here[1]["checkpoints"]
    ]
    assert {method for method, _ in hub.seen} <= {"GET", "HEAD", "POST"}


def test_a_repository_that_may_not_be_seen_is_not_absent(hub: Hub, tmp_path: Path) -> None:
    url = uploaded(hub, "hf-trainer/trainer")
    hub.hidden.add(MODEL)
    code, said = ask(hub, tmp_path, "plan", url, "--allow-none", "--allow-missing")
    assert code == 5 and "HF_TOKEN" in json.dumps(said)
    assert ask(hub, tmp_path, "ls", url, HF_TOKEN="hf_secret")[0] == 0


def test_nothing_is_written(hub: Hub, tmp_path: Path) -> None:
    url = uploaded(hub, "hf-trainer/trainer")
    before = hub.shelves[MODEL].keys()
    for words in (("seal", url), ("prune", url, "--keep", "1", "--apply"), ("quarantine", url, "--apply")):
        code, said = ask(hub, tmp_path, *words)
        assert code in (2, 5), (words, code, said)
    assert hub.shelves[MODEL].keys() == before
