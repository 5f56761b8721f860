"""Names of checkpoints that somebody has renamed, packed or encrypted."""

from __future__ import annotations

import re

from ckpt_tools import formats
from ckpt_tools.discovery.found import PACKED
from ckpt_tools.discovery.set_aside import is_set_aside
from ckpt_tools.layouts.common.bare_names import calls_a_save, calls_one_of_models, read_bare_name

_ARCHIVES = re.compile(r".*\.(?:tar|zip)(?:\.\d+)?", re.IGNORECASE)
"""Containers that checkpoints come in as well: their beginning tells."""
_WRAPPED = re.compile(rf"(.+?)(?:\.tar)?(?:{'|'.join(map(re.escape, PACKED))})", re.IGNORECASE)
"""Files that were compressed, packed or encrypted: what they were called is left."""
_BEHIND = re.compile(r"[^A-Za-z0-9]|$")
"""Where an ending may end."""
_OF_THE_SYSTEM = re.compile(r"\.nfs[0-9a-f]+|.+\.swp")


def tells_of_a_state(name: str) -> bool:
    """Whether a name without a known ending is that of a checkpoint with something behind it
    (``step_300.pt.1``, ``last.ckpt_old``), or before it, or counts as one does.
    """
    if is_of_the_system(name):
        return False
    inner = (name.rpartition(".")[0] if is_set_aside(name) else name).strip("#~._")
    endings = (inner[: m.start()] for m in _BEHIND.finditer(inner))
    if any("." in head and formats.names.state(head) for head in endings):
        return True
    while inner:
        if formats.names.only_state(inner) or calls_a_save(inner):
            return True
        inner = inner.rpartition(".")[0]
    return False


def names_a_save(name: str) -> bool:
    """Whether a name without a known ending is that of a save or of one of several models (``model_20``), and
    more than a number, as samples of data sets have it.
    """
    return not name.partition(".")[0].isdigit() and (tells_of_a_state(name) or calls_one_of_models(name))


def is_of_the_system(name: str) -> bool:
    """Whether a name is one that a file system or an editor gives to what is its own."""
    return _OF_THE_SYSTEM.fullmatch(name) is not None


def is_archive(name: str) -> bool:
    """Whether a name is that of a container that checkpoints come in as well as anything else."""
    return _ARCHIVES.fullmatch(name) is not None


def is_packed(name: str) -> bool:
    """Whether a name is that of files which were compressed, packed or encrypted."""
    return _WRAPPED.fullmatch(name) is not None


def unpacked_name(name: str) -> str:
    """What a file was called before it was compressed, packed or encrypted; its own name if it was not."""
    m = _WRAPPED.fullmatch(name)
    return name if m is None else m[1]


def wrapped_state(name: str) -> str:
    """What a checkpoint was called that somebody has compressed or encrypted (``step_300.pt.gz``,
    ``ckpt-300.tar.zst``); "" for another name.
    """
    m = _WRAPPED.fullmatch(name)
    if m is None or formats.names.known(name):
        return ""
    said = read_bare_name(m[1])
    one_save = calls_a_save(m[1]) and (said.numbered or bool(said.alias))
    return m[1] if one_save or ends_as_a_state(m[1]) else ""


def ends_as_a_state(name: str) -> bool:
    """Whether the ending of a name is one of checkpoints: those of data sets are called x.pkl.gz."""
    if name.lower().endswith((".pkl", ".joblib")):
        return False
    return formats.names.only_state(name) or any(map(formats.names.holds_state, formats.names.allowed(name)))
