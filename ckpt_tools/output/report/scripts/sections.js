// The sections that are words, numbers and small bars.

// What a verdict means to who wants to start a job.
const READY = { ok: "ready", suspect: "ready, with a loss", broken: "cannot resume", unknown: "needs an answer" };

function fillHero(doc) {
  const hero = document.getElementById("next");
  hero.classList.add(doc.next.verdict);
  const level = doc.level ? "checked: " + DEPTHS[doc.level] : "not verified";
  document.getElementById("where").append(badge(doc.next.verdict, doc.starts.length ? READY[doc.next.verdict] : doc.next.verdict), ...doc.roots.slice(0, 4).map((root) => element("code", {}, printable(root))), doc.roots.length > 4 ? "and " + (doc.roots.length - 4) + " more" : "", element("span", {}, level + " · " + moment(doc.made_at)));
  document.getElementById("sentence").replaceChildren(...wholeCodes(printable(doc.next.sentence)));
  if (doc.next.hint) hero.append(element("p", { class: "hint" }, printable(doc.next.hint)));
  if (doc.next.commands.length) hero.append(element("div", { class: "commands" }, doc.next.commands.map((one) => command(one.command, one.what))));
}

function tile(title, big, small, more) {
  return element("div", { class: "tile" }, element("dt", {}, title), element("dd", { class: "big" }, big), small ? element("dd", { class: "small" }, small) : null, more ? element("dd", {}, more) : null);
}

function verdictStack(counts, noun) {
  const order = ["ok", "suspect", "unknown", "broken"];
  return stack(order.map((name) => [name + "-fill", counts[name] || 0, name + ": " + count(counts[name] || 0)]), noun + ": " + order.filter((name) => counts[name]).map((name) => count(counts[name]) + " " + name).join(", "));
}

function tiles(doc) {
  const s = doc.summary;
  const saves = {};
  doc.checkpoints.forEach((one) => { saves[one.verdict] = (saves[one.verdict] || 0) + 1; });
  const bad = (counts) => ["broken", "unknown", "suspect"].filter((name) => counts[name]).map((name) => count(counts[name]) + " " + name).join(", ");
  const total = doc.coverage.reduce((sum, one) => sum + one.bytes, 0);
  const covered = doc.coverage.reduce((sum, one) => sum + one.protected, 0);
  const serious = doc.codes.filter((one) => one.severity !== "note");
  return element("dl", { class: "tiles", "aria-label": "In numbers" },
    tile("Checkpoints", count(doc.checkpoints.length + doc.checkpoints_omitted), bad(saves) || (doc.checkpoints.length ? "all sound" : "none found"), doc.checkpoints.length ? verdictStack(saves, "Checkpoints") : null),
    s ? tile("Files", count(s.files), bad(s) || (s.files ? "all sound" : "none recognised"), s.files ? verdictStack(s, "Files") : null) : null,
    s ? tile("Under checksums", total ? percent(covered / total) : "–", "of " + bytes(s.bytes), total ? stack([["checksum-fill", covered, "under a checksum"], ["unprotected-fill", total - covered, "not"]], percent(covered / total) + " of the bytes are under a stored checksum") : null) : null,
    s ? tile("Read", bytes(s.bytes_read), "in " + span(Math.max(0.1, Math.round(s.seconds * 10) / 10)) + (s.below_level ? "; " + plural(s.below_level, "file") + " less deeply than asked" : "")) : null,
    s === null ? null : tile("Findings", count(serious.reduce((sum, one) => sum + one.count, 0)), serious.length ? [["error", "error"], ["warning", "warning"]].map(([severity, noun]) => [serious.filter((one) => one.severity === severity).reduce((sum, one) => sum + one.count, 0), noun]).filter(([n]) => n).map(([n, noun]) => plural(n, noun)).join(", ") : "none that changes a verdict"));
}

// Where something is to do comes first; of many runs the good ones are behind a click.
const AT_ONCE = 6;

function startsSection(doc) {
  if (!doc.starts.length) return null;
  const order = [...doc.starts].sort((a, b) => RANK_OF[a.verdict] - RANK_OF[b.verdict]);
  const [first, rest] = [order.slice(0, AT_ONCE), order.slice(AT_ONCE)];
  const boxes = (some) => element("div", { class: "starts" }, some.map((one) => startBox(doc, one)));
  const others = rest.length ? element("details", {}, element("summary", {}, plural(rest.length, "more run")), boxes(rest)) : null;
  const omitted = doc.starts_omitted ? element("p", { class: "quiet" }, "Nobody has asked about " + plural(doc.starts_omitted, "more run") + ": 'ckpt plan --run RUN' does.") : null;
  return long(card("resume", doc.starts.length === 1 ? "Where a job resumes" : "Where jobs resume", "What a job that starts now would load, and why newer checkpoints were skipped.", boxes(first), others, omitted));
}

// What a save is, where it is no regular one.
function kindOf(one) { return { periodic: "", "dying-gasp": "emergency save" }[one.kind] ?? one.kind; }

