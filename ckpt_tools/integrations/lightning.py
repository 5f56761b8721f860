"""For Lightning: ``trainer.fit(model, ckpt_path=checkpoint("checkpoints", allow_none=True))``."""

from __future__ import annotations

from ckpt_tools.integrations.agreement import path_for

checkpoint = path_for("Trainer.fit", "lightning")
"""The file to resume from, or the directory of a sharded checkpoint."""
