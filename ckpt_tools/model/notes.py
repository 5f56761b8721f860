"""How a layout or a format asks for small files beside the checkpoints: it opens none itself, but is given
these two functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ckpt_tools.model.finding import Finding


class Notes(NamedTuple):
    """``read`` takes a path and how many bytes it may have.

    It gives the bytes, None where there is no such file, or a finding that says why they cannot be had.
    ``gone`` takes a path, that of the file that names it, and what to say where it is not there:
    None when it is there.
    """

    read: Callable[[str, int], bytes | Finding | None]
    gone: Callable[[str, str, str], Finding | None]
