"""TensorFlow SavedModels: a directory with ``saved_model.pb`` and ``variables/``, or one for each version
(``1/``, ``2/``), as TensorFlow Serving and the exporters of estimators have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ckpt_tools.layouts.common.layout import Complete, Layout, resume_directory
from ckpt_tools.layouts.common.piece import Claim, Piece
from ckpt_tools.model.part import Kind


def _pieces() -> Iterator[Piece]:
    bundle, export = ("tf_bundle",), partial(Piece, kind=Kind.RELEASE)
    for home, mark in (("{generation}", ""), ("{name}", "_named")):
        values = f"{home}/variables/variables"
        yield export(f"graph{mark}", "graph", f"{home}/saved_model.pb", ("saved_model",))
        yield export(f"index{mark}", "index", f"{values}.index", bundle)
        yield export(f"data{mark}", "model", f"{values}.data-{{shard:05d}}-of-{{of:05d}}", bundle)
        hashes = f"{home}/fingerprint.pb"
        yield export(
            f"hashes{mark}",
            "fingerprint",
            hashes,
            ("tf_fingerprint",),
            required=False,
            loaded=False,
            claim=Claim.COMPANION,
        )
        yield export(f"asset{mark}", "asset", f"{home}/assets/{{name}}", loaded=False, claim=Claim.DESCRIBED)


LAYOUT = Layout(
    name="saved-model",
    title="TensorFlow SavedModel",
    pieces=tuple(_pieces()),
    resume=resume_directory,  # tf.saved_model.load(path)
    complete=Complete(needs=("graph",)),
    reshardable=True,
    reference="tensorflow/python/saved_model/save.py; tensorflow_serving: the highest version is served",
    limits=(
        "the number of a version is no step of training: exporters count up, or take the time",
        "an export: of the optimizer it holds what its writer left in, and most leave nothing",
    ),
)
