"""Files of torch that are a whole checkpoint each, as training loops save them in one directory."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt_tools.layouts.common.piece import COPIES, Claim, Content, Piece

FORMATS = ("torch_zip", "torch_legacy")


def proven(proof: str, *, unasked: bool = False) -> Piece:
    """A piece without a name and a template yet, for ``dataclasses.replace``: a file of the layout has the
    entry ``proof``, whatever it is called; others may have the same names.
    """
    saved = Piece("", "model", "", FORMATS, readers=COPIES, unasked=unasked, claim=Claim.WEAK)
    return replace(saved, content=Content(step=True, proof=proof))
