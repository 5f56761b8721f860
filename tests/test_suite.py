"""What the suite holds its own tests to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("seconds", "slow", "fails"), [(59.0, False, False), (61.0, False, True), (61.0, True, False)])
def test_a_test_that_takes_a_minute_of_cpu_time_is_marked_slow(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, seconds: float, slow: bool, fails: bool
) -> None:
    guard = next(plugin for plugin in request.config.pluginmanager.get_plugins() if hasattr(plugin, "cpu_seconds"))
    clock = iter([100.0, 100.0 + seconds])
    with monkeypatch.context() as patched:
        patched.setattr(guard, "cpu_seconds", lambda: next(clock))
        running = guard.pytest_runtest_call(SimpleNamespace(get_closest_marker=lambda name: slow or None))
        next(running)
        with pytest.raises(pytest.fail.Exception if fails else StopIteration):
            next(running)
