"""``ckpt launchers``: the known launchers, and which of them started this process."""

from __future__ import annotations

import os

from ckpt_tools.cli import options, output


def launchers(
    no_plugins: options.NoPlugins = False,
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    color: options.Color = None,
) -> int:
    """List the known launchers, and say what is known about this process: each number with the variable that
    it comes from, and what is unclear.
    """
    to = output.requested(("table", "json"), dict(locals()))
    output.leave_out_plugins(no_plugins)
    from ckpt_tools.launchers import LAUNCHERS, detect
    from ckpt_tools.output import launchers as emit

    known = [(launcher, launcher.detect(os.environ)) for launcher in LAUNCHERS]
    here = detect(os.environ)
    output.broken_plugins(("launchers",))
    to.out(
        emit.catalogue(known, here) if to.format == "json" else emit.table(known, here, os.environ, to.view)
    )
    return 0
