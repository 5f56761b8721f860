"""What trainers with JAX save without Orbax: AXLearn, big_vision, Levanter, T5X, flax and EasyLM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.arrays import LIST, ROLE, array, fewer_than_listed, lost_arrays
from ckpt_tools.layouts.common.counters import named_steps, read_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Compared,
    Complete,
    Flaws,
    Layout,
    Saves,
    Tracker,
    check_all,
    loss,
    names_in,
    resume_directory,
    resume_file,
)
from ckpt_tools.layouts.common.piece import (
    COPIES,
    JSON,
    TELLS_STEP,
    UNTOLD,
    Changes,
    Claim,
    Piece,
    Stage,
    nest,
)
from ckpt_tools.model.checkpoint import Checkpoint

_ZEROS = "a chunk that is not there may be one of zeros: it is missed where other checkpoints have it"

# ---- AXLearn: step_00000100/ with a directory for each array below gda/, and index, written last


_AXLEARN_HOME = "step_{step:08d}"
_AXLEARN_DEEPEST = 12
"""Components of an array's path: model/decoder/transformer/repeat/layer/self_attention/…/weight."""
AXLEARN = Layout(
    name="axlearn",
    title="AXLearn",
    pieces=(
        *(
            array(f"array{depth}", "/".join([f"{_AXLEARN_HOME}/gda", *["{name}"] * depth]), sure=True)
            for depth in range(1, _AXLEARN_DEEPEST + 1)
        ),
        Piece("index", "index", f"{_AXLEARN_HOME}/index", JSON),
    ),
    resume=resume_directory,  # Checkpointer.restore(step), TensorStoreStateStorage.restore_from_dir()
    check=check_all(partial(named_steps, read="step", role="index"), fewer_than_listed),
    complete=Complete(commit="index", needs=(ROLE,)),
    beside=Beside(traces=(re.compile(r"(?:^|/)step_\d{8,}/gda/(?:.+/)?\d+(?:\.\d+)*$"),)),
    lost=lost_arrays,
    reshardable=True,
    reference="axlearn/common/checkpointer.py TensorStoreStateStorage, checkpoint_paths()",
    limits=("the states of data sets beside the arrays (tf_0/, python_0/) are not looked at", _ZEROS),
)

# ---- big_vision: checkpoint.bv-000000100/ with a directory for each array, in whose name ~ is a slash, and
# checkpoint.bv-LAST beside it, which is written last. The next save removes one with -tmp.

_SAVES = "checkpoint.bv-"


def _read_last(data: bytes) -> str | None:
    """What is called so behind ``checkpoint.bv-``."""
    said = data.decode("ascii", "replace").strip()
    return said if re.fullmatch("[0-9]{9,18}(?:-tmp)?", said) else None


BIG_VISION = Layout(
    name="big-vision",
    title="big_vision",
    pieces=tuple(
        replace(array(name, f"{_SAVES}{{step:09d}}{end}/{{name}}", sure=True), stage=Stage.FINISHED)
        for name, end in (("array", ""), ("temporary", "-tmp"))
    ),
    resume=resume_directory,  # config.resume, u.load_checkpoint_ts(path)
    tracker=Tracker(
        file=f"{_SAVES}LAST",
        read=_read_last,
        name=lambda c: c.path.rpartition("/")[2].removeprefix(_SAVES),
    ),
    complete=Complete(needs=(ROLE,)),
    beside=Beside(traces=(re.compile(r"(?:^|/)checkpoint\.bv-\d{9,}(?:-tmp)?/[^/]+/\d+(?:\.\d+)*$"),)),
    lost=lost_arrays,
    reshardable=True,
    reference="big_vision/utils.py save_checkpoint_ts(), tssave(), load_checkpoint_ts()",
    limits=(
        "no list of the arrays is kept: one that is lost is missed where the run has another checkpoint",
        _ZEROS,
    ),
)

# ---- Levanter: step-N/ with a directory for each array, and metadata.json, which is written last. EasyDeL
# calls it run-N/, and lists the arrays.

_LEVANTER_HOME = "<step|run>-{step}"
_ARRAYS = "opt_state|model|_step|training_key|tx"
"""What every TrainerState has, and EasyDeL's."""
_LEVANTER_DEEPEST = 9
"""Components of an array's path: opt_state/inner_state/1/mu/transformer/layers/attn/q_proj/weight."""


def _find_lost_of_levanter(c: Checkpoint, beside: Saves) -> Flaws:
    """Arrays that the saves beside it have; of a lone save its model, or the state of an optimizer, which may
    be one without any.
    """
    yield from lost_arrays(c, beside)
    held = {name.partition("/")[0] for name in names_in(c)}
    if not beside and "model" not in held:
        yield loss("there is no array in model/", c.path)
    elif not beside and held.isdisjoint(("opt_state", "tx")):
        text = "there is no array in opt_state/, and no other save tells whether there was one"
        yield loss(text, c.path, sure=False)


def _list_levanter() -> Iterator[Piece]:
    # of every TrainerState; Orbax keeps arrays of an item called model right in it
    for name, path in (("_step", "_step"), ("key", "training_key"), ("model", "model/{name}/{name}")):
        yield array(name, f"{_LEVANTER_HOME}/{path}", sure=True)
    for depth in range(1, _LEVANTER_DEEPEST + 1):
        yield array(f"array{depth}", "/".join([_LEVANTER_HOME, *["{name}"] * depth]), sure=False)
    told = partial(Piece, formats=JSON, claim=Claim.INSIDE)
    yield told("metadata", "metadata", f"{_LEVANTER_HOME}/metadata.json")
    yield told("index", LIST, f"{_LEVANTER_HOME}/tensorstore_index.json", required=False)
    yield told("structure", LIST, f"{_LEVANTER_HOME}/{{name}}_structure.json", required=False)


