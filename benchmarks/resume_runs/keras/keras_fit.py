"""Keras, whose newest model is damaged: loaded from the one before.

python keras_fit.py OUT    # keras, jax
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from spoiling import refusal, spoil

from ckpt_tools.integrations.keras import checkpoint


def main(out: Path) -> dict[str, Any]:
    out.mkdir()
    none = checkpoint(out, allow_none=True)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
    saves = keras.callbacks.ModelCheckpoint(str(out / "model-{epoch:02d}.keras"))
    model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=[saves])
    spoil(out / "model-03.keras")
    path = checkpoint(out)
    model = keras.models.load_model(path)
    before = int(
        model.optimizer.iterations.numpy()
        if hasattr(model.optimizer.iterations, "numpy")
        else model.optimizer.iterations
    )
    model.fit(x, x[:, :1], batch_size=8, epochs=3, initial_epoch=2, verbose=0)
    for one in out.iterdir():
        spoil(one)
    return {
        "by": f"keras {keras.__version__}, {keras.backend.backend()}",
        "first": none is None,
        "own": "model-03.keras",
        "resumed": Path(path).name,
        "went_on": before == 16,
        "refused": refusal(lambda: checkpoint(out, allow_none=True)),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
