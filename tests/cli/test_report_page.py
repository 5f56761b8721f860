"""The page of ``ckpt report`` in a real browser: what is pointed at, pressed, typed and read; nothing is said on the
console, and nothing is asked of any network.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import demo_tree
import pytest
import synthetic_reports
from browser import Shown, chromium
from run_helpers import CLEAN

from ckpt_tools import api
from ckpt_tools.output.report import data, page
from ckpt_tools.output.report.advice import Gathered

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
RANKS = 16
MEGABYTES = 1_000_000
NODES = 3_000
"""Elements of a page at most, however many files it is about."""
Open = Callable[..., Shown]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = demo_tree.grow(tmp_path_factory.mktemp("pages") / "llm", RANKS)
    return demo_tree.document_of(root, save_interval=demo_tree.EVERY)


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    opened: list[Shown] = []

    def show(document: dict[str, Any], **how: Any) -> Shown:
        file = tmp_path.with_name(f"{tmp_path.name}-{len(opened)}.html")
        file.write_text(page.render(document))
        opened.append(Shown(browser, file, **how))
        return opened[-1]

    yield show
    for one in opened:
        one.__exit__(None)


def texts(of: Shown, selector: str) -> list[str]:
    return [text.strip() for text in of.page.locator(selector).all_inner_texts()]


def option(of: Shown, section: str, expression: str) -> Any:
    """Something of a chart's instance."""
    code = f"""(id) => {{ const box = document.querySelector('#' + id + ' .chart');
        const chart = echarts.getInstanceByDom(box); return {expression}; }}"""
    return of.page.evaluate(code, section)


def point(of: Shown, section: str, x: float, y: float) -> str:
    """Moves the pointer to a place of a chart's axes; what its tooltip says."""
    of.page.locator(f"#{section}").scroll_into_view_if_needed()
    at = option(of, section, f"chart.convertToPixel({{ xAxisIndex: 0, yAxisIndex: 0 }}, [{x}, {y}])")
    box = of.page.locator(f"#{section} .chart").bounding_box()
    assert box
    of.page.mouse.move(box["x"] + at[0] + 1, box["y"] + at[1] + 1)
    of.page.mouse.move(box["x"] + at[0], box["y"] + at[1])
    tip = of.page.locator(f"#{section} .tip")
    tip.wait_for()
    return tip.inner_text()


def row_of(document: dict[str, Any], step: int) -> int:
    return next(i for i, c in enumerate(document["checkpoints"]) if c["step"] == step)


