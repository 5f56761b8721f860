// Ranks by checkpoints: the worst verdict of each cell's files. From afar a cell stands for neighbours as well.

const VERDICTS = ["absent", "ok", "suspect", "unknown", "broken"];
const NARROWEST = 3;

// Which places there are, which checkpoints, and the first file of each cell; ``next`` leads to its others.
function grid(doc, run) {
  const { files } = doc;
  const rows = doc.checkpoints.map((one, i) => i).filter((i) => run === "" || doc.runOf[i] === run);
  const rowOf = new Map(rows.map((i, at) => [i, at]));
  const labels = new Map();
  const keys = new Array(files.n);
  for (let f = 0; f < files.n; f++) {
    if (!rowOf.has(files.checkpoint[f])) continue;
    keys[f] = files.rank[f] !== null ? files.rank[f] : files.place[f] || files.role[f] || "shared";
    if (!labels.has(keys[f])) labels.set(keys[f], 0);
  }
  const places = [...labels.keys()].sort((a, b) => (typeof a === typeof b ? (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true })) : typeof a === "number" ? -1 : 1));
  places.forEach((place, at) => labels.set(place, at));
  const first = new Map();
  const next = new Int32Array(files.n).fill(-1);
  const worst = new Uint8Array(places.length * rows.length);
  for (let f = files.n - 1; f >= 0; f--) {
    if (keys[f] === undefined) continue;
    const cell = rowOf.get(files.checkpoint[f]) * places.length + labels.get(keys[f]);
    next[f] = first.has(cell) ? first.get(cell) : -1;
    first.set(cell, f);
    worst[cell] = Math.max(worst[cell], VERDICTS.indexOf(files.verdict[f]));
  }
  return { rows, places, first, next, worst };
}

function placeName(place) { return typeof place === "number" ? "rank " + place : printable(place); }

function placeSpan(of, from, to) {
  const a = of.places[from];
  const b = of.places[to - 1];
  if (to - from === 1) return placeName(a);
  return typeof a === "number" && typeof b === "number" ? "ranks " + a + "–" + b : placeName(a) + " to " + placeName(b);
}

// One bin for each column that fits: [from, to, row, worst, how many of that verdict, places].
function bins(of, from, to, columns) {
  const width = Math.max(1, Math.ceil((to - from) / columns));
  const out = [];
  for (let row = 0; row < of.rows.length; row++) {
    for (let a = from; a < to; a += width) {
      const b = Math.min(a + width, to);
      let worst = 0;
      let found = 0;
      for (let at = a; at < b; at++) {
        const verdict = of.worst[row * of.places.length + at];
        if (verdict > worst) { worst = verdict; found = 0; }
        if (verdict === worst) found++;
      }
      out.push([a, b, row, worst, found, b - a]);
    }
  }
  return out;
}

function heatmapSection(doc) {
  if (!doc.files.n || !doc.checkpoints.length || !doc.files.checkpoint.some((one) => one !== null)) return null;
  if (grid(doc, "").places.length < 2) return null;
  const state = { run: "", of: null, labels: doc.checkpoints.map((one) => one.label), start: 0, end: 100, cursor: null, bins: [] };
  const box = element("div", { class: "chart", tabindex: 0, role: "application", "aria-label": "Ranks by checkpoints. Arrow keys move from cell to cell, plus and minus zoom, Enter lists the files." });
  const under = element("p", { class: "under", id: "heatmap-under" }, "Point at a cell, or use the arrow keys. Ctrl and the wheel, the slider or the buttons zoom; a click lists the files.");
  const pick = doc.runs.length > 1 ? element("select", { class: "button", "aria-label": "Run" }, element("option", { value: "" }, "all runs"), doc.runs.map((run) => element("option", { value: run.key }, printable(run.name)))) : null;
  const zoom = (factor) => { if (state.made) zoomBy(state.made.chart, state, factor); };
  const buttons = element("div", { class: "controls" }, pick, button("Zoom in", () => zoom(0.5)), button("Zoom out", () => zoom(2)), button("Show all", () => zoom(Infinity)));
  const part = card("heatmap", "Ranks and checkpoints", "The worst verdict among the files of each rank in each checkpoint, newest on top. From afar one cell stands for several ranks, and shows the worst of them.",
    element("div", { class: "chart-bar" }, heatLegend(), buttons), box, under);
  part.draw = () => drawHeatmap(doc, state, box, under);
  if (pick) pick.addEventListener("change", () => { if (!state.made) return; state.run = pick.value; state.of = grid(doc, pick.value); state.start = 0; state.end = 100; state.cursor = null; fitHeight(state, box); state.made.draw(); });
  return part;
}

