"""The child process of the load level: it runs the framework's own loader and prints the outcome as one line
of JSON.

Started as ``python -c <this text> LOADER PATH WINDOWS`` from a directory without modules, so it imports
nothing of ckpt-tools. No loader here runs code found in the file: torch with ``weights_only=True``,
safetensors, MindSpore's protobuf reader, TensorFlow's checkpoint reader.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator

_REFUSALS = (
    "unsupported global",
    "unsupported class",
    "unsupported operand",
    "not an allowed",
    "allowlist",
    "cannot use ``weights_only=true``",
    "mmap can only be used",
)
"""Words of torch's refusals of a file (torch/_weights_only_unpickler.py, torch/serialization.py)."""


def _torch(path: str, windows: list[tuple[int, int]]) -> Iterator[str]:
    import torch

    yield f"torch {torch.__version__}"
    with open(path, "rb") as file:
        zipped = file.read(2) == b"PK"
        for start, length in windows:
            file.seek(start)
            # a segment of DCP may be safetensors, whose content is whole if its header is
            if file.read(2) == b"PK":
                file.seek(start)
                torch.load(io.BytesIO(file.read(length)), map_location="cpu", weights_only=True)
    if not windows:
        torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


def _safetensors(path: str, _windows: list[tuple[int, int]]) -> Iterator[str]:
    import safetensors

    yield f"safetensors {safetensors.__version__}"
    try:
        import torch  # noqa: F401  # bfloat16 and the 8-bit floats exist in no other framework here

        framework = "pt"
    except ImportError:
        framework = "numpy"
    with safetensors.safe_open(path, framework=framework) as file:
        for name in file.keys():  # noqa: SIM118  # the file is no mapping
            file.get_tensor(name)


def _mindspore(path: str, _windows: list[tuple[int, int]]) -> Iterator[str]:
    import mindspore

    yield f"mindspore {mindspore.__version__}"
    mindspore.load_checkpoint(path)


def _tensorflow(path: str, _windows: list[tuple[int, int]]) -> Iterator[str]:
    import tensorflow as tf

    yield f"tensorflow {tf.__version__}"
    reader = tf.train.load_checkpoint(path.removesuffix(".index"))
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)


LOADERS = {"torch": _torch, "safetensors": _safetensors, "mindspore": _mindspore, "tensorflow": _tensorflow}


def main(loader: str, path: str, windows: str) -> dict[str, str]:
    """Run a loader; return its message and version, and ``outcome``: missing, loaded, refused or failed."""
    steps = LOADERS[loader](path, json.loads(windows))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            version = next(steps)
    except ImportError as e:
        return {"outcome": "missing", "message": str(e)}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            for _ in steps:
                pass
    except MemoryError:
        return {"outcome": "refused", "version": version, "message": "not enough memory within the limit"}
    except Exception as e:
        text = f"{type(e).__name__}: {e}"
        refused = any(word in text.lower() for word in _REFUSALS)
        reason = text.rpartition("WeightsUnpickler error: ")[2]
        for advice in (" Please use", " Check the doc"):  # advice for users of torch
            reason = reason.partition(advice)[0]
        return {
            "outcome": "refused" if refused else "failed",
            "version": version,
            "message": " ".join(reason.split())[:400],
        }
    return {"outcome": "loaded", "version": version, "message": ""}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:4])))  # noqa: T201  # the parent reads this line
