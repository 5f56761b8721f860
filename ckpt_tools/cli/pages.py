"""What ``--help`` shows: commands in groups, the flags of a command in panels, and examples. Imported only to
show it.

Lists are written by hand, because an order that helps is a decision; tests/cli/test_help.py finds what they
forget and runs every example.
"""

from __future__ import annotations

from typing import Any

GROUPS = {
    "See what is there": {
        "ls": "List the checkpoints below a directory, newest first.",
        "verify": "Say which files are damaged, and how that is known.",
        "report": "Write one HTML page with everything that is known.",
        "seal": "Store digests of sound files, so that any change shows.",
        "show": "Print what is in one file, without loading it.",
        "diff": "Compare two checkpoints, or two files, tensor by tensor.",
    },
    "Start a job": {
        "plan": "Say what to resume from, and which files each rank loads.",
        "latest": "Print the files that one rank must load.",
        "run": "Decide once per job, then become the training command.",
        "hook": "Decide once per job, and print the answer for a script.",
        "stage": "Copy the chosen checkpoint from a store to a local disk.",
    },
    "Keep checkpoints good": {
        "repair": "Repair damaged files, where the repair can be proven.",
        "quarantine": "Move checkpoints out of sight, and bring them back.",
        "prune": "Remove old checkpoints, if enough others are verified.",
        "pin": "Protect checkpoints from being pruned.",
        "undo": "Undo the last repair or quarantine.",
        "watch": "Verify each checkpoint as it is saved, and report it.",
    },
    "Look things up": {
        "explain": "Say what a finding or a rule means, and what to do about it.",
        "formats": "List the file formats, and what cannot be seen in each.",
        "layouts": "List the layouts, and check or guess their templates.",
        "launchers": "List the launchers, and say which one started this process.",
        "completion": "Print the script that makes Tab complete ckpt commands.",
    },
}
"""All commands, by what they are for. Each sentence fits a terminal of 80 columns."""

PANELS = {
    "Selection": (
        "--rank",
        "--world-size",
        "--kind",
        "--layout",
        "--run",
        "--prefix",
        "--exclude",
        "--max-step",
        "--since",
        "--require",
    ),
    "What counts as newest": ("--order", "--resume-from", "--prefer", "--same-save", "--save-interval"),
    "Failed devices and replicas": (
        "--fault-ranks",
        "--fault-file",
        "--replicas",
        "--replica-groups",
        "--prove-replicas",
        "--strategy-dir",
        "--tp",
        "--pp",
        "--cp",
        "--dp",
        "--ep",
        "--etp",
        "--rank-order",
    ),
    "What is accepted": (
        "--level",
        "--strict",
        "--fail-on",
        "--no-fallback",
        "--max-attempts",
        "--settle",
        "--require-seal",
        "--by-store",
        "--verify-key",
        "--allow-none",
        "--allow-missing",
        "--allow-fresh",
        "--skip-unreadable",
    ),
    "Reading": (
        "--jobs",
        "--io",
        "--limit-rate",
        "--budget",
        "--sample",
        "--max-duration",
        "--scheduler",
        "--max-age",
        "--no-cache",
        "--key-file",
        "--store-option",
    ),
    "One decision per job": (
        "--resume-args",
        "--by-rank",
        "--plan-dir",
        "--job",
        "--node",
        "--nodes",
        "--worker",
        "--read",
        "--view",
        "--stage",
        "--keep",
        "--ranks",
        "--require-mount",
        "--agree",
        "--meet",
        "--rendezvous",
        "--timeout",
    ),
    "Seals": (
        "--digest",
        "--also",
        "--tensors",
        "--seal-dir",
        "--sign-key",
        "--again",
        "--merge",
    ),
    "Watching": (
        "--once",
        "--rescan",
        "--every",
        "--on-good",
        "--on-bad",
        "--hook-timeout",
        "--seal",
        "--prune",
        "--metrics-file",
        "--metrics-port",
        "--metrics-address",
    ),
    "What to keep": (
        "--keep-last",
        "--keep-every",
        "--keep-within",
        "--keep-hourly",
        "--keep-daily",
        "--keep-weekly",
        "--keep-per-minutes",
        "--keep-kind",
        "--max-total",
    ),
    "Changes": (
        "--apply",
        "--dry-run",
        "--accept-odds",
        "--tracker",
        "--damaged",
        "--restore",
        "--remove",
        "--state-dir",
    ),
    "Whom to trust": (
        "--trust-group",
        "--trust-owner",
        "--trust-dir",
        "--trust-global",
        "--no-plugins",
        "--config",
    ),
    "Output": (
        "--output",
        "--format",
        "--json",
        "--tree",
        "--check",
        "--guess",
        "--root",
        "--explain",
        "--all",
        "--explain-bytes",
        "--quarantine",
        "--history",
        "--progress",
        "--quiet",
        "--verbose",
        "--color",
        "--help",
    ),
}
"""All flags of all commands, by what they are about."""

