"""The Trainer of transformers, whose newest checkpoint is damaged: resumed from the one before.

python transformers_trainer.py OUT    # transformers, torch, accelerate
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from spoiling import refusal, spoil
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from ckpt_tools.integrations.transformers import checkpoint

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16}


def trainer_of(out: Path, steps: int) -> Trainer:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_attention_heads=1, max_position_embeddings=16)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.arange(32).reshape(8, 4) % 16]
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=2,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows)


def main(out: Path) -> dict[str, Any]:
    trainer = trainer_of(out, 6)
    trainer.train(resume_from_checkpoint=checkpoint(out, allow_none=True))
    first = trainer.state.global_step
    spoil(out / "checkpoint-6")
    own = get_last_checkpoint(str(out))
    trainer, begun = trainer_of(out, 10), []
    trainer.add_callback(Begun(begun))
    trainer.train(resume_from_checkpoint=checkpoint(out, allow_none=True))
    for path in out.glob("checkpoint-*"):
        spoil(path)
    return {
        "by": f"transformers {transformers.__version__}",
        "first": first == 6,
        "own": Path(own).name,
        "resumed": f"checkpoint-{begun[0]}",
        "went_on": trainer.state.global_step == 10,
        "refused": refusal(lambda: checkpoint(out, allow_none=True)),
    }


class Begun(transformers.TrainerCallback):
    """At which step training begins."""

    def __init__(self, begun: list[int]) -> None:
        self.begun = begun

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self.begun.append(state.global_step)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
