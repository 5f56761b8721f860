"""For Keras: ``keras.models.load_model(checkpoint("models"))``; ``model.load_weights`` for weights alone."""

from __future__ import annotations

from ckpt_tools.integrations.agreement import path_for

checkpoint = path_for("Keras", "keras")
"""The file that ``ModelCheckpoint`` or ``model.save`` wrote."""