EXAMPLES = {
    "repair": (
        ("ckpt repair run", "say what can be repaired, and how"),
        ("ckpt repair run --apply", "repair what is proven, and say what is not"),
        ("ckpt repair run --accept-odds 0.001 --apply", "also flip back bits that only a CRC locates"),
        ("ckpt repair run --tracker --apply", "make the tracker name what plan chooses"),
        ("ckpt repair run --json", "the same for a program (docs/json.md)"),
    ),
    "quarantine": (
        ("ckpt quarantine run/iter_0000020", "say what would be moved"),
        ("ckpt quarantine run/iter_0000020 --apply", "move it below run/.ckpt/quarantine"),
        ("ckpt quarantine run --damaged", "all damaged checkpoints"),
        ("ckpt quarantine kept/iter_0000020 --restore --apply", "bring it back"),
        ("ckpt quarantine run/iter_0000020 --json", "the same for a program (docs/json.md)"),
    ),
    "prune": (
        ("ckpt prune run --keep-last 3", "say what would go, and why the rest stays"),
        ("ckpt prune run --keep-last 1 --keep-every 1000 --apply", "remove what neither of the two keeps"),
        ("ckpt prune run --keep-hourly 24 --keep-daily 7", "keep the last of each hour, and of each day"),
        ("ckpt prune run --max-total 20TiB", "keep the newest ones that fit"),
        ("ckpt prune run --keep-last 3 --json", "the same for a program (docs/json.md)"),
    ),
    "pin": (
        ("ckpt pin run/iter_0000010 --dry-run", "say what would be pinned"),
        ("ckpt pin pinned/iter_0000010", "pin it"),
        ("ckpt pin pinned/iter_0000020 --remove", "remove its pin"),
        ("ckpt pin --root run run/iter_0000010 --dry-run", "a pin that counts for 'ckpt prune run'"),
        ("ckpt pin run/iter_0000010 --dry-run --json", "the same for a program (docs/json.md)"),
    ),
    "undo": (
        ("ckpt undo kept", "say what would be undone"),
        ("ckpt undo kept --apply", "undo it"),
        ("CKPT_ROOT=kept ckpt undo", "with ROOT from a variable"),
        ("cd kept && ckpt undo", "ROOT is the current directory by default"),
        ("ckpt undo kept --json", "the same for a program (docs/json.md)"),
    ),
    "watch": (
        ("ckpt watch run --once", "verify what is new and settled, then exit (for cron)"),
        ("ckpt watch run --once --limit-rate 200MB --io direct", "beside a running job"),
        ("ckpt watch run --once --prune '--keep-last 3'", "say what would go; remove it with --apply"),
        ("ckpt watch run --once --on-bad 'logger damaged: $CKPT_PATH'", "run a command when damage is found"),
        (
            "timeout 10 ckpt watch run --metrics-port 0; test $? = 124",
            "runs until it is ended; 'ckpt hook install' has units",
        ),
    ),
    "ls": (
        ("ckpt ls run", "what is there, newest first"),
        ("ckpt ls run --tree", "runs, their checkpoints and the files of each"),
        ("ckpt ls run --since 2023-01-01", "only those saved since then; 7d means within a week"),
        ("ckpt ls run --kind periodic", "without dying gasps, which are saved because of a fault"),
        ("ckpt ls run --json", "the same for a program (docs/json.md)"),
    ),
    "seal": (
        ("ckpt seal run", "verify everything, and seal what is sound and has no seal yet"),
        ("ckpt seal run --dry-run", "say what would be sealed"),
        ("ckpt seal run/iter_0000020 --digest sha256", "with digests that sha256sum prints"),
        ("ckpt seal run --seal-dir seals", "for a tree that is read-only"),
        ("ckpt seal run --json", "the same for a program (docs/json.md)"),
    ),
    "verify": (
        ("ckpt verify run", "every file, with all stored checksums"),
        ("ckpt verify run/iter_0000020 --level structure", "without reading the contents"),
        ("ckpt verify run --limit-rate 200MB --io direct", "beside a running job"),
        ("ckpt verify run --sample 1/7 --max-duration 2h", "a part every night"),
        ("ckpt verify run --json > verdict.json", "exit 0: good, 1: damage found, 5: could not look"),
    ),
    "report": (
        ("ckpt report run -o report.html", "a page that needs no network"),
        ("ckpt report run -o values.html --level values", "with statistics of the numbers in all tensors"),
        ("ckpt report run/iter_0000020 -o newest.html --level structure", "without reading the contents"),
        ("ckpt report run kept -o both.html", "of several trees"),
        ("ckpt report run --json", "the same for a program (docs/json.md)"),
    ),
    "latest": (
        ("ckpt latest run --rank 0", "the file that rank 0 loads"),
        ("ckpt latest run --rank 0 --explain", "with the reasons, on stderr"),
        ("ckpt latest run --rank 0 --order step", "the highest step, whatever the times say"),
        ("ckpt latest run --rank 0 --max-step 15", "no later step than 15"),
        ('eval "$(ckpt latest run --rank 0 --format shell)"; echo "$CKPT_STEP"', "for a script"),
    ),
    "plan": (
        ("ckpt plan run", "what every rank loads"),
        ("ckpt plan run --explain", "which checkpoints were considered, and why each lost"),
        ("ckpt plan run --fault-ranks 1 --replicas all", "the device of rank 1 failed"),
        ("ckpt plan run --no-fallback --strict", "the newest, looked at in full, or an error"),
        ("ckpt plan run --json", "the same for a program (docs/json.md)"),
    ),
    "run": (
        ("ckpt run run --rank 0 -- echo start", "plan, then become the command"),
        (
            "ckpt run run --rank 0 -- sh -c 'python train.py --load \"$CKPT_PATH\"'",
            "pass the path as an argument",
        ),
        ("ckpt run run --rank 0 -- sh -c 'echo \"$CKPT_STEP\"'", "or read it from the environment"),
        ("ckpt run empty --allow-none -- echo first start", "a first launch has nothing to resume from"),
        (
            "ckpt run run --rank 0 --view view -- echo start",
            "make a directory of links to this checkpoint alone",
        ),
    ),
    "hook": (
        ('decision="$(ckpt hook run)" && eval "$decision" && echo "$CKPT_STEP"', "before the ranks start"),
        ("ckpt hook run --json", "the decision for a program"),
        ("ckpt hook run --plan-dir plans", "write the decision where other nodes find it"),
        ("ckpt hook run --allow-none --budget 60s", "in bounded time, for a prolog"),
        ("ckpt hook install slurm", "print a job script"),
    ),
    "stage": (
        ("ckpt stage s3://bucket/run staged", "copy what a job would load to a local disk"),
        ("ckpt stage s3://bucket/run staged --ranks 0-3", "only the files that these ranks load"),
        ("ckpt stage s3://bucket/run staged --keep 2", "keep two copies, and remove older ones"),
        (
            'eval "$(ckpt stage s3://bucket/run staged --format shell)"; echo "$CKPT_PATH"',
            "for a script",
        ),
        ("ckpt stage s3://bucket/run staged --json", "the same for a program (docs/json.md)"),
    ),
    "show": (
        ("ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt", "tensors, metadata and pickled names"),
        ("ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --verbose", "the whole list"),
        (
            "ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --explain-bytes",
            "what each byte is, and what protects it",
        ),
        (
            "ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --level content",
            "also compare its checksums",
        ),
        ("ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --json", "the same for a program"),
    ),
    "diff": (
        ("ckpt diff run/iter_0000010 run/iter_0000020", "which tensors changed between two saves"),
        ("ckpt diff run/iter_0000010 run/iter_0000010", "exit 0: nothing differs"),
        ("ckpt diff run/iter_0000010 run/iter_0000020 --level structure", "only names, types and shapes"),
        ("ckpt diff run/iter_0000010 run/iter_0000020 --verbose", "list each tensor"),
        ("ckpt diff run/iter_0000010 run/iter_0000020 --json", "the same for a program"),
    ),
    "explain": (
        ("ckpt explain crc-mismatch", "what it means, and what to do"),
        ("ckpt explain truncated", "a file that ends early"),
        ("ckpt explain unsafe-pickle", "a pickle that would run code"),
        ("ckpt explain rank-mismatch --json", "the same for a program"),
        ("ckpt explain save/missing-rank", "the page of a rule, which 'ckpt plan -v' names"),
    ),
    "formats": (
        ("ckpt formats", "all known formats"),
        ("ckpt formats | grep torch", "one family of them"),
        ("ckpt formats --json", "the same for a program"),
        ("ckpt formats --json | python3 -m json.tool", "on several lines"),
        ("ckpt formats --color never", "without colours"),
    ),
    "layouts": (
        ("ckpt layouts", "all known layouts"),
        ("ckpt layouts --check run --layout megatron", "what each template matches, or narrowly misses"),
        ("ckpt layouts --check run --layout megatron --json", "the same for a program"),
        ("ckpt layouts --guess mine", "a [[layout]] for ckpt.toml, from the names of your own files"),
        ("ckpt layouts --json", "all for a program"),
    ),
    "launchers": (
        ("ckpt launchers", "what is known about this process, and from which variable"),
        ("RANK=1 WORLD_SIZE=2 ckpt launchers", "what a process with these variables would see"),
        ("CKPT_RANK=1 ckpt launchers", "the same with ckpt's own variable"),
        ("SLURM_PROCID=1 SLURM_STEP_ID=0 ckpt launchers", "as a task of Slurm would see it"),
        ("ckpt launchers --json", "the same for a program"),
    ),
    "completion": (
        ("ckpt completion bash", "the script for bash"),
        ('eval "$(ckpt completion bash)"; complete -p ckpt', "as a line of ~/.bashrc"),
        ("ckpt completion bash > ckpt.bash", "for ~/.local/share/bash-completion/completions/ckpt"),
        ("ckpt completion zsh > _ckpt", "for a directory of zsh's $fpath"),
        ("ckpt completion fish > ckpt.fish", "for ~/.config/fish/completions"),
    ),
    "hook install": (
        ("ckpt hook install", "list the snippets"),
        ("ckpt hook install slurm", "a batch script for Slurm"),
        ("ckpt hook install torchrun", "lines for torchrun"),
        ("ckpt hook install kubernetes", "a manifest for Kubernetes"),
        ("ckpt hook install msrun --root /data/run", "with the directory filled in"),
    ),
}
"""Five commands for each command, with what each is for. ``run`` is a directory of checkpoints, ``empty`` one
without.
"""


