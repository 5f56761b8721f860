"""``ckpt launchers``: the known launchers, and which of them started this process."""

from __future__ import annotations

import os
from typing import Any

from ckpt_tools.cli import options, output
from ckpt_tools.settings import plugins

EXAMPLES = """
ckpt launchers  # what is known about this process, and from which variable
RANK=1 WORLD_SIZE=2 ckpt launchers  # what a process with these variables would see
CKPT_RANK=1 ckpt launchers  # the same with ckpt's own variable
SLURM_PROCID=1 SLURM_STEP_ID=0 ckpt launchers  # as a task of Slurm would see it
ckpt launchers --json  # the same for a program
"""


@options.take("no_plugins output_file format json color")
def launchers(
    **given: Any,
) -> int:
    """List the known launchers, and say what is known about this process: each number with the variable that
    it comes from, and what is unclear.
    """
    to = output.read_output(("table", "json"), given)
    plugins.switch(given["no_plugins"] or None)
    from ckpt_tools.launchers import detect, list_all
    from ckpt_tools.output import launchers as emit

    known = [(launcher, launcher.detect(os.environ)) for launcher in list_all()]
    here = detect(os.environ)
    output.say_broken_plugins(("launchers",))
    to.out(
        emit.catalogue(known, here) if to.format == "json" else emit.table(known, here, os.environ, to.view)
    )
    return 0
