"""Any other zip archive, such as Keras' .keras: the container and its checksums, and Keras' arrays inside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip import add_all_sums, read_record, read_zip
from ckpt_tools.formats.archives.zip_directory import Record
from ckpt_tools.formats.common.format import Anatomy, check_inner, limit, make_format
from ckpt_tools.formats.common.keras_code import MOST, code_in_config
from ckpt_tools.formats.hdf5 import hdf5
from ckpt_tools.formats.hdf5.blocks import MAGIC
from ckpt_tools.formats.numpy import npz
from ckpt_tools.formats.torch import torch_zip
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

_BASELINES = "_stable_baselines3_version"
"""The record that marks archives of Stable-Baselines3 (common/save_util.py, save_to_zip_file)."""
_STEPS = re.compile(rb'"num_timesteps": (\d{1,18})\b')
_DATA = 16 << 20
"""The most bytes of their JSON, the record ``data``, that are read."""
_WEIGHTS, _CONFIG = "model.weights.h5", "config.json"


def magic(head: bytes) -> bool:
    """Return whether ``head`` begins a zip that is neither torch's nor NumPy's."""
    return head.startswith(b"PK\3\4") and not torch_zip.magic(head) and not npz.magic(head)


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a zip archive: its container, pickles inside, and records of Stable-Baselines3 and Keras."""
    records = yield from read_zip(source, anatomy, torch=False)
    anatomy.keys.update(r.name for r in records)
    yield from add_all_sums(records, anatomy)
    yield from torch_zip.other_pickles(source, records, anatomy)
    yield from npz.object_arrays(source, records, anatomy)
    by_name = {r.name: r for r in records}
    if _BASELINES in by_name and "data" in by_name:
        steps = _STEPS.search(read_record(source, by_name["data"], _DATA))
        anatomy.metadata["num_timesteps"] = int(steps[1]) if steps else None
    if _CONFIG in by_name:
        config = by_name[_CONFIG]
        if config.size > MOST:
            yield finding("unread-pickle", "the configuration is larger than is read", offset=config.place)
        else:
            yield from code_in_config(read_record(source, config, MOST), anatomy, config.place)
    yield from _check_weights(source, records, anatomy)


def _check_weights(source: Source, records: Sequence[Record], anatomy: Anatomy) -> Iterator[Finding]:
    """Check the arrays of a Keras model, in its one record of HDF5, which is not compressed."""
    weights = next((r for r in records if r.name == _WEIGHTS and r.payload >= 0 and not r.method), None)
    if weights is not None and source.read(weights.payload, min(len(MAGIC), weights.stored)) == MAGIC:
        inner = yield from check_inner(source, weights.payload, weights.stored, _check_arrays, anatomy)
        anatomy.windows.pop()  # no loader reads the record by itself
        anatomy.metadata |= inner.metadata


def _check_arrays(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check HDF5, but for ``not-checksummed``: the archive's checksum covers all bytes of the record."""
    return (f for f in hdf5.structure(source, anatomy) if f.code != "not-checksummed")


FORMAT = make_format("zip_archive", magic, _structure, distinct=False)