def commands(formatter: Any) -> None:
    """Write the commands of the top page, group by group."""
    for title, rows in GROUPS.items():
        with formatter.section(title):
            formatter.write_dl(list(rows.items()))


def options(params: list[Any], ctx: Any, formatter: Any) -> None:
    """Write the parameters of one command: its arguments, then its flags, panel by panel."""
    by_panel: dict[str, list[Any]] = {}
    for param in params:
        record = param.get_help_record(ctx)
        if record is not None:
            by_panel.setdefault(panel_of(param), []).append(record)
    for title in ("Arguments", *PANELS, ""):
        if rows := by_panel.get(title):
            with formatter.section(title or "Options"):
                formatter.write_dl(rows)


def panel_of(param: Any) -> str:
    """The title below which a parameter stands; "" when no panel has it."""
    if param.param_type_name == "argument":
        return "Arguments"
    return next((title for title, flags in PANELS.items() if not set(flags).isdisjoint(param.opts)), "")


def examples(name: str, formatter: Any) -> None:
    """Write the examples of the command ``name``, as they are typed."""
    rows = EXAMPLES.get(name, ())
    if not rows:
        return
    with formatter.section("Examples"):
        for line, why in rows:
            formatter.write(
                f"{'':{formatter.current_indent}}{line}\n{'':{formatter.current_indent + 4}}{why}\n"
            )
