"""``fingerprint.pb`` beside ``saved_model.pb``: hashes that say which files are of one export.

Facts: tensorflow/core/protobuf/fingerprint.proto, cc/saved_model/fingerprinting.cc of TensorFlow 2.21:
``checkpoint_hash`` is that of the bytes of ``variables.index``; the others are made of parts of the model
that only TensorFlow can put into their canonical form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, Format
from ckpt_tools.formats.common.protobuf import Reader
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import Source

_BEGIN = re.compile(rb"\x08[\x80-\xff]{0,9}[\x00-\x7f]\x10", re.DOTALL)
_NAMES = {
    1: "saved_model_checksum",
    2: "graph_def_program_hash",
    3: "signature_def_hash",
    4: "saved_object_graph_hash",
    5: "checkpoint_hash",
}
_VERSION, _LARGEST = 7, 4096
_INDEX, _MOST = "variables/variables.index", 2 << 20


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    if source.size > _LARGEST:
        raise Damage("too-complex", f"a fingerprint of {source.size} bytes", 0)
    hashes, version = dict[str, int](), False
    for f in Reader(source).every(0, source.size, "truncated"):
        version = version or f.number == _VERSION
        if f.number in _NAMES and not f.packed:
            hashes[_NAMES[f.number]] = f.value
    if not version:
        raise Damage("truncated", f"it ends at byte {source.size} and has no version", source.size)
    anatomy.metadata |= {name: f"{value:016x}" for name, value in hashes.items()}
    if wanted := hashes.get("checkpoint_hash"):
        anatomy.members[_INDEX] = Claim(FORMAT.name, partial(_same, wanted), optional=True)
    anatomy.explain(0, source.size, "hashes: one of them is compared", Guard.UNPROTECTED)
    yield from ()


def _same(wanted: int, source: Source, _anatomy: Anatomy) -> Iterator[Finding]:
    """Whether the index of the variables is the one that was exported with this model."""
    from ckpt_tools.formats.tensorflow.farmhash import fingerprint64  # few models have one

    if source.size <= _MOST and (found := fingerprint64(source.read(0, source.size))) != wanted:
        why = f"fingerprint.pb beside the model says {wanted:016x} of this file, it has {found:016x}"
        yield finding("crc-mismatch", f"{why}: of another export, or damaged", offset=0)


FORMAT = Format(
    name="tf_fingerprint",
    suffixes=(),
    names=r"fingerprint\.pb",
    magic=lambda head: _BEGIN.match(head) is not None,
    distinct=False,
    checks={Level.STRUCTURE: _structure},
    protects="the index of the variables, by FarmHash's Fingerprint64 of its bytes",
    limits=(
        "the hashes of saved_model.pb are of a form of it that only TensorFlow makes: they are not compared",
        f"of an index of more than {_MOST >> 20} MiB nothing is compared",
    ),
    reference="TensorFlow 2.21: core/protobuf/fingerprint.proto, cc/saved_model/fingerprinting.cc",
    loader=None,
    index=True,
)
