"""Decisions, views and caches that somebody else wrote: an error that says why, or as if they were not there;
never exit 70, and never their orders.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import xxhash
from fixture_trees import damage, materialise, questions, selection
from msgspec import msgpack
from msgspec.structs import replace
from mutated import mutants
from run_helpers import CLEAN, megatron, one_file_per_rank

from ckpt_tools import api, cli, job
from ckpt_tools.cache import pack, unpack
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.job.decision import body_of, describe_failure, parse, read
from ckpt_tools.job.view import build
from ckpt_tools.job.view_tree import MARKER
from ckpt_tools.model.plan import RESUME_VARIABLES
from ckpt_tools.model.report import Report
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json as as_json
from ckpt_tools.output import shell
from ckpt_tools.planning import first_launch

EXPORTED = {
    f"CKPT_{of}" for of in ["PATH", "STEP", "EPOCH", "STEP_IN_EPOCH", "PLAN", "RESUME", "ARGS", "FINGERPRINT"]
}
"""What every start sets, whatever a decision says."""


def decided(tmp_path: Path, **more: Any) -> Path:
    """The decision of a job of two ranks that load different files, on the disk."""
    root = one_file_per_rank(tmp_path / "run")
    options = job.Options(plan_dir=str(tmp_path / "plans"), **more)
    return Path(job.decide(str(root), Selection(world_size=2), options, env={}).decision.path)


def text_of(body: object) -> bytes:
    return json.dumps(body).encode()


def followed(path: str, rank: int | None) -> str:
    """Everything that any command does with a decision, and the words and variables that a job would start
    with.
    """
    taken = job.take(read(path), rank, require_rank=False)
    values = taken.environment
    assert EXPORTED <= set(values) <= EXPORTED | RESUME_VARIABLES
    words = taken.fill(["train", "{ckpt.args}"])
    for word in (*words, *values.values()):
        os.fsencode(word)
        assert "\0" not in word
    return "\n".join(
        [shell.exports(values), as_json.dump({**taken.body, "env": values}), repr(taken.paths), *words]
    )


# -- decisions -----------------------------------------------------------------------------------------------


def small(body: dict[str, Any]) -> dict[str, Any]:
    """A decision without what is the same again: one candidate, one warning."""
    ranks = [{**r, "files": r["files"][:1]} for r in body["ranks"]]
    return {**body, "candidates": [], "warnings": [], "topology": {}, "ranks": ranks}


def followed_or_refused(path: Path, data: bytes, what: str) -> bool:
    """Whether the decision with these bytes is followed. Anything but that and a clear error is a bug."""
    path.write_bytes(data)
    try:
        followed(str(path), 0)
    except Exception as e:
        if isinstance(e, UsageError | CannotLook) and str(e) and e.hint:
            return False
        raise AssertionError(f"{what}: {e!r}") from e
    return True


def test_every_change_of_one_value(tmp_path: Path) -> None:
    body = small(json.loads(decided(tmp_path, view=str(tmp_path / "view")).read_text()))
    path = tmp_path / "x.json"
    assert followed_or_refused(path, text_of(body), "as it was")
    done = [followed_or_refused(path, text_of(other), what) for what, other in mutants(body)]
    assert len(done) > 1500 and sum(done) < len(done) / 2


VIEW = {"root": "/v", "checkpoint": "/v/c", "ranks": {"0": ["/v/a"], "1": ["/v/b"]}, "shared": []}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (("resume", "env"), {"LD_PRELOAD": "/tmp/x.so"}), (("resume", "env"), {"PATH": "/tmp"}), (("resume", "env"), {"CKPT_TAG": "a\0b"}),
        (("resume", "env"), {"CKPT_LOAD_DIR": "/elsewhere"}), (("resume", "args"), ["--load", 3]), (("resume", "args"), "--load"),
        (("resume", "args"), ["--load", "/elsewhere"]), (("resume", "path"), "relative"), (("resume", "path"), "/elsewhere"),
        (("view",), VIEW | {"ranks": {"0": ["/etc/passwd"], "1": ["/v/b"]}}), (("view",), VIEW | {"checkpoint": "/vv", "ranks": {}}),
        (("view",), VIEW | {"ranks": {"0": ["/v/../etc/passwd"], "1": ["/v/b"]}}), (("view",), VIEW | {"ranks": {"0": []}}),
        (("ranks", 0, "files"), []), (("ranks", 1, "rank"), 0), (("ranks",), []), (("checkpoint",), None), (("decision",), {}),
        (("ranks", 0, "files", 0, "size"), 2**70), (("ranks", 0, "files", 0, "size"), True), (("ranks", 0, "files", 0, "path"), "\ud800"),
        (("schema",), "ckpt-tools/plan/v2"), (("schema",), None), (("decision", "root"), 1), (("decision", "decided_at"), "now"),
        (("x",), json.loads("[" * 40 + "]" * 40)),
    ],
)  # fmt: skip
def test_what_no_decision_says_is_a_question(tmp_path: Path, field: tuple[Any, ...], value: object) -> None:
    body = json.loads(decided(tmp_path).read_text())
    node = body
    for key in field[:-1]:
        node = node[key]
    node[field[-1]] = value
    (tmp_path / "x.json").write_bytes(text_of(body))
    with pytest.raises(UsageError, match="not a decision that ckpt made") as caught:
        followed(str(tmp_path / "x.json"), 0)
    assert caught.value.exit_code == 2 and "CKPT_PLAN" in caught.value.hint


GARBAGE: dict[str, tuple[bytes, int]] = {
    "empty-decision": (b'{"decision":{}}', 2), "empty-list": (b'{"decision":[]}', 5), "deep": (b"[" * 100_000, 5), "nul": (b"\0" * 100, 5),
    "deep-objects": (b'{"decision":' * 100_000, 5), "nan": (b'{"decision":{"decided_at":NaN}}', 5), "bom": (b"\xef\xbb\xbf{}", 5),
    "infinite": (b'{"decision":{"root":"/x","decided_at":1e999},"checkpoint":null}', 2),
    "huge": (b'{"decision":{"root":"/x","decided_at":' + b"9" * 4000 + b'},"checkpoint":null}', 2),
    "too-many-digits": (b'{"decision":{"decided_at":' + b"9" * 100_000 + b"}}", 5),
    "no-utf-8": (b'{"decision":{"root":"/\xff\xfe","decided_at":"\xff"}}', 2),
    "nul-in-a-path": (b'{"decision":{"root":"/\\u0000","decided_at":1},"checkpoint":null}', 2),
}  # fmt: skip


@pytest.mark.parametrize("name", GARBAGE)
def test_the_commands_that_read_a_decision(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, code = GARBAGE[name]
    path = tmp_path / "x.json"
    path.write_bytes(data)
    for variable in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("CKPT_PLAN", str(path))
    for line in ("latest --rank 0", "latest --rank 0 --json", "hook --read", "hook --read --format slurm"):
        assert cli.execute(line.split()) == code
        out, err = capsys.readouterr()
        assert "not a decision" in out + err and "Traceback" not in err


@pytest.mark.parametrize("name", GARBAGE)
def test_a_state_directory_with_garbage(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a decision of this job should be, and where the last start should be noted: 2, 5, or a decision
    made anew where nobody can have started by it.
    """
    data, _ = GARBAGE[name]
    first = decided(tmp_path)
    root, plans = str(tmp_path / "run"), str(tmp_path / "plans")
    (first.parent / "1.json").write_bytes(data)
    for claim in (first.parent / "1.taken").iterdir():
        claim.write_bytes(data)
    options = [root, "--plan-dir", plans, "--world-size", "2", "--json"]
    assert cli.execute(["hook", *options, "--job", "j"]) in (0, 2, 5)
    (first.parent.parent / first_launch.LAST).write_bytes(data)
    assert cli.execute(["plan", *options, "--allow=none"]) in (0, 2, 5)
    empty = tmp_path / "empty"
    empty.mkdir()
    note = Path(first_launch.name_home(plans, str(empty))) / first_launch.LAST
    note.parent.mkdir(parents=True)
    note.write_bytes(data)
    assert cli.execute(["plan", str(empty), "--plan-dir", plans, "--allow=none"]) == 5
    assert "Traceback" not in capsys.readouterr().err


