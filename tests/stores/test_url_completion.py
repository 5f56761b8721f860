"""What Tab offers after a URL: the names of one directory of the store, in real shells too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import shells
from places import FIXTURES
from stores.asking import as_user, variables
from stores.bucket import Bucket

from ckpt_tools.cli import candidates
from ckpt_tools.cli.candidates import far

TREE = FIXTURES / "layouts/megatron/tp/tree"


def offered(*words: str, env: dict[str, str] | None = None) -> list[str]:
    text = candidates.answer({candidates.VARIABLE: "zsh", **(env or {})}, list(words))
    assert text is not None
    assert text.startswith("words\n")
    return [line.partition("\t")[0] for line in text.splitlines()[1:]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than who types would wait."""
    monkeypatch.setattr(far, "SECONDS", 60.0)


@pytest.fixture
def run(gcs: Bucket) -> Bucket:
    gcs.upload(TREE, "run")
    gcs.put("run/notes.txt", b"x")
    gcs.put("run/old_$folder$", b"")
    return gcs


def test_one_name_more_is_offered(run: Bucket, tmp_path: Path) -> None:
    steps = [f"{run.url}/run/iter_00000{step}/" for step in (10, 20, 30)]
    with as_user(tmp_path, run):
        assert offered("ls", f"{run.url}/") == [f"{run.url}/run/"]
        assert offered("plan", f"{run.url}/run/it") == steps
        assert offered(f"{run.url}/run/iter_00000300"[:-2]) == steps[2:]
        assert offered("verify", f"{run.url}/run/n") == [f"{run.url}/run/notes.txt"]
        assert offered("verify", "--root", f"{run.url}/none/") == []
        assert offered("ls", "gs://") == offered("ls", "gs://buck") == []


def test_steps_and_runs_of_a_url_are_offered(run: Bucket, tmp_path: Path) -> None:
    with as_user(tmp_path, run):
        assert offered("plan", f"{run.url}/run", "--max-step", "") == ["30", "20", "10"]
        assert offered("plan", run.url, "--run", "") == ["run"]


def test_stores_are_opened_as_the_commands_open_them(run: Bucket, tmp_path: Path) -> None:
    """The endpoint is an option, or in the configuration file; the token is in the environment."""
    endpoint = f"base_url={run.options['base_url']}"
    rest = {key: value for key, value in run.options.items() if key != "base_url"}
    wanted = [f"{run.url}/run/"]
    with as_user(tmp_path, replace(run, options=rest)):
        assert offered("ls", "--store-option", endpoint, f"{run.url}/r") == wanted
        assert offered("ls", f"--store-option={endpoint}", f"{run.url}/r") == wanted
        (tmp_path / "ckpt.toml").write_text(f'[store."{run.url}"]\nbase_url = "{run.endpoint}"\n')
        assert offered("ls", f"{run.url}/r") == wanted


@pytest.mark.parametrize(
    "url", ["s3://bucket/run/", "nothing://bucket/run/", "https://127.0.0.1:9/a/?X-Amz-Signature=s", "x://"]
)
def test_what_cannot_be_listed_offers_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(far, "SECONDS", 0.5)
    options = {
        "endpoint": "http://127.0.0.1:9",
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "r",
    }
    with as_user(tmp_path, Bucket("s3://bucket", "", options, None)):  # type: ignore[arg-type]
        assert offered("ls", url) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_a_real_shell_goes_on_where_a_directory_ends(name: str, run: Bucket, tmp_path: Path) -> None:
    """No space after it, and colons in the word are no ends of words."""
    home = tmp_path / "home"
    home.mkdir()
    shell = shells.Shell(name, home, {**shells.with_ckpt(tmp_path / "bin"), **variables(run)})
    wanted = [b"ls", f"{run.url}/run/notes.txt".encode()]
    try:
        tries = (shell.completed(f"ckpt ls {run.url}/r\tnot\t") == wanted for _ in range(4))
        assert any(tries)  # it waits for two seconds, which a busy machine may need for less
    finally:
        shell.close()
