"""The options of all commands, each declared once; config.ENV says what the settings among them mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any

import typer

from ckpt_tools.cli import console
from ckpt_tools.cli.output import Output
from ckpt_tools.cli.output import asked as output
from ckpt_tools.errors import UsageError
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings import resolve as config


def _setting(key: str, metavar: str, *short: str) -> Any:
    """An option for a setting. Its value stays text here: flags, variables and files are all read by the same
    parser.
    """
    variable = config.BY_KEY[key]
    return typer.Option(variable.flag, *short, metavar=metavar, help=_help(variable), show_default=False)


def _switch(key: str) -> Any:
    variable = config.BY_KEY[key]
    return typer.Option(variable.flag, help=_help(variable), show_default=False)


def _help(variable: config.Variable) -> str:
    return f"{variable.meaning[0].upper()}{variable.meaning[1:]}. [{variable.name}]"


Root = Annotated[
    str | None, typer.Argument(metavar="ROOT", help=_help(config.BY_KEY["root"]), show_default=False)
]

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
    typer.Option(
        "--explain-bytes", help="Also map every byte to what it is and what protects it.", show_default=False
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help=(
            "Tell the story: candidates, why each lost, substitutes and their proof, what was not looked at."
        ),
        show_default=False,
    ),
]
Strict = Annotated[bool, _switch("strict")]
AllowNone = Annotated[bool, _switch("allow-none")]
AllowMissing = Annotated[bool, _switch("allow-missing")]
AllowFresh = Annotated[bool, _switch("allow-fresh")]
PlanDir = Annotated[str | None, _setting("plan-dir", "DIR")]
NoFallback = Annotated[bool, _switch("no-fallback")]
SkipUnreadable = Annotated[bool, _switch("skip-unreadable")]
TrustGroup = Annotated[bool, _switch("trust-group")]
TrustOwner = Annotated[list[str] | None, _setting("trust-owner", "UID")]
TrustDir = Annotated[list[str] | None, _setting("trust-dir", "DIR")]
Config = Annotated[str | None, _setting("config", "FILE")]

HOOK_BUDGET = 60.0
"""Seconds that a command which decides for a job reads contents, unless --budget says otherwise: the job
waits.
"""

JOB: dict[str, Any] = {
    "job": (Annotated[str | None, _setting("job", "ID")], None),
    "node": (Annotated[str | None, _setting("node", "N")], None),
    "nodes": (Annotated[str | None, _setting("nodes", "N")], None),
    "timeout": (Annotated[str | None, _setting("timeout", "TIME")], None),
    "require_mount": (Annotated[bool, _switch("require-mount")], False),
    "view": (Annotated[str | None, _setting("view", "DIR")], None),
    "agree": (Annotated[bool, _switch("agree")], False),
    "rendezvous": (Annotated[str | None, _setting("rendezvous", "HOST:PORT")], None),
    "secret_file": (Annotated[str | None, _setting("secret-file", "FILE")], None),
    "transfer": (Annotated[str | None, _setting("transfer", "COMMAND")], None),
}
"""The options of commands that decide for a job, by parameter: (type, default)."""

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Output format; an unknown one lists those of the command.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.", show_default=False)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, warnings or notes on stderr.", show_default=False)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="List everything, and say what led to the answer.", show_default=False
    ),
]
Color = Annotated[
    str | None,
    typer.Option(
        "--color",
        metavar="auto|always|never",
        help="Colour; NO_COLOR and FORCE_COLOR are honoured.",
        show_default=False,
    ),
]


def settings(given: Mapping[str, Any], to: Output, roots: tuple[str, ...] = ()) -> config.Settings:
    """The settings among a command's options, completed from variables and the configuration file."""
    flags = {key: value for name, value in given.items() if (key := name.replace("_", "-")) in config.BY_KEY}
    found = config.resolve(flags, roots)
    if not to.quiet:
        for note in found.notes:
            console.problem("note", note)
        if found.refused:
            console.problem("warning", str(found.refused), found.refused.hint)
    if found.layout_tables is not None:
        from ckpt_tools.formats import names
        from ckpt_tools.layouts import user

        try:
            found = replace(found, layouts=user.load(found.layout_tables, names.order))
        except ValueError as e:
            raise UsageError(
                f"{found.file}: {e}", "'ckpt layouts --check ROOT' shows what each template matches"
            ) from e
    if to.verbose and found.file:
        console.problem("note", f"configuration from {found.file}")
    return found


