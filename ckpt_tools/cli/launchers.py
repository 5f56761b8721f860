"""``ckpt launchers``: the known launchers, and which of them started this process."""

from __future__ import annotations

import os

import msgspec

from ckpt_tools.cli import options, output
from ckpt_tools.launchers import detect, list_all
from ckpt_tools.output import launchers as emit


@options.ask(("table", "json"), "no_plugins output_file format json color", settings=False)
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
        lambda view: emit.table(known, here, os.environ, view),
        detected=msgspec.to_builtins(here) if here else None,
    )
