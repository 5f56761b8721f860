"""What mkdocs is told beside mkdocs.yml: the pages of the repository's top are on the site as well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parent
TOP = DOCS.parent

ABOVE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages of the repository's top, and what they are called on the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie below docs/."""
    for name, page in ABOVE.items():
        text = (TOP / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files that are no page lead nowhere on the site: their text stays."""
    depth = "../" * page.file.src_uri.count("/")
    for name, target in ABOVE.items():
        markdown = re.sub(rf"\]\((\.\./)*{re.escape(name)}(#[^)]*)?\)", rf"]({depth}{target}\2)", markdown)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)#]+\.(?:py|json|toml|txt|rs|yml|ipynb)\)", r"\1", markdown)