def test_every_change_of_the_note_on_the_last_start(tmp_path: Path) -> None:
    note = {"step": 3, "path": "/x", "job": "j", "decided_at": 1.0}
    place = tmp_path / first_launch.LAST
    for what, other in mutants(note):
        place.write_bytes(text_of(other))
        try:
            before = first_launch.read_last_start(str(tmp_path))
        except CannotLook:
            continue
        except Exception as e:
            raise AssertionError(f"{what}: {e!r}") from e
        assert before is not None and not os.path.lexists(before.path + "/no"), what


@pytest.mark.share(24)
@pytest.mark.parametrize(("case", "question"), [q for q in questions() if q.id.endswith("-0")])
def test_what_ckpt_writes_passes(case: Path, question: dict[str, Any], tmp_path: Path) -> None:
    """A plan for each case of each layout, with and without a view, and what a start that failed leaves to
    the others.
    """
    root = materialise(case, tmp_path)
    damage(root, question)
    try:
        plan = api.plan(str(root / question.get("root", "")), selection(question.get("options", {})))
    except CkptError as e:
        parse("x", stamped(describe_failure(e)))
        return
    parse("x", stamped(body_of(plan)))
    assert set(plan.resume.env) <= RESUME_VARIABLES
    with suppress(UsageError):  # no view can be made of every layout
        parse("x", stamped({**body_of(plan), **build(plan, str(tmp_path / "view"))}))


