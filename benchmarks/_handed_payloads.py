"""Pickles of known names alone that call what they are given, and files that run code, write or read outside
in other ways than by a pickle's own call. Each does no more than make the file that it is given.
"""

from __future__ import annotations

import base64
import io
import marshal
import pickle
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _payload_pieces import P2, STOP, Raw, call, legacy, listed, name, push, stacked, tupled


def raw(data: bytes) -> Raw:
    """Bytes as BINBYTES has them."""
    return Raw(b"B" + struct.pack("<I", len(data)) + data)
