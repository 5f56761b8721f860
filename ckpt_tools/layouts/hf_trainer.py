"""Hugging Face Trainer: ``checkpoint-N/`` with the model, ``optimizer.pt``, ``scheduler.pt``,
RNG states and, written last, ``trainer_state.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts import dcp, deepspeed
from ckpt_tools.layouts.common.counters import borrowed, named_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Compared,
    Complete,
    Flaws,
    Found,
    Layout,
    Purpose,
    Rows,
    Saves,
    Tracker,
    loss,
    read_number,
    resume_with,
    whole,
)
from ckpt_tools.layouts.common.lost_files import stale_index, without_index, without_names
from ckpt_tools.layouts.common.piece import (
    JSON,
    SAFETENSORS,
    SHARDED,
    TORCH,
    Changes,
    Claim,
    Piece,
    Readers,
    Stage,
    nest,
)
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part

_PADDLE = ("pickle_plain",)
_HOME = "checkpoint-{step}"
_TOKENIZER = (
    "generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config"
)
_BY_EVALUATIONS = "num_bad_epochs"
"""An entry of a schedule that counts these (ReduceLROnPlateau)."""


def _check(parts: Rows) -> Found:
    yield from named_steps([row for row in parts if row[0].piece == "state"], "global_step")
    yield from borrowed(parts, {"optimizer": ("optimizer_step",)})
    yield from _find_older(parts)


def _find_older(parts: Rows) -> Found:
    """An optimizer and a schedule that have taken as many steps as a checkpoint before theirs, where there is
    no other one to compare them with. Steps that a scaler of gradients skips are few.
    """
    told = {p.role: (p, r.metadata) for p, r in parts}
    if len({p.home for p, _ in parts}) != 1 or not told.keys() >= {"optimizer", "scheduler", "state"}:
        return
    optimizer, schedule = told["optimizer"], told["scheduler"]
    at, every = (whole(told["state"][1].get(key)) for key in ("global_step", "save_steps"))
    taken, set_at = whole(optimizer[1].get("optimizer_step")), whole(schedule[1].get("last_epoch"))
    if at and every and taken and set_at and not (at % every or _BY_EVALUATIONS in schedule[1]):
        yield from _compare_steps((optimizer[0], taken), (schedule[0], set_at), at, every)


def _compare_steps(optimizer: tuple[Part, int], schedule: tuple[Part, int], at: int, every: int) -> Found:
    """Which of the two is of an older checkpoint, of which there is one ``every`` so many steps."""
    (part, taken), (other, set_at) = optimizer, schedule
    older = {n for n in (taken, set_at) if n < at and n % every == 0}
    if older == {taken, set_at}:
        text = f"it and its schedule have taken {taken} steps, like checkpoint-{taken}, and the Trainer {at}"
        yield part.path, Flaw("step-mismatch", text, severity=Severity.WARNING)
    elif older and at in (taken, set_at):
        text = f"it has taken {min(older)} steps, like checkpoint-{min(older)}, and all else here {at}"
        path = part.path if set_at == at else other.path
        yield path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def _find_lost(c: Checkpoint, beside: Saves) -> Flaws:
    """An engine's model; adapters that have their configuration here, or weights in the saves ``beside`` it:
    the trainer loads those whose weights are there, and says nothing of another one.
    """
    yield from deepspeed.without_model(c)
    yield from without_index(c, beside)
    for index in sorted(_find_unread(c)):
        yield stale_index(index, next(p.name for p in c.parts if p.piece in ("model", "bin")))
    models = {p.folder.directory for p in c.parts if p.role == "model"}
    for p in sorted(c.parts, key=lambda p: p.path):
        if p.name == "adapter_config.json" and p.folder.directory not in models:
            yield loss(f"there is no adapter_model file beside {p.path.removeprefix(f'{c.path}/')}", c.path)

    def named(o: Checkpoint) -> frozenset[str]:
        """Weights and configurations of adapters, without which peft loads none, what sentence-transformers
        builds a model's modules from, and the model as FSDP loads it, beside which it is exported.
        """
        apart = ("adapter_model.", "adapter_config.", "pytorch_model_fsdp")
        files = [p.path for p in o.parts if p.name.startswith(apart) or p.role == "module_config"]
        return frozenset(path.removeprefix(f"{o.path}/") for path in files)

    def described(o: Checkpoint) -> frozenset[str]:
        """What the trainer does without: an evaluation asks for it, or who wants to know its arguments."""
        return frozenset(p.name for p in o.parts if p.role in ("tokenizer", "args"))

    yield from without_names(c, beside, named)
    text = "there is no {}, which the run's other checkpoints have: a copy of it may have stopped early"
    yield from without_names(c, beside, described, text, sure=False)


def _find_unread(c: Checkpoint) -> frozenset[str]:
    """Indexes of shards that are not there, beside a model in one file, which the trainer looks for first
    (transformers/trainer.py, _load_from_checkpoint).
    """
    model = {p.piece for p in c.parts if p.role == "model"}
    if model.isdisjoint(("model", "bin")) or not model.isdisjoint(("model_shard", "bin_shard")):
        return frozenset()
    return frozenset(p.path for p in c.parts if p.piece in ("model_index", "bin_index"))


def model_pieces() -> Iterator[Piece]:
    """A model as ``save_pretrained`` writes it, whole or in shards that an index names."""
    index = Piece("", "model_index", "", ("safetensors_index",), claim=Claim.COMPANION)
    for name, prefix, suffix, formats in (
        ("model", "model", "safetensors", SAFETENSORS),
        ("adapter", "adapter_model", "safetensors", SAFETENSORS),
        ("bin", "pytorch_model", "bin", TORCH),
        ("adapter_bin", "adapter_model", "bin", TORCH),
    ):
        model = Piece(name, "model", f"{prefix}.{suffix}", formats, claim=Claim.COMPANION)
        yield model
        shard = f"{prefix}-{{shard:05d}}-of-{{of:05d}}.{suffix}"
        yield replace(model, name=f"{name}_shard", template=shard)
        yield replace(index, name=f"{name}_index", template=f"{prefix}.{suffix}.index.json")


_OPTIMIZERS = ("optimizer", "metadata_optimizer", "pd_optimizer", "unified_optimizer")
"""Pieces of an optimizer that is saved with a scheduler and random numbers: DeepSpeed's holds them itself."""


