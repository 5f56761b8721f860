"""``ckpt show``: what is in a file, without loading it."""

from __future__ import annotations

from ckpt_tools import api
from ckpt_tools.cli import options, output
from ckpt_tools.cli.ls import ls
from ckpt_tools.cli.options import parameter
from ckpt_tools.errors import CannotLook, explain_refusal
from ckpt_tools.formats.pickles.globals import find_verdict
from ckpt_tools.formats.pickles.stubs import Global
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.output import contents
from ckpt_tools.output import json as emit
from ckpt_tools.storage.retry import exists, is_directory


@options.ask(
    ("table", "json"),
    parameter("FILE", "A checkpoint file, or a directory, which is listed.", required=True),
    "level key_file store_option trust no_plugins trust_group trust_owner trust_dir explain_bytes",
    "output_file format json verbose color",
    trees_in="file",
)
def show(asked: options.Asked) -> int:
    """Print the tensors, the metadata and the pickle globals of FILE, by default at level structure. Nothing
    in it is loaded or run.

    Exit codes: 0 shown; 1 shown, and found damaged; 3 the format is not known; 5 the file could not be read.

    Examples:
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt  # tensors, metadata and pickled names
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --verbose  # the whole list
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --explain-bytes  # what protects which byte
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --level content  # also compare its checksums
    ckpt show run/iter_0000020/mp_rank_00/model_optim_rng.pt --json  # the same for a program
    """
    to, settings, given = asked.to, asked.settings, asked.given
    file = given["file"]
    output.say_broken_plugins()
    with explain_refusal(f"cannot look at {file!r}"):
        is_there = exists(file)
    if not is_there:
        raise CannotLook(f"there is no file {file!r}", "'ckpt ls -v' shows where checkpoints are")
    if is_directory(file):
        return ls(root=file, tree=to.format != "json", format=given["format"], json=given["json"])
    report, anatomy = api.show(
        file,
        settings.values["level"] if given["level"] is not None else Level.STRUCTURE,
        **settings.reading(names=("key_file",)),
        explain=given["explain_bytes"],
    )
    trust = {name: find_verdict(Global(*name.split(" ", 1))) for name in anatomy.globals}
    if to.format == "json":
        to.out(emit.render_file(report, anatomy, trust))
    else:
        to.out(contents.render(report, anatomy, trust, to.view))
    if report.verdict is Verdict.UNKNOWN:
        return 5
    if report.verdict is Verdict.BROKEN:
        return 1
    return 0 if report.format else 3
