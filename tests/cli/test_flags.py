"""Every flag of every command does something: for each there is a small tree where it changes the output, the
exit code, or what is opened or started.

A flag for which nobody can name such a tree is not accepted. Those that say how to print (and --config, which
holds all others) are not asked about.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from one_question import COMMANDS as CHOOSING
from one_question import Asker
from own_pickles import CALL, adding
from own_plugins import install
from owners import SOMEBODY, Owners
from places import LAYOUT_TREES
from run_helpers import OLD, megatron, one_file_per_rank, torchrun_env
from small_files import mindspore, saved, tensor
from small_runs import FILE, empty, encrypted, flipped, lost, plain, started_before
from timed import put
from told_trees import change

from ckpt_tools import guard
from ckpt_tools.cli import app
from ckpt_tools.cli.app import COMMANDS
from ckpt_tools.guard.quarantine import quarantine
from ckpt_tools.planning import first_launch
from ckpt_tools.reading import engines, scheduler
from ckpt_tools.settings import plugins
from ckpt_tools.storage import Stopped, trust
from ckpt_tools.storage.stalls import Rate

PRINTING = {"progress_as", "output_file", "format", "json", "quiet", "verbose", "color", "config"}


@cache
def parameters(command: str) -> dict[str, Any]:
    """The real parameters of a command, by name; what becomes another one is held to that in test_nights.py."""
    return {str(p.name): p for p in app.command(command).params if p.name not in PRINTING}


class Case(NamedTuple):
    """``prepare`` makes a tree in a directory and returns what the command is asked about; ``one`` and
    ``other`` are words as a shell reads them, which differ in the flag alone.
    """

    prepare: Callable[[Path], Path | Sequence[object]]
    one: str = ""
    other: str = ""
    env: dict[str, str] = {}  # noqa: RUF012 - never changed


def untold(prepare: Callable[[Path], Path]) -> Callable[[Path], Sequence[object]]:
    """A tree of which the words tell."""
    return lambda tmp: [prepare(tmp)][:0]


Tree = Callable[[Path], Path]


def made(**how: Any) -> Tree:
    return lambda tmp: megatron(tmp / "run", **how)


def changed(of: Tree, changes: str) -> Tree:
    """The changes of told_trees.py."""
    return lambda tmp: (change(of(tmp), changes), tmp / "run")[1]


one_rank, four_ranks, many = made(world=1), made(world=4), made(steps=(10, 1010, 2010))
per_rank = changed(lambda tmp: one_file_per_rank(tmp / "run"), "as it is")
cut = changed(plain, f"cut {FILE}")
first_broken = changed(many, "cut iter_0000010/mp_rank_00/model_optim_rng.pt")
with_a_bit = changed(plain, f"flip {FILE}")
behind = changed(plain, "put latest_checkpointed_iteration.txt 10")
two_layouts = changed(plain, "checkpoint-5/:trainer")
two_prefixes = changed(empty, "net-1_10.ckpt:mindspore10 other-1_10.ckpt:mindspore11")
strategies = changed(per_rank, "mkdir ../none")
rolled_back = changed(made(tracker=False), "at iter_0000010 3600")
half_of_a_pair = changed(per_rank, "cut rank_0/net-1_20.ckpt")
encrypted_and_hit = changed(encrypted, "flip net-1_5.ckpt; at net-1_5.ckpt -7200")


def gasps(tmp: Path) -> Path:
    """Every rank saves: iterations 20 and 30 are whole, and 45 is no multiple of 10."""
    for number, rank in product((20, 30, 45), range(2)):
        path = tmp / f"run/iter_{number:07d}/mp_rank_00/model_optim_rng_{rank}.pt"
        put(path, saved({"model": {"w": tensor(number)}, "iteration": number}), OLD + number * 360)
    return tmp / "run"


failed_ranks = changed(gasps, 'put ../faults.json {"fault_ranks": [0]}')


def two_runs(tmp: Path) -> Path:
    return megatron(megatron(tmp / "run/a").parent / "b").parent


def images(tmp: Path) -> Path:
    """Files whose names do not tell their step."""
    return Path(shutil.copytree(LAYOUT_TREES / "pytorch-sample/imagenet/tree", tmp / "run"))


def three_of_a_kind(tmp: Path) -> Path:
    """Rank 0 has lost its newest file, and the other two hold different tensors."""
    for step, rank in product((10, 20), range(3)):
        data = mindspore(True, rank, step_num=step)[: -40 if (rank, step) == (0, 20) else None]
        put(tmp / f"run/rank_{rank}/net-1_{step}.ckpt", data, OLD + step * 360)
    return tmp / "run"


def spoil_orders(tmp: Path, name: str, by: str) -> None:
    """A file of orders that others may write, or its group, or that is another user's."""
    (tmp / "conf").mkdir()
    (tmp / "conf" / name).write_bytes(b"k" * 16 if name == "key" else b"world-size = 2\n")
    (tmp / "conf" / name).chmod({"trust_owner": 0o600, "trust_group": 0o620}.get(by, 0o602))
    if by == "trust_owner":
        OWNERS[-1].give(tmp / "conf" / name)


