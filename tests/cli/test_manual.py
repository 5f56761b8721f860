"""The manual pages say what --help says, in roff that two formatters take without a complaint."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from places import DOCS

from ckpt_tools.cli.app import COMMANDS, command, examples

FILES = sorted((DOCS / "man").iterdir())


def shown(page: Path) -> str:
    """As a reader sees it, on lines so wide that few are broken."""
    done = subprocess.run(
        ["mandoc", "-Tutf8", "-Owidth=1000", page], capture_output=True, text=True, check=True
    )
    return re.sub(".\b", "", done.stdout)


def test_each_command_has_a_page() -> None:
    assert sorted(p.stem for p in FILES) == sorted(
        ["ckpt", *("-".join(["ckpt", *name.split()]) for name in COMMANDS)]
    )


@pytest.mark.parametrize("page", FILES, ids=lambda p: p.stem)
def test_mandoc_has_nothing_to_say(page: Path) -> None:
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", page], capture_output=True, text=True, check=False
    )
    # a date would change where nothing else does
    assert not [line for line in done.stdout.splitlines() if "missing date" not in line]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_flag_and_every_example(name: str) -> None:
    text = shown(DOCS / f"man/{'-'.join(['ckpt', *name.split()])}.1")
    for param in (p for p in command(name).params if not p.hidden):
        about = " ".join(param.help.replace("\\[", "[").split())
        assert about.replace("…", "...") in re.sub(r"\s+", " ", text), param.name
        for flag in param.opts if param.param_type_name == "option" else ():
            assert re.search(rf"^ +(-\w, )?(--[\w-]+, )*{flag}\b", text, re.MULTILINE), flag
    lines = {line.strip() for line in text.splitlines()}
    assert {line for line, _ in examples(name)} <= lines