def _list_own() -> Iterator[Piece]:
    """What the trainer itself writes beside the model."""
    torch, described = partial(Piece, formats=TORCH), partial(Piece, claim=Claim.COMPANION)
    yield Piece("state", "state", "trainer_state.json", JSON)
    yield from model_pieces()
    for number, role in (("0", "model"), ("{layer}", "module")):  # sentence-transformers: one for each module
        for end, formats in (("model.safetensors", SAFETENSORS), ("pytorch_model.bin", TORCH)):
            below = f"{number}_{{name}}/{end}"
            yield Piece(f"{role}_{end.partition('.')[0]}", role, below, formats, claim=Claim.COMPANION)
    for name, file in (("modules", "modules.json"), ("module_config", "{layer}_{name}/config.json")):
        yield described(name, "module_config", file, JSON, required=False)
    for name, end, formats in (("", "safetensors", SAFETENSORS), ("_bin", "bin", TORCH)):
        below = f"{{name}}/adapter_model.{end}"
        yield Piece(f"named_adapter{name}", "model", below, formats, claim=Claim.COMPANION)
    # a loop of one's own calls them so, too, in a checkpoint-N of its own; the trainer has saved its
    # arguments before them
    yield torch("optimizer", "optimizer", "optimizer.pt", claim=Claim.COMPANION)
    # with FSDP; Accelerate, too, saves optimizer.bin and scaler.pt into a checkpoint-N of its own
    yield torch("optimizer_bin", "optimizer", "optimizer.bin", claim=Claim.COMPANION)
    yield torch("scheduler", "scheduler", "scheduler.pt", claim=Claim.COMPANION)
    yield torch("scaler", "scaler", "scaler.pt", required=False, claim=Claim.COMPANION)
    either = partial(Piece, formats=(*TORCH, *_PADDLE))
    yield either("rng", "rng", "rng_state.pth", readers=Readers(shared=True, survivable=True))
    yield either(
        "rng_rank",
        "rng",
        "rng_state_{rank}.pth",
        readers=Readers(shared=True, sharded=True, survivable=True),
    )
    yield either("args", "args", "training_args.bin", required=False, loaded=False)
    # before it loads the weights, the trainer reads by which version of transformers they were saved
    yield described("config", "config", "config.json", JSON)
    for name, below in (("", ""), ("named_", "{name}/")):
        config = f"{below}adapter_config.json"
        yield described(f"{name}adapter_config", "config", config, JSON, loaded=False)
    yield described("tokenizer", "tokenizer", f"<{_TOKENIZER}>.json", required=False, loaded=False)


def _list_paddle() -> Iterator[Piece]:
    """What PaddleNLP's Trainer names otherwise: the files of ``paddle.save``, one for each piece of a model
    that is cut into such, and the safetensors of unified checkpoints. PaddleFormers' have a directory of
    Paddle's distributed checkpoints for each part.
    """
    cut = "[.tp{tp:02d}][<.|_>pp{pp:02d}]"
    for name, role, file in (
        ("pd_model", "model", f"model_state{cut}.pdparams"),
        ("pd_optimizer", "optimizer", f"optimizer{cut}[<.|_>shard{{dp:02d}}].pdopt"),
        ("pd_scheduler", "scheduler", "scheduler.pdparams"),
        ("pd_scaler", "scaler", "scaler.pdparams"),
    ):
        yield Piece(name, role, file, _PADDLE, unasked=True)
    # written last, each rank's once a save of its own has ended; of a job on PDC the trainer takes no save
    # without .checkpoint_done (trainer_utils.py, get_last_checkpoint)
    done = partial(
        Piece, formats=(), claim=Claim.COMPANION, changes=Changes.MARK, required=False, loaded=False
    )
    weights = ".model_weight|.optimizer_weight|.master_weight"
    yield done("pd_done", "done", "<.checkpoint_done|.model_done>")
    yield done("pd_signal", "done", "saved_signal_{shard}")
    yield done("pd_weights_done", "done", f"<{weights}>.done.{{shard}}")
    for name in ("optimizer", "master_weights"):
        shards = f"{name}[-{{shard:05d}}-of-{{of:05d}}].safetensors"
        yield Piece(f"unified_{name}", name, shards, SAFETENSORS)
        index = f"{name}.safetensors.index.json"
        yield Piece(f"unified_{name}_index", f"{name}_index", index, ("safetensors_index",))


