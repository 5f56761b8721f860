"""The options of all commands, each declared once; settings.ENV says what the settings among them mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.cli import console, offers
from ckpt_tools.cli.given import read_settings
from ckpt_tools.cli.output import Output, requested
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings import resolve as config
from ckpt_tools.storage.urls import absolute, is_url

GOING = {
    "same_save": "leave it out: it has no effect",
    "prove_replicas": "set CKPT_PROVE_REPLICAS=1, or prove-replicas in ckpt.toml",
    "color": "set NO_COLOR=1 or FORCE_COLOR=1",
    "all": "use --verbose",
    "also": "name all digests behind --digest, such as --digest xxh3,sha256",
    "keep_checkpoint_max": "use --keep-last",
    "keep_checkpoint_per_n_minutes": "use --keep-per-minutes",
}
"""Flags that are accepted for one release, and not shown: by parameter, what to do instead."""


def option(
    *names: str,
    help: str,
    metavar: str = "",
    panel: str | None = None,
    offer: Callable[..., Any] | None = None,
) -> Any:
    """Return what typer is told of a flag, which takes no value without a ``metavar``. Flags without a panel
    stand in the first one.
    """
    return typer.Option(
        *names,
        metavar=metavar,
        help=help,
        show_default=False,
        rich_help_panel=panel,
        autocompletion=offer,
        hidden=names[0].lstrip("-").replace("-", "_") in GOING,
    )


def argument(metavar: str, help: str, offer: Callable[..., Any] | None = None) -> Any:
    """Return what typer is told of a word that is known by its place."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=offer)


def _setting(key: str, *short: str, panel: str | None = None, **more: Any) -> Any:
    """Return what typer is told of the flag of a setting. Its value stays text here: one parser reads
    flags, variables and files.
    """
    variable = config.BY_KEY[key]
    return option(variable.flag, *short, help=_help(variable), panel=panel, **more)


def _help(variable: config.Variable) -> str:
    return f"{variable.meaning[0].upper()}{variable.meaning[1:]}. [{variable.name}]"


_WHICH = "Which checkpoint"
_REPLICAS = "Failed devices and replicas"
_ACCEPTED = "What is accepted"
_READING = "Reading"
_JOB = "One decision per job"
_TRUST = "Whom to trust"
_OUTPUT = "Output"

