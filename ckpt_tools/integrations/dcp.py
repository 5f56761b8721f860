"""For torch.distributed.checkpoint: ``dcp.load(state, checkpoint_id=checkpoint("checkpoints"))``."""

from __future__ import annotations

from ckpt_tools.integrations.agreement import path_for

checkpoint = path_for("dcp.load", "dcp")
"""The directory that ``dcp.save`` wrote."""
