"""The load level: whether the framework's own loader, in a child process with limits, reads a file."""

from __future__ import annotations

import importlib.resources
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage.urls import absolute

INSTALL = {
    "torch": "pip install 'ckpt-tools[torch]'",
    "safetensors": "pip install 'safetensors' numpy",
    "mindspore": "pip install mindspore",
    "tensorflow": "pip install tensorflow-cpu",
}
"""How to get each loader; those of TensorFlow and MindSpore are too large to be extras."""
_MEMORY = 8 << 30  # bytes beyond twice the file's size: what importing a framework takes
_SECONDS, _PER_GIB = 120, 30
_ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GLOG_v": "4",
}


def _limits(memory: int, seconds: int) -> None:  # pragma: no cover - runs in the child, before it starts
    import resource

    def lower(which: int, value: int) -> None:
        _, hard = resource.getrlimit(which)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))

    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_FSIZE, 0)  # nothing is written, whatever the loader thinks
    lower(resource.RLIMIT_CPU, seconds * (os.cpu_count() or 1))
    lower(resource.RLIMIT_DATA, memory)


def _text() -> str:
    return (importlib.resources.files("ckpt_tools") / "inspection" / "load_child.py").read_text()


def load(
    loader: str, path: str, size: int, windows: Sequence[tuple[int, int]] = ()
) -> tuple[bool, list[Finding]]:
    """Whether the loader came to an answer, and what is wrong. ``windows`` are (offset, length) in bytes of
    files inside the file.

    The child may use twice the file's size and 8 GiB, two minutes and 30 s per GiB; it can write no file.
    """
    seconds = _SECONDS + _PER_GIB * (size >> 30)
    try:
        done = subprocess.run(  # noqa: S603  # our own interpreter with our own text
            [sys.executable, "-c", _text(), loader, absolute(path), json.dumps(list(windows))],
            cwd="/",  # python -c looks for modules where it starts: not among somebody's files
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            preexec_fn=lambda: _limits(2 * size + _MEMORY, seconds),  # only system calls, no locks
        )
    except subprocess.TimeoutExpired:
        return False, [finding("not-loaded", f"{loader} did not finish within {seconds} s")]
    if done.returncode < 0:
        number = -done.returncode
        name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            why = f"{loader} was ended by {name}: it took more time or memory than it was given"
            return False, [finding("not-loaded", why)]
        return True, [finding("load-failed", f"{loader} died of {name} while it loaded the file")]
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        outcome, message, version = answer["outcome"], answer["message"], answer.get("version", loader)
    except (ValueError, IndexError, KeyError, TypeError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        return False, [finding("not-loaded", f"{loader} could not be run: {last[0][:300]}")]
    if outcome == "loaded":
        return True, []
    if outcome == "failed":
        return True, [finding("load-failed", f"{version}: {message}")]
    if outcome == "missing":
        why = f"{loader} is not installed here: {message[:200]}"
        return False, [finding("needs-extra", why, hint=INSTALL[loader], severity=Severity.NOTE)]
    return False, [finding("not-loaded", f"{version}: {message}")]
