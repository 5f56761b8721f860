"""What axe-core finds in the page of ``ckpt report``, and how long it takes to open one of 4,096 ranks x 20 checkpoints.

    npm install --prefix /tmp/axe axe-core@4.14.1
    python benchmarks/accessible_page.py /tmp/axe/node_modules/axe-core/axe.min.js [--runs 5]

Rules of WCAG 2.0 to 2.2, A and AA, and axe's best practices, in light and dark, wide and on a phone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests/support")]

import demo_tree  # noqa: E402 - from the tests
import synthetic_reports  # noqa: E402
from browser import Shown, chromium  # noqa: E402

from ckpt_tools.output.report import data, page  # noqa: E402

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SCREENS = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
RUN = """async (tags) => {
    const found = await axe.run(document, { runOnly: { type: 'tag', values: tags } });
    const short = (all) => all.map((one) => [one.id, one.impact, one.nodes.length, one.nodes[0].html.slice(0, 160),
        one.nodes[0].any.concat(one.nodes[0].all).map((why) => why.message).join('; ').slice(0, 300)]);
    return { passes: found.passes.length, violations: short(found.violations), incomplete: short(found.incomplete) };
}"""


def audit(browser: Any, file: Path, axe: str) -> int:
    """Print what is found on each screen; how many violations there are."""
    count = 0
    for scheme in ("light", "dark"):
        for name, size in SCREENS.items():
            with Shown(browser, file, viewport=size, color_scheme=scheme) as shown:
                shown.context.set_default_timeout(120_000)
                shown.page.evaluate(axe)
                found = shown.page.evaluate(RUN, TAGS)
            count += len(found["violations"])
            print(f"{scheme}, {name}: {found['passes']} rules pass, {len(found['violations'])} are violated")
            for kind in ("violations", "incomplete"):
                for row in found[kind]:
                    print(f"  {kind}: {row}")
    return count


def opening(browser: Any, file: Path, runs: int) -> None:
    """Milliseconds until each mark of the page, as the browser itself takes them."""
    marks = "performance.getEntriesByType('mark').map((one) => [one.name, one.startTime])"
    heap = "performance.memory.usedJSHeapSize / 1e6"
    rows = []
    for _ in range(runs):
        with Shown(browser, file) as shown:
            rows.append(dict(shown.page.evaluate(marks)) | {"heap MB": shown.page.evaluate(heap)})
            rows[-1]["elements"] = shown.page.evaluate("document.querySelectorAll('*').length")
    print(f"{file.stat().st_size / 1e6:.2f} MB; medians of {runs} (least, most):")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"  {name}: {statistics.median(values):.0f} ({min(values):.0f}, {max(values):.0f})")


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("axe", type=Path, help="axe.min.js of axe-core")
    words.add_argument("--runs", type=int, default=5)
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as home, chromium() as browser:
        small, large = Path(home) / "small.html", Path(home) / "large.html"
        root = demo_tree.grow(Path(home) / "llm-7b", 16)
        small.write_text(page.render(demo_tree.document_of(root, save_interval=demo_tree.EVERY)))
        large.write_text(page.render(data.document(synthetic_reports.gathered())))
        violations = audit(browser, small, asked.axe.read_text())
        opening(browser, large, asked.runs)
    return int(violations > 0)


if __name__ == "__main__":
    raise SystemExit(main())