def _list_flex() -> Iterator[Piece]:
    """What PaddleFormers' Trainer saves with ``flex_checkpoint``, and its state."""
    yield Piece("flex_state", "state", "trainer_state.bin", _PADDLE, unasked=True)
    parts = {"model_state": "model", "optimizer_state": "optimizer", "master_weight": "master_weights"}
    for name, role in {**parts, "ema_state": "ema"}.items():
        index = f"{name}/{{name}}.metadata"
        files = f"{name}/{{shard}}_{{name}}.distcp"
        for kind, of, path, form in (
            ("_index", f"{role}_index", index, "paddle_dist"),
            ("", role, files, "pickle_plain"),
        ):
            yield Piece(f"flex_{name}{kind}", of, path, (form,), unasked=True)


def fsdp_pieces() -> Iterator[Piece]:
    """What Accelerate saves of a model, and its optimizer, that FSDP has cut: whole, a file for each rank, or
    a directory of DCP's.
    """
    beside = partial(Piece, formats=TORCH, claim=Claim.COMPANION)
    yield beside("fsdp", "model", "pytorch_model_fsdp[_{shard}].bin")
    for top, role in (("pytorch_model_fsdp", "model"), ("optimizer", "optimizer")):
        yield beside(f"{top}_rank", role, f"{top}[_{{shard}}]_rank{{rank}}.bin", readers=SHARDED)
        of_dcp = dcp.of_role(role, f"fsdp_{role}_index")
        yield from nest(f"{top}_{{node}}", of_dcp, f"_{top}", claim=Claim.COMPANION)


def _list_engine() -> Iterator[Piece]:
    """What FSDP and DeepSpeed write below it."""
    yield from fsdp_pieces()
    yield from nest("global_step{step}", deepspeed.PIECES, deepspeed.MARK)
    # the trainer names no tag to the engine
    yield Piece(f"latest{deepspeed.MARK}", "latest", "latest", claim=Claim.INSIDE, loaded=False)


HF_TRAINER = Layout(
    name="hf-trainer",
    title="Hugging Face Trainer, PaddleNLP Trainer",
    pieces=(
        *nest(_HOME, _list_own()),
        # transformers 4.3x staged there
        Piece("tmp", "model", "tmp-checkpoint-{step}/{name}", (), stage=Stage.UNDER_WAY),
        *nest(_HOME, (*_list_paddle(), *_list_flex(), *_list_engine())),
    ),
    resume=resume_with("--resume_from_checkpoint", "{path}"),
    check=_check,
    lost=_find_lost,
    unread=_find_unread,
    beside=Beside(best="best_model_checkpoint"),
    complete=Complete(
        commit="state",
        first=("model",),
        needs=("model",),
        saved_with=(  # save_only_model leaves out all three
            *((piece, "optimizer") for piece in ("scheduler", "pd_scheduler")),
            *((piece, "scheduler") for piece in _OPTIMIZERS),
            *((piece, "rng") for piece in ("scheduler", "pd_scheduler", *_OPTIMIZERS)),
        ),
        one_of=(_OPTIMIZERS, ("model", "model_shard", "metadata_pytorch_model_fsdp", "pd_model")),
    ),
    tracker=Tracker(file="dlrover_latest.txt", read=read_number, always=False),
    purpose=Purpose.EXPORTS,
    compared=Compared.BY_PIECE,
    reshardable=True,
    reference=(
        "transformers/trainer.py _save_checkpoint: model, optimizer, scheduler, RNG, then "
        "trainer_state.json; no temporary directory; paddlenlp/trainer/trainer.py of PaddleNLP 3.0; "
        "paddleformers/trainer/trainer.py of PaddleFormers 1.2"
    ),
    limits=(
        ("what DeepSpeed's latest names is not read, and in a lone checkpoint it is not missed"),
        (
            "only trainer_state.json carries the step; a model or random numbers of another save with the"
            " same shapes are seen only while that save is there"
        ),
        (
            "with save_only_model there is neither optimizer nor scheduler, and that is no damage unless"
            " other checkpoints of the run have them"
        ),
    ),
)