_TEXT: dict[str, Any] = {
    "rank": _setting("rank", metavar="N"),
    "world_size": _setting("world-size", metavar="N"),
    "run": _setting("run", metavar="RUN", offer=offers.runs),
    "max_step": _setting("max-step", metavar="N", offer=offers.steps),
    "level": _setting("level", metavar="LEVEL", offer=offers.levels),
    "resume_args": _setting("resume-args", metavar="ARGS"),
    "fail_on": option(
        "--fail-on",
        metavar="error|warning",
        help="With warning: exit 1 for a warning too; the answer stays the same.",
        panel=_ACCEPTED,
        offer=offers.words("error", "warning"),
    ),
    "output_file": option(
        "--output", "-o", metavar="FILE", help="Write the answer to FILE, whole or not at all; - is stdout."
    ),
    "kind": _setting("kind", metavar="KIND", panel=_WHICH, offer=offers.kinds),
    "layout": _setting("layout", metavar="NAME", panel=_WHICH, offer=offers.layouts),
    "prefix": _setting("prefix", metavar="TEXT", panel=_WHICH),
    "order": _setting("order", metavar="mtime|step", panel=_WHICH, offer=offers.words("mtime", "step")),
    "resume_from": _setting(
        "resume-from",
        metavar="tracker|mtime|step",
        panel=_WHICH,
        offer=offers.words("tracker", "mtime", "step"),
    ),
    "prefer": _setting("prefer", metavar="KIND", panel=_WHICH, offer=offers.kinds),
    "save_interval": _setting("save-interval", metavar="N", panel=_WHICH),
    "require": _setting("require", metavar="KEYS", panel=_WHICH),
    "fault_ranks": _setting("fault-ranks", metavar="RANKS", panel=_REPLICAS),
    "fault_file": _setting("fault-file", metavar="FILE", panel=_REPLICAS),
    "replicas": _setting("replicas", metavar="all", panel=_REPLICAS, offer=offers.words("all")),
    "strategy_dir": _setting("strategy-dir", metavar="DIR", panel=_REPLICAS),
    **{size: _setting(size, metavar="N", panel=_REPLICAS) for size in config.SIZES},
    "rank_order": _setting("rank-order", metavar="AXES", panel=_REPLICAS),
    "max_attempts": _setting("max-attempts", metavar="N", panel=_ACCEPTED),
    "settle": _setting("settle", metavar="TIME", panel=_ACCEPTED),
    "verify_key": _setting("verify-key", metavar="FILE", panel=_ACCEPTED),
    "seal_dir": _setting("seal-dir", metavar="DIR", panel=_ACCEPTED),
    "jobs": _setting("jobs", "-j", metavar="N", panel=_READING),
    "io": _setting(
        "io",
        metavar="auto|direct",
        panel=_READING,
        offer=offers.words("auto", "direct"),
    ),
    "limit_rate": _setting("limit-rate", metavar="SIZE", panel=_READING),
    "budget": _setting("budget", metavar="TIME", panel=_READING),
    "sample": _setting("sample", metavar="N/T|P%|SIZE", panel=_READING),
    "max_duration": _setting("max-duration", metavar="TIME", panel=_READING),
    "scheduler": _setting("scheduler", metavar="ADDRESS", panel=_READING),
    "max_age": _setting("max-age", metavar="TIME", panel=_READING),
    "key_file": _setting("key-file", metavar="FILE", panel=_READING),
    "plan_dir": _setting("plan-dir", metavar="DIR", panel=_JOB),
    "job": _setting("job", metavar="ID", panel=_JOB),
    "node": _setting("node", metavar="N", panel=_JOB),
    "nodes": _setting("nodes", metavar="N", panel=_JOB),
    "timeout": _setting("timeout", metavar="TIME", panel=_JOB),
    "view": _setting("view", metavar="DIR", panel=_JOB),
    "stage": _setting("stage", metavar="DIR", panel=_JOB),
    "keep": _setting("keep", metavar="N", panel=_JOB),
    "rendezvous": _setting("rendezvous", metavar="HOST:PORT", panel=_JOB),
    "meet": _setting("meet", metavar="DIR", panel=_JOB),
    "state_dir": _setting("state-dir", metavar="DIR", panel=_ACCEPTED),
    "config": _setting("config", metavar="FILE", panel=_TRUST),
    "format": option(
        "--format",
        metavar="FORMAT",
        help="Output format; an unknown name lists the formats of the command.",
        panel=_OUTPUT,
    ),
    "progress_as": option(
        "--progress",
        metavar="auto|bar|json|none",
        help="Progress on stderr: a bar (by default only on a terminal), or a JSON object per line.",
        panel=_OUTPUT,
        offer=offers.words("auto", "bar", "json", "none"),
    ),
    "color": option(
        "--color",
        metavar="auto|always|never",
        help="When to use colour; NO_COLOR and FORCE_COLOR are honoured.",
        panel=_OUTPUT,
        offer=offers.words("auto", "always", "never"),
    ),
}
_TEXTS: dict[str, Any] = {
    "exclude": _setting("exclude", metavar="GLOB", panel=_WHICH),
    "same_save": _setting("same-save", metavar="PATH", panel=_WHICH),
    "replica_groups": _setting("replica-groups", metavar="GROUPS", panel=_REPLICAS),
    "store_option": _setting("store-option", metavar="KEY=VALUE", panel=_READING),
    "trust_global": _setting("trust-global", metavar="PATTERN", panel=_TRUST),
    "trust_owner": _setting("trust-owner", metavar="UID", panel=_TRUST),
    "trust_dir": _setting("trust-dir", metavar="DIR", panel=_TRUST),
}
_SWITCH: dict[str, Any] = {
    "strict": _setting("strict"),
    "allow_none": _setting("allow-none"),
    "explain": option(
        "--explain",
        help="Explain the choice: why each candidate lost, substitutes and their proof, what was unseen.",
    ),
    "json": option("--json", help="The same as --format json."),
    "apply": option("--apply", help="Do it; without this the command only says what it would do."),
    "history": option(
        "--history", help="List instead what earlier starts resumed from, and what was lost.", panel=_OUTPUT
    ),
    "prove_replicas": _setting("prove-replicas", panel=_REPLICAS),
    "no_fallback": _setting("no-fallback", panel=_ACCEPTED),
    "require_seal": _setting("require-seal", panel=_ACCEPTED),
    "allow_missing": _setting("allow-missing", panel=_ACCEPTED),
    "allow_fresh": _setting("allow-fresh", panel=_ACCEPTED),
    "skip_unreadable": _setting("skip-unreadable", panel=_ACCEPTED),
    "no_cache": _setting("no-cache", panel=_READING),
    "require_mount": _setting("require-mount", panel=_JOB),
    "agree": _setting("agree", panel=_JOB),
    "trust_group": _setting("trust-group", panel=_TRUST),
    "no_plugins": _setting("no-plugins", panel=_TRUST),
    "worker": option(
        "--worker",
        help="This is one rank: torchrun, msrun, srun or mpirun starts this command.",
        panel=_JOB,
    ),
    "explain_bytes": option(
        "--explain-bytes", help="Also say of every byte what it is and what protects it.", panel=_OUTPUT
    ),
    "quiet": option("--quiet", "-q", help="No progress, warnings or notes on stderr.", panel=_OUTPUT),
    "verbose": option(
        "--verbose", "-v", help="List everything, and say what led to the answer.", panel=_OUTPUT
    ),
}


