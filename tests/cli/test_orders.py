"""Nobody else's orders: what every command, the Python API and a job do where others could have written what
they are told by.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from one_question import COMMANDS, Asker
from owners import SOMEBODY, Owners
from run_helpers import megatron, one_file_per_rank
from small_runs import empty, encrypted

from ckpt_tools.errors import UsageError
from ckpt_tools.settings import resolve
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return megatron(tmp_path / "run", steps=(10,), world=1)


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    (tmp_path / "plans").mkdir(mode=0o755)
    return tmp_path / "plans"


def refused(asker: Asker, argv: Sequence[object], because: str, flag: str, say: str = "--trust dir=") -> None:
    code, _, err = asker.execute(*argv)
    assert code == 2, err
    assert because in err and flag in err and say in err, err


def started(asker: Asker, *argv: object) -> str:
    code, out, err = asker.execute(*argv)
    assert code == 0, err
    return out


@pytest.mark.slow
def test_a_directory_of_decisions_that_everybody_may_write(
    asker: Asker, root: Path, plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.chmod(0o777)
    asked = ("hook", root, "--plan-dir", plans)
    why = f"{plans} may be written by everybody (mode 0777)"
    refused(asker, asked, why, "--plan-dir", f"--trust dir={plans}")
    assert list(plans.rglob("*.json")) == []  # nothing was decided
    started(asker, *asked, "--trust-dir", plans)
    monkeypatch.setenv("CKPT_TRUST_DIR", str(plans))
    started(asker, *asked)


def test_a_note_that_others_could_have_taken_away_is_not_missed(
    asker: Asker, tmp_path: Path, plans: Path
) -> None:
    """Without the note of an earlier start a lost mount looks like a first launch."""
    root, more = empty(tmp_path), {"run": ("--", "train"), "latest": ("--rank", "0")}
    for command in COMMANDS:
        asked = (command, root, "--plan-dir", plans, "--allow=none", *more.get(command, ()))
        plans.chmod(0o777)
        refused(asker, asked, "may be written by everybody", "--plan-dir")
        plans.chmod(0o755)
        started(asker, *asked)


def decided(asker: Asker, root: Path, plans: Path) -> Path:
    """The file of a decision of the job j."""
    started(asker, "hook", root, "--plan-dir", plans, "--job", "j")
    return next(plans.glob("*/j.0/1.json"))


def test_a_decision_that_somebody_planted_in_a_sticky_directory(
    asker: Asker, root: Path, plans: Path, owners: Owners
) -> None:
    """The attack on the first release: the directory for the root is somebody else's, and so is all in it."""
    decided(asker, root, plans)
    plans.chmod(0o1777)
    asked = ("hook", root, "--plan-dir", plans, "--job", "j")
    started(asker, *asked)  # such a directory does for many users
    for path in plans.rglob("*"):
        owners.give(path)
    refused(asker, asked, f"belongs to uid {SOMEBODY}", "--plan-dir", f"--trust owner={SOMEBODY}")


@pytest.mark.slow
def test_what_is_made_is_for_us_to_write_whatever_the_umask(asker: Asker, root: Path, plans: Path) -> None:
    for flags, modes in (((), {0o755, 0o644}), (("--trust=group",), {0o775, 0o664})):
        place = plans / ("".join(flags) or "own")
        before = os.umask(0)
        try:
            places = ("--plan-dir", place / "deep", "--view", place / "view")
            started(asker, "hook", root, *places, "--job", "j", *flags)
        finally:
            os.umask(before)
        found = {stat.S_IMODE(p.lstat().st_mode) for p in place.rglob("*") if not p.is_symlink()}
        assert found <= modes | {0o755, 0o644}, [*map(oct, found)]


