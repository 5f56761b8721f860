// The saves over time: step by step, with what became of each.

function progressOf(one) { return one.step !== null ? one.step : one.epoch !== null ? one.epoch : null; }

function timelineSection(doc) {
  const placed = doc.checkpoints.map((one, i) => ({ one, i })).filter(({ one }) => progressOf(one) !== null && one.mtime > 0);
  if (!placed.length) return null;
  const times = placed.map(({ one }) => one.mtime);
  const spread = Math.max(...times) - Math.min(...times) >= 1;
  const byTime = [...placed].sort((a, b) => a.one.mtime - b.one.mtime || progressOf(a.one) - progressOf(b.one));
  const order = new Map(byTime.map(({ i }, at) => [i, at + 1]));
  let axis = spread ? "time" : "order";
  const box = element("div", { class: "chart", css: { height: "360px" }, role: "img", "aria-label": timelineWords(doc, placed) });
  const choose = element("button", { type: "button", class: "button" });
  const label = () => { choose.textContent = axis === "time" ? "Show in the order of saving" : "Show over time"; };
  const part = card("timeline", "Saves over time", "Each point is a save. A line that falls is training that went back and went on from an older checkpoint.",
    element("div", { class: "chart-bar" }, timelineLegend(doc, placed), element("div", { class: "controls" }, spread ? choose : null)), box, events(doc));
  part.draw = () => {
    const made = chartIn(box, (p) => timelineOptions(doc, byTime, order, axis, p));
    made.chart.on("click", (hit) => { if (hit.data && hit.data.at !== undefined) showFiles({ checkpoint: hit.data.at }); });
    choose.addEventListener("click", () => { axis = axis === "time" ? "order" : "time"; label(); made.draw(); });
  };
  label();
  return part;
}

function timelineWords(doc, placed) {
  const chosen = doc.checkpoints.filter((one) => one.outcome === "chosen").map((one) => printable(one.label));
  return plural(placed.length, "save") + " by time and step; " + plural(doc.timeline.rollbacks.length, "rollback") + ", " + plural(doc.timeline.gaps.length, "gap") + (chosen.length ? "; chosen: " + chosen.join(", ") : "");
}

function timelineLegend(doc, placed) {
  const seen = new Set(placed.map(({ one }) => one.verdict));
  const rows = ["ok", "suspect", "broken", "unknown"].filter((name) => seen.has(name)).map((name) => [name + "-fill round", name === "ok" ? "sound" : name]);
  if (placed.some(({ one }) => one.kind === "dying-gasp")) rows.push(["absent-fill diamond", "dying gasp"]);
  if (placed.some(({ one }) => one.outcome === "chosen")) rows.push(["ring", "resumed from"]);
  if (doc.timeline.rollbacks.length) rows.push(["dash", "rollback"]);
  if (doc.timeline.gaps.length) rows.push(["absent-fill", "no save for long"]);
  return element("ul", { class: "legend" }, rows.map(([kind, text]) => element("li", {}, element("span", { class: "swatch " + kind }), text)));
}

function timelineOptions(doc, byTime, order, axis, p) {
  const x = (i) => (axis === "time" ? doc.checkpoints[i].mtime * 1000 : order.get(i));
  const runs = new Map();
  for (const { one, i } of byTime) {
    const key = [one.root, one.layout, one.run].join("\n");
    if (!runs.has(key)) runs.set(key, []);
    runs.get(key).push(i);
  }
  const series = [...runs.values()].map((members) => runSeries(doc, members, x, p));
  series.push(chosenSeries(doc, byTime, x, p), { type: "line", data: [], silent: true, markLine: rollbackLines(doc, order, x, p), markArea: gapAreas(doc, order, x, p) });
  const unit = doc.checkpoints.some((one) => one.step !== null) ? "step" : "epoch";
  return {
    useUTC: true, animation: false, aria: { enabled: false }, grid: { left: 12, right: 28, top: 34, bottom: byTime.length > 30 ? 62 : 12, containLabel: true },
    tooltip: { ...tooltipStyle(p), trigger: "item", formatter: (hit) => (hit.data && hit.data.at !== undefined ? saveTip(doc, hit.data.at) : "") },
    xAxis: { ...axisStyle(p), type: axis === "time" ? "time" : "value", name: "", ...(axis === "time" ? {} : { minInterval: 1, min: 0, max: byTime.length + 1 }), splitLine: { show: false }, axisLabel: { ...axisStyle(p).axisLabel, hideOverlap: true } },
    yAxis: { ...axisStyle(p), type: "value", name: unit, scale: true, nameLocation: "end", nameGap: 14 },
    dataZoom: byTime.length > 30 ? [{ type: "slider", height: 22, bottom: 12, borderColor: p.line, fillerColor: p["accent-back"], textStyle: { color: p.muted }, labelFormatter: "" }, { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }] : [],
    series,
  };
}

