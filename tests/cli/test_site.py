"""The site: each story on its pages happens, it is built without a warning, and nobody who reads it is sent to another
server.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import page_blocks
import pytest
from places import DOCS, ROOT

from ckpt_tools.cli.app import COMMANDS
from ckpt_tools.cli.hook_install import snippets

LOADED = "stylesheet|icon|preload|preconnect|modulepreload"
TORCH = ("pytorch.md", "torchrun.md")
"""Pages whose blocks import torch."""
STORIES = [pytest.param(p, marks=pytest.mark.slow) if p.name in TORCH else p for p in page_blocks.pages()]


@pytest.mark.share(6)
@pytest.mark.parametrize("page", STORIES, ids=[str(p.relative_to(DOCS)) for p in page_blocks.pages()])
def test_what_a_page_tells_happens(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    env = page_blocks.prepare(text, tmp_path)
    for block in page_blocks.blocks(text):
        page_blocks.run(block, tmp_path, env)
    assert len(list(page_blocks.blocks(text))) + text.count("```text") == text.count("```") / 2


def test_what_is_shown_and_not_printed_is_found() -> None:
    assert not page_blocks.unseen("a …\n…\nb", "a 1\nx\n  b")
    assert page_blocks.unseen("b\na", "a\nb") == "a"


def test_each_launcher_with_a_snippet_has_a_page() -> None:
    text = "".join(p.read_text() for p in (DOCS / "launchers").glob("*.md"))
    wanted = {name for name in snippets() if not name.startswith("watch-")}
    assert wanted <= set(re.findall(r"[\w-]+", text))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    nobody = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", **nobody}
    done = built(ROOT, out, env)
    assert done.returncode == 0, done.stderr
    return out


def built(top: Path, out: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Not with --quiet, which hides warnings from --strict too."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", out]
    return subprocess.run(command, cwd=top, env=env, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    config = (ROOT / "mkdocs.yml").read_text()
    config = config.partition("\nnav:")[0].replace("  - docs/site_hooks.py", "  []")
    (tmp_path / "mkdocs.yml").write_text(config)
    for link, code in (("other.md", 0), ("other.md#there", 0), ("nowhere.md", 1), ("other.md#nowhere", 1)):
        (tmp_path / "docs/index.md").write_text(f"# Here\n\n[link]({link})\n")
        (tmp_path / "docs/other.md").write_text("# Other\n\n## There\n")
        done = built(tmp_path, tmp_path / "out", {**os.environ, "NO_MKDOCS_2_WARNING": "1"})
        assert done.returncode == code, (link, done.stderr)


@pytest.mark.exhaustive
def test_it_is_built_from_pages_and_code(site: Path) -> None:
    commands = (site / "reference/commands.html").read_text()
    for name in COMMANDS:
        assert f'id="ckpt-{name.replace(" ", "-")}"' in commands
    python = (site / "reference/python.html").read_text()
    for name in ("verify", "plan", "latest", "scan", "diff", "seal", "try_load", "Selection", "LoadPlan"):
        assert re.search(rf'id="ckpt_tools[\w.]*\.{name}"', python), name
    assert (site / "changelog.html").exists() and (site / "decisions/0005-no-torch.html").exists()


@pytest.mark.exhaustive
def test_a_reader_needs_no_other_server(site: Path) -> None:
    """Links may lead elsewhere; what a browser loads by itself may not."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?([^\"' >]+)", text)
        loaded += re.findall(rf"<link(?=[^>]*rel=[\"']?(?:{LOADED}))[^>]*href=[\"']?([^\"' >]+)", text)
        assert not [url for url in loaded if re.match(r"\w+:|//", url) and not url.startswith("data:")], page
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//", sheet.read_text()), sheet
