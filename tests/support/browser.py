"""Pages in headless Chromium, and whatever they complain of, fetch, or would have to fetch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from typing_extensions import Self

WIDE = {"width": 1440, "height": 900}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's own; Playwright's are not there, and are not fetched."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    assert program, "there is no chromium: .ci/packages installs it"
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Shown:
    """One page on the screen. ``complaints`` is what its console and its scripts said, ``requests`` what it asked
    of anybody.
    """

    def __init__(self, browser: Browser, file: Path, **how: Any) -> None:
        self.file = file
        self.context = browser.new_context(viewport=how.pop("viewport", WIDE), **how)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready=true]")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert self.complaints == []
            assert len(self.requests) == 1, self.requests
