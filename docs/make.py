"""Write the documentation pages that are made from code; with --check say which are out of date and exit 1."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import flow  # noqa: E402 - beside this file
import manual  # noqa: E402
import schemas  # noqa: E402
import site_pages  # noqa: E402
import terminal  # noqa: E402

from ckpt_tools.findings import CODES  # noqa: E402 - needs the path above when the package is not installed
from ckpt_tools.model.finding import Severity  # noqa: E402
from ckpt_tools.planning.rules.catalogue import RULES, SCOPES  # noqa: E402
from ckpt_tools.settings.resolve import ENV  # noqa: E402

QUOTES = '"""'
NOTE = "<!-- Made by docs/make.py: edit the code it names, then run it. -->\n"


def codes() -> str:
    """docs/codes.md from the catalogue."""
    out = [
        "# Finding codes\n",
        NOTE,
        (
            "Every finding has a code. Codes are never renamed and never reused; `ckpt explain CODE`"
            " prints the same text, and the rules that it is of ([rules.md](rules.md)). Made from"
            " `ckpt_tools/findings.py`.\n"
        ),
        (
            "The severity decides: an **error** makes the file or checkpoint `broken` (it is never chosen, and"
            " `ckpt verify` exits 1), a **warning** makes it `suspect`"
        ),
        (
            "(it may be chosen; `ckpt verify` exits 0, or 1 with `--strict`), a **note** changes nothing. A"
            " finding can be less or more severe than listed here if its"
        ),
        "message says why, for instance `missing-rank`, which is a warning in a dying-gasp checkpoint.\n",
    ]
    for severity in sorted(Severity, reverse=True):
        out += [
            f"## {str(severity).capitalize()}s\n",
            "| code | meaning | what to do | since |",
            "|---|---|---|---|",
        ]
        out += [
            f"| `{c.id}` | {_cell(c.title)} | {_cell(c.hint)} | {c.since} |"
            for c in sorted(CODES.values())
            if c.severity is severity
        ]
        out.append("")
    return "\n".join(out)


def rules() -> str:
    """docs/rules.md from the catalogue."""
    out = [
        "# Rules\n",
        NOTE,
        (
            "Whatever lowers the trust in a checkpoint is one of these rules. The finding says which"
            " (`findings[].rule` in JSON, `ckpt plan -v`), and `ckpt explain RULE` prints its page."
        ),
        (
            "A rule does no more than its effect: `note` and `warn` choose nothing else, `reject` takes the next"
            " candidate, `ask` is exit 2, `stop` is exit 3, 4, 5 or 6. No rule cancels another.\n"
        ),
    ]
    about = {
        "tree": "what is said of ROOT as a whole",
        "order": "which save is the newest",
        "save": "what is said of one save",
        "pair": "what is said of two saves",
        "choice": "what is said beside the save that was chosen",
    }
    for scope in SCOPES:
        out.append(f"## {scope.capitalize()}: {about[scope]}\n")
        for r in RULES.values():
            if r.id.startswith(f"{scope}/"):
                codes = ", ".join(f"`{code}`" for code in r.codes)
                out += [f"### {r.id}\n", f"{r.why.strip()}\n"]
                out += [f"* effect: {r.effect}{f'; codes: {codes}' if codes else ''}"]
                out += [f"* what settles it: {r.answer}\n"]
    return "\n".join(out)


