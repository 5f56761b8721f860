"""DCP_SHARDING_INFO: where in the whole tensor each piece of a safetensors file begins, as DCP's Hugging Face
writer says.

Facts: torch/distributed/checkpoint/{_hf_utils,filesystem,hf_storage}.py of torch 2.13: a JSON text among the
safetensors metadata, ``{name: {"saved_offsets": [...]}}``, one entry for each tensor of the file. Nobody
writes down the whole tensors' shapes: the reader takes the furthest end of all pieces for them, so a lost
last shard looks like a smaller tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.json_text import integers, mapping, parse
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.tensor import Box

KEY = "DCP_SHARDING_INFO"
_OFFSETS = "saved_offsets"


def read_places(text: str, anatomy: Anatomy, at: int) -> Iterator[Finding]:
    """Fill ``anatomy.places`` with the place of every tensor in its whole; ``at`` is where the text is."""
    found: list[Finding] = []
    try:
        info = mapping(parse(text.encode("utf-8", "surrogatepass"), found))
    except Damage as e:
        yield finding("bad-header", f"{KEY}: {e}", offset=at)
        return
    yield from found
    for t in anatomy.tensors:
        said = mapping(info.get(t.name))
        start = integers(said.get(_OFFSETS))
        if start is None or len(start) != len(t.shape):
            why = f"{KEY} does not say where tensor {t.name[:200]!r} of shape {list(t.shape)} begins"
            yield finding("bad-header", why, offset=at)
        else:
            stop = tuple(a + n for a, n in zip(start, t.shape, strict=True))
            anatomy.places[t.name] = Box(start, stop)
    names = {t.name for t in anatomy.tensors}
    for name in info.keys() - names:
        meant = near_miss(name, names)
        why = f"{KEY} names {name[:200]!r}, which is not in the file" + (f"; {meant!r} is" if meant else "")
        yield finding("bad-header", why, offset=at)
