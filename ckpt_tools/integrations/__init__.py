"""One line in training code: the argument for a framework's own loading call, verified first and the same on
all ranks (docs/integrations.md). There is a module for each framework; none imports it.
"""

from __future__ import annotations

from ckpt_tools.integrations.agreement import Resumed, resume

__all__ = ["Resumed", "resume"]