def trusting(
    subject: Callable[[Path], Path | Sequence[object]], file: str = "--config conf/c.toml", always: str = ""
) -> dict[str, Case]:
    """The flags that say whose orders count, each with a file that is refused without it."""
    words = {"trust_dir": "--trust-dir conf", "trust": "--trust dir=conf", "trust_group": "--trust-group"}
    words["trust_owner"] = f"--trust-owner {SOMEBODY}"

    def prepare(of: str) -> Callable[[Path], Path | Sequence[object]]:
        return lambda tmp: (spoil_orders(tmp, file.rpartition("/")[2], of), subject(tmp))[1]

    before = f"{always} {file}"
    return {key: Case(prepare(key), before, f"{before} {more}") for key, more in words.items()}


def foreign(tmp: Path) -> Path:
    """The newest checkpoint names a class of the user's own."""
    root = plain(tmp)
    adding(root / "iter_0000020/mp_rank_00/model_optim_rng.pt", CALL)
    return root


def unfinished(tmp: Path) -> Path:
    """The newest save lacks a rank, and its files are of this moment."""
    root = megatron(tmp / "run", tracker=False)
    shutil.rmtree(root / "iter_0000020/mp_rank_01")
    os.utime(root / "iter_0000020/mp_rank_00/model_optim_rng.pt")
    return root


def sealed_away(tmp: Path) -> Path:
    """Its seals lie elsewhere."""
    root = plain(tmp)
    guard.seal(root, seal_dir=str(tmp / "seals"))
    return root


def sealed_already(tmp: Path) -> Path:
    guard.seal(root := plain(tmp))
    return root


sealed_and_edited = changed(sealed_already, "put iter_0000010/note.txt later")


def fragments(tmp: Path) -> Path:
    """Two ranks have sealed what they wrote."""
    home = plain(tmp) / "iter_0000020"
    for rank, file in enumerate(sorted(home.rglob("*.pt"))):
        guard.seal(home, rank=rank, world_size=2, files=[file])
    return home


def hold(lock: Path) -> None:
    """Another command is at work; the test lets go of it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    HELD.append(os.open(lock, os.O_RDWR | os.O_CREAT))
    fcntl.flock(HELD[-1], fcntl.LOCK_EX)


def busy(of: Tree) -> Tree:
    return lambda tmp: (hold(of(tmp) / ".ckpt/lock"), tmp / "run")[1]


def locked(tmp: Path) -> Path:
    """The lock of the job's decision is held."""
    root = plain(tmp)
    hold(Path(first_launch.name_home(str(tmp / "state/ckpt-tools/decisions"), str(root))) / "j.0/lock")
    return root


def with_plugin(tmp: Path) -> None:
    """A package is installed whose layout cannot be used."""
    INSTALLED.append(str(install(tmp / "site", source="import no_such_package")))
    sys.path.append(INSTALLED[-1])
    plugins.forget()


