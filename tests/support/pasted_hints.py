"""What a printed hint offers to paste, and what happens to who pastes it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from in_process import executed

from ckpt_tools.layouts import use

ROOTED = re.compile(r"\bgive ('(?:[^']|'\\'')*'|\S+) as ROOT")
COMMAND = re.compile(r"(?<![\w-])ckpt (plan|layouts|repair) (.*)")
FLAG = re.compile(r"--[a-z][a-z-]*(?:[ =](?!--|(?:or|to|and|if|for|in|on) )(?:'[^']*'|[^\s'\"]+))?")
BLANK = re.compile(r"[A-Z][A-Z_]*|\.\.\.|…")
TRIED = {"--exclude", "--run", "--order", "--max-step", "--world-size", "--layout", "--kind", "--parallel", "--replica-groups"}  # fmt: skip
REPEATED = ("--exclude", "--parallel", "--replica-groups")
OF_REPLICAS = ("--replica", "--world-size", "--parallel")
NAMED = re.compile(r" to resume from (.+?)(?:,? or --|, or give |[,;]|$)")
SAVED = re.compile(r"# (?:Save these lines as|Add these lines to) (.+?), read")
CHOSEN = re.compile(r"^  path: (.*)$", re.MULTILINE)
DOUBTED = re.compile(r" is not older than .* \((/.*?)\)$", re.MULTILINE)


class Paste(NamedTuple):
    """Words of a hint, and what they shall ``lead_to``: the label of a checkpoint, if the hint names one."""

    kind: str
    words: tuple[str, ...]
    leads_to: str = ""

    @property
    def is_layout(self) -> bool:
        """Whether they print lines for ckpt.toml."""
        return "--guess" in self.words


def pastes(printed: str, root: str) -> list[Paste]:
    """Each flag, ROOT and command that is offered; blanks such as GLOB are none."""
    return list(dict.fromkeys(found for line in printed.splitlines() for found in _of_line(line, root)))


def _of_line(line: str, root: str) -> Iterator[Paste]:
    for m in ROOTED.finditer(line):
        yield Paste("root", tuple(shlex.split(m[1])))
    rest = line
    for m in COMMAND.finditer(line):
        said = m[2]
        quoted = line[m.start() - 1 : m.start()] == "'"
        ends = r"(?: '[^']*'(?=[ '])|[^'])*" if quoted else r"(?:'[^']*'|[^;,)']|[;,)](?! |$))*"
        said = re.match(ends, said)[0]  # type: ignore[index]
        said = said if quoted else re.split(r" to | or ", said)[0]
        rest = rest.replace(f"ckpt {m[1]} {said}", "", 1)
        words = (m[1], *shlex.split(said))
        if any(w.startswith(root) for w in words) and not any(map(BLANK.fullmatch, words)):
            yield Paste("command", words)
    for m in FLAG.finditer(rest):
        try:
            words = tuple(w.rstrip(",;:)") for w in shlex.split(m[0].replace("=", " ", 1)))
        except ValueError:
            continue
        if words[0] in TRIED and len(words) == 2 and not BLANK.fullmatch(words[1]):
            named = NAMED.match(rest, m.end())
            leads = named[1] if named and not named[1].startswith(("it", "that", "the ")) else ""
            yield Paste("flags", words, leads)


def with_flags(command: Sequence[str], words: Sequence[str]) -> list[str]:
    """The command with one more flag, which replaces what it said before."""
    then = list(command)
    while words[0] in then and words[0] not in REPEATED:
        at = then.index(words[0])
        del then[at : at + 2]
    return [*then, *words]


class Tree(NamedTuple):
    """A tree on which a command had no answer, and what its files are by themselves."""

    root: str
    broken: frozenset[str]
    """Files that no job may load."""
    doubted: Mapping[str, str]
    """Why a file, or all files of a directory, are not one whole save."""


def looked_at(root: str) -> Tree:
    found = json.loads(_run(["verify", root, "--level", "content", "--json"])[1] or "{}")
    wrong = (
        (f["path"], e) for f in found.get("files", ()) for e in f["findings"] if e["severity"] == "error"
    )
    broken = {path for path, e in wrong if e["code"] != "same-content"}
    doubted = {f["path"]: f["code"] for f in found.get("findings", ()) if f["severity"] == "error"}
    return Tree(root, frozenset(broken), doubted)


def problems(
    tree: Tree, asked: Sequence[str], deep: int = 2, tried: set[tuple[str, ...]] | None = None
) -> Iterator[str]:
    """What goes wrong for who asks, and pastes what is offered, one after the other."""
    tried, command = set() if tried is None else tried, [w for w in asked if w != "--json"]
    code, out, err = _run(command)
    if code not in (2, 3, 4):
        return
    offered = pastes(err + out, tree.root)
    if "no layout recognises" in err and not any(p.is_layout for p in offered) and ".dvc" not in err:
        # where names do not tell it surely the command is not offered: it prints nothing, or is right all the same
        unsure = Paste("command", ("layouts", "--guess", tree.root))
        offered += [unsure] if _run(unsure.words)[1] else []
    for paste in offered:
        then = _pasted(command, paste)
        key = (*then, *(paste.words if paste.is_layout else ()))
        if (then == command and not paste.is_layout) or key in tried:
            continue
        tried.add(key)
        with written(paste) as lines:
            ended, why = _wrong(tree, then, paste, err)
            if paste.is_layout:
                why = why or _unanswered(then, ended, err)
            if ended == 2 and deep and not why:
                yield from problems(tree, then, deep - 1, tried)
        if why and (ended != code or paste.leads_to or paste.is_layout):
            yield f"{_shown(tree, command)} -> {_shown(tree, paste.words)}: {why}\n{lines}"


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """A command in a process that knows no layouts of an earlier one."""
    use(())
    return executed(command)


def _pasted(command: list[str], paste: Paste) -> list[str]:
    """The command to run next."""
    if paste.kind == "root":
        return [command[0], *paste.words, *command[2:]]
    if paste.kind == "flags":
        return with_flags(command, paste.words)
    return list(paste.words) if paste.words[0] == "plan" else command


@contextlib.contextmanager
def written(paste: Paste) -> Iterator[str]:
    """The lines that a command prints, where it says that they are to be saved; nothing for another paste."""
    if not paste.is_layout:
        yield ""
        return
    _, lines, said = _run(paste.words)
    if place := SAVED.match(lines):
        config = Path(place[1])
        before = config.read_text() if config.exists() else None
        config.write_text((before or "") + lines)
    try:
        yield lines + said
    finally:
        use(())
        if place:
            config.unlink() if before is None else config.write_text(before)


def _unanswered(command: list[str], ended: int, asked: str) -> str:
    """Why the lines of ckpt.toml are no answer: the same question, parts of one save taken for several, or a
    choice that is older than the one that was in doubt.
    """
    code, out, err = _run(command)
    same = next((line for line in asked.splitlines() if line.startswith("ckpt: error")), "")
    if code in (0, 2) and same and same in err:
        return f"asks the same: {same}"
    if code == 4 and "missing-part" in err and "missing-part" not in asked:
        return f"none is whole: {err[:500]}"
    chosen, doubted = CHOSEN.search(out), DOUBTED.search(asked)
    if chosen and doubted and _newest(chosen[1]) < _newest(doubted[1]):
        return f"leads to {chosen[1]}, which is older than {doubted[1]}"
    return "" if ended == code else f"exit {code}"


def _newest(path: str) -> float:
    files = [p for p in Path(path).rglob("*") if p.is_file()] or [Path(path)]
    return max(p.stat().st_mtime for p in files)


def _wrong(tree: Tree, then: list[str], paste: Paste, asked: str) -> tuple[int, str]:
    """The exit code, and why the answer is not the one that was offered, nor a further question, nor a refusal
    where none was offered: what is left of a run that was named need not be whole.
    """
    may_start = ["--allow=none"] if then[0] == "plan" and "--allow=none" not in then else []
    code, out, err = _run([*then, *may_start, "--json"])
    if code:
        right = code == 2 or (code == 4 and not paste.leads_to)
        return code, "" if right and "unknown option" not in err else f"exit {code}: {err[:500]}"
    said: Mapping[str, Any] = json.loads(out)
    if said["checkpoint"] is None:
        return code, "starts from nothing"
    loaded = {f["path"] for f in (*said["shared"], *(f for r in said["ranks"] for f in r["files"]))}
    if paste.leads_to and not _is_named(paste.leads_to, said["checkpoint"], loaded, asked):
        return code, f"leads to {said['checkpoint']}, not {paste.leads_to!r}"
    return code, "" if paste.words[0].startswith(OF_REPLICAS) else _unsound(tree, loaded)


def _unsound(tree: Tree, loaded: Collection[str]) -> str:
    if bad := sorted(tree.broken.intersection(loaded)):
        return f"loads the damaged {bad}"
    for path, why in tree.doubted.items():
        if path in loaded or (path != tree.root and any(f.startswith(f"{path}/") for f in loaded)):
            return f"loads what is no whole save ({path}: {why})"
    return ""


def _is_named(label: str, chosen: Mapping[str, Any], loaded: Collection[str], asked: str) -> bool:
    """Whether a label is that of the choice: by its step or name, or because the question says it of its path."""
    step, epoch = chosen["step"], chosen["epoch"]
    within = f"epoch {epoch} step {chosen['step_in_epoch']}"
    if label in (f"step {step}", f"epoch {epoch}", within, f"save {chosen['generation']}"):
        return True
    told = re.compile(rf".{{,40}}[(]{re.escape(label)}[,)]")
    for path in (chosen["path"], *loaded):
        at = asked.find(path)
        if path.endswith(label) or (at >= 0 and told.match(asked, at + len(path))):
            return True
    return False


def _shown(tree: Tree, words: Sequence[str]) -> str:
    return shlex.join(words).replace(tree.root, "@")