function heatLegend() {
  const words = { ok: "sound", suspect: "suspect", broken: "broken", unknown: "not looked at", absent: "no file" };
  return element("ul", { class: "legend" }, Object.entries(words).map(([name, text]) => element("li", {}, element("span", { class: "swatch " + name + "-fill" }), text)));
}

function fitHeight(state, box) {
  const rows = Math.min(state.of.rows.length, 40);
  box.style.height = 104 + rows * (rows > 24 ? 16 : rows > 12 ? 20 : 26) + "px";
}

function drawHeatmap(doc, state, box, under) {
  state.of = grid(doc, state.run);
  fitHeight(state, box);
  state.made = chartIn(box, (p, chart) => heatOptions(doc, state, chart, p));
  const { chart } = state.made;
  let waiting = 0;
  chart.on("datazoom", () => {
    const zoomed = chart.getOption().dataZoom[0];
    if (zoomed.start === state.start && zoomed.end === state.end) return;
    state.start = zoomed.start;
    state.end = zoomed.end;
    state.cursor = null;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => refill(state, chart));
  });
  chart.on("mouseover", (hit) => { if (hit.data) under.textContent = cellWords(doc, state, hit.data); });
  chart.on("click", (hit) => { if (hit.data) openCell(state, hit.data); });
  box.addEventListener("keydown", (event) => heatKey(doc, state, under, event));
  box.addEventListener("blur", () => { state.cursor = null; chart.dispatchAction({ type: "hideTip" }); chart.dispatchAction({ type: "downplay" }); });
}

function shownRange(state) {
  const n = state.of.places.length;
  const from = Math.max(0, Math.floor((state.start / 100) * n + 1e-6));
  return [from, Math.max(from + 1, Math.min(n, Math.ceil((state.end / 100) * n - 1e-6)))];
}

function refill(state, chart) {
  const [from, to] = shownRange(state);
  state.bins = bins(state.of, from, to, Math.max(1, Math.floor((chart.getWidth() - 150) / NARROWEST)));
  chart.setOption({ xAxis: { axisLabel: { padding: middle(state, chart) } }, series: [{ id: "cells", data: state.bins }] });
}

// What moves a label from the left edge of its cell to the middle, beside the names of the rows.
function middle(state, chart) {
  const names = Math.max(...state.of.rows.map((i) => Math.min(24, state.labels[i].length)));
  const [from, to] = shownRange(state);
  return [0, 0, 0, Math.max(0, (chart.getWidth() - 40 - 6.5 * names) / (to - from))];
}

function heatOptions(doc, state, chart, p) {
  const { of } = state;
  const [from, to] = shownRange(state);
  state.bins = bins(of, from, to, Math.max(1, Math.floor((chart.getWidth() - 150) / NARROWEST)));
  const colours = VERDICTS.map((name) => p[name + "-fill"]);
  const many = of.rows.length > 40;
  const names = of.rows.map((i) => printable(doc.checkpoints[i].label).slice(0, 24));
  const base = axisStyle(p);
  const zooming = { xAxisIndex: 0, filterMode: "none", start: state.start, end: state.end, minValueSpan: Math.min(of.places.length, 4) };
  const slider = { type: "slider", borderColor: p.line, fillerColor: p["accent-back"], showDetail: false, brushSelect: false };
  return {
    animation: false, aria: { enabled: false }, grid: { left: 12, right: many ? 48 : 20, top: 8, bottom: 58, containLabel: true },
    tooltip: { ...tooltipStyle(p), trigger: "item", formatter: (hit) => (hit.data ? cellTip(doc, state, hit.data) : "") },
    xAxis: { ...base, type: "value", min: 0, max: of.places.length, minInterval: 1, splitLine: { show: false }, axisLabel: { ...base.axisLabel, hideOverlap: true, padding: middle(state, chart), formatter: (at) => (Number.isInteger(at) && at < of.places.length ? printable(of.places[at]) : "") }, name: "rank", nameLocation: "middle", nameGap: 26 },
    yAxis: { ...base, type: "category", inverse: true, data: names, splitLine: { show: false }, axisTick: { show: false }, axisLabel: { ...base.axisLabel, interval: "auto" } },
    dataZoom: [{ ...slider, ...zooming, height: 18, bottom: 6 }, { type: "inside", ...zooming, zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, moveOnMouseWheel: false }, ...(many ? [{ ...slider, yAxisIndex: 0, width: 18, right: 10, startValue: 0, endValue: 39 }] : [])],
    series: [{ id: "cells", type: "custom", clip: true, encode: { x: [0, 1], y: 2 }, dimensions: ["from", "to", "row", "worst", "found", "places"], data: state.bins, progressive: 0, renderItem: (_, api) => cellShape(api, colours, p) }],
  };
}

