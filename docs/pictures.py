"""The pictures of docs/report.md, taken of a run that is grown for them: python docs/pictures.py [DIRECTORY]."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests/support")]

import demo_tree  # noqa: E402 - from the tests
from browser import Shown, chromium  # noqa: E402

from ckpt_tools.output.report import page  # noqa: E402

SIZES = {
    "wide": ({"width": 1680, "height": 1050}, 1, "light", ""),
    "laptop": ({"width": 1280, "height": 800}, 1, "light", "heatmap"),
    "dark": ({"width": 1440, "height": 1120}, 1, "dark", "timeline"),
    "tensors": ({"width": 1280, "height": 560}, 1, "light", "tensors"),
    "phone": ({"width": 390, "height": 844}, 2, "light", ""),
}
"""Name -> (screen, pixels of the device for each of the page, colours, the section that is scrolled to)."""


def document() -> dict[str, object]:
    """What the pictures show, with the paths of a cluster."""
    with tempfile.TemporaryDirectory() as home:
        root = demo_tree.grow(Path(home) / "llm-7b")
        made = demo_tree.document_of(root, save_interval=demo_tree.EVERY)
    made["summary"]["seconds"] = 0.4  # what differs from machine to machine
    told: dict[str, object] = json.loads(json.dumps(made).replace(home, "/data/runs"))
    return told


def main(into: Path) -> None:
    with tempfile.TemporaryDirectory() as home, chromium() as browser:
        file = Path(home) / "report.html"
        file.write_text(page.render(document()))
        for name, (viewport, pixels, scheme, section) in SIZES.items():
            with Shown(
                browser, file, viewport=viewport, device_scale_factor=pixels, color_scheme=scheme
            ) as shown:
                if section:
                    shown.page.evaluate(
                        "(id) => document.getElementById(id).scrollIntoView({ behavior: 'instant' })", section
                    )
                shown.page.wait_for_timeout(200)
                shown.page.screenshot(path=into / f"report-{name}.png")
                print(into / f"report-{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
