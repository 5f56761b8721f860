"""The options of all commands, each declared once; settings.ENV says what the settings among them mean."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.cli import console
from ckpt_tools.cli.output import Output, requested
from ckpt_tools.cli.words import Argument, from_annotations, option
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings import plugins
from ckpt_tools.settings import resolve as config
from ckpt_tools.storage.urls import absolute, is_url

if TYPE_CHECKING:
    from ckpt_tools.layouts import Layouts


def _setting(key: str, metavar: str, *short: str) -> Any:
    """An option for a setting. Its value stays text here: flags, variables and files are all read by the same
    parser.
    """
    variable = config.BY_KEY[key]
    return option(variable.flag, *short, metavar=metavar, help=_help(variable))


def _switch(key: str) -> Any:
    variable = config.BY_KEY[key]
    return option(variable.flag, help=_help(variable))


def _help(variable: config.Variable) -> str:
    return f"{variable.meaning[0].upper()}{variable.meaning[1:]}. [{variable.name}]"


Root = Annotated[str | None, Argument("ROOT", _help(config.BY_KEY["root"]))]

Rank = Annotated[str | None, _setting("rank", "N")]
WorldSize = Annotated[str | None, _setting("world-size", "N")]
Level = Annotated[str | None, _setting("level", "LEVEL")]
KeyFile = Annotated[str | None, _setting("key-file", "FILE")]
Jobs = Annotated[str | None, _setting("jobs", "N", "-j")]
Io = Annotated[str | None, _setting("io", "auto|pread|mmap|direct")]
LimitRate = Annotated[str | None, _setting("limit-rate", "SIZE")]
Sample = Annotated[str | None, _setting("sample", "N/T|P%|SIZE")]
MaxDuration = Annotated[str | None, _setting("max-duration", "TIME")]
Scheduler = Annotated[str | None, _setting("scheduler", "ADDRESS")]
Order = Annotated[str | None, _setting("order", "mtime|step")]
ResumeFrom = Annotated[str | None, _setting("resume-from", "tracker|mtime|step")]
Prefer = Annotated[str | None, _setting("prefer", "KIND")]
ProveReplicas = Annotated[bool, _switch("prove-replicas")]
Kind = Annotated[str | None, _setting("kind", "KIND")]
Layout = Annotated[str | None, _setting("layout", "NAME")]
Run = Annotated[str | None, _setting("run", "RUN")]
Prefix = Annotated[str | None, _setting("prefix", "TEXT")]
SameSave = Annotated[list[str] | None, _setting("same-save", "PATH")]
Exclude = Annotated[list[str] | None, _setting("exclude", "GLOB")]
TrustGlobal = Annotated[list[str] | None, _setting("trust-global", "PATTERN")]
StoreOption = Annotated[list[str] | None, _setting("store-option", "KEY=VALUE")]
MaxStep = Annotated[str | None, _setting("max-step", "N")]
SaveInterval = Annotated[str | None, _setting("save-interval", "N")]
FaultRanks = Annotated[str | None, _setting("fault-ranks", "RANKS")]
FaultFile = Annotated[str | None, _setting("fault-file", "FILE")]
ReplicaGroups = Annotated[list[str] | None, _setting("replica-groups", "GROUPS")]
Replicas = Annotated[str | None, _setting("replicas", "all")]
StrategyDir = Annotated[str | None, _setting("strategy-dir", "DIR")]
Tp = Annotated[str | None, _setting("tp", "N")]
Pp = Annotated[str | None, _setting("pp", "N")]
Cp = Annotated[str | None, _setting("cp", "N")]
Dp = Annotated[str | None, _setting("dp", "N")]
Ep = Annotated[str | None, _setting("ep", "N")]
Etp = Annotated[str | None, _setting("etp", "N")]
RankOrder = Annotated[str | None, _setting("rank-order", "AXES")]
Require = Annotated[str | None, _setting("require", "KEYS")]
MaxAttempts = Annotated[str | None, _setting("max-attempts", "N")]
Settle = Annotated[str | None, _setting("settle", "TIME")]
Budget = Annotated[str | None, _setting("budget", "TIME")]
MaxAge = Annotated[str | None, _setting("max-age", "TIME")]
NoCache = Annotated[bool, _switch("no-cache")]
ExplainBytes = Annotated[
    bool,
    option("--explain-bytes", help="Also say of every byte what it is and what protects it."),
]
Explain = Annotated[
    bool,
    option(
        "--explain",
        help=(
            "Explain the choice: candidates and why each lost, substitutes and their proof, what was unseen."
        ),
    ),
]
Strict = Annotated[bool, _switch("strict")]
AllowNone = Annotated[bool, _switch("allow-none")]
AllowMissing = Annotated[bool, _switch("allow-missing")]
AllowFresh = Annotated[bool, _switch("allow-fresh")]
PlanDir = Annotated[str | None, _setting("plan-dir", "DIR")]
RequireSeal = Annotated[bool, _switch("require-seal")]
VerifyKey = Annotated[str | None, _setting("verify-key", "FILE")]
SealDir = Annotated[str | None, _setting("seal-dir", "DIR")]
StateDir = Annotated[str | None, _setting("state-dir", "DIR")]
NoFallback = Annotated[bool, _switch("no-fallback")]
SkipUnreadable = Annotated[bool, _switch("skip-unreadable")]
TrustGroup = Annotated[bool, _switch("trust-group")]
TrustOwner = Annotated[list[str] | None, _setting("trust-owner", "UID")]
TrustDir = Annotated[list[str] | None, _setting("trust-dir", "DIR")]
NoPlugins = Annotated[bool, _switch("no-plugins")]
Config = Annotated[str | None, _setting("config", "FILE")]

HOOK_BUDGET = 60.0
"""Seconds that a command which decides for a job reads contents, unless --budget says otherwise: the job
waits.
"""

History = Annotated[
    bool,
    option("--history", help="List instead what earlier starts resumed from, and what was lost."),
]
FailOn = Annotated[
    str | None,
    option(
        "--fail-on",
        metavar="error|warning",
        help="With warning: exit 1 for a warning too; the answer stays the same.",
    ),
]
Apply = Annotated[
    bool,
    option("--apply", help="Do it; without this the command only says what it would do."),
]
OutputFile = Annotated[
    str | None,
    option(
        "--output", "-o", metavar="FILE", help="Write the answer to FILE, whole or not at all; - is stdout."
    ),
]
ProgressAs = Annotated[
    str | None,
    option(
        "--progress",
        metavar="auto|bar|json|none",
        help="Progress on stderr: a bar (by default only on a terminal), or a JSON object per line.",
    ),
]
Format = Annotated[
    str | None,
    option(
        "--format", metavar="FORMAT", help="Output format; an unknown name lists the formats of the command."
    ),
]
Json = Annotated[bool, option("--json", help="The same as --format json.")]
Quiet = Annotated[bool, option("--quiet", "-q", help="No progress, warnings or notes on stderr.")]
Verbose = Annotated[
    bool,
    option("--verbose", "-v", help="List everything, and say what led to the answer."),
]
Color = Annotated[
    str | None,
    option(
        "--color",
        metavar="auto|always|never",
        help="When to use colour; NO_COLOR and FORCE_COLOR are honoured.",
    ),
]


_SELECTION: dict[str, Any] = {
    "root": Root,
    "rank": Rank,
    "world_size": WorldSize,
    "order": Order,
    "resume_from": ResumeFrom,
    "prefer": Prefer,
    "kind": Kind,
    "layout": Layout,
    "run": Run,
    "prefix": Prefix,
    "exclude": Exclude,
    "same_save": SameSave,
    "trust_global": TrustGlobal,
    "store_option": StoreOption,
    "max_step": MaxStep,
    "level": Level,
    "key_file": KeyFile,
    "require": Require,
    "require_seal": RequireSeal,
    "seal_dir": SealDir,
    "verify_key": VerifyKey,
    "fault_ranks": FaultRanks,
    "fault_file": FaultFile,
    "replica_groups": ReplicaGroups,
    "replicas": Replicas,
    "prove_replicas": ProveReplicas,
    "strategy_dir": StrategyDir,
    "tp": Tp,
    "pp": Pp,
    "cp": Cp,
    "dp": Dp,
    "ep": Ep,
    "etp": Etp,
    "rank_order": RankOrder,
    "save_interval": SaveInterval,
    "max_attempts": MaxAttempts,
    "settle": Settle,
    "budget": Budget,
    "max_age": MaxAge,
    "no_cache": NoCache,
    "allow_none": AllowNone,
    "allow_missing": AllowMissing,
    "allow_fresh": AllowFresh,
    "plan_dir": PlanDir,
    "trust_group": TrustGroup,
    "trust_owner": TrustOwner,
    "trust_dir": TrustDir,
    "no_fallback": NoFallback,
    "skip_unreadable": SkipUnreadable,
    "strict": Strict,
    "no_plugins": NoPlugins,
    "explain": Explain,
    "jobs": Jobs,
    "io": Io,
    "limit_rate": LimitRate,
    "format": Format,
    "json": Json,
    "progress_as": ProgressAs,
    "quiet": Quiet,
    "verbose": Verbose,
    "color": Color,
    "config": Config,
}
"""The flags of every command that chooses, by parameter."""

JOB: dict[str, Any] = {
    "job": Annotated[str | None, _setting("job", "ID")],
    "node": Annotated[str | None, _setting("node", "N")],
    "nodes": Annotated[str | None, _setting("nodes", "N")],
    "timeout": Annotated[str | None, _setting("timeout", "TIME")],
    "require_mount": Annotated[bool, _switch("require-mount")],
    "view": Annotated[str | None, _setting("view", "DIR")],
    "agree": Annotated[bool, _switch("agree")],
    "meet": Annotated[str | None, _setting("meet", "DIR")],
    "rendezvous": Annotated[str | None, _setting("rendezvous", "HOST:PORT")],
}
"""The flags of commands that decide for a job, by parameter."""

TOLD: dict[str, Any] = {"resume_args": Annotated[str | None, _setting("resume-args", "ARGS")]}
"""The flag of commands that say what a job's command is told."""