def with_launcher(tmp: Path) -> Sequence[object]:
    """The same with a launcher."""
    install(tmp / "more", {"launchers": {"own": "own_more:L"}}, "", name="own-more", module="own_more")
    INSTALLED.append(str(tmp / "more"))
    sys.path.append(INSTALLED[-1])
    return []


def without(prepare: Callable[[Path], Path | Sequence[object]], always: str = "") -> dict[str, Case]:
    """What --no-plugins is held to: a tree beside which a package cannot be used."""
    return {
        "no_plugins": Case(lambda tmp: (with_plugin(tmp), prepare(tmp))[1], always, f"{always} --no-plugins")
    }


INSTALLED: list[str] = []
HELD: list[int] = []
OWNERS: list[Owners] = []


TOLD = "--text --resume-args '--from {path}' -- train {ckpt.args}"
ONE_NODE = "--agree --nodes 2 --node 0 --world-size 2"
AWAY = "s3://bucket/run --store-option endpoint=http://127.0.0.1:1 --store-option max_retries=0"


def far(more: str = "") -> Case:
    """A store where nothing answers; tests/stores have those that do."""
    nobody = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    return Case(lambda _: [], f"{AWAY} {more}", f"{AWAY} {more} --store-option regoin=here", nobody)


def added(
    prepare: Callable[[Path], Path | Sequence[object]], flags: str, before: str = ""
) -> dict[str, Case]:
    """Flags that matter in one tree, each added to what is said ``before``."""
    said = (flag.strip() for flag in flags.split("|"))
    return {flag.split()[0].replace("-", "_"): Case(prepare, before, f"{before} --{flag}") for flag in said}


CHOICE: dict[str, Case] = {
    **added(plain, "history | world-size 4 | exclude iter_0000020 | max-step 19 | tp 1 | parallel tp=1 | require-seal"),
    **added(plain, "verify-key absent.pub"),
    **added(gasps, "prefer periodic | kind periodic | fault-ranks 0", "--save-interval 10"),
    **added(flipped, "level structure | max-attempts 1"), **added(half_of_a_pair, "replica-groups 0,1 | replicas all"),
    **added(plain, "budget 0s | io direct | limit-rate 1PB", "--no-cache"), **added(plain, "max-age 0s | no-cache", "--cached"),
    **added(empty, "allow none | allow-none"), **added(cut, "no-fallback | fail-on warning"),
    "root": Case(lambda tmp: [], "@plain", "@rolled_back"), "rank": Case(per_rank, "--rank 0", "--rank 1"),
    "resume_args": Case(plain, "", "--resume-args '--at {step}'"), "order": Case(rolled_back, "", "--order step"),
    "resume_from": Case(behind, "", "--resume-from tracker"), "layout": Case(two_layouts, "", "--layout megatron"),
    "run": Case(two_runs, "", "--run a"), "prefix": Case(two_prefixes, "", "--prefix net"),
    "trust_global": Case(foreign, "", "--trust-global mycompany.*"), "store_option": far(),
    "key_file": Case(encrypted, "", "--key-file key"), "require": Case(per_rank, "", "--require epoch_num"),
    "fault_file": Case(failed_ranks, "--save-interval 10", "--save-interval 10 --fault-file faults.json"),
    "prove_replicas": Case(three_of_a_kind, "--replica-groups all", "--replica-groups all --prove-replicas"),
    "strategy_dir": Case(strategies, "", "--strategy-dir none"),
    **{axis: Case(plain, "", f"--{axis} 2") for axis in ("pp", "cp", "dp", "ep", "etp")},
    "rank_order": Case(plain, "--world-size 4", "--world-size 4 --rank-order dp-tp-cp-ep-pp"),
    "save_interval": Case(gasps, "", "--save-interval 10"),
    "allow_missing": Case(lambda tmp: tmp / "run", "--allow=none", "--allow=none --allow-missing"),
    "allow_fresh": Case(lost, "", "--allow-fresh"), "plan_dir": Case(started_before, "--allow=none", "--allow=none --plan-dir log"),
    "seal_dir": Case(sealed_away, "--require-seal", "--require-seal --seal-dir seals"),
    "skip_unreadable": Case(plain, "--unreadable", "--unreadable --skip-unreadable"),
    "strict": Case(plain, "--no-cache --budget 0s", "--no-cache --budget 0s --strict"), **without(plain),
    "settle": Case(unfinished, "", "--settle 0s"), "jobs": Case(plain, "--no-cache --jobs 2", "--no-cache --jobs 3"), **trusting(plain),
}  # fmt: skip


