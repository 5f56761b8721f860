"""Code in the configuration of a Keras model: Lambda layers keep their function as Python's marshalled code,
which ``load_model`` runs (keras/src/layers/core/lambda_layer.py, keras/src/saving/serialization_lib.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.formats.pickles.globals import add_unlisted
from ckpt_tools.formats.pickles.stubs import report_suspects
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Unlisted

MOST = 8 << 20
"""The most bytes of a configuration that are read."""
_ESCAPE = re.compile(rb"\\u00([0-7][0-9a-fA-F])")
_MARSHALLED = re.compile(rb'"__lambda__"|"function_type"\s*:\s*"lambda"')
_LAMBDA = re.compile(rb'"class_name"\s*:\s*"Lambda"')


def code_in_config(text: bytes, anatomy: Anatomy, offset: int) -> Iterator[Finding]:
    """Yield findings for code that a configuration runs. JSON may be UTF-16, and escape any letter."""
    plain = _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]), text.replace(b"\0", b""))
    if _MARSHALLED.search(plain):
        why = "a Lambda layer of the model has a function as marshalled code, which loading the model runs"
        yield finding("unsafe-pickle", why, offset=offset)
    elif _LAMBDA.search(plain):
        layer = [Unlisted("keras.layers.Lambda", called=True, offset=offset)]
        add_unlisted(layer, anatomy.unlisted)
        yield from report_suspects(layer)