@pytest.fixture
def plan(asker: Asker, root: Path, plans: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = decided(asker, root, plans)
    monkeypatch.setenv("CKPT_PLAN", str(path))
    return path


READING = (("hook", "--read"), ("latest", "--rank", "0"))


@pytest.mark.parametrize("asked", READING, ids=["hook", "latest"])
def test_a_decision_in_the_environment(
    asker: Asker, plan: Path, owners: Owners, asked: Sequence[str]
) -> None:
    started(asker, *asked)
    plan.chmod(0o666)
    refused(asker, asked, f"{plan} may be written by everybody", "CKPT_PLAN", "chmod o-w")
    plan.chmod(0o644)
    owners.give(plan)
    refused(asker, asked, f"belongs to uid {SOMEBODY}", "CKPT_PLAN", f"--trust owner={SOMEBODY}")
    started(asker, *asked, "--trust-owner", SOMEBODY)


def test_a_view_that_was_exchanged_since(
    asker: Asker, tmp_path: Path, plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = one_file_per_rank(tmp_path / "ranks")
    started(asker, "hook", root, "--plan-dir", plans, "--view", tmp_path / "view", "--job", "j")
    monkeypatch.setenv("CKPT_PLAN", str(next(plans.glob("*/j.0/1.json"))))
    started(asker, *READING[1])
    (tmp_path / "view").chmod(0o777)
    refused(asker, READING[1], "may be written by everybody", "the view", "chmod o-w")


FILES: dict[str, tuple[str, bytes]] = {
    "--fault-file": ("faults.json", b"[0]"), "--replica-groups": ("groups", b"0"), "--key-file": ("key", b"k" * 16),
    "--config": ("ckpt.toml", b"world-size = 1\n"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("flag", FILES)
def test_files_of_orders(asker: Asker, root: Path, tmp_path: Path, owners: Owners, flag: str) -> None:
    name, data = FILES[flag]
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / name
    asked = ("plan", root, flag, file, "--save-interval", "10")
    for spoil, why, say in (
        (lambda: file.chmod(0o622), f"{file} may be written by everybody", "chmod o-w"), (lambda: (file.unlink(), os.mkfifo(file)), "not a regular file", "file of your own"),
        (lambda: os.truncate(file, 1 << 40), "is larger than", "file that was meant"), (lambda: owners.give(file), f"belongs to uid {SOMEBODY}", f"--trust owner={SOMEBODY}"),
    ):  # fmt: skip
        file.unlink(missing_ok=True)
        file.write_bytes(data)
        file.chmod(0o600)
        started(asker, *asked)
        spoil()
        refused(asker, asked, why, flag, say)
    started(asker, *asked, "--trust-owner", f"7,{SOMEBODY}")


@pytest.mark.slow
def test_strategy_files_elsewhere_than_beside_the_checkpoints(
    asker: Asker, root: Path, tmp_path: Path, owners: Owners
) -> None:
    """Those in ROOT are as good as the checkpoints; those elsewhere say whose files a rank loads."""
    (elsewhere := tmp_path / "strategy").mkdir()
    for place in (elsewhere, root):
        (place / "src_strategy_0.ckpt").write_bytes(b"no strategy")
    asked = ("plan", root, "--strategy-dir")
    elsewhere.chmod(0o777)
    refused(asker, (*asked, elsewhere), "written by everybody", "--strategy-dir: ")
    elsewhere.chmod(0o755)
    owners.give(elsewhere / "src_strategy_0.ckpt")
    refused(asker, (*asked, elsewhere), f"belongs to uid {SOMEBODY}", "--strategy-dir: ", f"owner={SOMEBODY}")
    for words in ((elsewhere, "--trust-owner", SOMEBODY), (root,)):
        assert "damaged or no strategy file" in asker.execute(*asked, *words)[2]


def test_the_fault_file_of_a_training(tmp_path: Path) -> None:
    from ckpt_tools.elastic import ExceptionCheckpoint

    faults = tmp_path / "faults.json"
    faults.write_text("[0]")
    faults.chmod(0o666)
    with pytest.raises(UsageError, match=r"^fault_file: .*everybody"):
        ExceptionCheckpoint(fault_file=faults, env={})
    with pytest.raises(UsageError, match=r"^CKPT_FAULT_FILE: .*everybody"):
        ExceptionCheckpoint(env={"CKPT_FAULT_FILE": str(faults)})
    assert ExceptionCheckpoint(fault_file=faults, env={"CKPT_TRUST_DIR": str(tmp_path)}).fault_ranks == {0}


def test_trust_is_never_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in (("trust-group", "true"), ("trust-owner", '"1"'), ("trust-dir", '"/"')):
        (tmp_path / "ckpt.toml").write_text(f"{key} = {value}\n")
        with pytest.raises(UsageError, match=f"'{key}' cannot be set in a configuration file"):
            resolve.resolve({"trust-group": False}, env={}, cwd=str(tmp_path))


@pytest.mark.parametrize(
    ("env", "means"),
    [
        ({}, Trust()), ({"CKPT_TRUST_GROUP": "1"}, Trust(group=True)), ({"CKPT_TRUST_GROUP": "0"}, Trust()),
        ({"CKPT_TRUST_OWNER": "1000, 65534"}, Trust(owners=frozenset({1000, 65534}))),
        ({"CKPT_TRUST_DIR": "/a b\n/c"}, Trust(directories=("/a b", "/c"))),
    ],
)  # fmt: skip
def test_variables_of_trust_count_in_every_command_behind_flags(
    tmp_path: Path, env: dict[str, str], means: Trust
) -> None:
    assert resolve.resolve({}, env=env, cwd=str(tmp_path)).trust == means
    assert resolve.resolve({"rank": None}, env=env, cwd=str(tmp_path)).selection().trust == means
    flags = {"trust-owner": ["2", "3,4"], "trust-dir": ["/b"]}
    found = resolve.resolve(flags, env=env, cwd=str(tmp_path)).trust
    assert (found.owners, found.directories) == ({2, 3, 4}, ("/b",))


@pytest.mark.parametrize("wrong", ["root", "-1", "1.5", "4294967296", "1;2", True, [1]])
def test_owners_are_numbers(wrong: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--trust-owner: .* is not a number of a user"):
        resolve.resolve({"trust-owner": wrong}, env={}, cwd=str(tmp_path))


def searched(cwd: Path, **trusted: object) -> resolve.Settings:
    return resolve.resolve(
        {"world-size": None, **{k.replace("_", "-"): v for k, v in trusted.items()}}, env={}, cwd=str(cwd)
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """``a/b/c`` below a directory with a configuration, ``a``."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    (tmp_path / "a/ckpt.toml").write_text("world-size = 8\n")
    (tmp_path / "a/ckpt.toml").chmod(0o644)
    return tmp_path / "a"


def test_the_search_ends_at_a_directory_that_others_write(project: Path) -> None:
    assert searched(project / "b/c").values == {"world-size": 8}
    (project / "b").chmod(0o777)
    found = searched(project / "b/c")
    assert found.values == {} and found.refused
    said = f"{found.refused}\n{found.refused.hint}"
    wanted = ("b may be written by everybody", f"{project}/ckpt.toml is not read", "--config", "--trust dir=")
    assert all(words in said for words in wanted)
    assert searched(project / "b/c", trust_dir=[str(project / "b")]).values["world-size"] == 8
    (project / "ckpt.toml").unlink()
    assert searched(project / "b/c").refused is None  # nobody is warned of a file that is not there


def test_a_configuration_of_another_user(project: Path, owners: Owners) -> None:
    """One in pyproject.toml counts, where it has a table of ours."""
    (project / "ckpt.toml").unlink()
    for text, values, refused in (
        ("[tool.other]\n", {}, False),
        ("[tool.ckpt]\nworld-size = 8\n", {"world-size": 8}, True),
    ):
        (project / "pyproject.toml").write_text(text)
        assert searched(project / "b").values == values
        owners.give(project / "pyproject.toml")
        found = searched(project / "b")
        assert found.values == {} and bool(found.refused) is refused
        (project / "pyproject.toml").unlink()


@pytest.mark.slow
def test_the_warning_is_on_stderr_and_the_command_goes_on(
    asker: Asker, root: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "ckpt.toml").chmod(0o666)
    monkeypatch.chdir(project / "b")
    code, _, err = asker.execute("plan", root)
    assert code == 0 and err.count("ckpt: warning: ") == 1 and "ckpt.toml is not read" in err


SPOILED: dict[str, Callable[[Path, Owners], object]] = {
    "directory of somebody": lambda database, owners: owners.give(database.parent),
    "directory for everybody": lambda database, _: database.parent.chmod(0o777),
    "file of somebody": lambda database, owners: owners.give(database),
    "file for everybody": lambda database, _: database.chmod(0o666),
    "second name": lambda database, _: os.link(database, database.parent / "second"),
    "too large": lambda database, _: os.truncate(database, 1 << 40),
    "link": lambda database, _: (database.unlink(), database.symlink_to("/etc/passwd")),
    "fifo": lambda database, _: (database.unlink(), os.mkfifo(database)),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_cache_of_others_is_not_used(
    asker: Asker, root: Path, tmp_path: Path, owners: Owners, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))
    started(asker, "plan", root)
    home = next((tmp_path / "cache").glob("*/verdicts.sqlite"))
    SPOILED[how](home, owners)
    before = sorted(home.parent.iterdir())
    code, out, err = asker.execute("plan", root, "--json")
    assert code == 0 and err.count("ckpt: warning: no verdicts are used") == 1, err
    assert json.loads(out)["bytes_read"] > 0 and sorted(home.parent.iterdir()) == before


@pytest.mark.slow
def test_a_volume_of_a_pod(asker: Asker, root: Path, plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume claim is mounted with mode 0777, or 2775 and a group of its own; one variable serves every
    command of the pod.
    """
    monkeypatch.setattr(trust, "is_own_group", lambda *_: False)
    monkeypatch.setenv("CKPT_TRUST_DIR", str(plans))
    for mode in (0o777, 0o2775):
        plans.chmod(mode)
        started(asker, "hook", root, "--plan-dir", plans, "--job", f"j{mode}")
    monkeypatch.setenv("CKPT_PLAN", str(next(plans.glob("*/j511.0/1.json"))))
    for asked in READING:
        started(asker, *asked)


def test_a_group_of_everybody_in_the_container(
    asker: Asker, root: Path, plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenShift: a uid without a name, gid 0, and directories that the group may write."""
    monkeypatch.setattr("pwd.getpwuid", dict[int, object]().__getitem__)
    plans.chmod(0o775)
    asked = ("hook", root, "--plan-dir", plans)
    refused(asker, asked, "may be written by the group", "--plan-dir", "--trust group")
    started(asker, *asked, "--trust=group")


@pytest.mark.parametrize(
    ("resume", "wrong"),
    [
        ({"path": "{root}/../elsewhere"}, "resume.path"),
        ({"path": "/"}, "resume.path"),
        ({"args": ["--load", "/elsewhere"]}, "resume.args: /elsewhere"),
        ({"args": ["--load", "{root}", "--evil"]}, "'--evil', which no layout says"),
        ({"env": {"CKPT_LOAD_DIR": "/elsewhere"}}, "resume.env.CKPT_LOAD_DIR"),
    ],
)
def test_a_decision_leads_to_what_was_planned(
    asker: Asker, plan: Path, root: Path, resume: dict[str, object], wrong: str
) -> None:
    body = json.loads(plan.read_text())
    text = json.dumps({**body, "resume": {**body["resume"], **resume}}).replace("{root}", str(root))
    plan.write_text(text)
    refused(asker, READING[0], wrong, "CKPT_PLAN", "remove this one")


def asked(asker: Asker, *words: object) -> tuple[int, Any]:
    code, out, _ = asker.execute(*words, "--json")
    return code, json.loads(out)


@pytest.mark.slow
def test_a_key_opens_what_is_in_an_encrypted_file(asker: Asker, tmp_path: Path) -> None:
    file, key = encrypted(tmp_path) / "net-1_5.ckpt", tmp_path / "key"
    plain, opened = (asked(asker, "show", file, *words)[1] for words in ((), ("--key-file", key)))
    assert not plain["tensors"] and opened["tensors"]
    assert {f["code"] for f in plain["findings"]} >= {"needs-key"}
    whole = key.read_bytes()
    key.write_bytes(b"0" * len(whole))
    code, answer = asked(asker, "verify", file, "--key-file", key)
    assert (code, answer["files"][0]["verdict"]) == (5, "unknown")
    assert [f["code"] for f in answer["files"][0]["findings"] if f["severity"] != "note"] == ["wrong-key"]
    key.write_bytes(whole + b"\n")  # a line end is no part of it
    assert asked(asker, "verify", file, "--key-file", key)[0] == 0


@pytest.mark.parametrize("content", [b"", b"too short", b"x" * 33, None])
def test_a_key_file_without_a_key_is_said_and_not_shown(
    asker: Asker, tmp_path: Path, content: bytes | None
) -> None:
    root, key = encrypted(tmp_path), tmp_path / "key"
    key.unlink() if content is None else key.write_bytes(content)
    code, answer = asked(asker, "verify", root, "--key-file", key)
    assert code == 2 and str(key) in answer["error"]["message"]
    assert not content or content.decode() not in json.dumps(answer)