def chosen(names: str) -> dict[str, Case]:
    """Those that another command takes as they are."""
    return {name: CHOICE[name] for name in names.split()}


DECIDING: dict[str, Case] = {
    **added(plain, "worker | job j | nodes 2 | view view | stage staged | keep none | agree | read"),
    **added(plain, "rendezvous nowhere | meet here", ONE_NODE),
    "rank": Case(per_rank, "--worker --rank 0", "--worker --rank 1", torchrun_env(0, 2)),
    "node": Case(plain, "--agree --nodes 2 --world-size 2", ONE_NODE),
    "timeout": Case(locked, "--job j --timeout 0s", "--job j --timeout 1ms"),
    "require_mount": Case(lambda tmp: tmp / "run", "", "--require-mount"), "by_rank": Case(per_rank, TOLD, f"--by-rank {TOLD}"),
    "command": Case(plain, "-- train", "-- test"),
}  # fmt: skip
CHECK: dict[str, Case] = {
    **added(plain, "by-store | sample 1/2 | scheduler file:none.json"), **added(behind, "strict | fail-on warning"),
    **chosen("level key_file require require_seal seal_dir verify_key no_cache jobs io limit_rate trust_global"), "paths": CHOICE["root"],
    "store_option": far(), "max_age": Case(plain, "--cached", "--cached --max-age 1d"),
    "no_cache": Case(plain, "--cached --max-age 1d", "--cached --max-age 1d --no-cache"), "settle": Case(unfinished, "", "--settle 0s"),
    "explain_bytes": Case(one_rank, "", "--explain-bytes"), "max_duration": Case(plain, "--sample 100%", "--sample 100% --budget 0s"),
    **without(plain), **trusting(plain),
}  # fmt: skip
DRY = "--dry-run"
SEAL: dict[str, Case] = {
    **added(plain, "digest none | also none | tensors | seal-dir seals | sign-key absent.key | io direct | limit-rate 1PB", DRY),
    **added(unfinished, "settle 0s | strict", DRY), "paths": Case(lambda tmp: [], f"@plain {DRY}", f"@rolled_back {DRY}"),
    "store_option": far(DRY), "again": Case(sealed_and_edited, DRY, f"{DRY} --again"), "merge": Case(fragments, DRY, f"{DRY} --merge"),
    "dry_run": Case(sealed_already, "--again", f"--again {DRY}"), "key_file": Case(encrypted, DRY, f"{DRY} --key-file key"),
    "require": Case(per_rank, DRY, f"{DRY} --require epoch_num"), "jobs": Case(plain, f"{DRY} --jobs 2", f"{DRY} --jobs 3"),
    **trusting(plain), **without(plain, DRY),
}  # fmt: skip


def put_away(tmp: Path) -> Path:
    """One checkpoint lies in quarantine."""
    root = plain(tmp)
    quarantine(str(root), [str(root / "iter_0000020")], apply=True)
    return root


