// What was found, and for each damaged file a strip of its bytes: what protects what, and where the damage lies.

const STRIPS_AT_ONCE = 4;
const GUARDS = { checksum: "a stored checksum covers them", structure: "a change contradicts something else in the file", unprotected: "a change may go unseen" };

function damageSection(doc) {
  if (!doc.codes.length) return null;
  const worse = doc.codes.filter((one) => one.severity !== "note");
  const notes = doc.codes.filter((one) => one.severity === "note");
  const strips = element("div", { class: "strips" });
  const more = button("Show more files", () => grow());
  let shown = 0;
  const grow = () => {
    const until = Math.min(doc.damage.length, shown + STRIPS_AT_ONCE);
    for (; shown < until; shown++) strips.append(stripBox(doc, doc.damage[shown]));
    more.hidden = shown >= doc.damage.length;
    more.textContent = "Show more files (" + (doc.damage.length - shown) + ")";
  };
  grow();
  const lead = worse.length ? "What was found, by code. A code lists its files." : "Nothing is damaged; what follows are notes.";
  return long(card("damage", worse.length ? "Damage" : "Notes", lead, worse.length ? element("div", { class: "codes" }, worse.map(codeBox)) : null, acrossList(doc),
    doc.damage.length ? [element("h3", {}, "Bytes of the damaged files"), stripLegend(), strips, element("div", { class: "controls" }, more)] : null,
    notes.length ? element("details", {}, element("summary", {}, "Notes, which change no verdict (" + notes.length + ")"), element("div", { class: "codes" }, notes.map(codeBox))) : null));
}

function long(section) { section.classList.add("long"); return section; }

function codeBox(one) {
  return element("div", { class: "code" },
    element("div", { class: "line" }, element("code", {}, one.code), badge(one.severity === "error" ? "broken" : one.severity === "warning" ? "suspect" : "plain", count(one.count) + " × " + one.severity)),
    element("p", {}, one.title), element("p", { class: "quiet" }, one.hint),
    element("div", { class: "controls" }, button("List the files", () => showFiles({ search: one.code }), { "aria-label": "List the files with " + one.code })));
}

// Findings that are about no single file: what is missing, or does not belong together.
function acrossList(doc) {
  const across = doc.findings.filter((found) => found.file === null);
  if (!across.length) return null;
  const root = doc.roots[0];
  return element("div", {}, element("h3", {}, "Across files"), element("ul", { class: "reasons", css: { "margin-top": "0.6rem" } }, across.slice(0, 30).map((found) => findingItem(found, root))), across.length > 30 ? element("p", { class: "quiet" }, "and " + (across.length - 30) + " more, in the JSON") : null);
}

function stripLegend() {
  return element("ul", { class: "legend" }, Object.keys(GUARDS).map((name) => element("li", {}, element("span", { class: "swatch " + name + "-fill" }), name + ": " + GUARDS[name])), element("li", {}, element("span", { class: "swatch broken-fill" }), "where the damage shows"));
}

function stripBox(doc, strip) {
  const path = doc.files.path[strip.file];
  const root = rootOf(doc, strip.file);
  const under = element("p", { class: "under" }, strip.regions.length ? "Point at the bytes to see what they are." : "Its structure is too damaged to say what its bytes are.");
  return element("article", { class: "strip-box", "data-path": printable(path) },
    element("div", { class: "line" }, badge(doc.files.verdict[strip.file]), element("code", {}, below(path, root)), element("span", { class: "quiet" }, bytes(strip.size) + ", " + percent(doc.files.coverage[strip.file]) + " under a checksum")),
    byteStrip(strip, under), element("div", { class: "ruler" }, element("span", {}, "byte 0"), element("span", {}, count(Math.max(0, strip.size)))), under,
    findingList(strip.findings, strip.findings_omitted, root), regionTable(strip),
    command("ckpt show " + quoted(path) + " --explain-bytes", "what is in it, byte for byte"));
}

function byteStrip(strip, under) {
  const size = Math.max(1, strip.size);
  const regions = strip.regions.map(([offset, length, what, guard]) => element("span", {
    class: "region " + guard + "-fill", css: { left: (100 * offset) / size + "%", width: (100 * length) / size + "%" },
    on: { mouseenter: () => { under.textContent = regionWords(offset, length, what, guard); } },
  }));
  const shows = strip.findings.filter((found) => found.offset !== null && found.severity !== "note");
  const marks = shows.map((found) => element("span", {
    class: "mark-at", css: { left: (100 * Math.min(found.offset, size)) / size + "%" }, title: found.code + " at byte " + count(found.offset),
  }));
  const protects = Object.keys(GUARDS).map((name) => [name, strip.regions.filter((one) => one[3] === name).reduce((sum, one) => sum + one[1], 0)]).filter(([, n]) => n > 0);
  const words = "Bytes of the file: " + protects.map(([name, n]) => percent(n / size) + " " + name).join(", ") + ". Damage at " + (shows.map((found) => "byte " + count(found.offset)).join(", ") || "no known byte") + ".";
  return element("div", { class: "strip", role: "img", "aria-label": words }, element("div", { class: "bytes" }, regions), marks);
}

function regionWords(offset, length, what, guard) {
  return "Bytes " + count(offset) + " to " + count(offset + length - 1) + " (" + bytes(length) + "): " + printable(what) + " · " + guard + ": " + GUARDS[guard];
}

function regionTable(strip) {
  if (strip.regions.length < 2) return null;
  const rows = strip.regions.map(([offset, length, what, guard]) => element("tr", {}, element("td", { class: "number" }, count(offset)), element("td", { class: "number" }, count(length)), element("td", {}, printable(what)), element("td", {}, guard)));
  const omitted = strip.regions_omitted ? element("p", { class: "quiet" }, "Of " + count(strip.regions_omitted + strip.regions.length) + " ranges, neighbours that are short are joined here.") : null;
  return element("details", { class: "only-screen" }, element("summary", {}, "All " + plural(strip.regions.length, "range") + " as a table"), omitted,
    scrolling("Ranges of bytes", element("table", {}, element("thead", {}, element("tr", {}, ["offset", "bytes", "what they are", "protected by"].map((text, i) => element("th", { class: i < 2 ? "number" : null, scope: "col" }, text)))), element("tbody", {}, rows))));
}