function startBox(doc, one) {
  const chosen = one.checkpoint === null ? null : doc.checkpoints[one.checkpoint];
  const rows = [];
  if (chosen) rows.push(["checkpoint", element("span", { class: "mono" }, printable(chosen.path))], ["saved", [moment(chosen.mtime), kindOf(chosen), printable(chosen.layout)].filter(Boolean).join(", ")]);
  if (one.state) rows.push(["state", one.state.replace("-", " ")]);
  if (one.world_size) rows.push(["ranks", count(one.world_size) + (one.substituted ? "; " + plural(one.substituted, "file") + " of a replica in place of a rank's own" : "")]);
  if (one.rollback) rows.push(["rollback", "from step " + one.rollback.from + " to " + one.rollback.to + ": " + printable(one.rollback.why)]);
  if (one.ahead.length) rows.push(["newer ones", "the job will save over " + one.ahead.map((i) => printable(doc.checkpoints[i].label)).join(", ")]);
  if (one.error) rows.push(["exit code", "'ckpt plan' ends with " + one.error.exit_code]);
  const words = one.arguments.length ? one.arguments.map(quoted).join(" ") : one.path ? quoted(one.path) : "";
  const several = doc.starts.length > 1;
  return element("article", { class: "start" },
    element("header", {}, badge(one.verdict, READY[one.verdict]), several ? element("h3", { class: "mono" }, printable(one.run ?? one.root)) : null, chosen ? badge("chosen plain", printable(chosen.label)) : null),
    several || one.error ? element("p", { class: "message" }, printable(one.sentence)) : null, one.error && one.hint ? element("p", { class: "quiet" }, printable(one.hint)) : null,
    rows.length ? element("dl", { class: "facts" }, rows.map(([name, given]) => [element("dt", {}, name), element("dd", {}, given)])) : null,
    words ? element("div", { class: "commands" }, command(words, "what the framework is told")) : null,
    lostList(doc, one), warningList(doc, one));
}

function lostList(doc, one) {
  if (!one.rejected.length) return null;
  const rows = one.rejected.map((lost) => {
    const which = lost.checkpoint === null ? null : doc.checkpoints[lost.checkpoint];
    const causes = lost.findings.filter((found) => !found.follows);
    const so = lost.findings.filter((found) => found.follows);
    return element("li", { class: "error" }, element("span", { class: "line" }, element("b", {}, which ? printable(which.label) : "a checkpoint that is gone"), which ? element("span", { class: "quiet" }, [kindOf(which), moment(which.mtime)].filter(Boolean).join(", ")) : null),
      element("ul", { class: "reasons", css: { "margin-top": ".3rem" } }, alike(causes).slice(0, 4).map(([found, others]) => findingItem(found, one.root, others))),
      lost.findings_omitted ? element("p", { class: "quiet" }, "and " + plural(lost.findings_omitted, "more finding")) : null,
      so.map((found) => element("p", { class: "quiet" }, "so " + printable(found.message))));
  });
  return element("div", {}, element("h3", {}, "Why newer checkpoints were skipped"), element("ol", { class: "reasons", css: { "margin-top": ".5rem" } }, rows), one.rejected_omitted ? element("p", { class: "quiet" }, "and " + one.rejected_omitted + " more") : null);
}

// The first of each kind, and how many others say the same.
function alike(found) {
  const kinds = new Map();
  for (const one of found) {
    const kind = one.code + "\n" + one.message;
    if (kinds.has(kind)) kinds.get(kind)[1]++;
    else kinds.set(kind, [one, 0]);
  }
  return [...kinds.values()];
}

function warningList(doc, one) {
  const worse = one.warnings.filter((found) => found.severity !== "note");
  if (!worse.length) return null;
  return element("details", {}, element("summary", {}, plural(worse.length, "warning")), element("ul", { class: "reasons", css: { "margin-top": ".5rem" } }, worse.map((found) => findingItem(found, one.root))));
}

