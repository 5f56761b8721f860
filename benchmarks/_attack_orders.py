"""Attacks on whoever gives orders: decisions, plan directories, configuration, fault files, keys, the cache,
views. Each says what it got ("" when nothing).
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from _scene import ATTACKER, HOME, MARK, Answer, Scene

from ckpt_tools.cache import _digest, _identity_text
from ckpt_tools.storage import Identity

Told = tuple[Answer, str]
"""How the victim's command ended, and what the attacker got."""
FORGED = "0badcafe" * 4
SHOW = ("--", "env")
"""What a victim starts here: a command that shows the environment that it was given."""


def obeyed(answer: Answer) -> Told:
    return answer, "the attacker's values were used" if MARK in answer.out or FORGED in answer.out else ""


def evil(body: dict[str, Any]) -> bytes:
    """An honest decision with one value of the attacker's, which is as well formed as the rest: nothing but
    its owner tells.
    """
    return json.dumps({**body, "fingerprint": FORGED}).encode()


def plant(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def start(
    scene: Scene, plans: Path, *more: object, env: dict[str, str] | None = None, code: str = ""
) -> Answer:
    """The victim starts the job as always, with decisions in that directory."""
    return scene.ckpt(
        "run",
        scene.runs,
        "--order",
        "step",
        "--plan-dir",
        plans,
        "--job",
        "j",
        *more,
        *SHOW,
        env=env,
        code=code,
    )


# ---- decisions


def decision_in_sticky_dir(scene: Scene) -> Told:
    scene.demo()
    below, body = scene.decision()
    with scene.attacker():
        plant(scene.shared / below, evil(body))
    return obeyed(start(scene, scene.shared))


def decision_in_foreign_dir(scene: Scene) -> Told:
    scene.demo()
    below, body = scene.decision()
    with scene.attacker():
        plant(scene.evil / below, evil(body))
    return obeyed(start(scene, scene.evil))


def decision_in_open_dir(scene: Scene) -> Told:
    """A plan-dir of the victim's that others may write (0777, not sticky): the honest decision is exchanged
    for another.
    """
    scene.demo()
    below, body = scene.decision()
    plans = scene.place / "open"
    plant(plans / below, json.dumps(body).encode())
    for directory in (plans, *(p for p in plans.rglob("*") if p.is_dir())):
        directory.chmod(0o777)
    with scene.attacker():
        (plans / below).unlink()
        plant(plans / below, evil(body))
    return obeyed(start(scene, plans))


def forgotten_start(scene: Scene) -> Told:
    """The note of an earlier start is removed, so that a lost mount looks like a first launch."""
    scene.demo()
    with scene.attacker():
        (scene.evil / "plans").mkdir(mode=0o777)
        (scene.evil / "plans").chmod(0o777)
    start(scene, scene.evil / "plans")
    with scene.attacker():
        (scene.evil / "plans").rename(scene.evil / "gone")
        (scene.evil / "plans").mkdir(mode=0o777)
        (scene.evil / "plans").chmod(0o777)
    for path in scene.runs.iterdir():
        path.rename(scene.place / path.name)
    answer = start(scene, scene.evil / "plans", "--allow=none")
    return answer, "the job started from nothing" if answer.code == 0 else ""


def plan_variable(scene: Scene) -> Told:
    """CKPT_PLAN names another user's decision: what a script evaluates."""
    scene.demo()
    _, body = scene.decision()
    with scene.attacker():
        plant(scene.shared / "1.json", evil(body))
    return obeyed(scene.ckpt("hook", "--read", env={"CKPT_PLAN": str(scene.shared / "1.json")}))


def own_decision_preload(scene: Scene) -> Told:
    """A decision of the victim's own with an environment that no layout sets: disks and editors err, too."""
    scene.demo()
    _, body = scene.decision()
    body["resume"]["env"] = {"LD_PRELOAD": f"/{MARK}.so", "PATH": f"/{MARK}", "PYTHONSTARTUP": f"/{MARK}"}
    plant(scene.home / "1.json", json.dumps(body).encode())
    return obeyed(scene.ckpt("hook", "--read", env={"CKPT_PLAN": str(scene.home / "1.json")}))


def own_decision_outside(scene: Scene) -> Told:
    """A decision whose paths lead out of its ROOT."""
    scene.demo()
    _, body = scene.decision()
    body["resume"] = {"path": f"/{MARK}", "args": ["--load", f"/{MARK}"], "env": {}}
    plant(scene.home / "1.json", json.dumps(body).encode())
    return obeyed(scene.ckpt("hook", "--read", env={"CKPT_PLAN": str(scene.home / "1.json")}))


def nonsense(data: bytes) -> Callable[[Scene], Told]:
    """A decision that is none."""

    def carry_out(scene: Scene) -> Told:
        plant(scene.home / "1.json", data)
        return scene.ckpt("latest", "--rank", "0", env={"CKPT_PLAN": str(scene.home / "1.json")}), ""

    return carry_out


def endless_decision(scene: Scene) -> Told:
    """A decision of 1 GiB, most of which is a hole."""
    path = scene.home / "1.json"
    path.touch()
    os.truncate(path, 1 << 30)
    return scene.ckpt("latest", "--rank", "0", env={"CKPT_PLAN": str(path)}), ""


def fifo_decision(scene: Scene) -> Told:
    scene.demo()
    _, body = scene.decision()
    fifo = scene.shared / "1.json"
    with scene.attacker():
        os.mkfifo(fifo, 0o666)
    feeder = scene.feed(fifo, evil(body))
    try:
        return obeyed(scene.ckpt("hook", "--read", env={"CKPT_PLAN": str(fifo)}))
    finally:
        scene.put_down(feeder)


def proc_decision(scene: Scene) -> Told:
    """CKPT_PLAN leads through /proc to whatever somebody has put behind a descriptor."""
    scene.demo()
    _, body = scene.decision()
    text = evil(body).decode()
    return obeyed(scene.ckpt("hook", "--read", env={"CKPT_PLAN": "/proc/self/fd/0"}, given=text))


def race(path: Path, by: Path) -> str:
    """Code for the victim's process: when the file is about to be opened for the first time, another takes
    its place. A race that the attacker always wins.
    """
    return (
        "import os, sys\n_won = []\n"
        "def _swap(event, args):\n"
        "    if event == 'open' and not _won and isinstance(args[0], (str, bytes)):\n"
        f"        if os.path.basename(os.fsdecode(args[0])) == {path.name!r}:\n"
        f"            _won.append(1)\n            os.replace({str(by)!r}, {str(path)!r})\n"
        "sys.addaudithook(_swap)\n"
    )


def raced_decision(scene: Scene) -> Told:
    """Between the look at a decision and its opening another user's takes its place."""
    scene.demo()
    _, body = scene.decision()
    path, other = scene.home / "1.json", scene.evil / "other.json"
    plant(path, json.dumps(body).encode())
    with scene.attacker():
        plant(other, evil(body))
    return obeyed(scene.ckpt("hook", "--read", env={"CKPT_PLAN": str(path)}, code=race(path, other)))


def hard_link(scene: Scene) -> Told:
    """The victim's own old decision, linked to where that of the next start is looked for: its owner is
    right.
    """
    scene.demo()
    below, body = scene.decision()
    old = scene.shared / "old.json"
    plant(old, evil(body))
    try:
        with scene.attacker():
            (scene.shared / below).parent.mkdir(parents=True)
            os.link(old, scene.shared / below)
    except PermissionError:
        pass  # fs.protected_hardlinks: what is left is the directory of another user
    return obeyed(start(scene, scene.shared))


# ---- what is written


def linked_place(scene: Scene) -> Told:
    """In place of a directory of decisions a link that leads into the victim's home: ckpt writes there."""
    scene.demo()
    below, _ = scene.decision()
    target = scene.home / "private"
    target.mkdir()
    with scene.attacker():
        (scene.shared / below.parts[0]).symlink_to(target)
    answer = start(scene, scene.shared)
    return answer, "files were written where the link leads" if any(target.iterdir()) else ""


def linked_lock(scene: Scene) -> Told:
    """In place of a lock file a link to a file that is not there yet."""
    scene.demo()
    below, _ = scene.decision()
    target = scene.home / "made-by-a-link"
    with scene.attacker():
        (scene.shared / below).parent.mkdir(parents=True)
        (scene.shared / below).parent.joinpath("lock").symlink_to(target)
    answer = start(scene, scene.shared)
    return answer, "a file was made where the link leads" if target.exists() else ""


def foreign_view(scene: Scene) -> Told:
    """The directory of the view is another user's: whatever is built in it can be exchanged after the
    decision.
    """
    scene.demo()
    with scene.attacker():
        (scene.shared / "view").mkdir(mode=0o777)
        (scene.shared / "view").chmod(0o777)
    answer = start(scene, scene.home / "plans", "--view", scene.shared / "view")
    mine = answer.code != 0 or (scene.shared / "view").stat().st_uid == os.geteuid()
    return answer, "" if mine else "the view is the attacker's"


def view_in_open_dir(scene: Scene) -> Told:
    """The view's parent may be written by all: the whole view can be renamed away after the decision."""
    scene.demo()
    (scene.place / "open").mkdir()
    (scene.place / "open").chmod(0o777)
    answer = start(scene, scene.home / "plans", "--view", scene.place / "open" / "view")
    if answer.code:
        return answer, ""
    with scene.attacker():
        (scene.place / "open" / "view").rename(scene.place / "open" / "gone")
        (scene.place / "open" / "view").symlink_to(scene.evil)
    return answer, "the view was exchanged after the decision"


# ---- configuration


def config(scene: Scene, prepare: Callable[[Path], object], code: str = "") -> Told:
    """A ckpt.toml above the working directory names another tree, whose checkpoints hold what the attacker
    likes.
    """
    shutil.copytree(HOME / "fixtures" / "demo", scene.evil / MARK)
    work = scene.shared / "project" / "work"
    work.mkdir(parents=True)
    prepare(scene.shared / "project" / "ckpt.toml")
    return obeyed(scene.ckpt("plan", "--order", "step", "--json", cwd=work, code=code))


def orders(scene: Scene) -> str:
    return f"root = {str(scene.evil / MARK)!r}\n"


def config_of_another(scene: Scene) -> Told:
    def prepare(path: Path) -> None:
        path.parent.chmod(0o1777)
        with scene.attacker():
            path.write_text(orders(scene))

    return config(scene, prepare)


def config_for_all(scene: Scene) -> Told:
    def prepare(path: Path) -> None:
        path.write_text("")
        path.chmod(0o666)
        with scene.attacker(), path.open("a") as f:
            f.write(orders(scene))

    return config(scene, prepare)


def config_link(scene: Scene) -> Told:
    """A link of another user's to a file of the victim's that was not meant for here."""

    def prepare(path: Path) -> None:
        (scene.home / "elsewhere.toml").write_text(orders(scene))
        path.parent.chmod(0o1777)
        with scene.attacker():
            path.symlink_to(scene.home / "elsewhere.toml")

    return config(scene, prepare)


def config_fifo(scene: Scene) -> Told:
    feeders = []

    def prepare(path: Path) -> None:
        path.parent.chmod(0o1777)
        with scene.attacker():
            os.mkfifo(path, 0o666)
        feeders.append(scene.feed(path, orders(scene).encode()))

    try:
        return config(scene, prepare)
    finally:
        for feeder in feeders:
            scene.put_down(feeder)


def config_raced(scene: Scene) -> Told:
    def prepare(path: Path) -> None:
        path.write_text("")
        with scene.attacker():
            (scene.evil / "other.toml").write_text(orders(scene))

    path = scene.shared / "project" / "ckpt.toml"
    return config(scene, prepare, race(path, scene.evil / "other.toml"))


def config_nested(scene: Scene) -> Told:
    """A configuration of the victim's own that nests 100,000 deep."""
    (scene.home / "ckpt.toml").write_text("prefix = " + "[" * 100_000)
    return scene.ckpt("ls", scene.demo(), cwd=scene.home), ""


# ---- small files that are named


def fault_file(scene: Scene) -> Told:
    """A fault file of another user's takes ranks away."""
    scene.demo()
    with scene.attacker():
        (scene.shared / "faults.json").write_text("[0]")
    words = ("plan", scene.runs, "--order", "step", "--fault-file", scene.shared / "faults.json", "--json")
    answer = scene.ckpt(*words)
    return answer, "the attacker's ranks were used" if answer.code == 0 else ""


def fault_fifo(scene: Scene) -> Told:
    scene.demo()
    fifo = scene.shared / "faults.json"
    with scene.attacker():
        os.mkfifo(fifo, 0o666)
    feeder = scene.feed(fifo, b"[0]")
    try:
        answer = scene.ckpt("plan", scene.runs, "--order", "step", "--fault-file", fifo, "--json")
    finally:
        scene.put_down(feeder)
    return answer, "what came out of the FIFO was used" if answer.code == 0 else ""


def open_key(scene: Scene) -> Told:
    """A key that everybody can read is none."""
    key = scene.home / "model.key"
    key.write_bytes(b"k" * 16)
    key.chmod(0o644)
    answer = scene.ckpt("verify", scene.demo() / "iter_0000010/mp_rank_01", "--key-file", key, "-q")
    return answer, "" if answer.code == 2 else "a key that others can read was taken"


def foreign_key(scene: Scene) -> Told:
    with scene.attacker():
        (scene.shared / "model.key").write_bytes(b"k" * 16)
        (scene.shared / "model.key").chmod(0o600)
    answer = scene.ckpt(
        "verify", scene.demo() / "iter_0000010/mp_rank_01", "--key-file", scene.shared / "model.key", "-q"
    )
    return answer, "" if answer.code == 2 else "another user's key was taken"


def named_file(name: str, text: str, *words: str, code: int = 0) -> Callable[[Scene], Told]:
    """Another user's file that a flag names; with the victim's own ckpt ends in ``code``."""

    def carry_out(scene: Scene) -> Told:
        scene.demo()
        path = scene.shared / name
        with scene.attacker():
            path.write_text(text)
            path.chmod(0o644)
        answer = scene.ckpt("plan", scene.runs, "--order", "step", "-q", *(w.format(path) for w in words))
        return answer, "the attacker's file was used" if answer.code == code else ""

    return carry_out


# ---- the cache


def planted_cache(scene: Scene) -> Told:
    """A cache in which another user says that damaged files are sound."""
    caches = scene.evil / "cache"
    forge(scene, caches)
    for path in (caches, *caches.rglob("*")):
        os.chown(path, ATTACKER, ATTACKER)
    return trusted(scene, caches)


def cache_for_all(scene: Scene) -> Told:
    """The directory of the cache belongs to the victim and may be written by all."""
    caches = scene.home / "open"
    forge(scene, caches)
    for path in (caches, *caches.rglob("*")):
        path.chmod(0o777)
    return trusted(scene, caches)


def cache_file_of_another(scene: Scene) -> Told:
    """Only the database is another user's."""
    caches = scene.home / "theirs"
    forge(scene, caches)
    os.chown(next(caches.rglob("*.sqlite")), ATTACKER, ATTACKER)
    return trusted(scene, caches)


def cache_link(scene: Scene) -> Told:
    """In place of the cache's directory a link to one of the victim's, which is written into."""
    scene.demo()
    target = scene.home / "private"
    target.mkdir(mode=0o700)
    with scene.attacker():
        (scene.shared / "cache").mkdir()
        (scene.shared / "cache" / os.uname().nodename).symlink_to(target)
    answer = scene.ckpt(
        "plan", scene.runs, "--order", "step", "-q", env={"CKPT_CACHE_DIR": str(scene.shared / "cache")}
    )
    return answer, "files were written where the link leads" if any(target.iterdir()) else ""


def cache_nonsense(scene: Scene) -> Told:
    """A database of the right shape with nonsense in every record."""
    caches = scene.home / "own"
    forge(scene, caches, b"[" * 100_000)
    return trusted(scene, caches)


def trusted(scene: Scene, caches: Path) -> Told:
    answer = scene.ckpt("plan", scene.runs, "--order", "step", "-q", env={"CKPT_CACHE_DIR": str(caches)})
    return answer, "damaged files were called sound" if answer.code == 0 else ""


def forge(scene: Scene, caches: Path, entry: bytes | None = None) -> None:
    """Keep honest verdicts of sound files, damage the files, and say that the verdicts are about them as they
    are now.
    """
    shutil.rmtree(scene.demo() / "iter_0000020")
    for _ in range(5):  # what was changed a moment ago is not kept
        scene.ckpt("plan", scene.runs, "--order", "step", "-q", env={"CKPT_CACHE_DIR": str(caches)})
        with closing(sqlite3.connect(next(caches.rglob("*.sqlite")))) as db:
            if db.execute("SELECT count(*) FROM seen").fetchone()[0]:
                break
    else:
        raise RuntimeError("nothing was kept of an honest look")
    for path in scene.runs.rglob("*.pt"):
        when = path.stat().st_mtime_ns
        path.write_bytes(path.read_bytes().replace(b"\x3f", b"\x3e"))
        os.utime(path, ns=(when, when))
    with closing(sqlite3.connect(next(caches.rglob("*.sqlite")))) as db, db:
        columns = "rowid, path, question, entry, depth, seen_ns, bad"
        for rowid, path, question, known, *rest in db.execute(f"SELECT {columns} FROM seen").fetchall():
            data = known if entry is None else entry
            text = _identity_text(Identity.of(os.stat(path)))
            new = text, data, _digest(path, question, data, *rest, text)
            db.execute("UPDATE seen SET identity = ?, entry = ?, digest = ? WHERE rowid = ?", (*new, rowid))
