"""MindSpore's ModelCheckpoint: ``prefix[_K]-E_S.ckpt`` in one directory, in ``rank_R/``,
or in ``<dir>_R/`` beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.layouts.common.mindspore_steps import check, place, steps
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.notes import Notes
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume

CKPT = ("mindspore_ckpt", "mindspore_encrypted")
ST = ("safetensors",)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    """Scripts read the file, the epoch and the step from CKPT_PATH, CKPT_EPOCH and CKPT_STEP_IN_EPOCH; what
    lies beside the only model they find by its name.
    """
    models = [p.path for p in checkpoint.parts if p.role == "model"]
    return Resume(path or (models[0] if len(models) == 1 else None))


def _crosscheck(checkpoints: Sequence[Checkpoint], notes: Notes) -> Iterator[Finding]:
    from ckpt_tools.layouts.common.mindformers_records import records  # only ckpt verify asks

    return records(checkpoints, notes)


def _write_record(part: Part) -> bytes:
    """MindFormers' meta.json (mindformers/core/callback:
    last_epoch and last_step are those of the file's name).
    """
    import json  # only for a view: it costs start-up time

    name = json.dumps(part.path.rpartition("/")[2])
    counters = f'"last_epoch": {part.epoch}, "last_step": {part.step_in_epoch}'
    return f'{{{counters}, "last_ckpt_file": {name}}}'.encode()


def _pieces(home: str, mark: str, prefix: str) -> Iterator[Piece]:
    moment = "-{epoch}_{step_in_epoch}"
    # of MindCV and MindYOLO, beside weights with a number
    optimizer = Piece(f"optimizer{mark}", "optimizer", f"{home}optim_{prefix}.ckpt", CKPT, required=False)
    yield replace(optimizer, rolling=True, survivable=True)
    gasp = Piece(f"breakpoint{mark}", "model", f"{home}{prefix}{moment}_breakpoint.ckpt", CKPT)
    gasp = replace(gasp, kind=Kind.DYING_GASP)
    yield gasp
    yield replace(gasp, name=f"iteration{mark}", template=f"{home}iteration{moment}[{{tmp}}].ckpt")
    for kind, suffix, formats in (("", "ckpt", CKPT), ("_st", "safetensors", ST)):
        # of the weights alone, which MindFormers saves into checkpoint_network/ and checkpoint_trainable/
        export = f"{home}{prefix}-<network|trainable_params>{moment}.{suffix}"
        yield Piece(f"export{kind}{mark}", "model", export, formats, kind=Kind.RELEASE)
        # of MindYOLO's average of the weights, which it saves beside them
        average = f"{home}EMA_{prefix}{moment}.{suffix}"
        yield Piece(f"average{kind}{mark}", "model", average, formats, kind=Kind.RELEASE)
        # of MindCV's best weights so far, of whatever epoch (mindcv/utils/callbacks.py)
        yield Piece(f"best{kind}{mark}", "model", f"{home}{prefix}_best.{suffix}", formats, kind=Kind.RELEASE)
        yield Piece(f"model{kind}{mark}", "model", f"{home}{prefix}{moment}.{suffix}", formats)


_CALLABLE = replace(
    Piece("callable", "model", "{name}.ckpt", CKPT, step_from="content", weak=True),
    state_told=("global_step", "step_num", "epoch_num"),
)
"""A name of one's own. MindOne saves weights under such, beside the whole state of train_resume.ckpt."""
LAYOUT = Layout(
    name="mindspore",
    title="MindSpore ModelCheckpoint",
    pieces=(
        *_pieces("rank_{rank}/", "_rank", "{prefix}[_rank_{rank}][_{generation}]"),
        *_pieces("", "", "{prefix}[_{generation}]"),
        replace(_CALLABLE, name="callable_rank", template="rank_{rank}/{name}.ckpt"),
        _CALLABLE,
    ),
    resume=_resume,
    own_files=False,  # MindFormers looks into the directories of all ranks for the last step that all have
    steps=steps,
    place=place,
    check=check,
    epoch_base=1,
    counts_restarts="step_num",  # append_info goes on from the value that was loaded
    rank_directories=True,
    stateless=("-graph.meta",),  # the graph as protobuf
    unneeded=(("-graph.meta", "-"),),  # where checkpoints are, a new run gives its graph another name
    compared_by_role=True,
    crosscheck=_crosscheck,
    records=("meta.json",),  # MindFormers' note of a rank's last checkpoint
    write_record=_write_record,
    reference=(
        "mindspore/train/callback/_checkpoint.py ModelCheckpoint, _get_file_prefix; "
        "mindspore/train/serialization.py save_checkpoint"
    ),
    limits=(
        (
            "names count the step inside the epoch; the global step comes from step_num or global_step in the"
            " file, else it is unknown"
        ),
        "<dir>_R counts as rank R only when the siblings number 0, 1, 2, … without a gap",
        (
            "optim_NAME.ckpt of MindCV and MindYOLO is of the save whose steps it tells, else of the one"
            " that was written within seconds of it"
        ),
        "a .ckpt with remove_redundancy does not say so: only its tensors tell that it is no replica",
    ),
)
