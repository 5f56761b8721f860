"""The settings that a command line gives, completed from variables and the configuration file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ckpt_tools.cli import console
from ckpt_tools.cli.output import Output
from ckpt_tools.errors import UsageError
from ckpt_tools.settings import plugins
from ckpt_tools.settings import resolve as config

if TYPE_CHECKING:
    from ckpt_tools.layouts import Layouts


def read_settings(given: Mapping[str, Any], to: Output, roots: tuple[str, ...] = ()) -> config.Settings:
    """The settings among a command's options, completed from variables and the configuration file."""
    flags = {key: value for name, value in given.items() if (key := name.replace("_", "-")) in config.BY_KEY}
    found = config.resolve(flags, roots)
    _configure(found)
    if "no-plugins" in flags:
        plugins.switch(found.values.get("no-plugins"))
    if not to.quiet:
        for note in found.notes:
            console.problem("note", note)
        if found.refused:
            console.problem("warning", str(found.refused), found.refused.hint)
    if found.layout_tables is not None:
        found = replace(found, layouts=_own_layouts(found))
    if to.verbose and found.file:
        console.problem("note", f"configuration from {found.file}")
    return found


def _configure(found: config.Settings) -> None:
    """Tell how stores are opened, also where that is no more as an earlier command of this process said."""
    if found.stores is not None or "ckpt_tools.storage.stores.mounts" in sys.modules:
        from ckpt_tools.model.stores import StoreOptions
        from ckpt_tools.storage.stores import mounts

        mounts.forget()
        mounts.configure(found.stores or StoreOptions())


def _own_layouts(found: config.Settings) -> Layouts:
    from ckpt_tools.formats import names
    from ckpt_tools.layouts import user

    try:
        return user.load(found.layout_tables, names.order)
    except ValueError as e:
        hint = "'ckpt layouts --check ROOT' shows what each template matches"
        raise UsageError(f"{found.file}: {e}", hint) from e
