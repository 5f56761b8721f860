// What all charts share: colours from the style sheet, a size that follows the page, and drawing anew in another theme.

const drawn = [];

function colour(name) {
  const probe = colour.probe || (colour.probe = document.body.appendChild(element("span", { class: "unseen", "aria-hidden": "true" })));
  probe.style.color = "var(--" + name + ")";
  return getComputedStyle(probe).color;
}

function palette() {
  const names = ["page", "card", "raised", "text", "muted", "line", "strong-line", "accent", "accent-back", "ok-fill", "suspect-fill", "broken-fill", "unknown-fill", "absent-fill"];
  return Object.fromEntries(names.map((name) => [name, colour(name)]));
}

// A chart in a box: options(palette, chart) says how it looks, from the start and whenever that changes.
function chartIn(box, options, after) {
  const chart = echarts.init(box, null, { renderer: "canvas" });
  const one = { chart, draw: () => { chart.setOption(options(palette(), chart), { notMerge: true }); if (after) after(chart); } };
  drawn.push(one);
  one.draw();
  new ResizeObserver(() => { if (chart.getWidth() !== box.clientWidth || chart.getHeight() !== box.clientHeight) { chart.resize(); one.draw(); } }).observe(box);
  return one;
}

function drawAgain() { for (const one of drawn) one.draw(); }

function tooltipStyle(p) {
  return { backgroundColor: p.card, borderColor: p["strong-line"], borderWidth: 1, padding: 10, textStyle: { color: p.text }, confine: true, transitionDuration: 0, extraCssText: "box-shadow: 0 4px 16px rgb(0 0 0 / 20%); border-radius: 8px" };
}

function axisStyle(p) {
  return { axisLine: { lineStyle: { color: p["strong-line"] } }, axisTick: { lineStyle: { color: p["strong-line"] } }, axisLabel: { color: p.muted, fontSize: 12 }, splitLine: { lineStyle: { color: p.line } }, nameTextStyle: { color: p.muted, fontSize: 12 } };
}

function tip(title, ...lines) { return element("div", { class: "tip" }, element("b", {}, title), lines); }
