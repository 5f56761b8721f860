"""The launchers that are known, and what the environment of this process says: as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpt_tools.launchers import Launcher, Started, package_of
from ckpt_tools.model.plan import Known
from ckpt_tools.output.json import Object
from ckpt_tools.output.page import PLAIN, Page, View, to_cell

All = Sequence[tuple[Launcher, Started | None]]
"""Each launcher with what it reads from the environment; None if it does not recognise its variables."""


def entries(launchers: All) -> list[Object]:
    """Return a JSON object per launcher, with the rank and world size that it reads from the environment."""
    return [
        {
            "name": launcher.name,
            "variables": list(launcher.variables),
            "rank": _value(started, "rank"),
            "world_size": _value(started, "world_size"),
            "unclear": started.unclear if started else "",
            "reference": launcher.reference,
            "package": package_of(launcher.name),
        }
        for launcher, started in launchers
    ]


def table(launchers: All, here: Started | None, env: Mapping[str, str], view: View = PLAIN) -> str:
    """Return a table of launchers with the variables that are set, then what is known or unclear ``here``."""
    page, rows = Page(view), []
    for launcher, started in launchers:
        package = package_of(launcher.name)
        name = f"{launcher.name} ({package})" if package else launcher.name
        present = ", ".join(name for name in launcher.variables if name in env) or "none is set"
        rows.append((name, to_cell(_value(started, "rank")), to_cell(_value(started, "world_size")), present))
    page.table(("name", "rank", "world size", "of its variables"), rows)
    if here is None:
        page.text("here: no launcher is recognised", gap=True)
        return page.done()
    numbers = ((name, getattr(here, name)) for name in Started.__match_args__)
    facts = [
        (name.replace("_", " "), str(n.value), n.provenance) for name, n in numbers if isinstance(n, Known)
    ]
    facts += [("job", here.job, here.job_from)] if here.job else []
    page.text(f"here: {here.launcher}{', and this process is not a rank' if here.skip else ''}", gap=True)
    page.table(("what", "value", "from"), facts)
    for label, text in (("unclear", here.unclear), ("hint", here.hint)):
        if text:
            page.text(f"{label}: {text}")
    return page.done()


def _value(started: Started | None, name: str) -> int | None:
    found = getattr(started, name, None)
    return found.value if isinstance(found, Known) else None
