"""``ckpt undo``: undo the last repair or quarantine."""

from __future__ import annotations

from ckpt_tools.cli import options, output

FORMATS = ("table", "json")


def undo(
    root: options.Root = None,
    apply: options.Apply = False,
    state_dir: options.StateDir = None,
    trust_group: options.TrustGroup = False,
    trust_owner: options.TrustOwner = None,
    trust_dir: options.TrustDir = None,
    output_file: options.OutputFile = None,
    format: options.Format = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.Color = None,
    config: options.Config = None,
) -> int:
    """Undo the last 'ckpt repair' or 'ckpt quarantine' below ROOT. Without --apply nothing is done.

    Exit codes: 0 done, or shown what would be done; 2 a file is no longer what that command left; 3 there is
    nothing to undo; 5 something could not be looked at or moved: nothing is lost.
    """
    given = dict(locals())
    to = output.requested(FORMATS, given)
    found = options.settings(given, to)
    options.on_this_machine([found.root], options.RENAMES, "nothing there was repaired or put away by ckpt")
    from ckpt_tools.guard.quarantine import undo as take_back
    from ckpt_tools.output import changes

    result = take_back(found.root, apply=apply, state_dir=found.values.get("state-dir"), trust=found.trust)
    to.out(changes.json(result) if to.format == "json" else changes.render(result, to.view))
    return 0
