"""Acme's launcher: ``ACME_RANK`` and ``ACME_SIZE`` in each process."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_tools.launchers import Launcher, Started
from ckpt_tools.launchers.launcher import known, settled


def _detect(env: Mapping[str, str]) -> Started | None:
    rank, size = known(env, "ACME_RANK", "acmerun"), known(env, "ACME_SIZE", "acmerun")
    return settled(Started("acmerun", rank, size)) if rank else None


LAUNCHER = Launcher(
    name="acmerun",
    variables=("ACME_RANK", "ACME_SIZE"),
    detect=_detect,
    reference="acmerun --help",
)