@frozen
class Question:
    """What ``latest``, ``plan`` and ``run`` ask. ``rooted``: ROOT was named, ``ranked``: so was the rank.
    ``terms`` are the settings about the job that decides, ``given`` the answer's own parameters.
    """

    root: str
    selection: Selection
    output: Output
    explain: bool = False
    rooted: bool = False
    ranked: bool = False
    terms: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


def question(*formats: str, **more: Any) -> Callable[[Callable[[Question], int]], Callable[..., int]]:
    """Give a command the selection options, so that every command that chooses takes the same ones, and those
    in ``more``. The first format is its default.
    """

    def decorate(answer: Callable[[Question], int]) -> Callable[..., int]:
        def command(
            root: Root = None,
            rank: Rank = None,
            world_size: WorldSize = None,
            order: Order = None,
            resume_from: ResumeFrom = None,
            prefer: Prefer = None,
            kind: Kind = None,
            layout: Layout = None,
            run: Run = None,
            prefix: Prefix = None,
            exclude: Exclude = None,
            same_save: SameSave = None,
            trust_global: TrustGlobal = None,
            max_step: MaxStep = None,
            level: Level = None,
            key_file: KeyFile = None,
            require: Require = None,
            fault_ranks: FaultRanks = None,
            fault_file: FaultFile = None,
            replica_groups: ReplicaGroups = None,
            replicas: Replicas = None,
            prove_replicas: ProveReplicas = False,
            strategy_dir: StrategyDir = None,
            tp: Tp = None,
            pp: Pp = None,
            cp: Cp = None,
            dp: Dp = None,
            ep: Ep = None,
            etp: Etp = None,
            rank_order: RankOrder = None,
            save_interval: SaveInterval = None,
            max_attempts: MaxAttempts = None,
            settle: Settle = None,
            budget: Budget = None,
            max_age: MaxAge = None,
            no_cache: NoCache = False,
            allow_none: AllowNone = False,
            allow_missing: AllowMissing = False,
            allow_fresh: AllowFresh = False,
            plan_dir: PlanDir = None,
            trust_group: TrustGroup = False,
            trust_owner: TrustOwner = None,
            trust_dir: TrustDir = None,
            no_fallback: NoFallback = False,
            skip_unreadable: SkipUnreadable = False,
            strict: Strict = False,
            explain: Explain = False,
            jobs: Jobs = None,
            io: Io = None,
            limit_rate: LimitRate = None,
            format: Format = None,
            json: Json = False,
            quiet: Quiet = False,
            verbose: Verbose = False,
            color: Color = None,
            config: Config = None,
        ) -> int:
            return asked(dict(locals()))

        def asked(given: Mapping[str, Any]) -> int:
            to = output(formats, given)
            found = settings(given, to)
            terms = {
                name: value
                for key, value in found.values.items()
                if (name := key.replace("-", "_")) in (*more, "plan_dir")
            }
            selection = replace(found.selection(), cache=not found.values.get("no-cache", False))
            if more and selection.budget is None:
                selection = replace(selection, budget=HOOK_BUDGET)
            return answer(
                Question(
                    found.root,
                    selection,
                    to,
                    explain=given.get("explain", False),
                    rooted="root" in found.origins,
                    ranked=given.get("rank") is not None,
                    terms=terms,
                    given={name: given.get(name) for name in more},
                )
            )

        if not more:
            command.__doc__ = answer.__doc__
            return command

        def longer(**given: Any) -> int:
            return asked(given)

        # typer reads parameters from the signature
        import inspect

        known = inspect.signature(command, eval_str=True)
        extra = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in more.items()
        ]
        longer.__signature__ = known.replace(parameters=[*known.parameters.values(), *extra])  # type: ignore[attr-defined]
        longer.__annotations__ = {
            **command.__annotations__,
            **{name: kind for name, (kind, _) in more.items()},
        }
        longer.__doc__ = answer.__doc__
        return longer

    return decorate
