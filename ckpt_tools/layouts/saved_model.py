"""TensorFlow SavedModels: a directory with ``saved_model.pb`` and ``variables/``, or one for each version
(``1/``, ``2/``), as TensorFlow Serving and the exporters of estimators have them.
"""

from __future__ import annotations

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Complete, Layout, resume_directory
from ckpt_tools.layouts.common.piece import Claim, Piece, nest
from ckpt_tools.model.part import Kind

_VALUES, _BUNDLE = "variables/variables", ("tf_bundle",)
_HASHES = Piece("hashes", "fingerprint", "fingerprint.pb", ("tf_fingerprint",), required=False, loaded=False)
_PIECES = (
    Piece("graph", "graph", "saved_model.pb", ("saved_model",)),
    Piece("index", "index", f"{_VALUES}.index", _BUNDLE),
    Piece("data", "model", f"{_VALUES}.data-{{shard:05d}}-of-{{of:05d}}", _BUNDLE),
    replace(_HASHES, claim=Claim.COMPANION),
    Piece("asset", "asset", "assets/{name}", loaded=False, claim=Claim.DESCRIBED),
)
LAYOUT = Layout(
    name="saved-model",
    title="TensorFlow SavedModel",
    pieces=(
        *nest("{generation}", _PIECES, kind=Kind.RELEASE),
        *nest("{name}", _PIECES, "_named", kind=Kind.RELEASE),
    ),
    resume=resume_directory,  # tf.saved_model.load(path)
    complete=Complete(needs=("graph",)),
    reshardable=True,
    reference="tensorflow/python/saved_model/save.py; tensorflow_serving: the highest version is served",
    limits=(
        "the number of a version is no step of training: exporters count up, or take the time",
        "an export: of the optimizer it holds what its writer left in, and most leave nothing",
    ),
)
