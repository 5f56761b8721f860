"""Where a setting comes from: flags > CKPT_* > the nearest ckpt.toml > defaults. Every variable is declared once, in ENV."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ckpt_tools import _fault_file, _share, _values
from ckpt_tools.errors import UsageError
from ckpt_tools.question import Selection

# -- the table ---------------------------------------------------------------------------------------------------------------------


class Variable(NamedTuple):
    """One setting: its variable, its flag (whose name without dashes is its key in ckpt.toml), what it means, how it is read.

    ``parse`` is None for variables that are no setting. ``in_file`` is False where one value for all processes would be wrong.
    """

    name: str
    flag: str
    meaning: str
    parse: _values.Parse | None
    since: str = "0.1.0"
    in_file: bool = True

    @property
    def key(self) -> str:
        return self.flag.lstrip("-") if self.flag.startswith("--") else "root" if self.parse else ""


_SIZE = _values.whole(1, _values.MAX_RANK)

# fmt: off
ENV: tuple[Variable, ...] = (
    Variable("CKPT_ROOT", "[ROOT]", "directory of the checkpoints, or a prefix of several; default: the current directory", _values.path),
    Variable("CKPT_RANK", "--rank", "rank whose files are asked for", _values.whole(0, _values.MAX_RANK), in_file=False),
    Variable("CKPT_WORLD_SIZE", "--world-size", "number of ranks of the job that will load", _SIZE),
    Variable("CKPT_LEVEL", "--level", "how deep to look: presence, structure, content (default), values, load", _values.level),
    Variable("CKPT_KEY_FILE", "--key-file", "file with the key of encrypted MindSpore checkpoints: 16, 24 or 32 bytes", _values.path),
    Variable("CKPT_JOBS", "--jobs", "threads, or processes where files are many and small, that read; default: chosen from the number of CPUs", _values.whole(0, 1024)),
    Variable("CKPT_IO", "--io", "how contents are read: auto (the default), pread, mmap (cached local files), direct (the medium, past the page cache)", _values.one_of("auto", "pread", "mmap", "direct")),
    Variable("CKPT_LIMIT_RATE", "--limit-rate", "bytes of contents per second that are read at most, such as 200MB: for file systems that others share", _values.size),
    Variable("CKPT_SAMPLE", "--sample", "read only a share of the contents: a part such as 2/7 (all 7 make up the whole), percent such as 10%, or a size such as 50GiB; the least recently checked first", _share.share),
    Variable("CKPT_MAX_DURATION", "--max-duration", "stop reading contents after this time, such as 2h: the next run goes on there, the least recently checked first", _values.duration),
    Variable("CKPT_SCHEDULER", "--scheduler", "who reads for 'ckpt verify': threads (the default), tcp://HOST:PORT or file:FILE of a Dask scheduler, or mpi; docs/scale.md", _values.scheduler),
    Variable("CKPT_ORDER", "--order", "what newest means: mtime (the default: the live timeline after a rollback) or step", _values.one_of("mtime", "step")),
    Variable("CKPT_RESUME_FROM", "--resume-from", "where to start: tracker (the checkpoint that the framework's own tracker names), mtime or step", _values.one_of("tracker", "mtime", "step")),
    Variable("CKPT_PREFER", "--prefer", "checkpoints of this kind go before all others, such as periodic before a newer dying-gasp", _values.kind),
    Variable("CKPT_PROVE_REPLICAS", "--prove-replicas", "compare a substitute's tensors with those of another good member of its replica group", _values.flag),
    Variable("CKPT_KIND", "--kind", "only checkpoints of this kind: periodic, dying-gasp, release, best", _values.kind),
    Variable("CKPT_LAYOUT", "--layout", "only checkpoints of this layout ('ckpt layouts' lists them)", _values.text),
    Variable("CKPT_RUN", "--run", "only checkpoints of this run ('ckpt ls' shows the runs)", _values.text),
    Variable("CKPT_PREFIX", "--prefix", "only checkpoints whose file names start with this prefix", _values.text),
    Variable("CKPT_MAX_STEP", "--max-step", "only checkpoints at or below this step", _values.whole(0)),
    Variable("CKPT_SAVE_INTERVAL", "--save-interval", "steps between periodic saves: an unusable dying-gasp checkpoint rolls back to a multiple of it", _values.whole(1)),
    Variable("CKPT_FAULT_RANKS", "--fault-ranks", "ranks whose device failed, such as 1,3-5: their dying-gasp files are not used", _values.rank_set),
    Variable("CKPT_FAULT_FILE", "--fault-file", "JSON file of such ranks, added to --fault-ranks: [3, 5] or an object (docs/elastic.md)", _fault_file.fault_file),
    Variable("CKPT_REPLICA_GROUPS", "--replica-groups", "ranks that hold the same state: [ROLE=]0,4;1,5 or [ROLE=]FILE; repeat the flag (or give one per line) for more roles", _values.replica_groups),
    Variable("CKPT_REPLICAS", "--replicas", "'all': pure data parallelism, every rank holds the same state", _values.one_of("all")),
    Variable("CKPT_STRATEGY_DIR", "--strategy-dir", "directory of MindSpore strategy files (src_strategy_0.ckpt, or .json), which tell the ranks that hold the same state", _values.path),
    Variable("CKPT_TP", "--tp", "tensor parallel size", _SIZE),
    Variable("CKPT_PP", "--pp", "pipeline parallel size", _SIZE),
    Variable("CKPT_CP", "--cp", "context parallel size", _SIZE),
    Variable("CKPT_DP", "--dp", "data parallel size", _SIZE),
    Variable("CKPT_EP", "--ep", "expert parallel size", _SIZE),
    Variable("CKPT_ETP", "--etp", "tensor parallel size of the experts", _SIZE),
    Variable("CKPT_RANK_ORDER", "--rank-order", "order of the parallel axes over the ranks, fastest first; default: tp-cp-ep-dp-pp", _values.rank_order),
    Variable("CKPT_REQUIRE", "--require", "entries that a file must hold to be resumed from, such as epoch_num,optimizer", _values.names),
    Variable("CKPT_MAX_ATTEMPTS", "--max-attempts", "checkpoints whose content is read before giving up; default: 5", _values.whole(1)),
    Variable("CKPT_SETTLE", "--settle", "an incomplete newest checkpoint younger than this is still being written; default: 2m", _values.duration),
    Variable("CKPT_BUDGET", "--budget", "time for reading contents, such as 60s: cached verdicts first, then the newest checkpoint; what was not read is a warning", _values.duration),
    Variable("CKPT_MAX_AGE", "--max-age", "verdicts of earlier runs that are older than this are not used; default: 1d, for verify 0 (none is used)", _values.duration),
    Variable("CKPT_NO_CACHE", "--no-cache", "neither use verdicts of earlier runs nor keep those of this one", _values.flag),
    Variable("CKPT_STRICT", "--strict", "treat warnings as errors, and what could not be looked at as unknown", _values.flag),
    Variable("CKPT_ALLOW_NONE", "--allow-none", "exit 0 with an empty answer when no checkpoint exists (a first launch)", _values.flag),
    Variable("CKPT_NO_FALLBACK", "--no-fallback", "exit 6 instead of choosing an older checkpoint when the newest is unusable", _values.flag),
    Variable("CKPT_SKIP_UNREADABLE", "--skip-unreadable", "pass over a checkpoint that could not be read instead of exit 5", _values.flag),
    Variable("CKPT_PLAN_DIR", "--plan-dir", "directory of decisions, outside ROOT; default: ~/.local/state/ckpt-tools/decisions. More than one node: one that all of them see", _values.path),
    Variable("CKPT_JOB", "--job", "id of this start of the job, the same in all its processes and of no other start; default: the launcher's", _values.text, in_file=False),
    Variable("CKPT_NODE", "--node", "index of this node, from 0; default: the launcher's", _values.whole(0, _values.MAX_RANK), in_file=False),
    Variable("CKPT_NODES", "--nodes", "number of nodes that start together; default: the launcher's", _SIZE),
    Variable("CKPT_TIMEOUT", "--timeout", "how long to wait for the other processes of the job; default: 10m", _values.duration),
    Variable("CKPT_ALLOW_FRESH", "--allow-fresh", "start from nothing although checkpoints exist and none is usable, or an earlier start had some", _values.flag),
    Variable("CKPT_REQUIRE_MOUNT", "--require-mount", "exit 5 unless ROOT lies on a file system of its own, mounted somewhere below /", _values.flag),
    Variable("CKPT_VIEW", "--view", "build a tree of links there, outside ROOT, that holds the chosen checkpoint alone, as its framework wants it", _values.path),
    Variable("CKPT_AGREE", "--agree", "every node has a disk of its own: agree on the newest checkpoint that each node has its ranks' parts of", _values.flag),
    Variable("CKPT_RENDEZVOUS", "--rendezvous", "HOST:PORT where --agree meets: a free port of the first node; default: the launcher's", _values.text),
    Variable("CKPT_TRANSFER", "--transfer", "command that brings a file from another node: it gets the node, the path there and the target as three more words", _values.text),
    Variable("CKPT_CONFIG", "--config", "configuration file; default: the nearest ckpt.toml, or pyproject.toml with [tool.ckpt], upward from the current directory", _values.path, in_file=False),
    Variable("CKPT_CACHE_DIR", "", "directory of the verdicts of earlier runs; default: $XDG_CACHE_HOME/ckpt-tools, or ~/.cache/ckpt-tools", None),
    Variable("CKPT_PLAN", "", "the job's decision, as 'ckpt run' and 'ckpt hook' export it: 'ckpt latest' and 'ckpt hook --read' answer from it", None),
    Variable("CKPT_DEBUG", "", "1: print the traceback of an internal error", None),
    Variable("NO_COLOR", "", "any value: no colour (no-color.org)", None),
    Variable("FORCE_COLOR", "", "any value: colour even when the output is no terminal", None),
)
# fmt: on

BY_KEY: dict[str, Variable] = {v.key: v for v in ENV if v.parse}
SIZES = ("tp", "pp", "cp", "dp", "ep", "etp")


# -- from everywhere to one value --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """Values by key, only those that were given; ``origins`` says for each where. ``notes`` are to be shown to the user.

    ``layouts`` are the file's ``[[layout]]`` tables as they stand there.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    file: str | None = None
    notes: tuple[str, ...] = ()
    layouts: object = None

    @property
    def root(self) -> str:
        root: str = self.values.get("root", ".")
        return root

    def selection(self) -> Selection:
        """The question to ask; what was not given is as Selection has it."""
        given = {name: value for key, value in self.values.items() if (name := key.replace("-", "_")) in Selection.__dataclass_fields__}
        rank, world_size = given.get("rank"), given.get("world_size")
        if rank is not None and world_size is not None and rank >= world_size:
            raise UsageError(
                f"{self.origins['rank']} {rank} does not exist among {world_size} ranks ({self.origins['world-size']})",
                f"ranks count from 0: say --rank 0 to {world_size - 1}",
            )
        if "fault-file" in self.values:
            given["fault_ranks"] = given.get("fault_ranks", frozenset()) | self.values["fault-file"]
        if "resume_from" in given and "order" in given and given["resume_from"] != given["order"]:
            raise UsageError(
                f"{self.origins['resume-from']} {given['resume_from']} and {self.origins['order']} {given['order']} contradict each other",
                "say one of them",
            )
        sizes = {size: self.values[size] for size in SIZES if size in self.values}
        return Selection(**given, sizes=sizes, replicas_all=self.values.get("replicas") == "all")


