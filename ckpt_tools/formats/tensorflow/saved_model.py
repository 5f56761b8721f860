"""TensorFlow's ``saved_model.pb``: graphs and signatures as one protobuf message. The values of its variables
are a bundle in ``variables/`` beside it, other files that it needs lie in ``assets/``.

Facts: tensorflow/core/protobuf/{saved_model,meta_graph,saved_object_graph}.proto of TensorFlow 2.21.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, own_format
from ckpt_tools.formats.common.protobuf import Field, Reader
from ckpt_tools.formats.common.tensors import MAX_NAME, MAX_TENSORS, MAX_TEXT, remember
from ckpt_tools.formats.common.zeros import all_zero
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import Source

_BEGIN = re.compile(
    rb"\x08\x01\x12[\x80-\xff]{0,4}[\x00-\x7f]\n[\x80-\xff]{0,4}[\x00-\x7f][\x0a\x12\x1a\x22\x2a]"
)
"""The version of the format, then a graph that begins with what it is (MetaInfoDef)."""
_WINDOW = 4096
_BYTES = 2
_INFO, _GRAPH, _COLLECTIONS, _ASSETS, _OBJECTS = 1, 2, 4, 6, 7
_VERSION, _TAG = 5, 4
_VARIABLE = 7
_COLLECTED = ("variables", "trainable_variables", "global_variables")
"""What the collections of variables are called in graphs of TensorFlow 1, which have no objects."""


class _Walk(NamedTuple):
    """A file on the way through its graphs."""

    reader: Reader
    anatomy: Anatomy

    def inside(self, f: Field) -> Iterator[Field]:
        """The fields of a message."""
        if f.packed != _BYTES:
            raise Damage("bad-header", "there is a number where a message belongs", f.start)
        return self.reader.every(f.start, f.start + f.value)

    def texts(self, f: Field, number: int) -> Iterator[str]:
        """The texts of one field of a message."""
        for t in self.inside(f):
            if t.number == number and t.packed == _BYTES and t.value <= MAX_NAME:
                yield self.reader.get(t.start, t.value).decode(errors="replace")


def _graph(walk: _Walk, graph: Field) -> None:
    """One graph: what it needs beside it."""
    for f in walk.inside(graph):
        if f.number == _INFO:
            _remember(walk, f)
        elif f.number == _ASSETS:
            for name in walk.texts(f, 2):
                walk.anatomy.members[f"assets/{name}"] = _ASSET
        elif (f.number == _OBJECTS and _has_variable(walk, f)) or (
            f.number == _COLLECTIONS and any(name in _COLLECTED for name in walk.texts(f, 1))
        ):
            walk.anatomy.members["variables/variables.index"] = _VALUES
        elif f.number == _GRAPH:
            for _ in walk.inside(f):  # only the form of the nodes
                pass
        if len(walk.anatomy.members) > MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} assets", f.start)


def _remember(walk: _Walk, info: Field) -> None:
    tags = ", ".join(walk.texts(info, _TAG))
    if tags:
        remember(walk.anatomy.metadata, "tags", tags[:MAX_TEXT])
    for version in walk.texts(info, _VERSION):
        remember(walk.anatomy.metadata, "tensorflow_version", version[:MAX_TEXT])


def _has_variable(walk: _Walk, objects: Field) -> bool:
    """Whether one of the saved objects is a variable."""
    nodes = (f for f in walk.inside(objects) if f.number == 1)
    return any(f.number == _VARIABLE for node in nodes for f in walk.inside(node))


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    walk = _Walk(Reader(source, _WINDOW), anatomy)
    graphs = 0
    for f in walk.reader.every(0, source.size, "truncated"):
        if f.number == 2:
            graphs += 1
            _graph(walk, f)
    if not graphs:
        raise Damage("truncated", f"the file ends at byte {source.size} and has no graph", source.size)
    yield finding("not-checksummed", "nothing that can be compared covers the bytes of saved_model.pb")
    what = "graphs and signatures: only the form of the outer messages is checked"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)


def _values(_source: Source, _anatomy: Anatomy) -> Iterator[Finding]:
    """The index of the variables, which its own format checks."""
    return iter(())


def _asset(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """A file of any kind, of which the model says nothing but its name."""
    anatomy.explain(0, source.size, "an asset of the model", Guard.UNPROTECTED)
    if source.size and all_zero(source):
        yield finding("zero-filled", f"all {source.size:,} bytes are zero", offset=0)


FORMAT = own_format(
    name="saved_model",
    magic=lambda head: _BEGIN.match(head) is not None,
    checks={Level.STRUCTURE: _structure},
    protects="nothing; the values of its variables carry checksums of their own",
    limits=(
        "a flipped bit in a node or a signature is not seen",
        "of an asset only that it is there, and that it holds more than zeros",
        "a cut between two graphs of one file is not seen: protobuf has no end mark",
        "saved_model.pbtxt and saved_model.cpb are not read",
    ),
    reference="TensorFlow 2.21: core/protobuf/saved_model.proto, meta_graph.proto, saved_object_graph.proto",
    loader="",
)
_VALUES = Claim(FORMAT.name, _values)
_ASSET = Claim(FORMAT.name, _asset, whole=True)
