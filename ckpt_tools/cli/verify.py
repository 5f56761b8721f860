"""``ckpt verify``: find damaged files."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt_tools import api
from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Verdict, blind, worst
from ckpt_tools.output import registry, verification
from ckpt_tools.planning.verification import Interrupted
from ckpt_tools.reading.engines import engine

PART = ("level", "sample", "max_duration")
"""Settings of how much to read: parameters of ``api.verify`` besides the fields of ReadOptions."""


@options.ask(
    ("table", "json", "jsonl"),
    parameter(
        "PATH",
        "Checkpoint files, directories or prefixes; default: the current directory.",
        name="paths",
        many=True,
    ),
    parameter(
        "--by-store",
        "In an object store read no contents: compare the checksums that it keeps with the seals.",
    ),
    "level require require_seal seal_dir verify_key trust_global settle max_age no_cache key_file",
    "store_option explain_bytes strict fail_on jobs io limit_rate sample max_duration scheduler",
    "progress_as",
    options.TREE,
    trees_in="paths",
    document="verification",
)
def verify(asked: options.Asked) -> int:
    """Look at every checkpoint file at or below PATH, and say what is damaged and how that is known. Nothing
    is written, loaded or run.

    Exit codes: 0 nothing broken at this level; 1 damage found; 3 nothing recognised; 5 something could not be
    looked at.

    Examples:
    ckpt verify run  # every file, with all stored checksums
    ckpt verify run/iter_0000020 --level structure  # without reading the contents
    CKPT_IO=direct ckpt verify run --limit-rate 200MB  # beside a running job
    ckpt verify run --sample 1/7 --budget 2h  # a part every night
    ckpt verify run --json > verdict.json  # exit 0: good, 1: damage found, 5: could not look
    """
    settings, given = asked.settings, asked.given
    strict = settings.values.get("strict", False)
    to = replace(asked.to, warnings_fail=asked.to.warnings_fail or strict)
    reading, form = settings.reading(*PART), registry.find(to.format)
    if form is not None and form.in_ci:
        reading.setdefault("settle", 0.0)
    try:
        with engine(settings.values.get("scheduler")) as workers, output.reading(to) as how:
            result = api.verify(
                given["paths"] or ["."],
                **reading,
                by_store=given["by_store"],
                explain=given["explain_bytes"],
                cache=not settings.values.get("no-cache", False),
                engine=workers,
                **how,
            )
    except KeyboardInterrupt as stop:
        # people see the results so far; a program must not take a part for the whole
        if isinstance(stop, Interrupted) and to.format == "table":
            to.out(verification.render_part(stop.files, stop.of, stop.root, to.view))
        raise
    to.out(registry.render(to.format, result, to.view))
    return exit_code(result, strict, warnings=to.warnings_fail)


def exit_code(result: Verification, strict: bool, *, warnings: bool = False) -> int:
    """Return 3 for no file, else 5 for an unchecked one, else 1 for damage (if asked, warnings), else 0."""
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
