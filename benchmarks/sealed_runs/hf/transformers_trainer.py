"""The Trainer of transformers with save_total_limit: found by get_last_checkpoint, resumed, and pruned again.

python transformers_trainer.py OUT SEALED    # transformers, torch, accelerate; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from ckpt_tools.guard.callbacks.transformers import seal_callback

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16}


def train(out: Path, sealed: bool, steps: int, resume: bool) -> Trainer:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_attention_heads=1, max_position_embeddings=16)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.arange(32).reshape(8, 4) % 16]
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=2,
        save_steps=2,
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model, callbacks = LlamaForCausalLM(config), [seal_callback()] if sealed else []
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def main(out: Path, sealed: bool) -> dict[str, Any]:
    train(out, sealed, 6, resume=False)
    first = get_last_checkpoint(str(out))
    trainer = train(out, sealed, 10, resume=True)
    newest = get_last_checkpoint(str(out))
    again = LlamaForCausalLM.from_pretrained(newest)
    return {
        "by": f"transformers {transformers.__version__}",
        "kept": sorted(p.name for p in out.iterdir() if not p.name.startswith(".")),
        "newest": [Path(first).name, Path(newest).name],
        "loaded": [trainer.state.global_step, float(sum(p.double().sum() for p in again.parameters()))],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "1")))