function trackersSection(doc) {
  if (!doc.trackers.length) return null;
  const rows = doc.trackers.slice(0, 200).map((one) => {
    const named = one.checkpoint === null ? null : doc.checkpoints[one.checkpoint];
    const wrong = one.findings.filter((found) => found.severity !== "note");
    const truth = wrong.length ? badge("suspect", wrong[0].code) : named && ["broken", "unknown"].includes(named.verdict) ? badge(named.verdict, "names what is " + (named.verdict === "broken" ? "damaged" : "not looked at")) : named ? badge("ok", "true") : badge("unknown", "names nothing here");
    return element("tr", {}, element("td", { class: "path" }, below(one.path, doc.roots[0])), element("td", {}, one.says === null ? "nothing readable" : printable(one.says)), element("td", { class: "nowrap" }, truth), element("td", {}, wrong.length ? printable(wrong[0].message) : named ? "it names " + printable(named.label) : ""));
  });
  return card("trackers", "Trackers", "The files that name the latest checkpoint, which frameworks follow without asking.", scrolling("Trackers", element("table", {}, element("thead", {}, element("tr", {}, ["File", "Says", "Truth", "Because"].map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, rows))));
}

function coverageSection(doc) {
  if (!doc.coverage.length) return null;
  const rows = doc.coverage.map((one) => {
    const part = one.bytes ? one.protected / one.bytes : 0;
    return element("tr", {}, element("td", { class: "nowrap" }, printable(one.format || "not recognised")), element("td", { class: "number" }, count(one.files)), element("td", { class: "number" }, bytes(one.bytes)),
      element("td", {}, element("div", { class: "meter" }, stack([["checksum-fill", part, "under a checksum"], ["unprotected-fill", 1 - part, "not"]], percent(part) + " under checksums"), element("span", { class: "quiet" }, percent(part)))));
  });
  return card("coverage", "Coverage", "Which share of the bytes a stored checksum protects. In the rest a flipped bit cannot be seen, unless the file is sealed (ckpt seal).", scrolling("Coverage", element("table", {}, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Format"), element("th", { scope: "col", class: "number" }, "Files"), element("th", { scope: "col", class: "number" }, "Bytes"), element("th", { scope: "col" }, "Under checksums"))), element("tbody", {}, rows))));
}

function tensorsSection(doc) {
  const { listed, total } = doc.tensors;
  if (!listed.length) return null;
  const number = (name, title) => ({ name, title, kind: "number", cell: (i) => (listed[i][name] ? count(listed[i][name]) : "–"), key: (i) => listed[i][name] });
  const spread = (rows) => (rows.length ? rows[rows.length - 1][0] - rows[0][0] : -1);
  const told = [number("nan", "NaN"), number("inf", "Infinite"), number("absurd", "Absurd"), number("zeros", "Zeros"), number("denormal", "Denormal")];
  const table = new Table(listed.length, [
    { name: "tensor", title: "Tensor", kind: "path", cell: (i) => printable(listed[i].name), key: (i) => listed[i].name },
    { name: "magnitudes", title: "Magnitudes", cell: (i) => histogram(listed[i]), key: (i) => spread(listed[i].magnitudes) },
    ...told.filter((column) => listed.some((one) => one[column.name])),
    { name: "least", title: "Least", kind: "number", cell: (i) => value(listed[i].min), key: (i) => Number(listed[i].min) },
    { name: "most", title: "Most", kind: "number", cell: (i) => value(listed[i].max), key: (i) => Number(listed[i].max) },
    number("count", "Numbers"), { name: "type", title: "Type", kind: "nowrap", cell: (i) => listed[i].dtype, key: (i) => listed[i].dtype },
    { name: "file", title: "File", kind: "path", cell: (i) => below(doc.files.path[listed[i].file], rootOf(doc, listed[i].file)), key: (i) => listed[i].file },
  ], { label: "Tensors", page: 10, sort: ["", false], text: (i) => listed[i].name + " " + doc.files.path[listed[i].file] });
  const search = element("input", { class: "search", type: "search", placeholder: "Search tensors", "aria-label": "Search tensors", autocomplete: "off" });
  search.addEventListener("input", () => { table.query = search.value; table.refresh(); });
  const omitted = total > listed.length ? element("p", { class: "quiet" }, "The first " + count(listed.length) + " of " + count(total) + ", the odd ones before others.") : null;
  return long(card("tensors", "Numbers in tensors", "What --level values counted in each tensor: NaN, infinities and absurd numbers are what a flipped bit or a diverged training leaves. Magnitudes are a sample, by power of two; a bar far from the others is a number far from the others.", element("div", { class: "only-screen" }, search), omitted, table.box));
}

// Bars by power of two, as high as the logarithm of how many there are: one number far from all others is seen.
function histogram(one) {
  const rows = one.magnitudes;
  if (!rows.length) return "–";
  const most = Math.max(...rows.map(([, n]) => n));
  const [first, last] = [rows[0][0], rows[rows.length - 1][0]];
  const apart = rows.slice(1).reduce((least, [power], i) => Math.min(least, power - rows[i][0]), last - first || 1);
  const at = new Map(rows);
  const bars = [];
  for (let power = first; power <= last; power += apart) {
    const n = at.get(power) || 0;
    bars.push(element("span", { css: { height: n ? Math.max(8, (100 * Math.log1p(n)) / Math.log1p(most)) + "%" : "0" } }));
  }
  const words = "from 2^" + first + " to 2^" + (last + apart) + ", most at 2^" + rows.find(([, n]) => n === most)[0];
  return element("div", { class: "magnitudes" }, element("div", { class: "bars", role: "img", "aria-label": "Magnitudes " + words, title: words }, bars), element("span", { class: "quiet" }, ofTwo(first) + " … " + ofTwo(last + apart)));
}

function ofTwo(power) {
  return "2" + String(power).replace(/./g, (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign]));
}

// A sentence whose codes, such as crc-mismatch, are not broken at their hyphens; what is long may be broken anywhere.
function wholeCodes(text) {
  return text.split(/( )/).map((word) => (word.includes("-") && word.length < 30 ? element("span", { class: "whole" }, word) : word));
}