def nearest(given: str, words: Iterable[str]) -> str | None:
    """The word that was probably meant."""
    from difflib import get_close_matches  # only after a mistake: it costs start-up time

    return next(iter(get_close_matches(given, list(words), 1, 0.5)), None)


def _within(path: str, root: str) -> bool:
    path, root = os.path.realpath(path), os.path.realpath(root)
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _read(path: str) -> dict[str, Any] | None:
    """The table of a configuration file; None for a pyproject.toml without one."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError as e:
        raise UsageError(f"configuration file {path!r} cannot be read: {e.strerror}", "make it readable, or say --config FILE") from e
    project = os.path.basename(path) == "pyproject.toml"
    if project and b"ckpt" not in data:
        return None  # most projects: spare them the TOML parser
    if sys.version_info >= (3, 11):  # imported here because most runs have no configuration file
        import tomllib as toml
    else:
        import tomli as toml
    try:
        table = toml.loads(data.decode())
    except ValueError as e:
        raise UsageError(f"configuration file {path!r} is not valid TOML: {e}", "correct it, or say --config FILE") from e
    if not project:
        return table
    tool = table.get("tool", {})
    found = tool.get("ckpt") if isinstance(tool, dict) else None
    return found if isinstance(found, dict) else None


def _find(cwd: str, roots: Sequence[str]) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The nearest configuration file from ``cwd`` upward, its table, and notes on files that lie in a scanned tree and were not read."""
    notes: list[str] = []
    directory = cwd
    while True:
        for name in ("ckpt.toml", "pyproject.toml"):
            path = os.path.join(directory, name)
            if not os.path.isfile(path):
                continue
            if any(_within(path, os.path.join(cwd, root)) for root in roots):
                if name == "ckpt.toml":  # a pyproject.toml is too common to talk about
                    notes.append(f"{path} is not read, because it lies in the tree that is scanned; say --config {name} if you trust it")
                continue
            table = _read(path)
            if table is not None:
                return path, table, tuple(notes)
        above = os.path.dirname(directory)
        if above == directory:
            return "", {}, tuple(notes)
        directory = above