quarantine_locked, behind_and_locked = busy(put_away), busy(behind)
NEWEST = "run/iter_0000020"
QUARANTINE: dict[str, Case] = {
    **added(untold(unfinished), "apply | settle 0s", f"{NEWEST}"), "paths": Case(untold(plain), f"{NEWEST}", "run/iter_0000010"),
    "damaged": Case(cut, "", "--damaged"), "undo": Case(untold(put_away), f"{NEWEST}", f"{NEWEST} --undo"),
    "home": Case(untold(plain), f"{NEWEST}", f"{NEWEST} --root ."),
    "no_cache": Case(cut, "--damaged --cached", "--damaged --cached --no-cache"),
    **trusting(lambda tmp: [plain(tmp) / "iter_0000020"]), **without(untold(plain), NEWEST),
}  # fmt: skip


SETTLED = "--settle 0s"
ONE = f"--keep 1 {SETTLED}"
PRUNE: dict[str, Case] = {
    "root": Case(untold(many), f"run {ONE}", f"run/iter_0000010 {ONE}"), "keep_what": Case(many, ONE, f"--keep 2 {SETTLED}"),
    "store_option": far(ONE), "damaged": Case(first_broken, ONE, f"{ONE} --damaged"), "run": Case(two_runs, ONE, f"{ONE} --run a"),
    "max_age": Case(many, f"{ONE} --cached", f"{ONE} --cached --max-age never"),
    "no_cache": Case(first_broken, f"{ONE} --cached", f"{ONE} --cached --no-cache"), "settle": Case(many, "--keep 1", ONE),
    "plan_dir": Case(many, ONE, f"{ONE} --plan-dir none"), "apply": Case(quarantine_locked, ONE, f"{ONE} --apply"),
    **without(many, ONE), **trusting(many, always=ONE),
}  # fmt: skip
PIN: dict[str, Case] = {
    **added(untold(plain), "undo | dry-run", f"{NEWEST}"), "paths": Case(untold(plain), f"{NEWEST}", "run/iter_0000010"),
    "home": Case(untold(plain), f"{NEWEST}", f"{NEWEST} --root ."), **trusting(lambda tmp: [plain(tmp) / "iter_0000020"]),
    **without(untold(plain), f"{NEWEST} --dry-run"),
}  # fmt: skip
PASS = "--once --settle 0s"
WATCH: dict[str, Case] = {
    **added(plain, "rescan never | every night | on-good true | metrics 0 | state-dir elsewhere | io direct | limit-rate 1PB", PASS),
    "paths": Case(untold(plain), f"run {PASS}", f"run/iter_0000010 {PASS}"), "store_option": far(PASS),
    "on_bad": Case(flipped, PASS, f"{PASS} --on-bad true"),
    "timeout": Case(one_rank, f"{PASS} --on-good 'sleep 1'", f"{PASS} --on-good 'sleep 1' --timeout 0.1s"),
    "metrics_address": Case(plain, f"{PASS} --metrics-port 0", f"{PASS} --metrics-port 0 --metrics-address 192.0.2.1"),
    "plan_dir": Case(started_before, PASS, f"{PASS} --plan-dir log"), "seal_dir": Case(sealed_away, PASS, f"{PASS} --seal-dir seals"),
    "require": Case(per_rank, PASS, f"{PASS} --require epoch_num"),
    "trust_global": Case(foreign, PASS, f"{PASS} --trust-global mycompany.*"), "settle": Case(plain, "--once", PASS),
    "key_file": Case(encrypted, PASS, f"{PASS} --key-file key"), "jobs": Case(plain, f"{PASS} --jobs 2", f"{PASS} --jobs 3"),
    **without(plain, PASS), **trusting(plain, always=PASS),
}  # fmt: skip


def fresh_bit(tmp: Path) -> Path:
    os.utime(with_a_bit(tmp) / FILE)
    return tmp / "run"


STAGED = "root rank world_size kind max_step require allow_fresh no_fallback limit_rate"
"""Flags of plan that are held to ``ckpt stage`` itself; the others reach its plan as they reach that of
``ckpt plan`` (tests/stores/test_stage.py, test_it_asks_what_plan_asks).
"""


