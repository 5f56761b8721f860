"""The settings that a command line gives, completed from variables and the configuration file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ckpt_tools.cli import console
from ckpt_tools.cli.output import Output
from ckpt_tools.errors import UsageError
from ckpt_tools.settings import plugins
from ckpt_tools.settings import resolve as config


def read_settings(given: Mapping[str, Any], to: Output, roots: tuple[str, ...] = ()) -> config.Settings:
    """The settings among a command's options, completed from variables and the configuration file."""
    known = config.BY_KEY.keys() | config.WORDS.keys()
    flags = {key: value for name, value in given.items() if (key := name.replace("_", "-")) in known}
    found = config.resolve(flags, roots)
    # said also where stores are opened no more as an earlier command of this process said
    if found.stores is not None or "ckpt_tools.storage.stores.mounts" in sys.modules:
        from ckpt_tools.model.selection import StoreOptions
        from ckpt_tools.storage.stores import mounts

        mounts.forget()
        mounts.configure(found.stores or StoreOptions())
    if "no-plugins" in flags:
        plugins.switch(found.values.get("no-plugins"))
    if not to.quiet:
        for note in found.notes:
            console.problem("note", note)
        for name, instead in found.going:
            console.going(name, instead)
        if found.refused:
            console.problem("warning", str(found.refused), found.refused.hint)
    if to.verbose and found.file:
        console.problem("note", f"configuration from {found.file}")
    if found.layout_tables is None:
        return found
    from ckpt_tools.formats import names
    from ckpt_tools.layouts import user

    try:
        return replace(found, layouts=user.load(found.layout_tables, names.order))
    except ValueError as e:
        hint = "'ckpt layouts --check ROOT' shows what each template matches"
        raise UsageError(f"{found.file}: {e}", hint) from e
