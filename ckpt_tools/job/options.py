"""How a job comes to its one decision, as its command line says."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ckpt_tools.storage.trust import OURS, Trust


class Options(Struct, frozen=True):
    """How a job comes to its one decision; the defaults are the command's. ``timeout`` in seconds;
    ``plan_dir`` None: this user's own, on this machine. ``words`` are what starts us, for messages.
    """

    words: Sequence[str] = ("ckpt", "run")
    worker: bool = False
    plan_dir: str | None = None
    job: str = ""
    node: int | None = None
    nodes: int | None = None
    timeout: float = 600.0
    require_mount: bool = False
    agree: bool = False
    meet: str = ""
    rendezvous: str = ""
    view: str = ""
    stage: str = ""
    keep: int | None = None
    trust: Trust = OURS
