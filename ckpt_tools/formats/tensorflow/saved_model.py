"""TensorFlow's ``saved_model.pb``: graphs and signatures as one protobuf message. The values of the model's
variables are a bundle in ``variables/`` beside ``saved_model.pb``, its other files lie in ``assets/``.

Facts: tensorflow/core/protobuf/{saved_model,meta_graph,saved_object_graph}.proto of TensorFlow 2.21.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, check_nothing, make_format
from ckpt_tools.formats.common.protobuf import Field, Reader
from ckpt_tools.formats.common.tensors import MAX_NAME, MAX_TENSORS, MAX_TEXT, remember
from ckpt_tools.formats.common.zeros import is_zero
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_BEGIN = re.compile(
    rb"\x08\x01\x12[\x80-\xff]{0,4}[\x00-\x7f]\n[\x80-\xff]{0,4}[\x00-\x7f][\x0a\x12\x1a\x22\x2a]"
)
"""The version of the format, then a graph that begins with a MetaInfoDef."""
_WINDOW = 4096
_BYTES = 2
_INFO, _GRAPH, _COLLECTIONS, _ASSETS, _OBJECTS = 1, 2, 4, 6, 7
_VERSION, _TAG = 5, 4
_VARIABLE = 7
_COLLECTED = ("variables", "trainable_variables", "global_variables")
"""Names of the collections of variables in graphs of TensorFlow 1, which have no objects."""


class _Walk(NamedTuple):
    """One file whose graphs are read, and the anatomy that is filled."""

    reader: Reader
    anatomy: Anatomy

    def read_fields(self, f: Field) -> Iterator[Field]:
        """Return the fields of a message. Raise Damage if ``f`` is a number."""
        if f.packed != _BYTES:
            raise Damage("bad-header", "there is a number where a message belongs", f.start)
        return self.reader.every(f.start, f.start + f.value)

    def read_texts(self, f: Field, number: int) -> Iterator[str]:
        """Yield the texts in the fields of a message that have this number."""
        for t in self.read_fields(f):
            if t.number == number and t.packed == _BYTES and t.value <= MAX_NAME:
                yield self.reader.get(t.start, t.value).decode(errors="replace")

    def has_variable(self, objects: Field) -> bool:
        """Return whether a graph of objects contains a variable."""
        nodes = (f for f in self.read_fields(objects) if f.number == 1)
        return any(f.number == _VARIABLE for node in nodes for f in self.read_fields(node))

    def read_graph(self, graph: Field) -> None:
        """Add a graph's tags and version to the metadata, and the files that it needs to ``members``."""
        metadata, members = self.anatomy.metadata, self.anatomy.members
        for f in self.read_fields(graph):
            if f.number == _INFO:
                if tags := ", ".join(self.read_texts(f, _TAG)):
                    remember(metadata, "tags", tags[:MAX_TEXT])
                for version in self.read_texts(f, _VERSION):
                    remember(metadata, "tensorflow_version", version[:MAX_TEXT])
            elif f.number == _ASSETS:
                members |= dict.fromkeys((f"assets/{name}" for name in self.read_texts(f, 2)), _ASSET)
            elif (f.number == _OBJECTS and self.has_variable(f)) or (
                f.number == _COLLECTIONS and any(name in _COLLECTED for name in self.read_texts(f, 1))
            ):
                members["variables/variables.index"] = Claim("saved_model", check_nothing)
            elif f.number == _GRAPH:
                for _ in self.read_fields(f):  # checks only the form of the nodes
                    pass
            if len(members) > MAX_TENSORS:
                raise Damage("too-complex", f"more than {MAX_TENSORS} assets", f.start)


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the form of the outer messages; ``anatomy.members`` gets claims on the files of the model."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    walk = _Walk(Reader(source, _WINDOW), anatomy)
    graphs = 0
    for f in walk.reader.every(0, source.size, "truncated"):
        if f.number == 2:
            graphs += 1
            walk.read_graph(f)
    if not graphs:
        raise Damage("truncated", f"the file ends at byte {source.size} and has no graph", source.size)
    yield finding("not-checksummed", "nothing that can be compared covers the bytes of saved_model.pb")
    what = "graphs and signatures: only the form of the outer messages is checked"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)


def _check_asset(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check that an asset, of which the model has nothing but its name, does not consist of zeros."""
    anatomy.explain(0, source.size, "an asset of the model", Guard.UNPROTECTED)
    if source.size and is_zero(source):
        yield finding("zero-filled", f"all {source.size:,} bytes are zero", offset=0)


_ASSET = Claim("saved_model", _check_asset, whole=True)
FORMAT = make_format("saved_model", lambda head: bool(_BEGIN.match(head)), _structure)