def own(name: str, kind: Any, told: Any, default: Any = None) -> Parameter:
    """Return a parameter as typer looks at it; ``...`` is the default of one that must be given."""
    default = Parameter.empty if default is ... else default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, told])


SHARED: dict[str, Parameter] = {
    name: own(name, kind, told, default)
    for kind, default, all_told in (
        (str | None, None, {"root": argument("ROOT", _help(config.BY_KEY["root"])), **_TEXT}),
        (list[str] | None, None, _TEXTS),
        (bool, False, _SWITCH),
    )
    for name, told in all_told.items()
}
"""Each parameter that more than one command has, declared once."""

PRINT = "output_file format json quiet verbose color"
TRUST = "trust_group trust_owner trust_dir no_plugins config"
SELECTION = f"""
root rank world_size run max_step level strict allow_none explain json
kind layout prefix exclude order resume_from prefer same_save save_interval require
fault_ranks fault_file replica_groups replicas prove_replicas strategy_dir tp pp cp dp ep etp rank_order
no_fallback max_attempts settle require_seal seal_dir verify_key allow_missing allow_fresh skip_unreadable
jobs io limit_rate budget max_age no_cache key_file store_option
plan_dir {TRUST} trust_global format progress_as quiet verbose color
"""
"""The parameters of every command that chooses."""
JOB = "job node nodes timeout require_mount view agree meet rendezvous"
"""Those of commands that decide for a job."""
STAGE = "stage keep"
"""Those of a command that may bring a checkpoint to this machine first."""


def taking(*names: str, **table: Parameter) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Let a command take shared parameters and those of a ``table`` besides its own, in ``given``."""

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        own = signature(function, eval_str=True).parameters.values()
        shared = [SHARED[name] for name in " ".join(names).split()]
        return _taking(function, [*(p for p in own if p.kind is not p.VAR_KEYWORD), *table.values(), *shared])

    return decorate


def _taking(function: Callable[..., int], parameters: Sequence[Parameter]) -> Callable[..., int]:
    """Return the function with these parameters, as typer looks at them."""

    @wraps(function)
    def command(**given: Any) -> int:
        for name, instead in GOING.items():
            if given.get(name) and not given.get("quiet"):
                flag = f"--{name.replace('_', '-')}"
                console.problem("warning", f"{flag} is accepted until the next release", instead)
        return function(**{**defaults, **given})

    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


HOOK_BUDGET = 60.0
"""Seconds that a command which decides for a job reads contents, unless --budget says otherwise: the job
waits.
"""


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
    *formats: str, takes: str = "", document: str = "", **own: Parameter
) -> Callable[[Callable[[Request], int]], Callable[..., int]]:
    """Make a command of a function that answers a request. It takes the flags of every command that chooses,
    the shared ones that ``takes`` names, and its ``own``; the first format is its default. One that answers
    with a ``document`` has the formats of the registry too.
    """
    more = {name: SHARED[name] for name in takes.split()} | own

    def decorate(answer: Callable[[Request], int]) -> Callable[..., int]:
        def command(**given: Any) -> int:
            return answer(_request(formats, document, more, given))

        command.__doc__ = answer.__doc__
        return _taking(command, [*(SHARED[name] for name in SELECTION.split()), *more.values()])

    return decorate


def _request(
    formats: Sequence[str], document: str, more: Collection[str], given: Mapping[str, Any]
) -> Request:
    to = requested(formats, given, document)
    found = read_settings(given, to)
    selection = replace(found.selection(), cache=not found.values.get("no-cache", False))
    if "job" in more and selection.budget is None:
        selection = replace(selection, budget=HOOK_BUDGET)
    return Request(
        found.root,
        selection,
        to,
        explain=given["explain"],
        rooted="root" in found.origins,
        ranked=given["rank"] is not None,
        job=found.named({*more, "plan_dir"} - {"resume_args"}),
        resume_args=found.values.get("resume-args", ()),
        given={name: given.get(name) for name in more},
    )
