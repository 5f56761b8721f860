"""For transformers: ``trainer.train(resume_from_checkpoint=checkpoint("out", allow_none=True))``."""

from __future__ import annotations

from ckpt_tools.integrations.agreement import path_for

checkpoint = path_for("Trainer.train", "hf-trainer")
"""The directory to resume from, below the trainer's ``output_dir``."""
