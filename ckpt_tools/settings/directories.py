"""Where ckpt keeps what outlives a run, unless a flag says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping


def decisions(env: Mapping[str, str] | None = None) -> str:
    """The directory of the log of decisions; it survives a reboot, or a lost mount would look like a first
    launch.
    """
    env = os.environ if env is None else env
    home = env.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "ckpt-tools", "decisions")


def watched(env: Mapping[str, str] | None = None) -> str:
    """The directory of what ``ckpt watch`` has seen."""
    return os.path.join(os.path.dirname(decisions(env)), "watched")
