"""What must not go whatever is kept: what a decision of a job names, and what links lead to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook
from ckpt_tools.planning import decision_log
from ckpt_tools.settings import checked_json, directories
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url, real_path

_DECISION = re.compile(r"\d{1,9}\.json")


def decided(plan_dir: str | None, trusted: Trust = OURS) -> frozenset[str]:
    """The real paths that decisions of jobs name, about whatever root: a job may have been started with
    another name of this one.

    Raises CannotLook where they cannot be read, also where ``plan_dir`` was named and is not there; and
    Untrusted.
    """
    home = plan_dir or directories.decisions()
    if not os.path.isdir(home):
        if plan_dir is not None:
            text = f"{plan_dir}, which holds the decisions of other nodes, is not there"
            raise CannotLook(text, "see that it is mounted, or name another with --plan-dir")
        return frozenset()
    try:
        with trust.named(decision_log.FLAG):
            return frozenset(real_path(path) for path in _named_below(home, trusted))
    except OSError as e:
        raise CannotLook(f"decisions of jobs cannot be read: {e.filename}: {e.strerror}") from e


def _named_below(home: str, trusted: Trust) -> Iterator[str]:
    for directory, _, names in os.walk(home, onerror=_raised):
        for name in names:
            if name == decision_log.LAST or _DECISION.fullmatch(name):
                yield from _named(_json(os.path.join(directory, name), trusted))


def _json(path: str, trusted: Trust) -> Mapping[str, Any]:
    try:
        value = checked_json.parsed(trust.read(path, decision_log.MOST, trusted))
    except FileNotFoundError:
        return {}
    except checked_json.NoJson as e:
        hint = "when no process of that start runs any more, remove it"
        raise CannotLook(f"{path}, which says what a job loads, is damaged", hint) from e
    return value if isinstance(value, dict) else {}


def _named(body: Mapping[str, Any]) -> Iterator[str]:
    """Every path that is loaded by a decision, and not those that lost."""
    loaded = {key: body.get(key) for key in ("checkpoint", "resume", "shared", "ranks")}
    for node in checked_json.nodes({**loaded, "last": {"path": body.get("path")}}):
        if isinstance(node, dict) and isinstance(path := node.get("path"), str):
            yield path


def led_to(root: str) -> dict[str, str]:
    """Real path -> a link below the root that leads there. Raises CannotLook."""
    out: dict[str, str] = {}
    if is_url(root):
        return out
    try:
        for directory, below, names in os.walk(root, onerror=_raised):
            if STATE in below:
                below.remove(STATE)
            for name in (*below, *names):
                path = os.path.join(directory, name)
                if os.path.islink(path):
                    out[os.path.realpath(path)] = path
    except OSError as e:
        raise CannotLook(f"cannot list {e.filename}: {e.strerror}") from e
    return out


def _raised(error: OSError) -> None:
    raise error