def test_it_says_first_what_to_do(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    assert texts(of, "h1") == [
        "Resume from step 7500. It holds weights only: the optimizer starts from scratch. Step 8000 was skipped: ranks 1 and 9 have no good copy. 500 steps of training are lost."
    ]
    sections = ["resume", "timeline", "heatmap", "damage", "coverage", "trackers", "tensors", "files"]
    assert of.page.eval_on_selector_all("#sections > .card", "all => all.map((one) => one.id)") == sections
    assert "names what is damaged" in texts(of, "#trackers tbody td")
    events = " ".join(texts(of, ".events li"))
    told = ("from step 3173 to step 3000", "no save for 25 h after step 5500", "dying gasp")
    assert all(words in events for words in told)


def test_the_map_names_what_is_under_the_pointer(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    at = 9 % RANKS
    file = f"iter_0007500/mp_rank_01/model_optim_rng_{at}.pt"
    said = point(of, "heatmap", at + 0.5, row_of(demo, 7500))
    assert all(words in said for words in (f"rank {at} · step 7500", "broken", "truncated", file))
    assert "no file" in point(of, "heatmap", RANKS - 0.5, row_of(demo, 3173))
    assert texts(of, "#heatmap-under") == [f"rank {RANKS - 1} · step 3173: no file"]
    point(of, "heatmap", at + 0.5, row_of(demo, 7500))
    pressed(of)
    assert texts(of, "#files tbody tr td:nth-child(2)") == [file]


def pressed(of: Shown) -> None:
    of.page.mouse.down()
    of.page.mouse.up()
    of.page.wait_for_selector("#files-filter .badge")


def test_the_map_by_keyboard(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    of.page.focus("#heatmap .chart")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp"):
        of.page.keyboard.press(key)
    assert texts(of, "#heatmap-under") == ["rank 2 · step 7500: ok"]
    assert "rank 2 · step 7500" in of.page.locator("#heatmap .tip").inner_text()
    of.page.keyboard.press("Enter")
    assert texts(of, "#files-filter .badge") == ["only rank 2 · step 7500"]
    assert texts(of, "#live") == ["1 file listed"]


def test_the_timeline_names_a_save_and_lists_its_files(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    one = demo["checkpoints"][row_of(demo, 4500)]
    said = point(of, "timeline", one["mtime"] * 1000, 4500)
    assert said.startswith("step 4500") and "broken" in said and "crc-mismatch" in said
    pressed(of)
    assert f"of {RANKS} (of" in texts(of, "#files .pager .quiet")[0]
    of.page.click("#timeline button:text-is('Show in the order of saving')")
    assert option(of, "timeline", "chart.getOption().xAxis[0].type") == "value"


def test_strips_say_what_bytes_are(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    strip = of.page.locator(".strip-box", has_text="iter_0004500")
    assert "crc-mismatch" in strip.inner_text()
    strip.scroll_into_view_if_needed()
    box, mark = strip.locator(".bytes").bounding_box(), strip.locator(".mark-at").bounding_box()
    assert box and mark
    found = next(d for d in demo["damage"] if "iter_0004500" in demo["files"]["path"][d["file"]])
    offset = next(f["offset"] for f in found["findings"] if f["code"] == "crc-mismatch")
    of.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 12)
    at = re.match(r"Bytes ([\d,]+) to ([\d,]+) ", said := strip.locator(".under").inner_text())
    assert at, said
    begin, end = (int(n.replace(",", "")) for n in at.groups())
    assert begin <= found["size"] * 0.3 <= end and "checksum: a stored checksum covers them" in said
    assert abs((mark["x"] + mark["width"] / 2 - box["x"]) / box["width"] - offset / found["size"]) < 0.01


def test_search_sort_and_open(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    of.page.keyboard.press("/")
    of.page.keyboard.type("truncated iter_0007500")
    assert texts(of, "#files tbody td:nth-child(3)") == ["step 7500"]
    of.page.fill("#files .search", "no such file")
    assert texts(of, "#files tbody td") == ["Nothing here is as you asked."]
    of.page.fill("#files .search", "")
    of.page.click("#files th button:text-is('Size')")
    rows = of.page.eval_on_selector_all("#files tbody tr", "all => all.map((one) => one.dataset.row)")
    sizes = [demo["files"]["size"][int(row)] for row in rows]
    assert sizes == sorted(demo["files"]["size"])[: len(sizes)]
    of.page.click("#files th button:text-is('Size')")
    assert of.page.get_attribute("#files th:has(button:text-is('Size'))", "aria-sort") == "descending"
    of.page.click("#files .controls button:has-text('broken')")
    assert set(texts(of, "#files tbody td:nth-child(1)")) == {"broken"}
    of.page.focus("#files tbody .open >> nth=0")
    of.page.keyboard.press("Enter")
    assert of.page.get_attribute("#files tbody .open >> nth=0", "aria-expanded") == "true"
    assert "looked at" in texts(of, "#files tr.inside")[0]


@pytest.mark.exhaustive
def test_a_large_job_is_a_light_page(shown: Open) -> None:
    """81,920 files, made as data: few elements, and all of it at hand."""
    of = shown(data.document(synthetic_reports.gathered()))
    assert len(of.file.read_bytes()) < 5 * MEGABYTES
    assert of.page.evaluate("document.querySelectorAll('*').length") < NODES
    it_has_pages(of)
    it_zooms(of)


def it_has_pages(of: Shown) -> None:
    assert texts(of, "#files .pager .quiet") == ["1–25 of 81,920"]
    of.page.click("#files .pager button:text-is('Next')")
    assert texts(of, "#files .pager .quiet") == ["26–50 of 81,920"]
    of.page.fill("#files .search", "iter_0009500 rank_00_4095/")
    assert texts(of, "#files .pager .quiet") == ["1–1 of 1 (of 81,920)"]
    of.page.fill("#files .search", "")
    of.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert of.page.locator("#files tbody tr").count() == 10_000
    said = "The first 10,000 of 81,920 rows: search or filter before printing to choose others."
    assert of.page.text_content("#files .only-paper") == said
    of.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert texts(of, "#files .pager .quiet") == ["1–25 of 81,920"]


def it_zooms(of: Shown) -> None:
    count = "getOption().series[0].data.length"
    few = option(of, "heatmap", f"chart.{count}")
    assert few < 20 * 500
    assert "ranks 2" in (said := point(of, "heatmap", 2049, 0)) and "1 of" in said and "broken" in said
    for _ in range(12):
        of.page.click("#heatmap button:text-is('Zoom in')")
    begin, end = (
        option(of, "heatmap", f"chart.getOption().dataZoom[0].{at}Value") for at in ("start", "end")
    )
    assert end - begin < 20
    cells = f"echarts.getInstanceByDom(document.querySelector('#heatmap .chart')).{count}"
    of.page.wait_for_function(f"() => {cells} < 500")
    middle = int((begin + end) / 2)
    assert point(of, "heatmap", middle + 0.5, 3).startswith(f"rank {middle} · step 8500")
    of.page.click("#heatmap button:text-is('Show all')")
    of.page.wait_for_function(f"() => {cells} == {few}")


def test_all_of_it_is_saved_as_json(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    with of.page.expect_download() as saved:
        of.page.click("#tools button:text-is('JSON')")
    assert json.loads(Path(saved.value.path()).read_text()) == json.loads(json.dumps(demo))
    of.requests[1:] = [url for url in of.requests[1:] if not url.startswith("blob:")]


def test_odd_numbers_come_first_with_their_distribution(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    rows = texts(of, "#tensors tbody tr")
    assert "layers.1.mlp" in rows[0] and "iter_0005500/mp_rank_05" in rows[0]
    assert any("layers.0.mlp" in row and "2.7e+21" in row for row in rows)
    assert texts(of, "#tensors th")[:4] == ["Tensor", "Magnitudes", "NaN", "Absurd"]
    bars = of.page.locator("#tensors .bars", has=of.page.locator("span"))
    most = bars.evaluate_all("all => Math.max(...all.map((one) => one.children.length))")
    assert most > 30  # from 2^-16 to 2^71
    of.page.fill("#tensors .search", "norm iter_0000500")
    assert all("model.norm" in row for row in texts(of, "#tensors tbody tr"))


def test_light_and_dark(shown: Open, demo: dict[str, Any]) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    of, night = shown(demo), shown(demo, color_scheme="dark")
    light, dark = of.page.evaluate(back), night.page.evaluate(back)
    assert light != dark
    of.page.click("#tools button:text-is('Dark')")
    assert of.page.evaluate(back) == dark
    night.page.click("#tools button:text-is('Light')")
    assert night.page.evaluate(back) == light


@pytest.mark.exhaustive
def test_it_is_printed_in_light_and_whole(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo, color_scheme="dark", viewport={"width": 794, "height": 1123})
    of.page.emulate_media(media="print", color_scheme="dark")
    assert of.page.evaluate("document.scrollingElement.scrollWidth") <= 794
    assert not of.page.locator("#tools").is_visible() and not of.page.locator(".search").first.is_visible()
    assert of.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert of.page.evaluate("getComputedStyle(document.body).color") == "rgb(18, 22, 28)"
    assert of.page.pdf().startswith(b"%PDF")


CONTRAST = """() => {
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const numbers = (text) => { const all = text.match(/[\\d.]+/g).map(Number); return text.startsWith('color(srgb') ? all.map((v, i) => (i < 3 ? v * 255 : v)) : all; };
  const back = (one) => { for (; one; one = one.parentElement) { const c = numbers(getComputedStyle(one).backgroundColor); if (c.length < 4 || c[3] > 0.9) return c.slice(0, 3); } return [255, 255, 255]; };
  const poor = [];
  let seen = 0;
  for (const one of document.querySelectorAll('body *')) {
    if (one.closest('.chart, script, .unseen, noscript') || !one.getClientRects().length) continue;
    if (![...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
    const [a, b] = [light(numbers(getComputedStyle(one).color).slice(0, 3)), light(back(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen++;
    if (ratio < 4.5) poor.push([one.className, one.textContent.slice(0, 40), ratio]);
  }
  return [seen, poor];
}"""


@pytest.mark.share(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(shown: Open, demo: dict[str, Any], scheme: str) -> None:
    of = shown(demo, color_scheme=scheme)
    of.page.click("#files tbody .open >> nth=0")
    seen, poor = of.page.evaluate(CONTRAST)
    assert seen > 300 and poor == []


@pytest.mark.share(3)
@pytest.mark.parametrize("width", [320, 390, 1440])
def test_nothing_is_wider_than_the_screen(shown: Open, demo: dict[str, Any], width: int) -> None:
    of = shown(demo, viewport={"width": width, "height": 800})
    assert of.page.evaluate("document.scrollingElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.parentElement.id).filter(Boolean)"
    assert width < 390 or of.page.evaluate(cut) == []


def test_everything_that_can_be_pressed_has_a_name(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo)
    nameless = """() => [...document.querySelectorAll('button, input, select, a, [role]')].filter((one) =>
        !one.closest('.unseen') && !(one.getAttribute('aria-label') || one.textContent).trim()).map((one) => one.outerHTML.slice(0, 80))"""
    assert of.page.evaluate(nameless) == []
    reached = "all => all.filter((one) => one.tabIndex === 0 && one.getAttribute('aria-label')).length"
    wide = of.page.locator(".scroll").count()
    assert of.page.eval_on_selector_all(".scroll", reached) == wide > 3, "keyboards move what is too wide"
    ids = of.page.eval_on_selector_all("[id]", "all => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))
    assert of.page.locator("h1").count() == 1 and of.page.get_attribute("html", "lang") == "en"


NASTY = ["<img src=x onerror=alert(1)>.pt", "'$(touch gone)'.pt", "a\nb\x1b[2J\\.pt", "\u202egnp.pt", '"; touch gone; ".pt', "\udcff\udc80'.pt", "-rf ü.pt"]  # fmt: skip


def test_hostile_names_are_words_and_commands_are_about_them(shown: Open, tmp_path: Path) -> None:
    root = tmp_path / "</script><script>alert(1)</script>"
    root.mkdir(parents=True)
    for name in NASTY:
        (root / name.replace("/", "")).write_bytes(b"PK\x03\x04 cut off")
    result = api.verify(str(root))
    of = shown(data.document(Gathered((str(root),), 0.0, result)))
    of.page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    assert of.page.evaluate("document.querySelectorAll('img, svg, iframe, object').length") == 0
    assert of.page.evaluate("document.scripts.length") == 3
    names = texts(of, "#files tbody td:nth-child(2)")
    assert len(names) == len(NASTY)
    assert {NASTY[0], "a\\x0ab\\x1b[2J\\.pt", "\\u202egnp.pt", "\\xff\\x80'.pt"} <= set(names)
    arguments = []
    for i in range(len(NASTY)):
        of.page.click(f"#files tbody .open >> nth={i}")
        shows = [text for text in texts(of, "#files tr.inside code") if text.startswith("ckpt show ")]
        arguments += [text.removeprefix("ckpt show ") for text in shows]
        of.page.click(f"#files tbody .open >> nth={i}")
    line = ["bash", "-c", f"printf '%s\\0' {' '.join(arguments)}"]
    done = subprocess.run(line, cwd=tmp_path, env=CLEAN, capture_output=True, check=True)
    said = set(done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1])
    assert said == {str(f.report.path) for f in result.files}
    assert [p.name for p in tmp_path.iterdir()] == ["<"]


def test_what_is_copied_is_what_is_shown(shown: Open, demo: dict[str, Any]) -> None:
    of = shown(demo, permissions=["clipboard-read", "clipboard-write"])
    of.page.click("#next .command button >> nth=0")
    of.page.wait_for_selector("#next button:text-is('Copied')")
    copied = of.page.evaluate("navigator.clipboard.readText()")
    assert copied == texts(of, "#next .command code")[0] == f"ckpt repair {shlex.quote(demo['roots'][0])}"
