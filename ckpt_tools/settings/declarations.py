"""Every setting, declared once: its variable, its flag, what it means, how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ckpt_tools.errors import UsageError
from ckpt_tools.settings import fault_file, parsers, sample_size
from ckpt_tools.storage.trust import OURS, Trust, Untrusted


class Variable(NamedTuple):
    """One setting: its variable, its flag (whose name without dashes is its key in ckpt.toml), what it means,
    how it is read.

    ``parse`` is None for variables that are no setting. ``in_file`` is False where one value for all
    processes would be wrong, or where a file would vouch for itself. ``reads`` stands for ``parse`` where a
    file of orders is read.
    """

    name: str
    flag: str
    meaning: str
    parse: parsers.Parse | None
    since: str = "0.1.0"
    in_file: bool = True
    reads: parsers.Reading | None = None

    @property
    def key(self) -> str:
        return self.flag.lstrip("-") if self.flag.startswith("--") else "root" if self.parse else ""

    def value(self, raw: object, origin: str, base: str = "", trusted: Trust = OURS) -> object:
        """What a raw value means. Raises UsageError that names ``origin``, where it was given."""
        assert self.parse is not None  # noqa: S101 - BY_KEY holds settings only; for the type checker
        try:
            return self.reads(raw, base, trusted) if self.reads else self.parse(raw, base)
        except Untrusted as e:
            raise Untrusted(f"{origin}: {e}", e.hint) from e
        except ValueError as e:
            raise UsageError(f"{origin}: {e}", f"{self.flag}: {self.meaning}") from e


_SIZE = parsers.whole(1, parsers.MAX_RANK)

# fmt: off
ENV: tuple[Variable, ...] = (
    Variable("CKPT_ROOT", "[ROOT]", "directory of the checkpoints, a prefix of several, or a URL such as s3://bucket/run; default: the current directory", parsers.tree),
    Variable("CKPT_RANK", "--rank", "rank whose files are asked for", parsers.whole(0, parsers.MAX_RANK), in_file=False),
    Variable("CKPT_WORLD_SIZE", "--world-size", "number of ranks of the job that will load", _SIZE),
    Variable("CKPT_LEVEL", "--level", "how deep to look: presence, structure, content (default), values, load", parsers.level),
    Variable("CKPT_KEY_FILE", "--key-file", "file with the key of encrypted MindSpore checkpoints: 16, 24 or 32 bytes, which nobody else may read (chmod 600)", parsers.path),
    Variable("CKPT_JOBS", "--jobs", "threads, or processes where files are many and small, that read; default: chosen from the number of CPUs that this process may use (affinity, quotas of its control groups)", parsers.whole(0, 1024)),
    Variable("CKPT_IO", "--io", "how contents are read: auto (the default), pread, mmap (cached local files), direct (the medium, past the page cache)", parsers.one_of("auto", "pread", "mmap", "direct")),
    Variable("CKPT_LIMIT_RATE", "--limit-rate", "bytes of contents per second that are read at most, such as 200MB: for file systems that others share", parsers.size),
    Variable("CKPT_SAMPLE", "--sample", "read only a share of the contents: a part such as 2/7 (all 7 make up the whole), percent such as 10%, or a size such as 50GiB; the least recently checked first", sample_size.share),
    Variable("CKPT_MAX_DURATION", "--max-duration", "stop reading contents after this time, such as 2h: the next run goes on there, the least recently checked first", parsers.duration),
    Variable("CKPT_SCHEDULER", "--scheduler", "who reads for 'ckpt verify': threads (the default), tcp://HOST:PORT or file:FILE of a Dask scheduler, or mpi; docs/scale.md", parsers.scheduler),
    Variable("CKPT_ORDER", "--order", "what newest means: mtime (the live timeline after a rollback) or step; without it mtime, unless the times look copied or wrong", parsers.one_of("mtime", "step")),
    Variable("CKPT_RESUME_FROM", "--resume-from", "where to start: tracker (the checkpoint that the framework's own tracker names), mtime or step", parsers.one_of("tracker", "mtime", "step")),
    Variable("CKPT_PREFER", "--prefer", "checkpoints of this kind go before all others, such as periodic before a newer dying-gasp", parsers.kind),
    Variable("CKPT_PROVE_REPLICAS", "--prove-replicas", "compare a substitute's tensors with those of another good member of its replica group", parsers.flag),
    Variable("CKPT_KIND", "--kind", "only checkpoints of this kind: periodic, dying-gasp, release, best", parsers.kind),
    Variable("CKPT_LAYOUT", "--layout", "only checkpoints of this layout ('ckpt layouts' lists them)", parsers.text),
    Variable("CKPT_RUN", "--run", "only checkpoints of this run ('ckpt ls' shows the runs)", parsers.text),
    Variable("CKPT_PREFIX", "--prefix", "only checkpoints whose file names start with this prefix", parsers.text),
    Variable("CKPT_MAX_STEP", "--max-step", "only checkpoints at or below this step", parsers.whole(0)),
    Variable("CKPT_SAVE_INTERVAL", "--save-interval", "steps between periodic saves: an unusable dying-gasp checkpoint rolls back to a multiple of it", parsers.whole(1)),
    Variable("CKPT_FAULT_RANKS", "--fault-ranks", "ranks whose device failed, such as 1,3-5: their dying-gasp files are not used", parsers.rank_set),
    Variable("CKPT_FAULT_FILE", "--fault-file", "JSON file of such ranks, added to --fault-ranks: [3, 5] or an object (docs/elastic.md)", fault_file.fault_file, reads=fault_file.fault_file),
    Variable("CKPT_REPLICA_GROUPS", "--replica-groups", "ranks that hold the same state: [ROLE=]0,4;1,5 or [ROLE=]FILE; repeat the flag (or give one per line) for more roles", parsers.replica_groups, reads=parsers.replica_groups),
    Variable("CKPT_REPLICAS", "--replicas", "'all': pure data parallelism, every rank holds the same state", parsers.one_of("all")),
    Variable("CKPT_STRATEGY_DIR", "--strategy-dir", "directory of MindSpore strategy files (src_strategy_0.ckpt, or .json), which tell the ranks that hold the same state", parsers.tree),
    Variable("CKPT_TP", "--tp", "tensor parallel size", _SIZE),
    Variable("CKPT_PP", "--pp", "pipeline parallel size", _SIZE),
    Variable("CKPT_CP", "--cp", "context parallel size", _SIZE),
    Variable("CKPT_DP", "--dp", "data parallel size", _SIZE),
    Variable("CKPT_EP", "--ep", "expert parallel size", _SIZE),
    Variable("CKPT_ETP", "--etp", "tensor parallel size of the experts", _SIZE),
    Variable("CKPT_RANK_ORDER", "--rank-order", "order of the parallel axes over the ranks, fastest first; default: tp-cp-ep-dp-pp", parsers.rank_order),
    Variable("CKPT_REQUIRE", "--require", "entries that a file must hold to be resumed from, such as epoch_num,optimizer", parsers.names),
    Variable("CKPT_MAX_ATTEMPTS", "--max-attempts", "checkpoints whose content is read before giving up; default: 5", parsers.whole(1)),
    Variable("CKPT_SETTLE", "--settle", "an incomplete newest checkpoint younger than this is still being written; default: 2m", parsers.duration),
    Variable("CKPT_BUDGET", "--budget", "time for reading contents, such as 60s: cached verdicts first, then the newest checkpoint; what was not read is a warning", parsers.duration),
    Variable("CKPT_MAX_AGE", "--max-age", "verdicts of earlier runs that are older than this are not used; default: 1d, for verify 0 (none is used)", parsers.duration),
    Variable("CKPT_NO_CACHE", "--no-cache", "neither use verdicts of earlier runs nor keep those of this one", parsers.flag),
    Variable("CKPT_STRICT", "--strict", "treat warnings as errors, and what could not be looked at as unknown", parsers.flag),
    Variable("CKPT_SAME_SAVE", "--same-save", "a checkpoint whose files are all of one save although their times look like two attempts: its directory, or one of its files; repeat the flag (or give one per line) for more", parsers.paths),
    Variable("CKPT_TRUST_GLOBAL", "--trust-global", "names in pickles that are yours, such as 'mycompany.*': a file that its framework unpickles without asking may name them; no pattern allows what is dangerous; repeat the flag (or give one per line) for more", parsers.dotted),
    Variable("CKPT_EXCLUDE", "--exclude", "entries of ROOT that have nothing to do with checkpoints, such as logs or data/*.bin: neither looked at nor a reason to stop, but counted; ** stands for any directories; repeat the flag (or give one per line) for more", parsers.globs),
    Variable("CKPT_STORE_OPTION", "--store-option", "option of the store that a URL leads to, as its library has it, such as endpoint=https://minio:9000, region=eu-west-1, profile=work or skip_signature=true; no secrets; repeat the flag (or give one per line) for more; docs/stores.md", parsers.store_options),
    Variable("CKPT_ALLOW_NONE", "--allow-none", "exit 0 with an empty answer when nothing of a checkpoint exists (a first launch)", parsers.flag),
    Variable("CKPT_ALLOW_MISSING", "--allow-missing", "with --allow-none: a ROOT that does not exist, in a directory that does, or a --run that does not, is a first launch too; alone it changes nothing", parsers.flag),
    Variable("CKPT_NO_FALLBACK", "--no-fallback", "exit 6 instead of choosing an older checkpoint when the newest is unusable", parsers.flag),
    Variable("CKPT_SKIP_UNREADABLE", "--skip-unreadable", "pass over a checkpoint that could not be read instead of exit 5", parsers.flag),
    Variable("CKPT_REQUIRE_SEAL", "--require-seal", "a file that no seal names is an error (docs/seals.md)", parsers.flag),
    Variable("CKPT_SEAL_DIR", "--seal-dir", "directory in which the seals of read-only trees lie, below the absolute path of what they are of; docs/seals.md", parsers.path),
    Variable("CKPT_STATE_DIR", "--state-dir", "directory for the journal of commands that change a tree, instead of ROOT/.ckpt, and for what 'ckpt watch' has seen; docs/guarding.md", parsers.path),
    Variable("CKPT_VERIFY_KEY", "--verify-key", "public key (PEM) whose owner must have signed every file, with 'ckpt seal --sign-key' or model_signing; needs ckpt-tools[sign]", parsers.path),
    Variable("CKPT_PLAN_DIR", "--plan-dir", "directory of decisions, outside ROOT; default: ~/.local/state/ckpt-tools/decisions. More than one node: one that all of them see", parsers.path),
    Variable("CKPT_JOB", "--job", "id of this start of the job, the same in all its processes and of no other start; default: the launcher's", parsers.text, in_file=False),
    Variable("CKPT_NODE", "--node", "index of this node, from 0; default: the launcher's", parsers.whole(0, parsers.MAX_RANK), in_file=False),
    Variable("CKPT_NODES", "--nodes", "number of nodes that start together; default: the launcher's", _SIZE),
    Variable("CKPT_TIMEOUT", "--timeout", "how long to wait for the other processes of the job; default: 10m", parsers.duration),
    Variable("CKPT_ALLOW_FRESH", "--allow-fresh", "start from nothing although none of the checkpoints that exist is usable, or files look like checkpoints, or an earlier start had some; not for scripts", parsers.flag),
    Variable("CKPT_REQUIRE_MOUNT", "--require-mount", "exit 5 unless ROOT lies on a file system of its own, mounted somewhere below /", parsers.flag),
    Variable("CKPT_VIEW", "--view", "build a tree of links there, outside ROOT, that holds the chosen checkpoint alone, as its framework wants it", parsers.path),
    Variable("CKPT_STAGE", "--stage", "bring the chosen checkpoint from its store to a directory below DIR first, verified as it comes, and start by the copies; docs/stores.md", parsers.path),
    Variable("CKPT_KEEP", "--keep", "of the checkpoints that were staged, keep this many, the most recently used, and remove others that nobody uses; default: all", parsers.whole(1)),
    Variable("CKPT_AGREE", "--agree", "every node has a disk of its own: agree on the newest checkpoint that each node has its ranks' parts of", parsers.flag),
    Variable("CKPT_RENDEZVOUS", "--rendezvous", "HOST:PORT where --agree meets: a free port of the first node; default: the launcher's", parsers.text),
    Variable("CKPT_SECRET_FILE", "--secret-file", "file with 32 random bytes or more that the nodes of a job have in common and nobody else: they know each other by it where they meet over TCP", parsers.path),
    Variable("CKPT_TRANSFER", "--transfer", "command that brings a file from another node: it gets the node, the path there and the target as three more words", parsers.text),
    Variable("CKPT_TRUST_GROUP", "--trust-group", "believe files and directories of orders (decisions, keys, configuration, lists of ranks) that a group may write, and let it write those that are made here; docs/hooks.md", parsers.flag, in_file=False),
    Variable("CKPT_TRUST_OWNER", "--trust-owner", "believe such files of these users too, by number, such as 1000,65534; repeat the flag for more", parsers.uids, in_file=False),
    Variable("CKPT_TRUST_DIR", "--trust-dir", "believe whatever lies below this directory, whoever may write there, such as a volume of this job alone; repeat the flag (or give one per line) for more", parsers.paths, in_file=False),
    Variable("CKPT_NO_PLUGINS", "--no-plugins", "leave out formats, layouts, manifests, outputs and launchers that other installed packages add (docs/plugins.md)", parsers.flag, in_file=False),
    Variable("CKPT_CONFIG", "--config", "configuration file; default: the nearest ckpt.toml, or pyproject.toml with [tool.ckpt], upward from the current directory", parsers.path, in_file=False),
    Variable("CKPT_CACHE_DIR", "", "directory of the verdicts of earlier runs; default: $XDG_CACHE_HOME/ckpt-tools, or ~/.cache/ckpt-tools", None),
    Variable("CKPT_PLAN", "", "the job's decision, as 'ckpt run' and 'ckpt hook' export it: 'ckpt latest' and 'ckpt hook --read' answer from it", None),
    Variable("CKPT_DEBUG", "", "1: print the traceback of an internal error", None),
    Variable("NO_COLOR", "", "any value: no colour (no-color.org)", None),
    Variable("FORCE_COLOR", "", "any value: colour even when the output is no terminal", None),
)
# fmt: on

BY_KEY: dict[str, Variable] = {v.key: v for v in ENV if v.parse}
SIZES = ("tp", "pp", "cp", "dp", "ep", "etp")


def trusted(flags: Mapping[str, object], env: Mapping[str, str]) -> Trust:
    """Whose orders count, by flags and variables: never by a file, which could vouch for itself."""

    def said(key: str, default: object) -> object:
        variable = BY_KEY[key]
        if raw := flags.get(key):
            return variable.value(raw, variable.flag)
        return variable.value(env[variable.name], variable.name) if env.get(variable.name) else default

    group, owners, places = (
        said("trust-group", False),
        said("trust-owner", frozenset()),
        said("trust-dir", ()),
    )
    return Trust(group is True, owners, places)  # type: ignore[arg-type]  # what their parsers return
