"""Watching runs: each checkpoint is verified once it is finished, and again from time to time."""

from __future__ import annotations

from msgspec import Struct

from ckpt_tools.model.selection import ReadOptions

DAY = 86400.0


class WatchOptions(Struct, frozen=True):
    """All times are in seconds. A directory is listed again after ``rescan``, and a checkpoint verified again
    after ``every``; ``once`` ends after one pass.

    ``on_good`` and ``on_bad`` are shell commands, ended after ``hook_timeout``; with ``seal`` good
    checkpoints are sealed. ``state_dir`` and ``plan_dir`` None: this user's own. ``metrics_file`` is replaced
    after each pass; ``metrics_port`` 0 is any free one.
    """

    read: ReadOptions = ReadOptions()
    once: bool = False
    rescan: float = 60.0
    every: float = 7 * DAY
    on_good: str | None = None
    on_bad: str | None = None
    hook_timeout: float = 600.0
    seal: bool = False
    state_dir: str | None = None
    plan_dir: str | None = None
    metrics_file: str | None = None
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