function runSeries(doc, members, x, p) {
  return {
    type: "line", lineStyle: { color: p["strong-line"], width: 1.5 }, showSymbol: true, showAllSymbol: true, emphasis: { scale: 1.35, lineStyle: { width: 1.5 } },
    data: members.map((i) => {
      const one = doc.checkpoints[i];
      const fill = p[one.verdict + "-fill"];
      const hollow = one.unfinished;
      return { at: i, value: [x(i), progressOf(one)], symbol: one.kind === "dying-gasp" ? "diamond" : "circle", symbolSize: one.kind === "dying-gasp" ? 16 : 12, itemStyle: { color: hollow ? p.card : fill, borderColor: hollow ? fill : p.card, borderWidth: hollow ? 2.5 : 1.5 } };
    }),
  };
}

function chosenSeries(doc, byTime, x, p) {
  const chosen = byTime.filter(({ one }) => one.outcome === "chosen");
  const places = byTime.map(({ i }) => x(i));
  const middle = (Math.min(...places) + Math.max(...places)) / 2; // the label is on the side that has more room
  return {
    type: "scatter", z: 1, symbolSize: 27, silent: true, itemStyle: { color: "transparent", borderColor: p.accent, borderWidth: 3 },
    label: { show: chosen.length <= 4, distance: 8, formatter: "resume here", color: p.accent, fontWeight: 600, fontSize: 12, textBorderColor: p.card, textBorderWidth: 3 },
    data: chosen.map(({ one, i }) => ({ value: [x(i), progressOf(one)], label: { position: byTime.length > 1 && x(i) <= middle ? "right" : "left" } })),
  };
}

function rollbackLines(doc, order, x, p) {
  const both = doc.timeline.rollbacks.filter((back) => order.has(back.from) && order.has(back.to));
  const at = (i) => ({ coord: [x(i), progressOf(doc.checkpoints[i])], symbol: "none" });
  return { silent: true, symbol: ["none", "arrow"], symbolSize: 9, label: { show: false }, lineStyle: { color: p["broken-fill"], width: 2.2, type: "dashed" }, data: both.map((back) => [at(back.from), { ...at(back.to), symbol: "arrow" }]) };
}

function gapAreas(doc, order, x, p) {
  const both = doc.timeline.gaps.filter((gap) => order.has(gap.from) && order.has(gap.to));
  return { silent: true, itemStyle: { color: p["absent-fill"], opacity: 0.75 }, label: { show: both.length <= 6, color: p.muted, position: "insideTop", fontSize: 12 }, data: both.map((gap) => [{ name: "no save for " + span(gap.seconds), xAxis: x(gap.from) }, { xAxis: x(gap.to) }]) };
}

function saveTip(doc, i) {
  const one = doc.checkpoints[i];
  const why = one.findings[0];
  const ranks = one.ranks_present ? one.ranks_present + (one.ranks_expected ? " of " + one.ranks_expected : "") + " ranks, " : "";
  return tip(printable(one.label) + (doc.several ? " · " + printable(one.run) : ""), badge(one.verdict, one.verdict + (one.outcome ? " · " + one.outcome : "")),
    element("span", {}, [kindOf(one), one.unfinished ? "unfinished" : "", moment(one.mtime)].filter(Boolean).join(" · ")),
    element("span", { class: "quiet" }, ranks + plural(one.files, "file") + ", " + bytes(one.size)),
    why ? element("span", {}, element("code", {}, why.code), ": " + printable(why.message).slice(0, 180)) : null);
}

function events(doc) {
  const at = (i) => doc.checkpoints[i];
  const when = (i) => (at(i).mtime > 0 ? ", " + moment(at(i).mtime) : "");
  const rows = [
    ...doc.checkpoints.filter((one) => one.outcome === "chosen").map((one) => ["chosen", "resumed from", printable(one.label) + (doc.several ? " of " + printable(one.run) : "")]),
    ...doc.timeline.rollbacks.map((back) => ["broken", "rollback", "from " + printable(at(back.from).label) + " to " + printable(at(back.to).label) + when(back.to) + ": " + plural(back.steps, "step") + " were trained again"]),
    ...doc.checkpoints.flatMap((one, i) => (one.kind === "dying-gasp" ? [["suspect", "dying gasp", printable(one.label) + when(i) + (one.outcome === "rejected" ? ": not usable" : "")]] : [])),
    ...doc.timeline.gaps.map((gap) => ["plain", "gap", "no save for " + span(gap.seconds) + " after " + printable(at(gap.from).label) + " (usually " + span(gap.usual) + ")"]),
  ];
  if (!rows.length) return null;
  const shown = rows.slice(0, 40);
  return [element("ul", { class: "events" }, shown.map(([kind, word, text]) => element("li", {}, badge(kind, word), element("span", {}, text)))), rows.length > 40 ? element("p", { class: "quiet" }, "and " + (rows.length - 40) + " more") : null];
}