STAGE: dict[str, Any] = {
    "stage": Annotated[str | None, _setting("stage", "DIR")],
    "keep": Annotated[str | None, _setting("keep", "N")],
}
"""The flags of a command that may bring a checkpoint to this machine first."""


def settings(given: Mapping[str, Any], to: Output, roots: tuple[str, ...] = ()) -> config.Settings:
    """The settings among a command's options, completed from variables and the configuration file."""
    flags = {key: value for name, value in given.items() if (key := name.replace("_", "-")) in config.BY_KEY}
    found = config.resolve(flags, roots)
    _configure(found)
    if "no-plugins" in flags:
        plugins.switch(found.values.get("no-plugins"))
    if not to.quiet:
        for note in found.notes:
            console.problem("note", note)
        if found.refused:
            console.problem("warning", str(found.refused), found.refused.hint)
    if found.layout_tables is not None:
        found = replace(found, layouts=_own_layouts(found))
    if to.verbose and found.file:
        console.problem("note", f"configuration from {found.file}")
    return found


def _configure(found: config.Settings) -> None:
    """Tell how stores are opened, also where that is no more as an earlier command of this process said."""
    if found.stores is not None or "ckpt_tools.storage.stores.mounts" in sys.modules:
        from ckpt_tools.model.stores import StoreOptions
        from ckpt_tools.storage.stores import mounts

        mounts.forget()
        mounts.configure(found.stores or StoreOptions())


