"""How many examples Hypothesis tries, and which: by the profile of the run."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

ONE_OF = 20
"""The profile ``steady`` tries one of so many examples."""


def register_profiles() -> None:
    """``steady``: a twentieth of what each test says, the same examples in every run. ``searching``: all, and
    others every time; for the nightly run. None is remembered from the run before, and no time limit ends
    one: luck and load decide no verdict.
    """
    busy: dict[str, Any] = {
        "deadline": None,
        "database": None,
        "suppress_health_check": [c for c in HealthCheck if c is not HealthCheck.filter_too_much],
    }
    settings.register_profile("steady", derandomize=True, max_examples=100 // ONE_OF, **busy)
    settings.register_profile("searching", **busy)
    settings.load_profile("steady")


def examples(most: int) -> settings:
    """As many examples as the profile takes of ``most``."""
    return settings(max_examples=max(min(most, 5), most * settings().max_examples // 100))