REPAIR: dict[str, Case] = {
    "paths": Case(untold(with_a_bit), "run/iter_0000020", "run/iter_0000010"), "accept_odds": Case(with_a_bit, "", "--accept-odds 0.001"),
    "tracker": Case(behind, "", "--tracker"), "home": Case(with_a_bit, "", "--root ."),
    "apply": Case(behind_and_locked, "--tracker", "--tracker --apply"), "settle": Case(fresh_bit, "", "--settle 0s"),
    "key_file": Case(encrypted_and_hit, "", "--key-file key"),
    "jobs": Case(plain, "--jobs 2", "--jobs 3"), **trusting(plain), **without(plain),
}  # fmt: skip
OTHERS: dict[str, dict[str, Case]] = {
    "repair": REPAIR, "quarantine": QUARANTINE, "prune": PRUNE, "pin": PIN, "watch": WATCH, "seal": SEAL, "verify": CHECK,
    "explain": {"code": Case(lambda tmp: [], "truncated", "crc-mismatch")},
    "completion": {"shell": Case(lambda tmp: [], "--text bash", "--text fish")},
    "formats": {"name": Case(lambda tmp: [], "--text torch_zip", "--text safetensors"), **without(lambda tmp: [])},
    "launchers": without(with_launcher),
    "undo": {
        "root": Case(untold(put_away), "run", "run/iter_0000010"), "apply": Case(quarantine_locked, "", "--apply"),
        **trusting(put_away),
    },
    "ls": {
        **chosen("root kind layout run prefix exclude max_step world_size order store_option save_interval"),
        "jobs": Case(images, "--jobs 2", "--jobs 3"), "since": Case(plain, "", "--since 1h"), **without(plain),
        "tree": Case(plain, "--text", "--text --tree"), "quarantine": Case(put_away, "", "--quarantine"),
        **trusting(plain),
    },
    "stage": {
        **chosen(STAGED), "directory": Case(untold(plain), "local://run one", "local://run other"),
        "keep": Case(four_ranks, "", "--keep 0"),
    },
    "report": {
        **{name: CHECK[name] for name in CHECK if name not in ("by_store", "explain_bytes", "scheduler", "fail_on")},
        **chosen("order run max_step save_interval world_size"),
    },
    "show": {
        "file": Case(untold(plain), f"run/{FILE}", "run/latest_checkpointed_iteration.txt"),
        "level": Case(lambda tmp: [flipped(tmp) / FILE], "", "--level content"),
        "key_file": Case(lambda tmp: [encrypted(tmp) / "net-1_5.ckpt"], "", "--key-file key"),
        "explain_bytes": Case(lambda tmp: [one_rank(tmp) / FILE], "", "--explain-bytes"), "store_option": far(),
        **without(lambda tmp: [one_rank(tmp) / FILE]), **trusting(lambda tmp: [one_rank(tmp) / FILE], "--key-file conf/key"),
    },
    "diff": {
        "a": Case(untold(plain), "run/iter_0000010 run/iter_0000020", "run/iter_0000020 run/iter_0000020"),
        "b": Case(untold(plain), "run/iter_0000010 run/iter_0000020", "run/iter_0000010 run/iter_0000010"),
        "level": Case(lambda tmp: [(root := plain(tmp)) / "iter_0000010", root / "iter_0000020"], "", "--level structure"),
        "seal_dir": Case(lambda tmp: [sealed_away(tmp)] * 2, "", "--seal-dir seals"), "store_option": far("s3://bucket/other"),
        "key_file": Case(lambda tmp: [encrypted(tmp) / "net-1_5.ckpt"] * 2, "", "--key-file key"),
        "strict": Case(lambda tmp: [encrypted(tmp) / "net-1_5.ckpt"] * 2, "--level structure", "--level structure --strict"),
        "jobs": Case(lambda tmp: [plain(tmp)] * 2, "--jobs 1", "--jobs 2"), **without(lambda tmp: [plain(tmp)] * 2),
        **trusting(lambda tmp: [plain(tmp)] * 2),
    },
    "layouts": {
        "root": Case(untold(plain), "run --check --layout megatron", "run/iter_0000010 --check --layout megatron"),
        "check": Case(lambda tmp: [], "--text", "--text --check"), "guess": Case(plain, "--check", "--guess"),
        "layout": Case(plain, "--check --layout megatron", "--check --layout dcp"), **without(lambda tmp: []), **trusting(lambda tmp: []),
    },
    "hook install": {
        "what": Case(lambda tmp: [], "--text slurm", "--text torchrun"),
        "root": Case(lambda tmp: [], "--text slurm", "--text slurm --root /somewhere"),
    },
}  # fmt: skip
ELSEWHERE = {("watch", "once"), ("watch", "seal_good"), ("layouts", "write")}
NOT_ASKED = {*STAGED.split(), "history", "fail_on", "resume_args"}
ELSEWHERE |= {("stage", name) for name in CHOICE.keys() - NOT_ASKED}
ELSEWHERE |= {(command, "same_save") for command in ("plan", "latest", "run", "hook", "stage")}
"""Without --once nothing ends, and a seal stays: tests/cli/test_watch.py has both, test_guess.py --write. --same-save
is accepted and has no effect any more.
"""