def on_this_machine(paths: Sequence[str], why: str, instead: str) -> None:
    """Raises UsageError where one of the paths lies in a store, which cannot do what a command does:
    ``instead`` is what can be done.
    """
    for path in paths:
        if is_url(absolute(path)):
            raise UsageError(f"{path} lies in a store: {why}", instead)


DOWNLOAD = "download it (aws s3 sync, gcloud storage rsync, azcopy, rclone), change the copy, and upload that"
RENAMES = "this command moves and replaces files by renames, which stores do not have"


def home_of(paths: Sequence[str], *, whole: bool = False) -> str:
    """The directory that all paths lie in; with ``whole`` the lone path itself."""
    named = [absolute(path) for path in paths]
    if whole:
        if len(paths) > 1:
            raise UsageError("--damaged takes one directory", "call it once for each")
        return named[0]
    homes = {path.partition("/.ckpt/")[0] if "/.ckpt/" in path else os.path.dirname(path) for path in named}
    if len(homes) > 1:
        raise UsageError(f"these lie in several directories: {', '.join(sorted(homes))}", "say --root DIR")
    return homes.pop()


def _own_layouts(found: config.Settings) -> Layouts:
    from ckpt_tools.formats import names
    from ckpt_tools.layouts import user

    try:
        return user.load(found.layout_tables, names.order)
    except ValueError as e:
        hint = "'ckpt layouts --check ROOT' shows what each template matches"
        raise UsageError(f"{found.file}: {e}", hint) from e


class Request(Struct, frozen=True):
    """What ``latest``, ``plan``, ``run`` and ``hook`` are to do. ``rooted``: ROOT was named, ``ranked``: the
    rank was. ``job`` holds the settings about the job that decides, ``given`` the command's own parameters.
    ``resume_args`` are those that the user wants for the command.
    """

    root: str
    selection: Selection
    output: Output
    explain: bool = False
    rooted: bool = False
    ranked: bool = False
    job: Mapping[str, Any] = field(default_factory=dict)
    resume_args: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)


def choosing(
    *formats: str, document: str = "", **more: Any
) -> Callable[[Callable[[Request], int]], Callable[..., int]]:
    """Make a command of a function that answers a request. It takes the flags of every command that chooses,
    and those in ``more``, by parameter; the first format is its default. One that answers with a ``document``
    has the formats of the registry too.
    """
    parameters = from_annotations({**_SELECTION, **more})

    def decorate(answer: Callable[[Request], int]) -> Callable[..., int]:
        def command(**given: Any) -> int:
            return answer(_request(formats, document, more, given))

        command.parameters = parameters  # type: ignore[attr-defined]
        command.__doc__ = answer.__doc__
        return command

    return decorate


def _request(
    formats: Sequence[str], document: str, more: Collection[str], given: Mapping[str, Any]
) -> Request:
    to = requested(formats, given, document)
    found = settings(given, to)
    selection = replace(found.selection(), cache=not found.values.get("no-cache", False))
    if JOB.keys() & set(more) and selection.budget is None:
        selection = replace(selection, budget=HOOK_BUDGET)
    return Request(
        found.root,
        selection,
        to,
        explain=given["explain"],
        rooted="root" in found.origins,
        ranked=given["rank"] is not None,
        job=found.named({*more, "plan_dir"} - TOLD.keys()),
        resume_args=found.values.get("resume-args", ()),
        given={name: given.get(name) for name in more},
    )
