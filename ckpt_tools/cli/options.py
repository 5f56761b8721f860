"""The options of all commands, each declared once; settings.ENV has the meaning of each setting."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature
from itertools import chain
from typing import Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import api
from ckpt_tools.cli import console
from ckpt_tools.cli.output import Output, read_output, read_settings
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.output.json import Object, document
from ckpt_tools.settings import declarations, parsers, plugins
from ckpt_tools.settings import resolve as config
from ckpt_tools.settings.declarations import DECISION, OUTPUT

Offer = Callable[[], list[str]]


def words(*choices: str) -> Offer:
    return lambda: list(choices)


def layouts(ctx: typer.Context) -> list[str]:
    settings = read_settings({"layout": None, "config": ctx.params.get("config")}, Output("", quiet=True))
    return [layout.name for layout in settings.layouts or BUILT_IN]


def runs(ctx: typer.Context) -> list[str]:
    """Return the runs below the ROOT on the line, for a shell that completes it."""
    # a shell may take any other name for more than one word
    return sorted({c.run for c in _find_checkpoints(ctx) if re.fullmatch(r"[\w@%+=,./-]+", c.run, re.ASCII)})


def steps(ctx: typer.Context) -> list[str]:
    found = {c.step for c in _find_checkpoints(ctx) if c.step is not None}
    return [str(step) for step in sorted(found, reverse=True)]


def _find_checkpoints(ctx: typer.Context) -> tuple[Checkpoint, ...]:
    """Return the checkpoints below the ROOT on a line that a shell completes."""
    given = {name: ctx.params.get(name) for name in ("root", "store_option", "config")}
    given["root"] = given["root"] or next(iter(ctx.args), None)  # typer stops at a flag without its value
    if given["root"]:  # the shell has expanded nothing
        given["root"] = os.path.expandvars(os.path.expanduser(given["root"]))
    settings = read_settings(given, Output("", quiet=True))
    return api.scan(settings.root, settings.selection()).checkpoints


def formats() -> list[str]:
    from ckpt_tools.formats import FORMATS  # with those of plug-ins, once it is known which are used

    return [one.name for one in FORMATS]


_WORDS_OF_KEEP = ("last", "every", "within", "hourly", "daily", "weekly", "kind")
_STARTS = ("plan", "latest", "run", "hook", "stage")
RENAMED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "--all": ("--verbose", ("verify",)),
    "--explain": ("--verbose", _STARTS),
    "--remove": ("--undo", ("pin",)),
    "--restore": ("--undo", ("quarantine",)),
    "--ranks": ("--rank {}", ("stage",)),
    "--hook-timeout": ("--timeout {}", ("watch",)),
    "--max-duration": ("--budget {}", ("verify", "report")),
    "--metrics-file": ("--metrics {}", ("watch",)),
    "--metrics-port": ("--metrics {}", ("watch",)),
    **{f"--keep-{word}": (f"--keep {word}={{}}", ("prune",)) for word in _WORDS_OF_KEEP},
    "--keep-checkpoint-max": ("--keep last={}", ("prune",)),
    "--max-total": ("--keep total={}", ("prune",)),
}
"""By deprecated flag the words that replace it, in which {} is its value, and the commands that had it."""
_REPEATED = ("--keep", "--metrics", "--verbose", "--undo")
GOING: Mapping[str, str] = {
    "color": "set NO_COLOR=1 or FORCE_COLOR=1",
    "fail_on": "--strict for verify; of plan the fields 'warnings' and 'rejected' of --json say it",
    "also": "name all digests behind --digest, such as --digest xxh3,sha256",
    "tensors": "--digest xxh3,tensors",
    "metrics_address": "--metrics {}:PORT",
    **{v.key.replace("-", "_"): v.use for v in config.BY_KEY.values() if v.use},
}
"""By parameter of another deprecated flag what to do instead. All are accepted for one release."""


def rename_flags(command: str, args: Sequence[str]) -> list[str]:
    """Return a command's line with the words of RENAMED for its deprecated flags. Warn of each. Raise
    UsageError if the flag that replaces one has another value.
    """
    renamed, words = list[str](), iter(args)
    for word in words:
        old, mark, value = word.partition("=")
        new, commands = RENAMED.get(old, ("", ()))
        if word == "--":
            return [*renamed, word, *words]
        if command not in commands:
            renamed.append(word)
            continue
        if "{}" in new and not mark:
            value = next(words, "")
        new, flag = new.replace("{}", value), new.partition(" ")[0]
        if not {"-q", "--quiet"} & {*args}:
            console.warn_deprecated(old, new)
        if flag not in _REPEATED and any(f"{other}=".startswith(f"{flag}=") for other in args):
            raise UsageError(f"{old} {value} contradicts {flag}", f"use {new} alone")
        renamed += new.split(" ", 1)
    return renamed


def parameter(
    usage: str,
    help: str,
    panel: str | None = None,
    offer: Callable[..., Any] | None = None,
    *,
    name: str = "",
    required: bool = False,
    many: bool = False,
    hidden: bool = False,
) -> Parameter:
    """Return a parameter of a command from its ``usage``, such as "--output -o FILE", or "ROOT" for an
    argument. A flag without a value is a switch; one that can be given ``many`` times is a list of texts.
    """
    flags = [word for word in usage.split() if re.match("-+[a-z]", word)]
    metavar = " ".join(word for word in usage.split() if word not in flags)
    declare: Any = typer.Option if flags else typer.Argument
    about = declare(
        *flags,
        metavar=metavar,
        help=help,
        show_default=False,
        rich_help_panel=panel,
        autocompletion=offer,
        hidden=hidden,
    )
    kind: Any = bool if not metavar else list[str] if many else str
    default = False if kind is bool else Parameter.empty if required else None
    annotation: Any = Annotated[kind | None if default is None else kind, about]
    name = name or usage.split(maxsplit=1)[0].strip("-").replace("-", "_").lower()
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def paths(help: str, usage: str = "PATH") -> Parameter:
    """Return the argument of a command that is about one path or several."""
    return parameter(usage, help, name="paths", required=True, many=True)


_OFFERS: dict[str, Callable[..., Any]] = {
    "run": runs,
    "max-step": steps,
    "level": words(*map(str, Level)),
    "kind": words(*map(str, Kind)),
    "layout": layouts,
    "order": words("mtime", "step", "tracker"),
    "allow": words("none", "missing"),
}
_SEVERAL = ("exclude", "fault-ranks", "replica-groups", *config.WORDS)
"""Settings whose flags may be given several times."""


def _make_parameter(key: str, declared: config.Variable) -> Parameter:
    """Return the parameter of a setting. Values stay text: flags, variables and files are parsed alike."""
    value = "" if declared.parse is parsers.flag else declared.metavar or "VALUE"
    usage = "ROOT" if key == "root" else f"{declared.flag} {declared.short} {value}"
    variable = f" [{declared.name}]" if declared.exported else ""
    meaning = f"{declared.meaning[0].upper()}{declared.meaning[1:]}.{variable}"
    many = key in _SEVERAL or declared.parse in declarations.REPEATED
    return parameter(
        usage,
        "" if declared.use else meaning,
        declared.panel,
        _OFFERS.get(key),
        name=key.replace("-", "_"),
        many=many,
        hidden=bool(declared.use),
    )


_declared = (
    *(_make_parameter(key, v) for key, v in (config.BY_KEY | config.WORDS).items()),
    *(
        parameter(f"--{flag} VALUE", "", hidden=True)
        for flag in ("color", "fail-on", "also", "metrics-address")
    ),
    parameter("--tensors", "", hidden=True),
    parameter("--json", "Answer in JSON (docs/json.md)."),
    parameter("--apply", "Do it; without this the command only says what it would do."),
    parameter("--worker", "This is one rank: torchrun, msrun, srun or mpirun starts this command.", DECISION),
    parameter("--explain-bytes", "Also say of every byte what it is and what protects it.", OUTPUT),
    parameter("--format FORMAT", "Output format; an unknown name lists the formats of the command.", OUTPUT),
    parameter("--quiet -q", "No progress, warnings or notes on stderr.", OUTPUT),
    parameter("--verbose -v", "List everything, and say what led to the answer.", OUTPUT),
    parameter(
        "--output -o FILE", "Write the answer to FILE, whole or not at all; - is stdout.", name="output_file"
    ),
    parameter(
        "--root DIR",
        "Directory of the run, whose .ckpt is used; default: PATH, or the one that it lies in.",
        name="home",
    ),
    parameter(
        "--progress auto|bar|json|none",
        "Progress on stderr: a bar (by default only on a terminal), or a JSON object per line.",
        OUTPUT,
        words("auto", "bar", "json", "none"),
        name="progress_as",
    ),
)
SHARED = {p.name: p for p in _declared}
"""By name the parameters that several commands have, and all deprecated flags."""

PRINT = "output_file format json quiet verbose color"
TRUST = "trust config trust_group trust_owner trust_dir no_plugins"
TREE = f"{TRUST} {PRINT}"
SELECTION = f"""
root rank world_size run max_step level strict allow json
kind layout exclude order save_interval fault_ranks replica_groups strategy_dir parallel
no_fallback settle require_seal jobs limit_rate budget no_cache
plan_dir format progress_as quiet verbose
{TRUST} allow_none allow_missing allow_fresh skip_unreadable prefix resume_from prefer same_save fault_file
replicas prove_replicas tp pp cp dp ep etp rank_order max_attempts verify_key io max_age key_file store_option
trust_global seal_dir require color
"""
"""The parameters of every command that chooses a checkpoint."""
JOB = "job timeout require_mount view agree meet node nodes rendezvous"
"""Further parameters of commands that decide for a job."""
STAGE = "stage keep"
"""Further parameters of a command that may copy the checkpoint from a store to this machine first."""


class Asked(Struct, frozen=True):
    """One command line: how to answer, the settings, and all its parameters by name."""

    to: Output
    settings: config.Settings
    given: Mapping[str, Any]

    @property
    def selection(self) -> Selection:
        """Return which checkpoint to choose; a job, which waits, reads for 60 s unless --budget says else."""
        selection = self.settings.selection(cache=True)
        if "job" in self.given and selection.budget is None:
            return replace(selection, budget=60.0)
        return selection

    @property
    def job(self) -> dict[str, Any]:
        return self.settings.select(f"plan_dir resume_args {JOB} {STAGE}".split())

    @property
    def resume_args(self) -> tuple[str, ...]:
        return tuple(self.settings.values.get("resume-args", ()))

    @property
    def state_dir(self) -> str | None:
        return self.settings.values.get("state-dir")

    def answer(self, module: str, result: Any) -> int:
        """Write the result with ``json`` or ``render`` of ckpt_tools/output/``module``.py. Return 0."""
        to, emit = self.to, import_module(f"ckpt_tools.output.{module}")
        to.out(emit.json(result) if to.format == "json" else emit.render(result, to.view))
        return 0

    def catalogue(self, name: str, entries: Sequence[Object], text: str, **more: object) -> int:
        """Write a list of what ckpt knows: ``entries`` as JSON, or the text for people. Return 0."""
        self.to.out(document(name, {name: list(entries), **more}) if self.to.format == "json" else text)
        return 0


def ask(
    formats: Sequence[str],
    *options: str | Parameter,
    trees_in: str = "",
    document: str = "",
    reads_settings: bool = True,
) -> Callable[[Callable[[Asked], int]], Callable[..., int]]:
    """Return a decorator that gives a command its parameters (``options``; a text has names of SHARED) and
    passes it an Asked. ``trees_in`` names the parameters with scanned trees.
    """
    declared = [[o] if isinstance(o, Parameter) else [SHARED[name] for name in o.split()] for o in options]
    parameters = {p.name: p for p in chain.from_iterable(declared)}
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}

    def decorate(function: Callable[[Asked], int]) -> Callable[..., int]:
        @wraps(function)
        def command(**said: Any) -> int:
            given = defaults | said
            if not given.get("quiet"):
                for name in [name for name in GOING if given.get(name)]:
                    values = given[name] if isinstance(given[name], list) else [given[name]]
                    use = declarations.fill(GOING[name], [str(value) for value in values])
                    console.warn_deprecated(f"--{name.replace('_', '-')}", use)
            if "directory" in given and given["rank"] and not given["rank"].isdecimal():  # 0-7
                given |= {"rank": None, "ranks": given["rank"]}
            if "no_plugins" in given:
                plugins.switch(given["no_plugins"] or None)
            to = read_output(formats, given, document)
            trees = [given[name] or "." for name in trees_in.split()]
            roots = tuple(root for tree in trees for root in (tree if isinstance(tree, list) else [tree]))
            settings = read_settings(given, to, roots) if reads_settings else config.Settings({}, {})
            return function(Asked(to, settings, given))

        command.__signature__ = Signature([*parameters.values()])  # type: ignore[attr-defined]
        command.__annotations__ = {name: p.annotation for name, p in parameters.items()}
        return command

    return decorate
