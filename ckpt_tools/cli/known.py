"""``ckpt explain``, ``formats``, ``launchers`` and ``completion``: what ckpt knows."""

from __future__ import annotations

import os

import msgspec
import typer.completion

from ckpt_tools.cli import console, options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.findings import CODES
from ckpt_tools.formats import package_of as package_of_format
from ckpt_tools.launchers import detect, list_all
from ckpt_tools.output import catalogue
from ckpt_tools.output import launchers as emit
from ckpt_tools.output.json import fields
from ckpt_tools.planning.rules.catalogue import BY_CODE, RULES
from ckpt_tools.settings.resolve import require_known


@options.ask(
    ("table", "json"),
    parameter(
        "CODE",
        "A code of a finding, such as truncated, or a rule, such as save/missing-rank.",
        offer=options.words(*sorted(CODES), *sorted(RULES)),
        required=True,
    ),
    "output_file format json color",
    reads_settings=False,
)
def explain(asked: options.Asked) -> int:
    """Say what a finding or a rule means, how it affects the verdict, and what to do about it.

    Examples:
    ckpt explain crc-mismatch  # what it means, and what to do
    ckpt explain truncated  # a file that ends early
    ckpt explain unsafe-pickle  # a pickle that would run code
    ckpt explain rank-mismatch --json  # the same for a program
    ckpt explain save/missing-rank  # the page of a rule, which 'ckpt plan -v' names
    """
    code, view = asked.given["code"], asked.to.view
    require_known(
        code, (*CODES, *RULES), "finding or rule", "docs/codes.md and docs/rules.md list all of them"
    )
    rule = RULES.get(code)
    about = ("code=id", "severity", "title", "hint", "since")
    entries = [
        {**fields(CODES[one], *about), "rules": [BY_CODE[one]]} for one in (rule.codes if rule else (code,))
    ]
    if rule is None:
        return asked.catalogue("explain", entries, catalogue.code(code, view))
    more = fields(rule, "id", "effect", "answer", "why")
    return asked.catalogue("explain", entries, catalogue.rule(rule, view), rule=more)


@options.ask(
    ("table", "json"),
    parameter("FORMAT", "A format, such as torch_zip. Default: all.", offer=options.formats, name="name"),
    "no_plugins output_file format json color",
    reads_settings=False,
)
def formats(asked: options.Asked) -> int:
    """List the known file formats: what protects each part of them, what cannot be seen, which framework
    loads them, where the facts come from, and which other package adds them, if one does.

    Examples:
    ckpt formats  # all known formats
    ckpt formats | grep torch  # one family of them
    ckpt formats --json  # the same for a program
    ckpt formats --json | python3 -m json.tool  # on several lines
    NO_COLOR=1 ckpt formats  # without colours
    """
    from ckpt_tools.formats import FORMATS  # with those of plug-ins, once it is known which are used

    entries: list[dict[str, object]] = [
        {
            "name": f.name,
            "suffixes": list(f.suffixes),
            "names": f.names or None,
            "levels": ["structure", "content", *(["values", "load"] if f.loader else [])],
            "index": f.index,
            "loader": f.loader or None,
            "protects": f.protects,
            "limits": list(f.limits),
            "reference": f.reference,
            "package": package_of_format(f.name),
        }
        for f in FORMATS
    ]
    output.say_broken_plugins(("formats", "manifests"))
    if (name := asked.given["name"]) is not None:
        require_known(name, (f.name for f in FORMATS), "format", "'ckpt formats' lists all")
        entries = [entry for entry in entries if entry["name"] == name]
    shown = ("suffixes", "names", "protects", "limits", "loader", "reference", "package")
    return asked.catalogue("formats", entries, catalogue.list_blocks(entries, shown, asked.to.view))


@options.ask(("table", "json"), "no_plugins output_file format json color", reads_settings=False)
def launchers(asked: options.Asked) -> int:
    """List the known launchers, and say what is known about this process: each number with the variable that
    it comes from, and what is unclear.

    Examples:
    ckpt launchers  # what is known about this process, and from which variable
    RANK=1 WORLD_SIZE=2 ckpt launchers  # what a process with these variables would see
    CKPT_RANK=1 ckpt launchers  # the same with ckpt's own variable
    SLURM_PROCID=1 SLURM_STEP_ID=0 ckpt launchers  # as a task of Slurm would see it
    ckpt launchers --json  # the same for a program
    """
    known = [(launcher, launcher.detect(os.environ)) for launcher in list_all()]
    here = detect(os.environ)
    output.say_broken_plugins(("launchers",))
    return asked.catalogue(
        "launchers",
        emit.entries(known),
        emit.table(known, here, os.environ, asked.to.view),
        detected=msgspec.to_builtins(here) if here else None,
    )


SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


@options.ask(
    ("text",),
    parameter("SHELL", "bash, zsh, fish, powershell or pwsh.", offer=options.words(*SHELLS), required=True),
    reads_settings=False,
)
def completion(asked: options.Asked) -> int:
    """Print the script that makes a shell complete commands, flags and their values, finding codes, layouts,
    and the runs and steps of the directory.

    Examples:
    ckpt completion bash  # the script for bash
    eval "$(ckpt completion bash)"; complete -p ckpt  # as a line of ~/.bashrc
    ckpt completion bash > ckpt.bash  # for ~/.local/share/bash-completion/completions/ckpt
    ckpt completion zsh > _ckpt  # for a directory of zsh's $fpath
    ckpt completion fish > ckpt.fish  # for ~/.config/fish/completions
    """
    shell = asked.given["shell"]
    require_known(shell, SHELLS, "completion for", f"one of: {', '.join(SHELLS)}")
    script = typer.completion.get_completion_script(  # type: ignore[attr-defined] # not listed
        prog_name="ckpt", complete_var="_CKPT_COMPLETE", shell=shell
    )
    console.out(f"{script}\n")
    return 0
