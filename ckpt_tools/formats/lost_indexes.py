"""Restore the lost index of a sharded model from its shards: ``model.safetensors.index.json`` beside all
``model-0000i-of-0000n.safetensors``.

Facts: huggingface_hub/serialization/_torch.py (``save_torch_state_dict``): sorted keys, two blanks of
indentation, a line feed at the end, ``total_size`` in bytes.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ckpt_tools.model.report import Tensor

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<of>\d{5})\.safetensors")


def list_whole(index: str) -> tuple[str, ...]:
    """Return the names that a model in a single file would have in place of shards with that index; or ()."""
    stem, ending = os.path.splitext(index.partition(".index.")[0])
    if stem in ("model", "pytorch_model"):
        return "model.safetensors", "pytorch_model.bin"
    return (f"{stem}.safetensors", f"{stem}.bin") if ending in (".safetensors", ".bin") else ()


def find_whole(paths: Iterable[str]) -> dict[str, list[str]]:
    """Map the path of an index to its shards in order, for each complete set of shards in ``paths``."""
    found: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for path in paths:
        home, name = os.path.split(path)
        if m := _SHARD.fullmatch(name):
            index = os.path.join(home, f"{m['stem']}.safetensors.index.json")
            found[index, int(m["of"])][int(m["number"])] = path
    return {
        index: [shards[n] for n in range(1, of + 1)]
        for (index, of), shards in found.items()
        if shards.keys() == set(range(1, of + 1))
    }


def make_text(shards: Mapping[str, Sequence[Tensor]]) -> bytes | None:
    """Return the index file of shards, each with its tensors; None if two shards hold the same tensor."""
    entries = [(t.name, shard) for shard, tensors in shards.items() for t in tensors]
    if len(dict(entries)) != len(entries):
        return None
    total = sum(t.nbytes for tensors in shards.values() for t in tensors)
    body = {"metadata": {"total_size": total}, "weight_map": dict(sorted(entries))}
    return (json.dumps(body, indent=2, sort_keys=True) + "\n").encode()