def _check_keys(path: str, table: Mapping[str, object]) -> None:
    allowed = [v.key for v in ENV if v.parse and v.in_file]
    for key in table:
        if key in allowed or (key == "layout" and isinstance(table[key], list)):  # the tables [[layout]]; a text is the setting --layout
            continue
        if key in BY_KEY:
            raise UsageError(f"{path}: {key!r} cannot be set in a configuration file", f"say {BY_KEY[key].flag} or {BY_KEY[key].name}")
        meant = nearest(key, allowed)
        raise UsageError(f"{path}: unknown key {key!r}", f"did you mean {meant!r}?" if meant else f"known keys: {', '.join(allowed)}")


def resolve(
    flags: Mapping[str, object],
    roots: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Settings:
    """The settings named by the keys of ``flags``, each from the first place that gives it.

    A flag of None or False, an empty list and an empty variable count as not given. ``roots`` are scanned trees beside ROOT.
    """
    env = os.environ if env is None else env
    try:
        cwd = cwd or os.getcwd()
    except OSError as e:
        raise UsageError("the current directory does not exist any more", "change to another directory") from e
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(key: str, raw: object, origin: str, base: str = "") -> None:
        parse = BY_KEY[key].parse
        assert parse is not None  # noqa: S101 - BY_KEY holds settings only; for the type checker
        try:
            values[key], origins[key] = parse(raw, base), origin
        except ValueError as e:
            raise UsageError(f"{origin}: {e}", f"{BY_KEY[key].flag}: {BY_KEY[key].meaning}") from e

    for key, raw in flags.items():
        variable = BY_KEY[key]
        if not (raw is None or raw is False or raw == []):
            take(key, raw, variable.flag)
        elif env.get(variable.name):
            take(key, env[variable.name], variable.name)

    scanned = [*roots, *([values.get("root", ".")] if "root" in flags else [])]
    notes: tuple[str, ...] = ()
    table: dict[str, Any] | None
    if "config" in values:
        file = os.path.join(cwd, values["config"])
        table = _read(file)
        if table is None:
            raise UsageError(f"{origins['config']}: {file!r} has no table [tool.ckpt]", "add one, or name a ckpt.toml")
    else:
        file, table, notes = _find(cwd, scanned)
    _check_keys(file, table)
    own = table.pop("layout") if isinstance(table.get("layout"), list) else None
    for key, raw in table.items():
        if key in flags and key not in values:
            take(key, raw, f"{file}: {key}", os.path.dirname(file))
    if origins.get("root", "").startswith(file) and file and "config" not in values and _within(file, values["root"]):
        raise UsageError(
            f"{file}: root = {values['root']!r} contains the file itself, and no configuration is read from a scanned tree",
            "move the file above it, or name it with --config",
        )
    return Settings(values, origins, file or None, notes, own)
