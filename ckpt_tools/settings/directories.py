"""Where ckpt keeps data that outlives a run, unless a flag says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping


def decisions(env: Mapping[str, str] | None = None) -> str:
    """The log of decisions; it survives a reboot, or a lost mount would look like a first launch."""
    env = os.environ if env is None else env
    home = env.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "ckpt-tools", "decisions")


def pruned() -> str:
    return os.path.join(os.path.dirname(decisions()), "pruned")


def verdicts(env: Mapping[str, str]) -> str:
    """Where the cache of this user and host lies; "" when there is no home directory."""
    own, shared = env.get("CKPT_CACHE_DIR", ""), env.get("XDG_CACHE_HOME", "")
    home = own or (
        os.path.join(shared, "ckpt-tools")
        if os.path.isabs(shared)
        else os.path.expanduser("~/.cache/ckpt-tools")
    )
    if home.startswith("~"):
        return ""
    return os.path.join(os.path.abspath(home), os.uname().nodename.replace("/", "_").lstrip(".") or "host")


def watched(env: Mapping[str, str] | None = None) -> str:
    return os.path.join(os.path.dirname(decisions(env)), "watched")
