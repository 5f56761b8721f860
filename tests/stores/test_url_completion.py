"""What Tab offers for flags of a command that is about a URL."""

from __future__ import annotations

from pathlib import Path

from run_helpers import ckpt
from stores.asking import TREE, variables
from stores.bucket import Bucket


def test_steps_of_a_url_are_offered(gcs: Bucket, tmp_path: Path) -> None:
    gcs.upload(TREE, "run")
    asked = {
        "_CKPT_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": f"ckpt plan {gcs.url}/run --max-step ",
    }
    done = ckpt(env={**variables(gcs), **asked}, cwd=tmp_path)
    assert (done.stdout.split(), done.stderr) == (["30", "20", "10"], "")
