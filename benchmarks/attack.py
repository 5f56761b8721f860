"""Attacks on ckpt, each really carried out against a process of it, as a table: what was tried, how ckpt
answered, what the attacker got.

    sudo python benchmarks/attack.py            # all of them; exit 1 if any succeeds
    sudo python benchmarks/attack.py --quick    # those that take less than a second, as the tests run them
    sudo python benchmarks/attack.py --only fifo --markdown

The victim is whoever starts this, in a directory of its own; the attacker is another user (uid 61234, by
seteuid), which needs root. Not as root those rows say so.
An attack succeeds if the attacker gets what he wanted, if ckpt ends in another way than its documentation
says (a crash, a bug's exit code 70, a hang), or holds more than 300 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import _attack_files as files
import _attack_orders as orders
from _scene import HOME, Answer, NeedsRootError, Scene, scene

HUGE = 300 * 1000 * 1000
"""Bytes that no command here may hold."""
SAFE = ["-P"] if sys.version_info >= (3, 11) else ["-I"]
"""What keeps Python from importing out of the working directory; -I before Python 3.11, where ckpt must be
installed.
"""
CPU = 60.0
"""Seconds of CPU time that no command here may take."""


@dataclass(frozen=True)
class Attack:
    """``exits`` are the exit codes that an answer may have, ``names`` what its message must name: the flag to
    say.
    """

    boundary: str
    name: str
    carry_out: Callable[[Scene], tuple[Answer, str]]
    exits: frozenset[int]
    names: str = ""
    root: bool = False
    slow: bool = False
    limit: bool = False


@dataclass(frozen=True)
class Row:
    """How one attack went; ``got`` is "" when it failed."""

    attack: Attack
    answer: Answer | None
    got: str

    @property
    def open(self) -> bool:
        """Whether it succeeded, and is no limit that SECURITY.md names."""
        return bool(self.got) and not self.attack.limit

    @property
    def words(self) -> tuple[str, str, str, str, str]:
        a = self.answer
        outcome = "SUCCEEDS: " + self.got if self.open else "limit: " + self.got if self.got else "fails"
        code = "–" if a is None else "hangs" if a.hung else str(a.code)
        said = re.sub(r"/\S*/ckpt-attack-\w+", "/…", a.said) if a else ""  # each scene has a place of its own
        return self.attack.boundary, self.attack.name, outcome if a else "needs root", code, said


LONG = frozenset(
    (
        "another user's file as --config",
        "another user's file of replica groups",
        "a plan-dir that all may write",
        "the note of an earlier start removed",
        "a cache of another user's",
        "a hard link to an old decision of ours",
        "files of a tree are links to /proc/self/mem",
        "files of a tree are links to /dev/zero",
        "CKPT_PLAN of 1 GiB",
        "control characters",
        "words of a shell",
        "names that begin with a dash",
        "a cache that all may write",
        "a call in .metadata",
        "a --view in a directory that all may write",
        "another user's plan-dir",
        "an index names a file elsewhere",
        "a call",
        "a ckpt.toml that all may write",
        "a link in place of the cache",
    )
)
"""Rows that start ckpt several times, or are near to another one: the tests leave them to -m exhaustive."""


def _of(
    boundary: str,
    *rows: tuple[str, Callable[[Scene], tuple[Answer, str]], set[int], str],
    root: bool = False,
    slow: bool = False,
) -> list[Attack]:
    return [
        Attack(boundary, name, do, frozenset(exits), names, root, slow or name in LONG)
        for name, do, exits, names in rows
    ]


ATTACKS: Sequence[Attack] = (
    *_of(
        "owner",
        ("another user's decision in a 1777 plan-dir", orders.decision_in_sticky_dir, {2}, "--plan-dir"),
        ("another user's plan-dir", orders.decision_in_foreign_dir, {2}, "--plan-dir"),
        ("a plan-dir that all may write", orders.decision_in_open_dir, {2}, "--plan-dir"),
        ("the note of an earlier start removed", orders.forgotten_start, {2}, "--plan-dir"),
        ("CKPT_PLAN names another user's file", orders.plan_variable, {2}, "CKPT_PLAN"),
        ("another user's ckpt.toml above the working directory", orders.config_of_another, {3}, ""),
        ("a ckpt.toml that all may write", orders.config_for_all, {3}, ""),
        (
            "another user's file as --config",
            orders.named_file("ckpt.toml", 'order = "step"', "--config", "{}"),
            {2},
            "--config",
        ),
        (
            "another user's file of replica groups",
            orders.named_file("groups", "0,2\n1,3\n", "--replica-groups", "model={}"),
            {2},
            "--replica-groups",
        ),
        ("another user's fault file", orders.fault_file, {2}, "--fault-file"),
        ("another user's key file", orders.foreign_key, {2}, "CKPT_KEY_FILE"),
        ("a cache of another user's", orders.planted_cache, {4}, ""),
        ("a database of another user's in our cache", orders.cache_file_of_another, {4}, ""),
        ("another user's directory as --view", orders.foreign_view, {2}, "--view"),
        ("a --view in a directory that all may write", orders.view_in_open_dir, {2}, "--view"),
        root=True,
    ),
    *_of("owner", ("a key file that all may read", orders.open_key, {2}, "CKPT_KEY_FILE"), ("a cache that all may write", orders.cache_for_all, {4}, "")),
    *_of(
        "link",
        ("a link in place of a directory of decisions", orders.linked_place, {2}, "--plan-dir"),
        ("a link in place of a lock", orders.linked_lock, {2}, "--plan-dir"),
        ("another user's link as ckpt.toml", orders.config_link, {3}, ""),
        ("a link in place of the cache", orders.cache_link, {0}, ""),
        ("a hard link to an old decision of ours", orders.hard_link, {2}, "--plan-dir"),
        root=True,
    ),
    *_of(
        "link",
        ("CKPT_PLAN leads through /proc/self/fd", orders.proc_decision, {2}, "CKPT_PLAN"),
        ("files of a tree are links to /proc/self/environ", files.special(files.link_to("/proc/self/environ")), {1, 5}, ""),
        ("files of a tree are links to /proc/self/mem", files.special(files.link_to("/proc/self/mem")), {1, 5}, ""),
        ("files of a tree are links to /dev/zero", files.special(files.link_to("/dev/zero")), {1, 5}, ""),
    ),
    *_of(
        "FIFO",
        ("a FIFO as CKPT_PLAN", orders.fifo_decision, {2}, "CKPT_PLAN"),
        ("a FIFO as ckpt.toml", orders.config_fifo, {3}, ""),
        ("a FIFO as fault file", orders.fault_fifo, {2}, "--fault-file"),
        root=True,
    ),
    *_of("FIFO", ("FIFOs in a tree", files.special(files.fifo), {1, 5}, "")),
    *_of(
        "race",
        ("a decision exchanged before it is opened", orders.raced_decision, {2}, "CKPT_PLAN"),
        ("a ckpt.toml exchanged before it is opened", orders.config_raced, {3}, ""),
        root=True,
    ),
    *_of(
        "schema",
        ("a decision that sets LD_PRELOAD and PATH", orders.own_decision_preload, {2}, "CKPT_PLAN"),
        ("a decision whose paths leave its ROOT", orders.own_decision_outside, {2}, "CKPT_PLAN"),
        ('CKPT_PLAN with {"decision":{}}', orders.nonsense(b'{"decision":{}}'), {2, 5}, ""),
        ("CKPT_PLAN with 100,000 brackets", orders.nonsense(b"[" * 100_000), {2, 5}, ""),
        ("CKPT_PLAN of 1 GiB", orders.endless_decision, {2, 5}, ""),
        ("ckpt.toml with 100,000 brackets", orders.config_nested, {2}, ""),
        ("a cache with nonsense in every record", orders.cache_nonsense, {4}, ""),
    ),
    *_of(
        "path",
        ("a tracker names a directory elsewhere", files.tracker_path, {2, 4}, ""),
        ("an index names a file elsewhere", files.index_path, {2, 4}, ""),
    ),
    *_of(
        "pickle",
        ("a call", files.pickled(files.plain_call), {1}, ""),
        ("a call through a module's import", files.pickled(files.through_a_module), {1}, ""),
        ("a call in .metadata", files.pickled(files.plain_call, ".metadata"), {1}, ""),
    ),
    *_of(
        "pickle",
        ("a call behind 6,000,000 steps", files.pickled(files.padded), {1, 5}, ""),
        ("a call behind 6,000,000 steps, in .metadata", files.pickled(files.padded, ".metadata"), {1, 5}, ""),
        ("a second pickle behind the first", files.pickled(files.behind_the_end), {1, 5}, ""),
        slow=True,
    ),
    *_of(
        "bomb",
        ("zip: 1 GiB of zeros", files.tree(files.zip_bomb), {0, 1, 5}, ""),
        ("zip: 1,000,000 entries", files.tree(files.many_entries), {0, 1, 5}, ""),
        ("zstd: 4 GiB of zeros", files.tree(files.zstd_bomb), {0, 1, 3, 5}, ""),
        ("pickle: tuples of tuples, 2³⁰⁰", files.tree(files.doubled), {0, 1, 5}, ""),
        ("pickle: 100,000 keys of one hash", files.tree(files.colliding), {0, 1, 5}, ""),
        ("pickle: lists 1,000,000 deep", files.tree(files.nested_pickle), {0, 1, 5}, ""),
        ("JSON index nests 1,000,000 deep", files.tree(files.nested("model.safetensors.index.json")), {1, 3, 5}, ""),
        ("JSON state nests 1,000,000 deep", files.tree(files.nested("trainer_state.json")), {1, 3, 5}, ""),
        ("8,000 empty files", files.tree(files.empty_files, "plan"), {2, 3, 4}, ""),
        slow=True,
    ),
    *_of(
        "name",
        ("control characters", files.control_characters, {0, 1, 2}, ""),
        ("words of a shell", files.shell_words, {0}, ""),
        ("line breaks", files.lines, {2}, ""),
        ("names that begin with a dash", files.arguments, {0, 2}, ""),
    ),
    *_of("environment", ("modules in the working directory: ckpt, load level", files.working_directory, {0}, ""), slow=True),
    *_of("environment", ("modules in the working directory: python -P -m", files.module_option(SAFE), {0}, "")),
    Attack("environment", "modules in the working directory: python -m", files.module_option([]), frozenset({0, 1}), limit=True),
    Attack("environment", "an empty place in PYTHONPATH", files.module_option(SAFE, f"{HOME}:"), frozenset({0, 1}), limit=True, slow=True),
)  # fmt: skip


def judged(attack: Attack, answer: Answer, got: str) -> str:
    """What the attacker got: what he wanted, or an answer that nothing documents."""
    if got:
        return got
    if answer.hung:
        return "it hangs"
    if answer.code not in attack.exits:
        return f"exit {answer.code}, not {' or '.join(map(str, sorted(attack.exits)))}"
    if attack.names not in answer.err:
        return f"the message does not name {attack.names}"
    if answer.memory > HUGE:
        return f"{answer.memory / 1e6:,.0f} MB"
    return f"{answer.cpu:.0f} s of CPU time" if answer.cpu > CPU else ""


def carried_out(attack: Attack) -> Row:
    """One attack in a scene of its own."""
    if attack.root and os.geteuid() != 0:
        return Row(attack, None, "")
    with scene() as place:
        try:
            answer, got = attack.carry_out(place)
        except NeedsRootError:
            return Row(attack, None, "")
        return Row(attack, answer, judged(attack, answer, got))


def table(rows: Sequence[Row], markdown: bool) -> str:
    """One line per attack."""
    head = ("boundary", "attack", "outcome", "exit", "ckpt says")
    if markdown:
        lines = [head, tuple("---" for _ in head), *(r.words for r in rows)]
        return "\n".join(
            "| " + " | ".join(word.replace("|", "\\|")[:160] for word in line) + " |" for line in lines
        )
    return "\n".join(
        f"{b:12} {n:60} {o:50} {c:>5}  {s[:150]}" for b, n, o, c, s in (head, *(r.words for r in rows))
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="without bombs and padded pickles")
    parser.add_argument("--only", default="", help="attacks whose boundary or name holds this text")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for attack in ATTACKS:
        if options.only in f"{attack.boundary} {attack.name}" and not (options.quick and attack.slow):
            rows.append(carried_out(attack))
            if not (options.markdown or options.json):
                print(table(rows[-1:], False).splitlines()[-1], flush=True)
    if options.markdown:
        print(table(rows, True))
    if options.json:
        print(
            json.dumps(
                [
                    dict(zip(("boundary", "attack", "outcome", "exit", "said"), r.words, strict=True))
                    for r in rows
                ],
                indent=1,
            )
        )
    return 1 if any(r.open for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
