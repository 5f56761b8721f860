"""What tests of injected errors share: the shim, a process that has it preloaded, and the law that its
answers obey.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from places import ROOT, SUPPORT

ERRNOS = (errno.EIO, errno.ESTALE, errno.EACCES, errno.ENAMETOOLONG, errno.ENOTCONN, errno.ETIMEDOUT)
OF_DIRECTORIES = ("opendir", "readdir", "stat")
OF_FILES = ("stat", "open", "read", "end")
"""``end``: a read delivers nothing, as if the file ended there; it has no error of its own."""


@lru_cache(1)
def shim() -> str:
    """The shim, compiled into the directory that the tests keep their state in."""
    out = os.path.join(os.environ["XDG_CACHE_HOME"], f"injected_errors-{os.getpid()}.so")
    line = [
        "cc",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        out,
        str(SUPPORT / "injected_errors.c"),
        "-ldl",
    ]
    subprocess.run(line, check=True, timeout=1000)
    return out


class Fault(NamedTuple):
    """``call`` on ``path`` fails with ``errno``: ``times`` times, or always (-1)."""

    path: str
    call: str
    errno: int
    times: int = -1

    def environment(self, notes: Path) -> dict[str, str]:
        told = {
            "INJECT_PATH": self.path,
            "INJECT_CALLS": self.call,
            "INJECT_ERRNO": str(self.errno),
            "INJECT_TIMES": str(self.times),
        }
        return {**told, "INJECT_NOTES": str(notes), "LD_PRELOAD": shim()}


@dataclass(frozen=True)
class Reply:
    """How a command ended, what it wrote, and how many calls were made to fail."""

    code: int
    out: str
    err: str
    injected: int = 0

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.out) if self.out.lstrip().startswith("{") else {}

    @property
    def answer(self) -> object:
        """What the command says, without what may differ between two runs (times, bytes) and without how it
        knows.
        """
        body = self.body
        chosen = body.get("checkpoint") or {}
        if "files" in body and "verdict" in body:
            return self.code, sorted(
                (f["path"], f["verdict"], *sorted(x["code"] for x in f["findings"])) for f in body["files"]
            )
        if "checkpoints" in body:
            return self.code, [(c.get("path"), c.get("step"), c.get("kind")) for c in body["checkpoints"]]
        return self.code, chosen.get("path"), chosen.get("step"), chosen.get("kind")

    @property
    def said(self) -> set[str]:
        """The paths that findings beside the answer name: of the candidates that lost, or in warnings."""
        body = self.body
        plan = [*body.get("warnings", ()), *(f for r in body.get("rejected", ()) for f in r["findings"])]
        return {f["path"] for f in plan if f.get("path")}


class Victim:
    """A process with the shim preloaded that runs one command after the other."""

    def __init__(self, cwd: Path) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CKPT_", "SLURM_", "OMPI_", "PMI"))}
        env |= {"LD_PRELOAD": shim(), "PYTHONPATH": str(ROOT), "CKPT_NO_CACHE": "1", "CKPT_JOBS": "1"}
        line = [sys.executable, str(SUPPORT / "injected_child.py")]
        self.process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=cwd, text=True
        )

    def ask(self, words: Sequence[str], fault: Fault | None = None, *, untyped: bool = False) -> Reply:
        told = (
            None
            if fault is None
            else {"path": fault.path, "calls": [fault.call], "errno": fault.errno, "times": fault.times}
        )
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"words": list(words), "fault": told, "untyped": untyped}) + "\n")
        self.process.stdin.flush()
        return Reply(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(1000)
        self.process.stdout.close()


def words_of(command: str, root: str) -> list[str]:
    """The command line of one way to ask; those that choose say it as JSON."""
    name, *more = command.split()
    if name == "run":
        return ["run", root, *more, "--", "true"]
    return [name, root, "--json", *more]


def paths(root: Path) -> Iterator[tuple[str, bool]]:
    """(path, whether it is a directory) of everything below ROOT, and ROOT."""
    for p in (root, *sorted(root.rglob("*"))):
        yield str(p), p.is_dir()


def _by_another_file(unharmed: Reply, harmed: Reply) -> bool:
    """Whether both are of one known step or epoch and kind, from files that lie in one directory."""
    one, other = ((r.body.get("checkpoint") or {}) for r in (unharmed, harmed))
    told = (one.get("step"), one.get("epoch"))
    same = told != (None, None) and told == (other.get("step"), other.get("epoch"))
    same = same and one.get("kind") == other.get("kind")
    return same and os.path.dirname(one["path"]) == os.path.dirname(other["path"])


def broken_law(command: str, unharmed: Reply, harmed: Reply, *names: str) -> str | None:
    """Why an answer with an injected error may not be given; None when it may: it is the unharmed one, also
    by another file of the same save with a word about the path, or exit 5 naming the path, or with --allow unreadable the older one with that path as its reason, or a
    question that what was read cannot answer. ``names`` are what the path may be called: links lead to it.
    """
    warnings = [(w["code"], w["path"], w["message"]) for w in harmed.body.get("warnings", ())]
    if len(warnings) != len(set(warnings)):
        return f"said twice: {warnings}"
    if harmed.answer == unharmed.answer:
        return None
    if harmed.code == unharmed.code == 0 and "warnings" in harmed.body and _by_another_file(unharmed, harmed):
        return (
            None if any(path in harmed.said for path in names) else "another file, and the path is not named"
        )
    if harmed.code == 5:
        return (
            None
            if any(path in harmed.out or path in harmed.err for path in names)
            else "exit 5, but the path is not named"
        )
    questions = "byte for byte the same", "which checkpoint is the newest is in doubt"
    if "--allow=unreadable" in command and harmed.code == 2 and any(q in harmed.err for q in questions):
        return None
    if (
        "--allow=unreadable" in command
        and harmed.code == 0
        and any(path in harmed.said or path in harmed.err for path in names)
    ):
        return None
    return f"{unharmed.answer} became {harmed.answer}"