def cases(command: str) -> dict[str, Case]:
    """What each parameter of a command is held to."""
    if command in OTHERS:
        return OTHERS[command]
    own = DECIDING if command in ("run", "hook") else {}
    known = parameters(command)
    return {name: case for name, case in {**CHOICE, **own}.items() if name in known}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_parameter_is_held_to_something(command: str) -> None:
    """A new flag needs a tree where it matters; one that is gone leaves nothing behind here."""
    elsewhere = {name for of, name in ELSEWHERE if of == command}
    assert cases(command).keys() | elsewhere == parameters(command).keys()
    for name, case in cases(command).items():
        flags = {opt for opt in getattr(parameters(command)[name], "opts", ()) if opt.startswith("-")}
        assert not flags or flags & {*shlex.split(case.one), *shlex.split(case.other)}, name


class Seen(Asker):
    """Command lines and what is seen of each: the exit code, both streams, what a started command is told,
    and what was called.
    """

    words: Sequence[str] = ()
    unreadable = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp: Path) -> None:
        super().__init__(monkeypatch, capfd, tmp / "state/ckpt-tools/decisions")
        self.patch, self.tmp, self.calls = monkeypatch, tmp, list[object]()
        compare = import_module("ckpt_tools.comparison.compare")
        monkeypatch.chdir(tmp)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp / "state"))
        monkeypatch.setattr(scheduler, "LEAST", 1)
        monkeypatch.setattr(engines, "copies_here", self._copies)
        monkeypatch.setattr(Rate, "took", lambda _, n: self.calls.append("paid"))
        threads, flags, real = compare.ThreadPoolExecutor, fcntl.fcntl, os.open
        noted: Callable[..., Any] = lambda *given: (self.calls.append(given), threads(*given))[1]  # noqa: E731
        monkeypatch.setattr(compare, "ThreadPoolExecutor", noted)
        monkeypatch.setattr(fcntl, "fcntl", lambda fd, *more: self._set(flags, fd, *more))
        monkeypatch.setattr(os, "open", lambda path, *more, **named: self._opened(real, path, *more, **named))
        # the trees are of this second
        monkeypatch.setattr(import_module("ckpt_tools.storage").Identity, "settled", lambda *_: True)

    def _copies(self, jobs: int) -> None:
        self.calls.append(("processes", jobs))
        raise Stopped

    def _set(self, real: Callable[..., int], fd: int, *more: int) -> int:
        if more[-1] & os.O_DIRECT:
            self.calls.append("past the cache")
        return real(fd, *more)

    def _opened(self, real: Callable[..., int], path: Any, *more: Any, **named: Any) -> int:
        if self.unreadable and str(path).endswith(FILE):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *more, **named)

    def see(self, command: str, subject: Path | Sequence[object], line: str) -> object:
        said, _, after = line.partition("-- ")
        words, tail = shlex.split(said), ["--", *(shlex.split(after) or ["train"])]
        asked = [subject] if isinstance(subject, Path) else list(subject)
        if command == "stage":  # of a store, and from the beginning
            import_module("ckpt_tools.storage.stores.mounts")._trees.clear()
            for name in ("staged", "one", "other"):
                shutil.rmtree(self.tmp / name, ignore_errors=True)
            if isinstance(subject, Path):
                asked = [f"local://{subject.relative_to(self.tmp)}", "staged"]
        self.unreadable = "--unreadable" in words
        fixed = [] if "--text" in words or command in ("run", "hook install", "watch") else ["--json"]
        fixed += ["--rank", 0] if command == "latest" and "--rank" not in words else []
        reads = command in (*CHOOSING, "stage", "verify", "report", "quarantine", "prune")
        fixed += ["--no-cache"] if reads and not {"--cached", "--no-cache"} & set(words) else []
        given = [word for word in words if word not in ("--unreadable", "--cached", "--text")]
        self.started, self.calls, self.words = {}, [], []
        if not HELD:  # a lock in it is part of the case
            shutil.rmtree(self.tmp / "state", ignore_errors=True)
        tail = tail if command == "run" else []
        code, out, err = self.execute(*command.split(), *asked, *given, *fixed, *tail)
        plan = Path(self.started.get("CKPT_PLAN", ""))
        body = json.loads(plan.read_text()) if plan.is_file() else {}
        body.pop("decision", None)
        told = {k: v for k, v in self.started.items() if k.startswith("CKPT_") and k != "CKPT_PLAN"}
        return code, _still(out), _still(err), told, _still(json.dumps(body)), self.words, self.calls

    def _become(self, words: Sequence[str], env: dict[str, str]) -> None:
        super()._become(words, env)
        self.words = list(words)


