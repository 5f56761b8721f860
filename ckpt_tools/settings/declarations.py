"""Every setting, declared once: its variable, its flag, what it means, how it is read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ckpt_tools.errors import UsageError, cut
from ckpt_tools.settings import fault_file, parsers
from ckpt_tools.storage.trust import OURS, Trust, Untrusted


class Variable(NamedTuple):
    """One setting: its variable, its flag (without dashes its key in ckpt.toml), its meaning, its parser."""

    name: str
    flag: str
    meaning: str
    parse: parsers.Parse | None  # None for a variable that is no setting
    since: str = "0.1.0"
    in_file: bool = (
        True  # False if one value for all processes would be wrong, or a file would vouch for itself
    )
    use: str = ""  # what replaces the deprecated flag; {} is its value
    set: str = ""  # what replaces the deprecated variable
    word: str = ""  # its name in a flag of WORDS
    splits: str = ""  # what divides the value of a flag of WORDS, beside line breaks
    called: str = ""  # its key, if that is not the flag's name
    metavar: str = ""  # this and the rest are for help
    panel: str | None = None
    short: str = ""

    @property
    def key(self) -> str:
        flag = self.flag.lstrip("-") if self.flag.startswith("--") else "root" if self.parse else ""
        return self.called or flag

    @property
    def said(self) -> str:
        """Return the text that gives the setting on a command line; "" if only a variable or a file can."""
        return self.use if self.word else "" if self.use else self.flag

    @property
    def exported(self) -> str:
        """Return the text that gives the setting as a variable; "" if no variable can."""
        return self.set if self.word else "" if self.set else self.name

    def value(self, raw: object, origin: str, base: str = "", trusted: Trust = OURS) -> object:
        """Return the parsed value. Raise UsageError or Untrusted with ``origin``, its flag or variable."""
        assert self.parse is not None  # noqa: S101 - BY_KEY holds settings only; for the type checker
        try:
            return self.parse(raw, base, *((trusted,) if self.parse in READING_FILES else ()))
        except Untrusted as e:
            raise Untrusted(f"{origin}: {e}", e.hint) from e
        except ValueError as e:
            name = (self.said or self.exported or self.flag).removesuffix("={}")
            raise UsageError(f"{origin}: {cut(str(e))}", f"{name}: {self.meaning}") from e


READING_FILES = (fault_file.fault_ranks, fault_file.fault_file, parsers.replica_groups)
"""The parsers of values that may name a file, which is to be trusted."""
_SIZE = parsers.whole(1, parsers.MAX_RANK)
WHICH, REPLICAS, ACCEPTED = "Which checkpoint", "Failed devices and replicas", "What is accepted"
READING, DECISION, TRUST, OUTPUT = "Reading", "One decision per job", "Whom to trust", "Output"
"""The panels of help; a flag without a panel stands in the first panel."""

# fmt: off
ENV: tuple[Variable, ...] = (
    Variable("CKPT_ROOT", "[ROOT]", "directory of the checkpoints, a prefix of several, or a URL such as s3://bucket/run; default: the current directory", parsers.tree),
    Variable("CKPT_RANK", "--rank", "rank whose files are wanted", parsers.whole(0, parsers.MAX_RANK), in_file=False, metavar="N"),
    Variable("CKPT_WORLD_SIZE", "--world-size", "number of ranks of the job that will resume", _SIZE, metavar="N"),
    Variable("CKPT_LEVEL", "--level", "how deep to look: presence, structure, content (default), values, load", parsers.level, metavar="LEVEL"),
    Variable("CKPT_KEY_FILE", "--key-file", "file with the key of encrypted MindSpore checkpoints: 16, 24 or 32 bytes, which nobody else may read (chmod 600)", parsers.path, use="CKPT_KEY_FILE={}"),
    Variable("CKPT_JOBS", "--jobs", "number of threads that read (or processes, if there are many small files); default: one for each CPU that this process may use, 32 at most", parsers.whole(0, 1024), metavar="N", panel=READING, short="-j"),
    Variable("CKPT_IO", "--io", "how contents are read: auto (the default) or direct (from the disk, past the page cache); pread and mmap of earlier versions mean auto", parsers.one_of("auto", "pread", "mmap", "direct"), use="CKPT_IO={}"),
    Variable("CKPT_LIMIT_RATE", "--limit-rate", "read at most this many bytes of contents per second, such as 200MB, to leave bandwidth on shared file systems", parsers.size, metavar="SIZE", panel=READING),
    Variable("CKPT_SAMPLE", "--sample", "read only a part of the contents: a fraction such as 2/7 (all 7 make up the whole), a percentage such as 10%, or a size such as 50GiB; the least recently checked first", parsers.share, set="--sample {}", metavar="N/T|P%|SIZE", panel=READING),
    Variable("CKPT_MAX_DURATION", "--budget", "stop reading contents after this time, such as 2h; the next run continues there, with the least recently checked first", parsers.duration, set="--budget {}", called="max-duration", metavar="TIME", panel=READING),
    Variable("CKPT_SCHEDULER", "--scheduler", "who reads for 'ckpt verify': threads (the default), tcp://HOST:PORT or file:FILE of a Dask scheduler, or mpi; docs/scale.md", parsers.scheduler, set="--scheduler {}", metavar="ADDRESS", panel=READING),
    Variable("CKPT_ORDER", "--order", "what newest means: mtime (which follows a rollback), step, or tracker (what the framework's own file, such as latest, names); default: mtime, unless the times look copied or wrong", parsers.one_of("mtime", "step", "tracker"), metavar="mtime|step|tracker", panel=WHICH),
    Variable("CKPT_RESUME_FROM", "--resume-from", "where to start: tracker (the checkpoint that the framework's own tracker names), mtime or step", parsers.one_of("tracker", "mtime", "step"), use="--order {}", set="CKPT_ORDER={}"),
    Variable("CKPT_RESUME_ARGS", "--resume-args", "how the command takes what was chosen, such as '--resume {path}': {ckpt.args} and CKPT_ARGS are these words, in place of the layout's own; {files} is a word for each file, {step} and {epoch} are filled in too", parsers.resume_args, metavar="ARGS"),
    Variable("CKPT_PREFER", "--prefer", "checkpoints of this kind go before all others, such as periodic before a newer dying-gasp", parsers.kind, use="CKPT_PREFER={}"),
    Variable("CKPT_PROVE_REPLICAS", "--prove-replicas", "compare a substitute's tensors with those of another good member of its replica group", parsers.flag, use="CKPT_PROVE_REPLICAS=1"),
    Variable("CKPT_KIND", "--kind", "only checkpoints of this kind: periodic (regular saves), dying-gasp (written in the last second by a dying job), release (exported), best", parsers.kind, set="--kind {}", metavar="KIND", panel=WHICH),
    Variable("CKPT_LAYOUT", "--layout", "only checkpoints of this layout ('ckpt layouts' lists them)", parsers.text, set="--layout {}", metavar="NAME", panel=WHICH),
    Variable("CKPT_RUN", "--run", "only checkpoints of this run ('ckpt ls' shows the runs)", parsers.text, metavar="RUN"),
    Variable("CKPT_PREFIX", "--prefix", "only checkpoints whose file names start with this prefix", parsers.text, use="add --run with the name that 'ckpt ls' shows", set="set CKPT_RUN with the name that 'ckpt ls' shows"),
    Variable("CKPT_MAX_STEP", "--max-step", "only checkpoints at or below this step", parsers.whole(0), set="--max-step {}", metavar="N"),
    Variable("CKPT_SAVE_INTERVAL", "--save-interval", "steps between regular saves; if an emergency save cannot be used, the job rolls back to a multiple of it", parsers.whole(1), metavar="N", panel=WHICH),
    Variable("CKPT_FAULT_RANKS", "--fault-ranks", "ranks whose device failed, such as 1,3-5: what they saved in the emergency save is not used; or a JSON file of them (docs/elastic.md); repeat the flag (or give one per line) for more", fault_file.fault_ranks, metavar="RANKS", panel=REPLICAS),
    Variable("CKPT_FAULT_FILE", "--fault-file", "JSON file with such ranks, added to --fault-ranks: [3, 5] or an object (docs/elastic.md)", fault_file.fault_file, use="--fault-ranks {}, beside the ranks that you name", set="CKPT_FAULT_RANKS={}, with the ranks that you name on further lines"),
    Variable("CKPT_REPLICA_GROUPS", "--replica-groups", "ranks that hold the same state: [ROLE=]0,4;1,5, [ROLE=]FILE, or all (pure data parallelism); repeat the flag (or give one per line) for more roles", parsers.replica_groups, metavar="GROUPS", panel=REPLICAS),
    Variable("CKPT_REPLICAS", "--replicas", "'all': pure data parallelism, every rank holds the same state", parsers.one_of("all"), use="--replica-groups all, beside the groups that you name", set="CKPT_REPLICA_GROUPS=all, with the groups that you name on further lines"),
    Variable("CKPT_STRATEGY_DIR", "--strategy-dir", "directory of MindSpore strategy files (src_strategy_0.ckpt, or .json), which tell which ranks hold the same state", parsers.tree, metavar="DIR", panel=REPLICAS),
    Variable("CKPT_TP", "--tp", "tensor parallel size", _SIZE, use="--parallel tp={}", set="CKPT_PARALLEL=tp={}", word="tp"),
    Variable("CKPT_PP", "--pp", "pipeline parallel size", _SIZE, use="--parallel pp={}", set="CKPT_PARALLEL=pp={}", word="pp"),
    Variable("CKPT_CP", "--cp", "context parallel size", _SIZE, use="--parallel cp={}", set="CKPT_PARALLEL=cp={}", word="cp"),
    Variable("CKPT_DP", "--dp", "data parallel size", _SIZE, use="--parallel dp={}", set="CKPT_PARALLEL=dp={}", word="dp"),
    Variable("CKPT_EP", "--ep", "expert parallel size", _SIZE, use="--parallel ep={}", set="CKPT_PARALLEL=ep={}", word="ep"),
    Variable("CKPT_ETP", "--etp", "tensor parallel size of the experts", _SIZE, use="--parallel etp={}", set="CKPT_PARALLEL=etp={}", word="etp"),
    Variable("CKPT_RANK_ORDER", "--rank-order", "order of the parallel axes over the ranks, fastest first; default: tp-cp-ep-dp-pp", parsers.rank_order, use="--parallel order={}", set="CKPT_PARALLEL=order={}", word="order"),
    Variable("CKPT_REQUIRE", "--require", "entries that a file must have to be resumed from, such as epoch_num,optimizer", parsers.names, use="CKPT_REQUIRE={}"),
    Variable("CKPT_MAX_ATTEMPTS", "--max-attempts", "number of checkpoints whose contents are read before giving up; default: 5", parsers.whole(1), use="CKPT_MAX_ATTEMPTS={}"),
    Variable("CKPT_SETTLE", "--settle", "age below which an incomplete newest checkpoint counts as still being written; default: 2m, and 0 for verify --format junit, sarif, github or markdown", parsers.duration, metavar="TIME", panel=ACCEPTED),
    Variable("CKPT_BUDGET", "--budget", "time for reading contents, such as 60s: cached verdicts first, then the newest checkpoint; what was not read is a warning", parsers.duration, metavar="TIME", panel=READING),
    Variable("CKPT_MAX_AGE", "--max-age", "ignore verdicts of earlier runs that are older than this; default: 1d, for verify 0 (none is used)", parsers.duration, use="CKPT_MAX_AGE={}"),
    Variable("CKPT_NO_CACHE", "--no-cache", "neither use verdicts of earlier runs nor keep those of this run", parsers.flag, panel=READING),
    Variable("CKPT_STRICT", "--strict", "verify: warnings are errors; plan: take nothing unproven, or checked less than asked", parsers.flag),
    Variable("CKPT_SAME_SAVE", "--same-save", "without effect since nothing is asked about the times of a save's files", parsers.paths, use="leave it out: it has no effect", set="leave it out: it has no effect"),
    Variable("CKPT_TRUST_GLOBAL", "--trust-global", "names in pickles that are your own code, such as 'mycompany.*': a file that its framework unpickles without asking may name them; no pattern allows dangerous names; repeat the flag (or give one per line) for more", parsers.name_patterns, use="--trust global={}", set="CKPT_TRUST=global={}", word="global"),
    Variable("CKPT_EXCLUDE", "--exclude", "entries of ROOT that have nothing to do with checkpoints, such as logs or data/*.bin: they are not looked at and are no reason to stop, but are counted; ** matches any directories; repeat the flag (or give one per line) for more", parsers.globs, metavar="GLOB", panel=WHICH),
    Variable("CKPT_STORE_OPTION", "--store-option", "option for opening the store of a URL, named as in its library, such as endpoint=https://minio:9000, region=eu-west-1, profile=work or skip_signature=true; no secrets; repeat the flag (or give one per line) for more; docs/stores.md", parsers.store_options, use="CKPT_STORE_OPTION={}"),
    Variable("CKPT_ALLOW_NONE", "--allow-none", "exit 0 with an empty answer when there is no trace of a checkpoint (a first launch)", parsers.flag, use="--allow none", set="CKPT_ALLOW=none", word="none"),
    Variable("CKPT_ALLOW_MISSING", "--allow-missing", "with none: treat a ROOT that does not exist, in a directory that does, or a --run that does not exist, as a first launch too; alone it changes nothing", parsers.flag, use="--allow missing", set="CKPT_ALLOW=missing", word="missing"),
    Variable("CKPT_NO_FALLBACK", "--no-fallback", "exit 6 instead of choosing an older checkpoint when the newest is unusable", parsers.flag, panel=ACCEPTED),
    Variable("CKPT_SKIP_UNREADABLE", "--skip-unreadable", "skip a checkpoint that could not be read, instead of exit 5", parsers.flag, use="--allow unreadable", set="CKPT_ALLOW=unreadable", word="unreadable"),
    Variable("CKPT_REQUIRE_SEAL", "--require-seal", "treat a file that no seal names as an error (docs/seals.md)", parsers.flag, panel=ACCEPTED),
    Variable("CKPT_SEAL_DIR", "--seal-dir", "directory for the seals of read-only trees, below the absolute path of the sealed directory; docs/seals.md", parsers.path, use="CKPT_SEAL_DIR={}"),
    Variable("CKPT_STATE_DIR", "--state-dir", "directory for the state of 'ckpt watch', outside ROOT; docs/guarding.md", parsers.path, use="CKPT_STATE_DIR={}"),
    Variable("CKPT_VERIFY_KEY", "--verify-key", "public key (PEM) that the signature of every file must fit, as 'ckpt seal --sign-key' or model_signing writes it; needs ckpt-tools[sign]", parsers.path, use="CKPT_VERIFY_KEY={}"),
    Variable("CKPT_PLAN_DIR", "--plan-dir", "directory of decisions, outside ROOT; default: ~/.local/state/ckpt-tools/decisions. With more than one node: a directory that all of them see", parsers.path, metavar="DIR", panel=DECISION),
    Variable("CKPT_JOB", "--job", "id of this start of the job, the same in all of its processes and different for every start; default: the launcher's", parsers.text, in_file=False, metavar="ID", panel=DECISION),
    Variable("CKPT_NODE", "--node", "index of this node, from 0; default: the launcher's", parsers.whole(0, parsers.MAX_RANK), in_file=False, use="CKPT_NODE={}"),
    Variable("CKPT_NODES", "--nodes", "number of nodes that start together; default: the launcher's", _SIZE, use="CKPT_NODES={}"),
    Variable("CKPT_TIMEOUT", "--timeout", "how long to wait for the other processes of the job; default: 10m", parsers.duration, set="--timeout {}", metavar="TIME", panel=DECISION),
    Variable("CKPT_ALLOW_FRESH", "--allow-fresh", "start from nothing even though no existing checkpoint is usable, files look like checkpoints, or an earlier start had some; not for scripts", parsers.flag, use="--allow fresh", set="CKPT_ALLOW=fresh", word="fresh"),
    Variable("CKPT_REQUIRE_MOUNT", "--require-mount", "exit 5 unless ROOT lies on a file system of its own, mounted somewhere below /", parsers.flag, set="--require-mount", panel=DECISION),
    Variable("CKPT_VIEW", "--view", "build a tree of links there, outside ROOT, in which the framework finds the chosen checkpoint alone", parsers.path, set="--view {}", metavar="DIR", panel=DECISION),
    Variable("CKPT_STAGE", "--stage", "first copy the chosen checkpoint from its store to a directory below DIR, verified on the way, and start from the copy; docs/stores.md", parsers.path, set="--stage {}", metavar="DIR", panel=DECISION),
    Variable("CKPT_KEEP", "--keep", "number of staged checkpoints to keep, the most recently used; others that are not in use are removed; default: all", parsers.whole(1), set="--keep {}", metavar="N", panel=DECISION),
    Variable("CKPT_AGREE", "--agree", "for nodes with a disk of their own: agree on the newest checkpoint of which each node has the files of its ranks", parsers.flag, set="--agree", panel=DECISION),
    Variable("CKPT_MEET", "--meet", "where nodes meet with --agree: a directory that all of them see, or HOST:PORT with a free port of the first node (torch's store); default: --plan-dir, else the launcher's address", parsers.meeting, set="--meet {}", metavar="WHERE", panel=DECISION),
    Variable("CKPT_RENDEZVOUS", "--rendezvous", "HOST:PORT where the nodes meet in torch's store, with --agree and without --meet or --plan-dir: a free port of the first node; default: the launcher's", parsers.text, use="--meet {}", set="--meet {}"),
    Variable("CKPT_TRUST_GROUP", "--trust-group", "trust files that give orders (decisions, keys, configuration, lists of ranks), and their directories, even if a group may write them, and let the group write those that are made here; docs/hooks.md", parsers.flag, in_file=False, use="--trust group", set="CKPT_TRUST=group", word="group"),
    Variable("CKPT_TRUST_OWNER", "--trust-owner", "trust such files of these users too, by number, such as 1000,65534; repeat the flag for more", parsers.uids, in_file=False, use="--trust owner={}", set="CKPT_TRUST=owner={}", word="owner"),
    Variable("CKPT_TRUST_DIR", "--trust-dir", "trust everything below this directory, whoever may write there, such as a volume of this job alone; repeat the flag (or give one per line) for more", parsers.paths, in_file=False, use="--trust dir={}", set="CKPT_TRUST=dir={}", word="dir"),
    Variable("CKPT_NO_PLUGINS", "--no-plugins", "do not use the formats, layouts, manifests, outputs and launchers that other installed packages add (docs/plugins.md)", parsers.flag, in_file=False, use="CKPT_NO_PLUGINS=1"),
    Variable("CKPT_CONFIG", "--config", "configuration file; default: the nearest ckpt.toml, or pyproject.toml with [tool.ckpt], upward from the current directory", parsers.path, in_file=False, metavar="FILE", panel=TRUST),
    Variable("CKPT_CACHE_DIR", "", "directory of the verdicts of earlier runs; default: $XDG_CACHE_HOME/ckpt-tools, or ~/.cache/ckpt-tools", None),
    Variable("CKPT_PLAN", "", "the job's decision, as 'ckpt run' and 'ckpt hook' export it; 'ckpt latest' and 'ckpt hook --read' answer from it", None),
    Variable("CKPT_DEBUG", "", "1: print the traceback of an internal error", None),
    Variable("NO_COLOR", "", "any value: no colour (no-color.org)", None),
    Variable("FORCE_COLOR", "", "any value: colour even when the output is not a terminal", None),
)
# fmt: on

BY_KEY: dict[str, Variable] = {v.key: v for v in ENV if v.parse}
REPEATED = (parsers.uids, parsers.paths, parsers.name_patterns, parsers.store_options)
"""The parsers of deprecated flags that may be given several times."""
SIZES = ("tp", "pp", "cp", "dp", "ep", "etp")


class RawValue(NamedTuple):
    """One raw value, and the flag or variable that gave it."""

    raw: object
    origin: str


# fmt: off
WORDS = {
    "allow": Variable("CKPT_ALLOW", "--allow", "start although this is so: none (no checkpoint is there: a first launch), missing (with none: nor is ROOT, or the run), unreadable (skip a checkpoint that could not be read), fresh (none is usable, or an earlier start had one; not for scripts)", None, splits=",", metavar="WHAT"),
    "parallel": Variable("CKPT_PARALLEL", "--parallel", "parallel sizes, and how ranks are counted over the axes, fastest first, such as tp=2,pp=4,order=tp-cp-ep-dp-pp; sizes: tp, pp, cp, dp, ep, etp (tp of experts)", None, splits=",", metavar="SIZES", panel=REPLICAS),
    "trust": Variable("CKPT_TRUST", "--trust", "whose files of orders count beside your own: group, owner=UID, dir=DIR (docs/hooks.md); global='mycompany.*': code of your own that pickles may name; repeat the flag (or give one per line) for more", None, splits="\n", metavar="WHAT", panel=TRUST),
}
# fmt: on
"""Flags whose value is a list of words, each of which is a setting with a key of its own in ckpt.toml."""


def fill(use: str, values: Sequence[str]) -> str:
    """Return ``use`` with {} replaced by each value in shell quotes; a variable has a line for each value."""
    if len(values) == 1 or not use.startswith("CKPT_"):
        return " ".join(use.replace("{}", shlex.quote(value)) for value in values)
    name, _, word = use.partition("=")
    lines = (word.replace("{}", re.sub(r"(['\\])", r"\\\1", value)) for value in values)
    return f"{name}=$'" + r"\n".join(lines) + "'"


def find_raw_values(flags: Mapping[str, object], env: Mapping[str, str]) -> dict[str, RawValue]:
    """Return by key the raw value of flag or variable. Raise UsageError if two flags or variables differ."""
    by_flag: dict[str, RawValue] = {}
    by_variable: dict[str, RawValue] = {}
    for key, raw in flags.items():
        declared = WORDS.get(key) or BY_KEY[key]
        if not (raw is None or raw is False or raw == []):
            switch = raw is True and declared.parse is parsers.flag
            found, given = by_flag, RawValue("1" if switch else raw, declared.flag)
        elif env.get(declared.name):
            found, given = by_variable, RawValue(env[declared.name], declared.name)
        else:
            continue
        for word_key, value in _read_words(declared, given) if declared.splits else [(key, given)]:
            before = found.setdefault(word_key, value)
            if before is not value and isinstance(before.raw, list) and isinstance(value.raw, list):
                found[word_key] = value._replace(raw=[*before.raw, *value.raw])
            elif before.raw != value.raw:
                text = f"{before.origin} and {value.origin} contradict each other"
                raise UsageError(text, "use one of them")
    return {**by_variable, **by_flag}


def _read_words(flag: Variable, given: RawValue) -> Iterator[tuple[str, RawValue]]:
    """Yield the key and value of each word of a flag of WORDS, as in tp=2,pp=4. Raise UsageError."""
    known = {v.word: v for v in ENV if v.word and v.set.startswith(f"{flag.name}=")}
    lines = given.raw if isinstance(given.raw, list) else str(given.raw).splitlines()
    for piece in (piece for line in lines for piece in line.split(flag.splits)):
        word, mark, value = (part.strip() for part in piece.partition("="))
        try:
            variable = known[parsers.word(word, tuple(known))]
            if bool(value) == (variable.parse is parsers.flag) or bool(mark) != bool(value):
                raise ValueError(f"use {word}{variable.set.partition(word)[2].replace('{}', 'VALUE')}")
        except ValueError as e:
            raise UsageError(f"{given.origin}: {cut(str(e))}", f"{flag.flag}: {flag.meaning}") from e
        raw = [value] if variable.parse in REPEATED else value or "1"
        yield variable.key, RawValue(raw, f"{given.origin} {word}")


def trusted(flags: Mapping[str, object], env: Mapping[str, str]) -> Trust:
    """Return whose files are trusted, by flags and variables alone: a file could vouch for itself."""
    keys = ("trust-group", "trust-owner", "trust-dir")
    given = find_raw_values({key: flags.get(key) for key in ("trust", *keys)}, env)
    values: list[Any] = [BY_KEY[key].value(*given[key]) if key in given else () for key in keys]
    group, owners, directories = values
    return Trust(bool(group), frozenset(owners), directories)
