"""``ckpt diff``: what differs between two checkpoints, or two files."""

from __future__ import annotations

from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.cli.progress import progress
from ckpt_tools.comparison.compare import diff as compare
from ckpt_tools.comparison.difference import Difference
from ckpt_tools.errors import UsageError
from ckpt_tools.model.finding import Verdict, blind
from ckpt_tools.model.report import Level


@options.ask(
    ("table", "json"),
    parameter("A", "A checkpoint's directory or prefix, or a file.", required=True),
    parameter("B", "What to compare it with.", required=True),
    parameter(
        "--level LEVEL",
        "structure: names, types and shapes alone; content (default): the bytes too;"
        " values: how far apart changed numbers are (needs numpy).",
    ),
    "seal_dir key_file store_option strict jobs progress_as",
    options.TREE,
    trees_in="a b",
)
def diff(asked: options.Asked) -> int:
    """Compare two checkpoints tensor by tensor, whatever their steps and formats, and say what was added,
    removed, reshaped or changed. Nothing is loaded or run.

    Files are matched by rank and role if their layout is known, else by name.
    Exit codes: 0 the same; 1 they differ or a file is damaged; 5 something could not be looked at, or with
    --strict could not be compared.

    Examples:
    ckpt diff run/iter_0000010 run/iter_0000020  # which tensors changed between two saves
    ckpt diff run/iter_0000010 run/iter_0000020 --level structure  # only names, types and shapes
    ckpt diff run/iter_0000010 run/iter_0000020 --level values  # how far apart their numbers are
    ckpt diff run/iter_0000010 run/iter_0000020 --verbose  # list each tensor
    ckpt diff run/iter_0000010 run/iter_0000020 --json  # the same for a program
    """
    settings, given = asked.settings, asked.given
    output.say_broken_plugins()
    depth = settings.values["level"] if given["level"] is not None else Level.CONTENT
    if depth not in (Level.STRUCTURE, Level.CONTENT, Level.VALUES):
        hint = "use structure, content or values, or leave it out"
        raise UsageError(f"--level {depth} is not for diff", hint)
    with progress(asked.to) as meter:
        how = settings.reading(names=("jobs", "key_file", "seal_dir"))
        result = compare(given["a"], given["b"], depth, **how, progress=meter)
    asked.answer("difference", result)
    return exit_code(result, settings.values.get("strict", False))


def exit_code(result: Difference, strict: bool) -> int:
    """Return 5 if a file could not be checked, else 1 for a difference or damage: as ``ckpt verify``."""
    unknown = any(r.verdict is Verdict.UNKNOWN for r in result.reports) or blind(result.findings)
    if unknown or (strict and not result.complete):
        return 5
    return 1 if result.differs or any(r.verdict is Verdict.BROKEN for r in result.reports) else 0