def environment() -> str:
    """docs/environment.md from the table of settings."""
    out = [
        "# Settings: flags, variables, configuration file\n",
        NOTE,
        (
            "A setting is taken from the first of these that has it: the flag, the variable, the configuration"
            " file, the default. An empty variable counts as not"
        ),
        (
            "set. A yes-or-no setting is a flag without a value, a variable that is `1` or `0` (`0` switches off"
            " what the file switches on), or `true` or `false` in the file.\n"
        ),
        (
            "Words of `--allow` and `--parallel` may stand together behind commas; those of `--trust` stand alone:"
            " the flag is repeated, the variable has one per line. Flags and variables that are not listed and"
            " that earlier versions had are accepted until the next release, with a warning.\n"
        ),
        "| flag | variable | key in the file | meaning | since |",
        "|---|---|---|---|---|",
    ]
    for v in ENV:
        flag, variable = (said.replace("={}", "=…") for said in (v.said, v.exported))
        key = f"`{v.key}`" if v.parse and v.in_file else "–"
        if flag or variable:
            said = " | ".join(f"`{one}`" if one else "–" for one in (flag, variable))
            out.append(f"| {said} | {key} | {_cell(v.meaning)} | {v.since} |")
    out += [
        "",
        (
            "Only `CKPT_*` variables are settings. The variables of a launcher (`RANK`, `SLURM_PROCID`, …)"
            " are read by `ckpt_tools/launchers`;"
        ),
        (
            "`ckpt launchers` says what they mean to it. The variables that `--format shell` exports"
            " (`CKPT_PATH`, `CKPT_STEP`, `CKPT_EPOCH`, `CKPT_STEP_IN_EPOCH`,"
        ),
        "`CKPT_RESUME`, `CKPT_ARGS`) are answers, and `ckpt` never reads them.\n",
        "## The configuration file\n",
        (
            "The file is `--config FILE`, or the nearest `ckpt.toml`, or `pyproject.toml` with a table"
            " `[tool.ckpt]`, in the current directory or above it. Only one file"
        ),
        (
            "is read. A relative `root` or `strategy-dir`, and files that `replica-groups` names, are relative to"
            " the directory of the file. An unknown key is an error (exit 2).\n"
        ),
        (
            "A file at or below the scanned tree is not read, because whoever writes checkpoints must not"
            " configure the tool that checks them. `ckpt` says so on"
        ),
        (
            "stderr; `--config` reads the file nevertheless. The tree is ROOT, which is the current directory"
            " by default.\n"
        ),
        "```toml",
        'root = "/data/run-7/checkpoints"',
        "world-size = 8",
        "save-interval = 500",
        'settle = "5m"',
        "",
        "[replica-groups]  # by role; or a list of lists for every role",
        "model = [[0, 4], [1, 5], [2, 6], [3, 7]]",
        'optimizer = "groups.txt"',
        "```\n",
        (
            "It is read only if nobody but you and root could have written it, and nobody else can write the"
            " directories passed on the way up. Otherwise a warning says so and the search ends there;"
            " `--config` is refused."
        ),
        (
            "`trust-group`, `trust-owner` and `trust-dir` are not allowed in it, because a file cannot declare"
            " itself trusted: [hooks.md](hooks.md) says what they are for.\n"
        ),
        (
            "The tables `[[layout]]` describe files of your own: [adding-a-layout.md](adding-a-layout.md). Tables"
            ' `[store."s3://bucket"]` hold the options of single stores: [stores.md](stores.md).\n'
        ),
        (
            "`--replica-groups` takes `0,4;1,5` (groups of ranks, `0-3` is a range), `model=0,4;1,5`, or a"
            " file with them: one group per line, or JSON, which is a list of"
        ),
        (
            'lists or an object such as `{"model": [[0, 4], [1, 5]]}`. Durations are seconds (`120`) or have'
            " units (`90s`, `2m`, `1h30m`)."
        ),
        "Sizes are bytes (`1000000`) or have units: `200MB` counts in 1000s, `50GiB` and `50G` in 1024s.\n",
        "## How contents are read\n",
        (
            "`CKPT_IO=auto`, the default, reads through the page cache with one buffer of 2 MiB per thread."
            " `pread` and `mmap`, which earlier versions had, mean the same."
        ),
        (
            "`CKPT_IO=direct` reads from the disk and not from the page cache"
            " (O_DIRECT), and leaves the page cache as it was. If the file system refuses this, it reads as"
            " `auto` does.\n"
        ),
        (
            "`--limit-rate 200MB` bounds the bytes of contents that all threads of a process read in a"
            " second; headers are not counted. It reads with `pread`, or with `direct` if you ask for that."
        ),
        "`ionice -c 3 ckpt verify …` lets other processes on this machine go first; helpers inherit it.\n",
        "## A part of the contents\n",
        (
            "`ckpt verify --sample 2/7`, `--sample 10%`, `--sample 50GiB` and `--budget 2h` read the"
            " contents of some files; the structure of every file is always checked."
        ),
        (
            "Runs with `1/7` to `7/7` together read every file once: the part that a file belongs to depends only"
            " on its path in the tree, so it does not change when other files come and go."
        ),
        (
            "A percentage or a size is reached, and exceeded by at most one file; a size is for all PATHs"
            " together, the first PATH first. `--budget` counts from the start, ends in the middle of a"
            " file if it must, and may be combined"
        ),
        (
            "with `--sample`. Damaged files come first, then those least recently checked, and those that never"
            " were in a random order. The times are kept with the verdicts (below), for 30 days after they were"
            " last used and for 100,000 files at most;"
        ),
        "with `--no-cache`, where nothing is remembered, each run takes other files.",
        (
            "A file that takes longer than all of `--budget` is tried again after all others; a"
            " warning says so when a run could read none."
        ),
        (
            "A file that was not read to its end has `level` `structure`, is not counted in"
            " `summary.below_level`, and leaves no verdict for later runs, unless it is damaged."
            " `sample` in the JSON says how much was"
        ),
        (
            "read. `ckpt verify` looks for files that are copies of others only when everything is read. Only level"
            " `content` can be sampled.\n"
        ),
        "## Verdicts of earlier runs\n",
        (
            "`ckpt latest` and `ckpt plan` read a file only once: its verdict is kept for later runs in one"
            " file per user and host,"
        ),
        (
            "`$CKPT_CACHE_DIR/HOST/verdicts.sqlite` (`$XDG_CACHE_HOME/ckpt-tools`, else"
            " `~/.cache/ckpt-tools`), never below ROOT. `ckpt verify` reads everything again, but"
        ),
        (
            "keeps its verdicts: a nightly `ckpt verify` makes the next start fast. A verdict is used only if"
            " size, modification time, change time, inode and device of the file are"
        ),
        (
            "unchanged, if it was made for the same question by the same version and plug-ins (the same indexes beside it, the same"
            " `CKPT_REQUIRE`), and if it is not older than `CKPT_MAX_AGE`"
        ),
        (
            "(default `1d`; `0` reads everything again). Files that were `broken` or `unknown` are always read again,"
            " and so are files that were changed a moment before they were read."
        ),
        (
            "Nothing is kept with `CKPT_KEY_FILE`, and nothing is used or kept with `--no-cache`. The file can be"
            " deleted at any time. When it cannot be used, or others could have written it, a warning says so"
            " and all files are read."
        ),
        (
            "When many processes of a node ask at once, one of them reads a file and the others wait for its"
            " verdict. If the file system keeps no change time (some FUSE and object"
        ),
        (
            "store mounts), a file that is rewritten with the same size and an old modification time is not"
            " noticed: use `--no-cache` there.\n"
        ),
        (
            "`--budget 60s` bounds the time spent on contents: the headers of all files are read, verdicts of"
            " earlier runs count, then contents are read, the newest checkpoint first. If something was"
        ),
        (
            "not read, the plan has the warning `budget-spent`, and `level` shows it for each file. A file whose"
            " damage shows in the part that was read is never chosen, whatever the budget.\n"
        ),
    ]
    return "\n".join(out)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {
    HERE / "codes.md": codes,
    HERE / "rules.md": rules,
    HERE / "environment.md": environment,
    HERE / "did-not-resume.svg": flow.chart,
    **{HERE / f"terminal-{name}.svg": partial(terminal.picture, name) for name in terminal.COMMANDS},
    HERE / "reference/commands.md": site_pages.commands_page,
    **manual.manual_pages(),
    **schemas.schema_pages(HERE.parent / "ckpt_tools/output/schemas"),
}


def main(arguments: list[str]) -> int:
    """Write or check all pages."""
    stale = []
    for path, page in PAGES.items():
        text = page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(HERE.parent))
            if "--check" not in arguments:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} {'is out of date: run python docs/make.py' if '--check' in arguments else 'written'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