def stamped(body: dict[str, Any]) -> bytes:
    made = {"root": "/x", "decided_at": 1.5, "host": "h", "pid": 1, "process": "1.1", "agent": "", "job": None}  # fmt: skip
    return as_json.dump({**body, "decision": made}).encode()


# -- views and caches ----------------------------------------------------------------------------------------


def test_every_change_of_the_note_in_a_view(tmp_path: Path) -> None:
    """It is built anew over a view of ours, and refused over anything else."""
    decided(tmp_path, view=str(tmp_path / "view"))
    place = tmp_path / "view" / MARKER
    note = json.loads(place.read_text())
    plan = api.plan(str(tmp_path / "run"), Selection(world_size=2))
    for data in (*(text_of(other) for _, other in mutants(note)), *(data for data, _ in GARBAGE.values())):
        place.write_bytes(data)
        with suppress(UsageError):
            build(plan, str(tmp_path / "view"))
    place.unlink()
    os.mkfifo(place)  # nobody will ever write to it
    with pytest.raises(UsageError, match="no view that ckpt has built"):
        build(plan, str(tmp_path / "view"))


def test_every_change_of_a_kept_report(tmp_path: Path) -> None:
    """It is no report, or one that can be used as any other."""
    root = megatron(tmp_path / "run", steps=(10,))
    report = api.verify([str(root)]).files[0].report
    found = (*(report.findings or ()), finding("crc-mismatch", "x", offset=3))
    data = pack(replace(report, findings=found, stats=()), {"a": ((0,), (1,))})  # type: ignore[dict-item]
    assert data is not None and unpack("/p", data)
    for what, other in mutants(msgpack.decode(data)):
        try:
            data = msgpack.encode(other)
        except (OverflowError, UnicodeEncodeError):  # which nobody can write
            continue
        try:
            if (kept := unpack("/p", data)) is not None:
                usable(kept[0])
        except Exception as e:
            raise AssertionError(f"{what}: {e!r}") from e
    for garbage, _ in GARBAGE.values():
        assert unpack("/p", garbage) is None


def usable(report: Report) -> None:
    """What later stages do with one."""
    as_json.render_file(report, Anatomy(), {})
    assert (
        report.size + report.bytes_read + report.mtime_ns + report.tensors + report.mode + report.coverage
        >= 0
    )
    assert [*sorted(report.metadata), report.signature + ""]


FORGED: dict[str, Callable[[sqlite3.Connection], object]] = {
    "garbage": lambda db: db.execute("UPDATE seen SET entry = x'00ff'"),
    "deep": lambda db: db.execute("UPDATE seen SET entry = ?", (b"[" * 100_000,)),
    "text": lambda db: db.execute("UPDATE seen SET entry = 'text', depth = 'deep', seen_ns = 'now'"),
    "null": lambda db: db.execute(
        "UPDATE seen SET entry = NULL, depth = NULL, seen_ns = NULL, used_ns = NULL"
    ),
    "infinite": lambda db: db.execute("UPDATE seen SET seen_ns = 9e999, depth = 9e999"),
    "view": lambda db: db.executescript("ALTER TABLE seen RENAME TO s; CREATE VIEW seen AS SELECT * FROM s"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_cache_is_not_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer is that without a cache: the digests of forged entries are right, as a forger would make
    them.
    """
    home = tmp_path / "cache"
    monkeypatch.setenv("CKPT_CACHE_DIR", str(home))
    root = megatron(tmp_path / "run", steps=(10,))
    line = ["plan", str(root), "--json", "--tp", "2"]
    monkeypatch.setattr("ckpt_tools.storage.Identity.settled", lambda *_: True)
    assert cli.execute(line) == 0
    good = capsys.readouterr().out
    db = sqlite3.connect(next(home.glob("*/verdicts.sqlite")))
    assert db.execute("SELECT count(*) FROM seen").fetchone()[0]
    FORGED[name](db)
    if name != "view":
        kept = "SELECT rowid, path, question, entry, depth, seen_ns, bad, identity FROM seen"
        for row in db.execute(kept).fetchall():
            digest = xxhash.xxh3_64_digest(repr(tuple(row[1:])).encode())
            db.execute("UPDATE seen SET digest = ? WHERE rowid = ?", (digest, row[0]))
    db.commit()
    db.close()
    assert cli.execute(line) == 0
    out, err = capsys.readouterr()
    now, before = (re.sub('"bytes_read": [0-9]+', "", text) for text in (out, good))
    assert now == before and "Traceback" not in err