LEVANTER = Layout(
    name="levanter",
    title="Levanter",
    pieces=tuple(_list_levanter()),
    resume=resume_directory,  # trainer.load_checkpoint_path
    check=partial(named_steps, read="step", role="metadata"),
    complete=Complete(commit="metadata", needs=(ROLE,)),
    beside=Beside(
        written=re.compile("_step"),
        traces=(
            re.compile(r"(?:^|/)step-\d+/metadata\.json$"),
            re.compile(rf"(?:^|/)(?:step|run)-\d+/(?:{_ARRAYS})/(?:.+/)?\d+(?:\.\d+)*$"),
        ),
    ),
    lost=_find_lost_of_levanter,
    reshardable=True,
    reference=(
        "levanter/checkpoint.py save_checkpoint(), discover_latest_checkpoint(); "
        "levanter/tensorstore_serialization.py; levanter/trainer_state.py TrainerState; EasyDeL 0.3: "
        "eformer/serialization/checkpointer.py, easydel/infra/base_state.py save_state()"
    ),
    limits=(
        "no list of the arrays is read: one that is lost is missed where the run has another checkpoint",
        _ZEROS,
        "the framework takes the latest timestamp in metadata.json, and not the highest step",
    ),
)

# ---- T5X: checkpoint_N/ with a MessagePack file checkpoint and a directory for each large array; .tmp-…
# while it is written

_OF_T5X = (
    array("target", "target.{name}", sure=True),
    array("array", "{name}", sure=False),
    Piece("index", "index", "checkpoint", ("msgpack",), claim=Claim.INSIDE),
)


T5X = Layout(
    name="t5x",
    title="T5X",
    pieces=(
        *nest("checkpoint_{step}.tmp-{name}", _OF_T5X, "_tmp", stage=Stage.UNDER_WAY),
        *nest("checkpoint_{step}", _OF_T5X),
    ),
    resume=resume_directory,  # utils.RestoreCheckpointConfig.path
    check=check_all(partial(named_steps, read="optimizer.state.step"), fewer_than_listed),
    complete=Complete(needs=("index", ROLE)),
    beside=Beside(traces=(re.compile(r"(?:^|/)checkpoint_\d+/(?:target|state)\.[^/]+/\d+(?:\.\d+)*$"),)),
    lost=lost_arrays,
    reshardable=True,
    reference="t5x/checkpoints.py Checkpointer.save(), _write_state_to_tensorstore(), latest_step()",
    limits=(_ZEROS, "the state of the data set (train_ds-…) is not looked at"),
)

# ---- flax: checkpoint_N is a file, and checkpoint_N_gda beside it holds the arrays that lie on several
# hosts. The name alone says little: Ray's and Orbax' directories are called so as well.

_OF_FLAX = Piece("file", "model", "checkpoint_{step}", ("msgpack",), claim=Claim.WEAK, content=TELLS_STEP)
FLAX = Layout(
    name="flax",
    title="flax checkpoint_N",
    pieces=(
        _OF_FLAX,
        replace(_OF_FLAX, name="temporary", template="checkpoint_tmp", stage=Stage.UNDER_WAY, content=UNTOLD),
    ),
    resume=resume_file,  # restore_checkpoint(path, target)
    check=partial(named_steps, read="step"),
    reshardable=True,
    reference=(
        "flax/training/checkpoints.py save_checkpoint(), save_checkpoint_multiprocess(), "
        "latest_checkpoint(): the highest; checkpoint_tmp is renamed when it is written"
    ),
    limits=(
        "a prefix of the script's own, and steps with a fraction, are files of no known arrangement",
        "a checkpoint_N that is gone is asked about only where an optimizer's arrays are left beside it",
    ),
)

# ---- EasyLM: streaming_train_state_N (or streaming_params_N) at milestones, and one file without a number
# that is written over

_STREAM = partial(Piece, role="model", formats=("msgpack_stream",), readers=COPIES)
_PICKLE = partial(Piece, formats=("pickle_plain",), claim=Claim.COMPANION, loaded=False, required=False)
EASYLM = Layout(
    name="easylm",
    title="EasyLM",
    pieces=(
        _STREAM("train_state_milestone", template="streaming_train_state_{step}"),
        _STREAM("train_state", template="streaming_train_state", content=TELLS_STEP),
        _STREAM("params_milestone", template="streaming_params_{step}"),
        _STREAM("params", template="streaming_params", content=TELLS_STEP),
        _PICKLE("metadata", "metadata", "metadata_{step}.pkl"),
        _PICKLE("metadata_last", "metadata", "metadata.pkl", changes=Changes.ROLLING),
        _PICKLE("dataset", "dataset", "dataset_{step}.pkl"),
        _PICKLE("dataset_last", "dataset", "dataset.pkl", changes=Changes.ROLLING),
    ),
    resume=resume_file,
    steps=partial(read_steps, step=("step",)),
    check=partial(named_steps, read="step"),
    complete=Complete(needs=("model",)),
    compared=Compared.BY_ROLE,
    reshardable=True,
    reference="EasyLM/checkpoint.py StreamingCheckpointer.save_all(), load_trainstate_checkpoint()",
    limits=(
        "--load_checkpoint wants trainstate:: or params:: before the path",
        "a file that ends between two arrays looks whole: that it has fewer than others of its run is said",
        "streaming_params tells no step",
    ),
)
