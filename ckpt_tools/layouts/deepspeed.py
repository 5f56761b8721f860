"""DeepSpeed: ``<tag>/mp_rank_MM_model_states.pt`` with ZeRO's ``zero_pp_rank_D_mp_rank_MM_optim_states.pt``, the tag named by ``latest``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.counters import borrowed, missed
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, Steps, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import ranges, words
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")
STEP = "<global_step|global_step_|step|step_|step-|checkpoint-|checkpoint_|iter_>{step}"
_WORLD = 1 << 20


def _steps(part: Part, metadata: Metadata) -> Steps:
    said = whole(metadata.get("global_steps"))
    return (part.step if said is None else said), part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """``global_steps`` of the files of one tag and of the others (a tag is the user's own), and the files of all data parallel ranks that ``dp_world_size`` promises."""
    homes: dict[str, list[tuple[Part, Report]]] = {}
    for part, report in parts:
        homes.setdefault(part.home, []).append((part, report))
    for rows in homes.values():
        told = [(p, n) for p, r in rows if (n := whole(r.metadata.get("global_steps"))) is not None]
        for p, n in told:
            if n != told[0][1] and told[0][0].step != n:
                yield (
                    p.path,
                    finding(
                        "step-mismatch",
                        f"its global_steps is {n}, that of {told[0][0].path.rpartition('/')[2]} is {told[0][1]}",
                    ),
                )
        optim = {
            (dict(p.coords).get("dp"), dict(p.coords).get("tp"))
            for p, _ in rows
            if p.piece.startswith("optim")
        }
        for p, r in rows:
            dp, mp = (whole(r.metadata.get(k)) or 1 for k in ("dp_world_size", "mp_world_size"))
            # with ZeRO the model states hold optimizer None: a save cut before its first optimizer file
            expected = optim or r.metadata.get("optimizer", 0) is None
            if p.role == "model" and expected and "dp_world_size" in r.metadata and 0 < dp * mp <= _WORLD:
                if lost := [(d, m) for m in range(mp) for d in range(dp) if (d, m) not in optim]:
                    gone = {m: ranges([d for d, at in lost if at == m]) for m in sorted({m for _, m in lost})}
                    names = ", ".join(
                        f"data parallel rank {words(of)} of model parallel rank {m}" for m, of in gone.items()
                    )
                    yield (
                        p.path,
                        finding(
                            "missing-rank",
                            f"dp_world_size is {dp}, but there is no optimizer file of {names}",
                        ),
                    )
                break
    keys = {
        f"{piece}{mark}": said
        for piece, said in (
            ("model", ("global_steps",)),
            ("zero3", ("global_steps",)),
            ("optim", ("optimizer_step",)),
        )
        for mark in ("", "_any")
    }
    yield from borrowed(parts, keys, growing=False)
    yield from missed(
        parts,
        lambda p: p.path.rpartition("/")[2] if p.role in ("layer", "expert", "expert_optimizer") else None,
    )


def _read_tracker(data: bytes) -> str | None:
    text = data.decode("utf-8", "replace").strip()
    return (
        text
        if text and "\n" not in text and "/" not in text and "\0" not in text and len(text) <= 255
        else None
    )


def tag(checkpoint: Checkpoint) -> str:
    """The name of the checkpoint's own directory."""
    return checkpoint.parts[0].home.rpartition("/")[2]


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(
        checkpoint.path,
        ("--load_dir", checkpoint.parts[0].base, "--tag", tag(checkpoint)),
        {"CKPT_LOAD_DIR": checkpoint.parts[0].base, "CKPT_TAG": tag(checkpoint)},
    )


def pieces(home: str, mark: str) -> Iterator[Piece]:
    """The files of a checkpoint in the directory ``home``."""
    zero = "[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}"
    yield Piece(
        f"model{mark}",
        "model",
        f"{home}/mp_rank_{{tp:02d}}_model_states.pt",
        FORMATS,
        replicated_over=("dp", "cp"),
        unasked=True,
    )
    yield Piece(
        f"zero3{mark}", "model", f"{home}/{zero}_model_states.pt", FORMATS, sharded=True, unasked=True
    )
    yield Piece(
        f"optim{mark}", "optimizer", f"{home}/{zero}_optim_states.pt", FORMATS, sharded=True, unasked=True
    )
    yield Piece(
        f"layer{mark}",
        "layer",
        f"{home}/layer_{{layer:02d}}-model_{{tp:02d}}-model_states.pt",
        FORMATS,
        shared=True,
        unasked=True,
    )
    yield Piece(
        f"expert{mark}",
        "expert",
        f"{home}/[layer_{{layer}}_]expert_{{expert}}_mp_rank_{{tp:02d}}_model_states.pt",
        FORMATS,
        shared=True,
        unasked=True,
    )
    yield Piece(
        f"expert_optim{mark}",
        "expert_optimizer",
        f"{home}/expp_rank_{{ep}}_mp_rank_{{tp:02d}}_optim_states.pt",
        FORMATS,
        shared=True,
        unasked=True,
    )


LAYOUT = Layout(
    name="deepspeed",
    title="DeepSpeed ZeRO",
    pieces=(*pieces(STEP, ""), *pieces("{name}", "_any")),
    resume=_resume,
    steps=_steps,
    check=_check,
    tracker="latest",
    read_tracker=_read_tracker,
    tracked=tag,
    tracked_early=True,
    needs=("model",),
    reference="deepspeed/runtime/engine.py save_checkpoint, _get_ckpt_name, _get_zero_ckpt_name; 'latest' is written before other ranks are done",
    limits=(
        "only the model states carry global_steps; the optimizer files carry the optimizer's own count, where it has one",
        "pipeline layers and experts are loaded by the ranks that hold them: the plan lists them for all",
    ),
)
