"""Trees, what happens to them, and what is answered then, as tables of text: a line for each question.

    hf-trainer/trainer slow
        rm checkpoint-20/scheduler.pt -> checkpoint-15 -missing-part => broken   # a part that the others have
        then rm checkpoint-15 -> checkpoint-10
    planted
        step_100.pt step_200.pt:cut -> step_100.pt -truncated

Above stands the tree of fixtures/layouts that the lines below it are about, or a directory in it; ``planted`` is an
empty one. Changes are separated by ``;`` (:func:`change`), flags of a plan stand behind ``|`` (``order=step
world_size=2``), and ``then`` goes on with the tree of the line before. ``{a,b}`` makes a question of each. The answer
is that of :func:`answer`, or ``loads`` that of :func:`loaded`, or ``is`` the layout, the kind and the step; behind
``=>`` stands that of :func:`verified`. A line may end behind ``;`` and before ``->``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fixture_trees import below, overwrite, selection, tree_of
from places import LAYOUT_TREES
from safetensors.torch import save as safetensors_save
from small_files import adam, dcp, lightning, megatron, mindspore, saved, tensor, trainer

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import LoadPlan

FIRST = 1_735_689_600
"""When the first planted file was written; the others follow a minute apart."""


# --- what is there


def weights(n: int) -> dict[str, torch.Tensor]:
    return {"w": tensor(n), "b": tensor(n, 1)}


def shards(n: int) -> Mapping[str, bytes]:
    """A model in two files and their index, as ``save_pretrained`` writes them."""
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"metadata": {"total_size": 96}, "weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    files = {name: safetensors_save({f"w{i}": tensor(n, i)}) for i, name in enumerate(names)}
    return {**files, "model.safetensors.index.json": json.dumps(index).encode(), "config.json": b"{}"}


LIGHT = {"pytorch-lightning_version": "2.6.6", "loops": {}}


class Declared(dict[str, Callable[[int], Any]]):
    """By name, which nobody declares anew: all test modules of a process share them."""

    def __ior__(self, more: Any) -> Any:
        assert self.keys().isdisjoint(more), sorted(self.keys() & more)
        return super().__ior__(more)

    def __setitem__(self, name: str, made: Callable[[int], Any]) -> None:
        self |= {name: made}


KINDS: dict[str, Callable[[int], bytes]] = Declared({
    "whole": lambda n: saved({"model": weights(n), "optimizer": adam(n), "step": n}),
    "epoch": lambda n: saved({"model": weights(n), "optimizer": adam(n), "epoch": n}),
    "state": lambda n: saved({"model": weights(n), "optimizer": adam(n)}),
    "uncounted": lambda n: saved({"model": {"w": tensor(n)}, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}),
    "stepped": lambda n: saved({"model": {"w": tensor(n)}, "step": n}), "model": lambda n: saved(weights(n)),
    "optimizer": lambda n: saved(adam(n)), "counted": lambda n: saved({**adam(n), "step": n}), "nothing": lambda n: saved({}),
    "sgd": lambda n: saved({"state": {}, "param_groups": [{"lr": 1 / n}]}),
    "scheduler": lambda n: saved({"base_lrs": [0.1], "last_epoch": n, "_step_count": n + 1}),
    "rng": lambda n: saved({"cpu": torch.full((16,), n % 251, dtype=torch.uint8)}),
    "tensors": lambda n: safetensors_save(weights(n), {"format": "pt"}), "lightning": lambda n: lightning(n // 10, n),
    "lightmodel": lambda n: saved(LIGHT | {"epoch": n // 10, "global_step": n, "state_dict": weights(n)}),
    "mindspore": lambda n: mindspore(True, 0, epoch_num=1, step_num=n), "text": lambda n: b"words\n", "json": lambda n: b"{}",
    "zeros": lambda n: bytes(2000), "empty": lambda n: b"",
})  # fmt: skip
"""What a planted file holds: ``whole`` where nothing is said, ``tensors`` in safetensors, words in a text."""
SETS: dict[str, Callable[[int], Mapping[str, bytes]]] = Declared(
    {
        "dcp": dcp,
        "trainer": trainer,
        "halves": lambda n: {"model.pt": content("model", n), "optimizer.pt": content("optimizer", n)},
        "megatron": lambda n: {
            f"mp_rank_{r:02d}/model_optim_rng.pt": megatron(n, r, 2, 1, 2) for r in range(2)
        },
        "shards": shards,
    }
)
"""What is planted into a directory (``step-10/:dcp``)."""
ENDINGS = {"safetensors": "tensors"} | dict.fromkeys(
    ["json", "txt", "log", "yaml", "md", "py", "png"], "text"
)
WORD = re.compile(r"([^:@=]+(?:=[^:@=]+)*)(?::([a-z]+)(\d*)(!?))?(?:@(\d+))?(=?)")


@cache
def content(kind: str, number: int) -> bytes:
    return KINDS[kind](number)


def plant(root: Path, words: str) -> None:
    """Files in the order in which they are written, a minute apart and after what is there: ``=`` at the time of the
    one before, ``@30`` half an hour after the first. ``:model7`` holds the weights of 7 and not what its name tells,
    ``:cut`` and ``:model!`` lack their second half.
    """
    now = max((path.stat().st_mtime for path in below(root)), default=float(FIRST))
    for word in words.split():
        told = WORD.fullmatch(word)
        assert told, word
        name, kind, number, cut, minute, same = told.groups()
        now = FIRST + 60 * int(minute) if minute else now + (0 if same else 60)
        stem = name.rstrip("/").rpartition("/")[2].partition(".pt")[0]
        digits = re.findall(r"\d+", stem.rpartition(".")[0] or stem) or re.findall(r"\d+", name) or ["0"]
        n = int(number or digits[-1])
        if kind in SETS:
            files = {f"{name}{file}": data for file, data in SETS[kind](n).items()}
        else:
            as_named = ENDINGS.get(name.rpartition(".")[2], "whole")
            files = {name: content({None: as_named, "cut": as_named}.get(kind, kind), n)}
        for file, data in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(data[: len(data) // 2] if cut or kind == "cut" else data)
            os.utime(root / file, (now, now))


# --- what happens to it


def rewrite(path: Path, of: Callable[[bytes], bytes]) -> None:
    """Other bytes at the time of those that were there, or of the newest file beside it."""
    beside = [p.stat().st_mtime_ns for p in path.parent.glob("*") if p.is_file()]
    overwrite(path, of(path.read_bytes() if path.exists() else b""), max(beside, default=FIRST * 10**9))


def flipped(data: bytes, at: int | None = None) -> bytes:
    """One bit, in the middle where nothing else is said."""
    changed = bytearray(data)
    changed[len(data) // 2 if at is None else at] ^= 1
    return bytes(changed)


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2], "empty": lambda data: b"", "zero": lambda data: bytes(len(data)),
    "flip": flipped, "touch": lambda data: data,
}  # fmt: skip


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def copy(source: Path, to: Path) -> None:
    """Over a file its bytes alone, elsewhere with its times."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to)
    elif to.exists():
        rewrite(to, lambda _: source.read_bytes())
    else:
        shutil.copy2(source, to)


