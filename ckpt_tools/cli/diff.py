"""``ckpt diff``: what differs between two checkpoints, or two files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ckpt_tools.cli import options, output
from ckpt_tools.cli.progress import progress
from ckpt_tools.cli.words import Argument, option
from ckpt_tools.errors import UsageError
from ckpt_tools.model.finding import Verdict, blind
from ckpt_tools.model.report import Level

if TYPE_CHECKING:
    from ckpt_tools.comparison.difference import Difference

FORMATS = ("table", "json")
LEVELS = (Level.STRUCTURE, Level.CONTENT)


def diff(
    a: Annotated[
        str,
        Argument("A", "A checkpoint's directory or prefix, or a file."),
    ],
    b: Annotated[str, Argument("B", "What to compare it with.")],
    level: Annotated[
        str | None,
        option(
            "--level",
            metavar="LEVEL",
            help="structure: names, types and shapes alone; content (default): the bytes too.",
        ),
    ] = None,
    seal_dir: options.SealDir = None,
    key_file: options.KeyFile = None,
    store_option: options.StoreOption = None,
    no_plugins: options.NoPlugins = False,
    trust_group: options.TrustGroup = False,
    trust_owner: options.TrustOwner = None,
    trust_dir: options.TrustDir = None,
    strict: options.Strict = False,
    jobs: options.Jobs = None,
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    progress_as: options.ProgressAs = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.Color = None,
    config: options.Config = None,
) -> int:
    """Compare two checkpoints tensor by tensor, whatever their steps and formats, and say what was added,
    removed, reshaped or changed. Nothing is loaded or run.

    Files are matched by rank and role if their layout is known, else by name. A sealed file that was not
    written since is not read again: its seal is believed ('ckpt verify' compares files with their seals).
    Exit codes: 0 the same; 1 they differ or a file is damaged; 5 something could not be looked at, or with
    --strict could not be compared.
    """
    given = dict(locals())
    to = output.requested(FORMATS, given)
    found = options.settings(given, to, (a, b))
    output.broken_plugins()
    depth = found.values["level"] if level is not None else Level.CONTENT
    if depth not in LEVELS:
        raise UsageError(
            f"--level {depth}: diff compares at level structure or content",
            "say one of them, or leave it out",
        )
    from ckpt_tools.comparison.compare import diff as compare

    with progress(to) as meter:
        result = compare(
            a,
            b,
            depth,
            **found.named(("jobs", "key_file", "seal_dir")),
            trust=found.trust,
            layouts=found.layouts,
            progress=meter,
        )
    from ckpt_tools.output import difference as emit

    to.out(emit.json(result) if to.format == "json" else emit.table(result, to.view))
    return exit_code(result, found.values.get("strict", False))


def exit_code(result: Difference, strict: bool) -> int:
    """What could not be looked at wins over what differs, as in ``ckpt verify``: the differences are in the
    answer, but what else there may be is not.
    """
    unknown = any(r.verdict is Verdict.UNKNOWN for r in result.reports) or blind(result.findings)
    if unknown or (strict and not result.complete):
        return 5
    return 1 if result.differs or any(r.verdict is Verdict.BROKEN for r in result.reports) else 0
