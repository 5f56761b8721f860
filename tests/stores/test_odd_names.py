"""Names that keys may have, brought to a disk: nothing leaves the directory, no two keys become one file, and
what no disk can hold is refused before anything is fetched.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import FIXTURES
from stores.asking import as_user, ask
from stores.bucket import Bucket
from stores.calls import contents

from ckpt_tools.job.staging import fetching

TREE = FIXTURES / "layouts/hf-trainer/trainer/tree/checkpoint-20"
FLAT = FIXTURES / "layouts/sharded-safetensors/consolidated/tree/step-1000"
TOLD_APART = (
    *("ü", "u\u0308", "A", "a", "Config.json", "x?y#z", "%41", "a%2Fb", "..%2F..%2Fx", " ", "a\\b", "..\\x"),
    *("-rf", "~", "..a", "...", "s3:", "$(id)", "`id`", "'\"<>", "\u202etxt.exe", "\u200b", "\u2028", "\x85"),
    *("k" * 255, "d/" * 200 + "e", ".ckpt-stage/x", "con", "@", "{x}", "*", "a=b&c;d"),
)
NOTE = ".ckpt-stage.json"


@pytest.fixture
def store(gcs: Bucket, tmp_path: Path) -> Iterator[Bucket]:
    gcs.upload(TREE, "run/checkpoint-20")
    with as_user(tmp_path, gcs):
        yield gcs


def test_each_key_is_a_file_of_its_own(store: Bucket, tmp_path: Path) -> None:
    for name in TOLD_APART:
        store.put(f"run/checkpoint-20/{name}", name.encode())
    said = ask("stage", f"{store.url}/run", str(tmp_path / "ssd"), "--json")
    assert said.code == 0, said.text
    staged = contents(Path(said.json["directory"]) / "checkpoint-20")
    assert staged == {**contents(TREE), **{name: name.encode() for name in TOLD_APART}}
    assert {path.partition("/")[0] for path in contents(tmp_path)} == {"ssd"}
    again = ask("stage", f"{store.url}/run", str(tmp_path / "ssd"), "--json")
    assert again.json["fetched"]["files"] == 0, again.text


@pytest.mark.parametrize("name", ["b" * 256, "ü" * 128, "d/" + "c" * 900, "config.json/below"])
def test_what_no_disk_can_hold_is_refused(store: Bucket, tmp_path: Path, name: str) -> None:
    store.put(f"run/checkpoint-20/{name}", b"x")
    before = contents(tmp_path)
    for words in (("stage", f"{store.url}/run", "ssd"), ("hook", f"{store.url}/run", "--stage", "ssd")):
        said = ask(*words)
        assert said.code == 2 and "CKPT_PATH" not in said.printed, said.text
        assert "cannot be staged" in said.error and "start without --stage" in said.text
    assert {k for k in contents(tmp_path).keys() - before.keys() if k.startswith("ssd")} == set()


def test_the_upload_of_a_staged_checkpoint_is_staged(gcs: Bucket, tmp_path: Path) -> None:
    """What ckpt had noted in it says nothing about the new copy."""
    model = {name: data for name, data in contents(FLAT).items() if "/" not in name}
    for name, data in {**model, NOTE: b"old"}.items():
        gcs.put(f"run/{name}", data)
    with as_user(tmp_path, gcs):
        line = ("stage", f"{gcs.url}/run", str(tmp_path / "ssd"), "--json")
        said = ask(*line)
        assert said.code == 0, said.text
        staged = contents(Path(said.json["directory"]))
        assert staged.pop(NOTE) != b"old" and staged == model
        assert ask(*line).json["fetched"]["files"] == 0


@pytest.mark.parametrize("names", [("A", "a"), ("ü", "u\u0308")])
def test_names_that_a_file_system_takes_for_one_are_refused(
    store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """As macOS', FAT and many shares do: whoever is renamed last is found under both names."""
    for name in names:
        store.put(f"run/checkpoint-20/{name}", b"same length: " + name.encode()[:1])
    usual, one_at_a_time = fetching.put_in_place, threading.Lock()

    def put(aside: str, path: str) -> None:
        home, own = os.path.split(path)
        with one_at_a_time:  # a rename is one step for the file system that this one plays
            usual(aside, path)
            for other in set(names) - {own} if own in names else ():
                if os.path.exists(os.path.join(home, other)):
                    os.unlink(os.path.join(home, other))
                os.link(path, os.path.join(home, other))

    monkeypatch.setattr(fetching, "put_in_place", put)
    for _ in range(2):
        said = ask("stage", f"{store.url}/run", str(tmp_path / "ssd"))
        assert (said.code, said.printed) == (2, ""), said.text
        assert "another file of the checkpoint is there" in said.text
    assert not list((tmp_path / "ssd").glob("checkpoint-20-*[0-9a-f]/*"))