def place(root: Path, name: str) -> Path:
    """A path below ``root``, of which a directory may be told by a part of its name."""
    home, _, name = name.rpartition("/")
    return (min(root.glob(home)) if "*" in home else root / home) / name


def found(root: Path, name: str) -> list[Path]:
    """What a glob fits; ``//`` begins a path of fixtures/layouts."""
    if name.startswith("//"):
        return [LAYOUT_TREES / name[2:]]
    return sorted(root.glob(name)) or [root / name]


def of_steps(steps: str, lines: str) -> str:
    """Changes that stand on a line each, of which those with ``@`` are made for each of some steps."""
    changes = filter(None, map(str.strip, lines.splitlines()))
    return ";".join(
        line.replace("@", step) for line in changes for step in (steps.split() if "@" in line else [""])
    )


def change(root: Path, changes: str) -> None:
    """``rm`` and ``cut``, ``empty``, ``zero``, ``flip``, ``touch`` of a path or glob; ``cp A B``, ``mv A B``,
    ``hl A B/``, ``ln TARGET A``, ``mkdir A``, ``put A WORDS``; of ``B/`` the rest of A's path; ``only A`` removes what else lies beside A, ``at A N`` gives it
    a time N seconds after the newest file. Files that are changed keep their times, what is copied from another
    tree (``//``) has that of the newest file. Any other words are planted; ``as it is`` changes nothing.
    """
    for words in filter(None, map(str.strip, changes.replace("as it is", "").split(";"))):
        verb, *names = words.split()
        paths = found(root, names[0]) if verb in (*BYTES, "rm", "only", "cp", "mv", "at", "hl") else []
        if verb == "hl":
            os.link(paths[0], root / (names[1] + names[0].partition("/")[2]))
        elif verb == "rm":
            for path in paths:
                remove(path)
        elif verb in BYTES:
            how = partial(flipped, at=int(names[1])) if names[1:] else BYTES[verb]
            for path in paths:
                rewrite(path, how)
        elif verb == "only":
            for path in [p for p in paths[0].parent.iterdir() if p not in paths]:
                remove(path)
        elif verb in ("cp", "mv"):
            to = place(root, names[1] + (names[0].partition("/")[2] if names[1].endswith("/") else ""))
            to.parent.mkdir(parents=True, exist_ok=True)
            newest = max(p.stat().st_mtime_ns for p in below(root))
            copy(paths[0], to) if verb == "cp" else paths[0].rename(to)
            for path in below(to) if names[0].startswith("//") else ():
                os.utime(path, ns=(newest, newest))
        elif verb == "ln":
            (root / names[1]).symlink_to(names[0])
        elif verb == "mkdir":
            (root / names[0]).mkdir(parents=True)
        elif verb == "put":
            text = words.partition(names[0])[2].strip().encode()
            rewrite(place(root, names[0]), lambda _, text=text: text)  # type: ignore[misc]
        elif verb == "at":
            at = max(p.stat().st_mtime_ns for p in below(root)) + int(float(names[1]) * 1e9)
            for path in (p for one in paths for p in below(one)):
                os.utime(path, ns=(at, at))
        else:
            plant(root, words.removeprefix("plant "))


