"""Any other zip archive, such as Keras' .keras: the container and its checksums; what is
inside is not interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip import protect, read_record, read_zip, unsummed
from ckpt_tools.formats.common.format import Anatomy, Format
from ckpt_tools.formats.common.limited import limited
from ckpt_tools.formats.numpy import npz
from ckpt_tools.formats.torch import torch_zip
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.storage import Source

_BASELINES = "_stable_baselines3_version"
"""What marks the archives of Stable-Baselines3 (common/save_util.py, save_to_zip_file)."""
_STEPS = re.compile(rb'"num_timesteps": (\d{1,18})\b')
_DATA = 16 << 20
"""Bytes of their JSON that are read at most."""


def magic(head: bytes) -> bool:
    """A zip that is neither torch's nor NumPy's."""
    return head.startswith(b"PK\3\4") and not torch_zip.magic(head) and not npz.magic(head)


@limited
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    records = yield from read_zip(source, anatomy, torch=False)
    anatomy.keys.update(r.name for r in records)
    if unsummed(records):
        yield finding("checksum-off", "every record has the checksum 0")
        yield finding("not-checksummed", "nothing in this file is protected by a checksum")
    yield from torch_zip.other_pickles(source, records, anatomy)
    by_name = {r.name: r for r in records}
    if _BASELINES in by_name and "data" in by_name:
        told = _STEPS.search(read_record(source, by_name["data"], _DATA))
        anatomy.metadata["num_timesteps"] = int(told[1]) if told else None
    protect(records, anatomy, frozenset(records) if unsummed(records) else ())


FORMAT = Format(
    name="zip_archive",
    suffixes=(".keras",),
    magic=magic,
    distinct=False,
    checks={Level.STRUCTURE: _structure},
    protects="a CRC-32 per record over its uncompressed payload; headers exist twice",
    limits=(
        "what the records hold is not interpreted, apart from the names in pickles and torch's tensors",
        "Stable-Baselines3 keeps code as text in its JSON, which loading runs: it is not looked at",
        (
            "attributes, comments and the version of the writer are in the directory only, so a flipped bit"
            " in them cannot be seen"
        ),
    ),
    reference="PKWARE APPNOTE 6.3.10; keras/src/saving/saving_lib.py",
)
