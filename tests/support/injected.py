"""What tests of injected errors share: how calls fail, a process in which they do, and the law that its answers
obey.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from preloaded import Child, Ended, compiled

ERRNOS = (errno.EIO, errno.ESTALE, errno.EACCES, errno.ENAMETOOLONG, errno.ENOTCONN, errno.ETIMEDOUT)
OF_DIRECTORIES = ("opendir", "readdir", "stat")
OF_FILES = ("stat", "open", "read", "end")
"""``end``: a read delivers nothing, as if the file ended there; it has no error of its own."""
HANGS = -1


class Fault(NamedTuple):
    """``call`` on ``path`` fails with ``errno``, or never returns (``HANGS``): ``times`` times, or always (-1).
    Only reads that begin at ``start`` or later do.
    """

    path: str
    call: str
    errno: int
    times: int = -1
    start: int = 0

    def environment(self, notes: Path | None = None) -> dict[str, str]:
        told = {f"INJECT_{name.upper()}": str(value) for name, value in self._asdict().items()}
        return {**told, "INJECT_NOTES": str(notes or os.devnull), "LD_PRELOAD": compiled("injected_errors")}


@dataclass(frozen=True)
class Reply(Ended):
    """With how many calls were made to fail."""

    injected: int = 0

    @property
    def answer(self) -> object:
        """What the command says, without what may differ between two runs (times, bytes) and without how it
        knows.
        """
        body = self.body
        chosen = body.get("checkpoint") or {}
        if "files" in body and "verdict" in body:
            files = (
                (f["path"], f["verdict"], *sorted(x["code"] for x in f["findings"])) for f in body["files"]
            )
            return self.code, sorted(files)
        if "checkpoints" in body:
            return self.code, [(c.get("path"), c.get("step"), c.get("kind")) for c in body["checkpoints"]]
        return self.code, chosen.get("path"), chosen.get("step"), chosen.get("kind")

    @property
    def said(self) -> set[str]:
        """The paths that findings beside the answer name: of the candidates that lost, or in warnings."""
        body = self.body
        plan = [*body.get("warnings", ()), *(f for r in body.get("rejected", ()) for f in r["findings"])]
        return {f["path"] for f in plan if f.get("path")}


class Victim(Child):
    """A process in which such calls fail, and which runs one command after the other."""

    def __init__(self, cwd: Path) -> None:
        super().__init__("injected_errors", "injected_child", cwd=cwd)

    def ask(self, words: Sequence[str], fault: Fault | None = None, *, untyped: bool = False) -> Reply:
        told = fault and [fault.path, fault.call, fault.errno, fault.times]
        return Reply(**json.loads(self.say({"words": list(words), "fault": told, "untyped": untyped})))


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
        named = any(path in harmed.said for path in names)
        return None if named else "another file, and the path is not named"
    if harmed.code == 5:
        named = any(path in harmed.out or path in harmed.err for path in names)
        return None if named else "exit 5, but the path is not named"
    if "--allow=unreadable" in command:
        questions = "byte for byte the same", "it is unclear which checkpoint is the newest"
        if harmed.code == 2 and any(q in harmed.err for q in questions):
            return None
        if harmed.code == 0 and any(path in harmed.said or path in harmed.err for path in names):
            return None
    return f"{unharmed.answer} became {harmed.answer}"