# --- what is answered


def codes(found: Iterable[Finding], sign: str = "") -> list[str]:
    return sorted({sign + f.code for f in found if (f.severity > Severity.NOTE) is (sign != "~")})


def lost(made: LoadPlan | None) -> list[Finding]:
    return [f for r in made.rejected for f in r.findings] if made else []


def answer(root: Path, **asked: Any) -> str:
    """The path below ``root`` of the choice, its step where it is ``root``, or the exit code and the rule that leads to it; ``-`` before the codes
    for which others lost, ``+`` before those of warnings, ``~`` before those of notes.
    """
    try:
        made: LoadPlan | None = plan(str(root), selection(asked))
        assert made is not None
        path = os.path.relpath(made.checkpoint.path, root) if made.checkpoint else "nothing"
        first = made.checkpoint.label if made.checkpoint and path == "." else path
    except CkptError as e:
        made, first = e.plan, f"exit {e.exit_code} {e.rule}".strip()
    said = made.warnings if made else ()
    return " ".join([first, *codes(lost(made), "-"), *codes(said, "+"), *codes(said, "~")])


def loaded(root: Path, **asked: Any) -> str:
    """The paths below ``root`` of all files that are loaded, each once."""
    files = plan(str(root), selection(asked)).files()
    return " ".join(sorted(os.path.relpath(path, root) for path in files))


def verified(root: Path) -> str:
    """The verdict of ``verify``, and the codes of its warnings and errors."""
    seen = verify([str(root)])
    found = [*seen.findings, *(f for r in seen.files for f in r.report.findings)]
    return " ".join([str(seen.verdict), *codes(found)])


# --- tables


Made = Callable[[Path], Path]
"""Makes a tree at a path, and returns its root."""


