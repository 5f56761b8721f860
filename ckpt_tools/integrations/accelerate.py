"""For Accelerate: ``accelerator.load_state(checkpoint("checkpoints"))``.

Do not call ``load_state`` with None: it would take the newest of its own checkpoints, unverified.
"""

from __future__ import annotations

from ckpt_tools.integrations.agreement import path_for

checkpoint = path_for("Accelerator.load_state", "accelerate")
"""The directory that ``save_state`` wrote."""
