"""For MindSpore: ``mindspore.load_checkpoint(checkpoint("checkpoints"), net)``."""

from __future__ import annotations

from ckpt_tools.integrations.agreement import path_for

checkpoint = path_for("load_checkpoint", "mindspore", "mindio-ttp")
"""The file that this rank loads: its own, or that of a rank that holds the same state."""