class Question(NamedTuple):
    """What happens, which flags are given, and what is answered."""

    changes: str
    asked: dict[str, Any]
    answer: str
    verified: str


def asked_of(words: str) -> dict[str, Any]:
    """``replica_groups=0,2/1,3`` and ``fault_ranks=0,2``, ``sizes=tp:2``; a number, yes or a word of the others."""
    values: dict[str, Callable[[str], Any]] = {
        "replica_groups": lambda said: {"": [ranks(group) for group in said.split("/")]},
        "fault_ranks": ranks,
        "exclude": lambda said: (said,),
        "sizes": lambda said: {said.partition(":")[0]: int(said.partition(":")[2])},
    }
    pairs = (word.partition("=")[::2] for word in words.split())
    return {key: values.get(key, plain)(said) for key, said in pairs}


def plain(said: str) -> Any:
    return int(said) if said.isdigit() else said == "yes" or said


def ranks(said: str) -> list[int]:
    return [int(rank) for rank in said.split(",")]


def question(line: str, more: str = "") -> Question:
    line = line.partition("   #")[0]
    told, _, expected = line.partition("->")
    changes, _, flags = told.partition("|")
    first, _, second = expected.partition("=>")
    return Question(changes.strip(), asked_of(f"{more} {flags}"), first.strip(), second.strip())


def each(line: str) -> Iterator[str]:
    """The lines that one with alternatives stands for."""
    found = re.search(r"\{([^{}\"]*,[^{}\"]*)\}", line)
    for word in found[1].split(",") if found else ():
        yield from each(line[: found.start()] + word + line[found.end() :])  # type: ignore[union-attr]
    if not found:
        yield line


def table(text: str, flags: str = "", **made: tuple[str, str] | Made) -> list[Any]:
    """Parameters (tree, questions) of the lines of a table. ``made`` are trees of its own: others, changed, or what a
    function makes; ``flags`` are those of all lines.
    """
    rows: list[Any] = []
    tree, slow = "", False
    told = re.sub(r"(;)\n +|\n +(->)", r"\1 \2", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE))
    lines = [line.strip() for line in told.split("\n") if line.strip()]
    for n, line in enumerate(lines):
        if "->" not in line:
            tree, _, mark = line.partition(" ")
            slow = mark == "slow"
        elif not line.startswith("then "):
            further = list(takewhile(lambda one: one.startswith("then "), lines[n + 1 :]))
            for first in each(line):
                asked = [question(one.removeprefix("then "), flags) for one in (first, *further)]
                own = made.get(tree, (tree, ""))
                of, before = (own, "") if callable(own) else own
                asked[0] = asked[0]._replace(changes=f"{before};{asked[0].changes}".lstrip(";"))
                id_ = f"{tree}: {first.partition(' ->')[0]}"
                rows.append(pytest.param(of, asked, id=id_, marks=pytest.mark.slow if slow else ()))
    return rows


def hold(tree: str | Made, questions: list[Question], target: Path) -> None:
    """The questions of a row have the answers that stand behind them."""
    root = of_tree(tree, target)
    for asked in questions:
        change(root, asked.changes)
        assert (asked.changes, answered(root, asked)) == (asked.changes, asked.answer)
        if asked.verified:
            assert (asked.changes, verified(root)) == (asked.changes, asked.verified)


def answered(root: Path, asked: Question) -> str:
    """What the question is about: a choice, or what is loaded of it."""
    if asked.answer.startswith("loads"):
        return f"loads {loaded(root, **asked.asked)}"
    if asked.answer.startswith("is "):
        chosen = plan(str(root), selection(asked.asked)).checkpoint
        assert chosen is not None
        return f"is {chosen.layout} {chosen.kind} {chosen.label}"
    return answer(root, **asked.asked)


def of_tree(tree: str | Made, target: Path) -> Path:
    if callable(tree):
        return tree(target / "run")
    if tree == "planted":
        (root := target / "run").mkdir()
        return root
    layout, case, *below = tree.split("/")
    return tree_of(f"{layout}/{case}", target).joinpath(*below)