def _still(text: str) -> str:
    """Without what differs from run to run: times, and the names of decisions that a time is part of."""
    for pattern, instead in (
        (r'"(seconds|made_at|decided_at|pid|agent|host|oldest|time|process)": ?[^,}\n]+', r'"\1": 0'), (r'"metrics_port": \d+', "PORT"),
        (r"ckpt: warning: \S+ is accepted until the next release\n(hint: .*\n)?", ""), (r"\d{19}-\d+", "START"), (r"\d+ s ago", "just now"),
        (r"in \d+\.\d s(?: \([^)]+/s\))?", "in no time"), (r"\d+\.json", "N.json"),
    ):  # fmt: skip
        text = re.sub(pattern, instead, text)
    return text


@pytest.fixture
def seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], owners: Owners
) -> Iterator[Seen]:
    OWNERS.append(owners)
    # whoever runs this may have a group of their own
    monkeypatch.setattr(trust, "is_own_group", lambda *_: False)
    yield Seen(monkeypatch, capfd, tmp_path)
    while HELD:
        os.close(HELD.pop())
    while INSTALLED:
        sys.path.remove(INSTALLED.pop())
    plugins.switch(None)
    plugins.forget()


WITNESSED = [(command, name) for command in COMMANDS for name in cases(command)]


@pytest.mark.share(48)
@pytest.mark.slow
@pytest.mark.parametrize(("command", "name"), WITNESSED)
def test_a_flag_matters(seen: Seen, command: str, name: str) -> None:
    case = cases(command)[name]
    for variable, value in case.env.items():
        seen.patch.setenv(variable, value)
    if case.one.startswith("@plain"):
        one, other = plain(seen.tmp), rolled_back(seen.tmp / "b")
        asked = [(tree, case.one.removeprefix("@plain")) for tree in (one, other, one)]
    else:
        subject = case.prepare(seen.tmp)
        asked = [(subject, line) for line in (case.one, case.other, case.one)]
        if "--cached" in case.one:
            seen.see(command, subject, case.one)
    first, other_, again = (seen.see(command, *question) for question in asked)
    assert first == again, "the same words say the same"
    assert first != other_, f"{name} changes nothing in {command}"