function cellShape(api, colours, p) {
  const [x, y] = api.coord([api.value(0), api.value(2)]);
  const [stop] = api.coord([api.value(1), api.value(2)]);
  const high = api.size([0, 1])[1];
  const apart = stop - x > 5 ? 1 : 0;
  return { type: "rect", shape: { x, y: y - high / 2 + 1, width: Math.max(1, stop - x - apart), height: Math.max(1, high - 2) }, style: { fill: colours[api.value(3)] }, emphasis: { style: { stroke: p.text, lineWidth: 2 } } };
}

function cellWords(doc, state, [from, to, row, worst, found]) {
  const one = doc.checkpoints[state.of.rows[row]];
  const what = worst === 0 ? "no file" : to - from === 1 ? VERDICTS[worst] : found + " of " + (to - from) + " " + VERDICTS[worst];
  return placeSpan(state.of, from, to) + " · " + printable(one.label) + ": " + what;
}

function filesOf(state, [from, to, row], most) {
  const out = [];
  for (let at = from; at < to && out.length < most; at++) {
    const cell = row * state.of.places.length + at;
    let f = state.of.first.has(cell) ? state.of.first.get(cell) : -1;
    for (; f >= 0 && out.length < most; f = state.of.next[f]) out.push(f);
  }
  return out;
}

function cellTip(doc, state, bin) {
  const one = doc.checkpoints[state.of.rows[bin[2]]];
  const here = filesOf(state, bin, 2000).sort((a, b) => VERDICTS.indexOf(doc.files.verdict[b]) - VERDICTS.indexOf(doc.files.verdict[a]));
  const lines = here.slice(0, 3).map((f) => element("span", { class: "quiet" }, below(doc.files.path[f], doc.roots[one.root]) + (doc.files.codes[f] ? " (" + doc.files.codes[f] + ")" : "")));
  const words = cellWords(doc, state, bin);
  return tip(words.slice(0, words.lastIndexOf(": ")), badge(bin[3] ? VERDICTS[bin[3]] : "plain", words.slice(words.lastIndexOf(": ") + 2)), lines, here.length > 3 ? element("span", { class: "quiet" }, "and " + (here.length === 2000 ? "many" : here.length - 3) + " more") : null);
}

function openCell(state, [from, to, row]) {
  showFiles({ checkpoint: state.of.rows[row], places: new Set(state.of.places.slice(from, to)), label: placeSpan(state.of, from, to) });
}

function zoomBy(chart, state, factor) {
  const middle = (state.start + state.end) / 2;
  const half = Math.min(50, ((state.end - state.start) / 2) * factor);
  const start = factor === Infinity ? 0 : Math.max(0, Math.min(100 - 2 * half, middle - half));
  chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start, end: factor === Infinity ? 100 : start + 2 * half });
}

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function heatKey(doc, state, under, event) {
  const { chart } = state.made;
  if (event.key === "+" || event.key === "=") zoomBy(chart, state, 0.5);
  else if (event.key === "-") zoomBy(chart, state, 2);
  else if (event.key === "0") zoomBy(chart, state, Infinity);
  else if (event.key === "Enter" && state.cursor !== null) openCell(state, state.bins[state.cursor]);
  else if (MOVES[event.key]) moveCursor(doc, state, under, MOVES[event.key]);
  else return;
  event.preventDefault();
}

function moveCursor(doc, state, under, [across, down]) {
  const { chart } = state.made;
  const columns = state.bins.length / state.of.rows.length;
  const at = state.cursor === null ? 0 : state.cursor;
  const column = Math.max(0, Math.min(columns - 1, (at % columns) + (state.cursor === null ? 0 : across)));
  const row = Math.max(0, Math.min(state.of.rows.length - 1, Math.floor(at / columns) + (state.cursor === null ? 0 : down)));
  chart.dispatchAction({ type: "downplay", seriesIndex: 0 });
  state.cursor = row * columns + column;
  chart.dispatchAction({ type: "highlight", seriesIndex: 0, dataIndex: state.cursor });
  chart.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: state.cursor });
  under.textContent = cellWords(doc, state, state.bins[state.cursor]);
  tell(under.textContent);
}
