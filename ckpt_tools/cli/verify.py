"""``ckpt verify``: find damaged files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec.structs import replace

from ckpt_tools.cli import options, output
from ckpt_tools.cli.progress import progress
from ckpt_tools.cli.words import Argument, option
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Verdict, blind, worst

FORMATS = ("table", "json", "jsonl")
READING = (
    "level",
    "jobs",
    "require",
    "require_seal",
    "seal_dir",
    "verify_key",
    "trust_global",
    "settle",
    "key_file",
    "max_age",
    "io",
    "limit_rate",
    "sample",
    "max_duration",
)
"""Settings that ``api.verify`` takes under their own names; its defaults are the command's."""


def verify(
    paths: Annotated[
        list[str],
        Argument("PATH", "Checkpoint files, directories or prefixes."),
    ],
    level: options.Level = None,
    require: options.Require = None,
    require_seal: options.RequireSeal = False,
    seal_dir: options.SealDir = None,
    verify_key: options.VerifyKey = None,
    trust_global: options.TrustGlobal = None,
    settle: options.Settle = None,
    max_age: options.MaxAge = None,
    no_cache: options.NoCache = False,
    key_file: options.KeyFile = None,
    store_option: options.StoreOption = None,
    no_plugins: options.NoPlugins = False,
    trust_group: options.TrustGroup = False,
    trust_owner: options.TrustOwner = None,
    trust_dir: options.TrustDir = None,
    by_store: Annotated[
        bool,
        option(
            "--by-store",
            help="In an object store read no contents: compare the checksums that it keeps with the seals.",
        ),
    ] = False,
    explain_bytes: options.ExplainBytes = False,
    strict: options.Strict = False,
    fail_on: options.FailOn = None,
    jobs: options.Jobs = None,
    io: options.Io = None,
    limit_rate: options.LimitRate = None,
    sample: options.Sample = None,
    max_duration: options.MaxDuration = None,
    scheduler: options.Scheduler = None,
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    progress_as: options.ProgressAs = None,
    all: Annotated[bool, option("--all", help="List good files and notes as well.")] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.Color = None,
    config: options.Config = None,
) -> int:
    """Look at every checkpoint file at or below PATH, and say what is damaged and how that is known. Nothing
    is written, loaded or run.

    Exit codes: 0 nothing broken at this level; 1 damage found; 3 nothing recognised; 5 something could not be
    looked at.
    """
    given = dict(locals())
    given["verbose"] = verbose or all
    to = output.requested(FORMATS, given, "verification")
    found = options.settings(given, to, tuple(paths))
    strict = found.values.get("strict", False)
    to = replace(to, warnings_fail=to.warnings_fail or strict)
    from ckpt_tools import api
    from ckpt_tools.output import registry
    from ckpt_tools.reading.engines import engine

    reading, form = found.named(READING), registry.find(to.format)
    if form is not None and form.in_ci:
        reading.setdefault("settle", 0.0)
    with (
        _telling_what_was_seen(to),
        engine(found.values.get("scheduler")) as workers,
        progress(to) as meter,
    ):
        result = api.verify(
            paths,
            **reading,
            trust=found.trust,
            layouts=found.layouts,
            by_store=by_store,
            explain=explain_bytes,
            cache=not found.values.get("no-cache", False),
            note=output.cache_notes(to),
            progress=meter,
            engine=workers,
        )
    to.out(output.text_of(result, to))
    return exit_code(result, strict, warnings=to.warnings_fail)


@contextmanager
def _telling_what_was_seen(to: output.Output) -> Iterator[None]:
    """Ctrl-C: say what was seen so far, to a person; a program must not take a part for the whole."""
    try:
        yield
    except KeyboardInterrupt as stop:
        from ckpt_tools.planning.verification import Interrupted

        if isinstance(stop, Interrupted) and to.format == "table":
            from ckpt_tools.output import verification

            to.out(verification.interrupted(stop.files, stop.of, stop.root, to.view))
        raise


def exit_code(result: Verification, strict: bool, *, warnings: bool = False) -> int:
    """What could not be looked at wins over damage: the damage is in the answer, but what else there may be
    is not. With ``warnings`` they count as damage; ``strict`` implies it.
    """
    s = result.summary
    if not s.files and worst(result.findings) is not Verdict.BROKEN and not blind(result.findings):
        return 3
    verdicts = {result.verdict, worst(result.findings)}
    if s.unknown or Verdict.UNKNOWN in verdicts or (strict and s.below_level):
        return 5
    suspect = s.suspect or Verdict.SUSPECT in verdicts
    if s.broken or Verdict.BROKEN in verdicts or ((strict or warnings) and suspect):
        return 1
    return 0
