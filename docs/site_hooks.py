"""What mkdocs is told beside mkdocs.yml: the pages of the repository's top are on the site as well."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parent
TOP = DOCS.parent

ABOVE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages of the repository's top, and what they are called on the site."""
SOURCES = (".py", ".json", ".toml", ".txt", ".yml")
"""How files end that are no part of the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie below docs/."""
    for name, page in ABOVE.items():
        text = (TOP / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to what is no page of the site lead nowhere on it: their text stays."""
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        text, path, anchor = found.groups()
        target = posixpath.normpath(posixpath.join(here, path))
        outside = target.startswith("..") or target in ABOVE
        above = ABOVE.get(posixpath.basename(target)) if outside else None
        if above is not None:
            return f"[{text}]({posixpath.relpath(above, here or '.')}{anchor or ''})"
        if page.file.src_uri in ABOVE.values() and not (DOCS / target).exists():
            return text
        return text if outside or target.endswith(SOURCES) else found[0]

    return re.sub(r"\[([^\]]+)\]\((?!\w+:)([^)#]+)(#[^)]*)?\)", link, markdown)
