// From the data in the page to what is seen.

const NAV = { resume: "Resume", timeline: "Timeline", heatmap: "Ranks", damage: "Damage", coverage: "Coverage", trackers: "Trackers", tensors: "Tensors", files: "Files" };
const THEMES = ["light", "dark"];

// The columns of all files are compressed JSON.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

// The document as 'ckpt report --json' prints it.
async function whole() {
  const doc = JSON.parse(document.getElementById("data").textContent);
  return { ...doc, files: await unpack(doc.files) };
}

async function read() {
  const doc = await whole();
  doc.files.n = doc.files.path.length;
  doc.runOf = doc.checkpoints.map((one) => one.root + "\n" + one.layout + "\n" + one.run);
  doc.runs = [...new Map(doc.checkpoints.map((one, i) => [doc.runOf[i], { key: doc.runOf[i], name: doc.roots.length > 1 ? doc.roots[one.root] + ": " + one.run : one.run }])).values()];
  doc.several = doc.runs.length > 1;
  return doc;
}

async function saveJson() {
  const text = JSON.stringify(await whole());
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: "ckpt-report.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function theme() { return document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"); }

function setTheme(name, again) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  if (again) drawAgain();
}

function fillTools() {
  const turn = button("", () => { setTheme(THEMES[1 - THEMES.indexOf(theme())], true); label(); tell(theme() + " colours"); });
  const label = () => { turn.textContent = theme() === "dark" ? "Light" : "Dark"; turn.setAttribute("aria-label", "Use " + (theme() === "dark" ? "light" : "dark") + " colours"); };
  label();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); drawAgain(); });
  document.getElementById("tools").append(turn, button("JSON", saveJson, { "aria-label": "Save everything as JSON" }), button("Print", () => print(), { class: "button long" }));
  let before = null;
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme || ""; setTheme("light", true); TABLES.forEach((one) => one.print(true)); });
  addEventListener("afterprint", () => { TABLES.forEach((one) => one.print(false)); setTheme(before, true); });
}

function fillNav(parts) {
  const rows = parts.map((part) => element("li", {}, element("a", { href: "#" + part.id }, NAV[part.id])));
  document.getElementById("nav").append(element("ul", {}, rows));
}

function keys(event) {
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName) && shownFiles.search) {
    event.preventDefault();
    document.getElementById("files").scrollIntoView();
    shownFiles.search.focus({ preventScroll: true });
  }
}

// Words and tables first; charts once those are shown.
async function start() {
  performance.mark("begun");
  const doc = await read();
  fillHero(doc);
  fillTools();
  const parts = [startsSection(doc), timelineSection(doc), heatmapSection(doc), damageSection(doc), coverageSection(doc), trackersSection(doc), tensorsSection(doc), doc.files.n ? filesSection(doc) : null].filter(Boolean);
  document.getElementById("sections").append(tiles(doc), ...parts);
  fillNav(parts);
  document.getElementById("foot").append(element("p", {}, "Made by ckpt-tools " + doc.tool_version + " on " + moment(doc.made_at) + ". This page fetches and sends nothing; charts by Apache ECharts (Apache-2.0)."), element("p", {}, "‘Save everything as JSON’ above is what 'ckpt report --json' prints; docs/json.md describes it."));
  addEventListener("keydown", keys);
  performance.mark("words");
  requestAnimationFrame(() => setTimeout(() => drawCharts(parts.filter((part) => part.draw))));
}

// Those on the first screen before the others.
function drawCharts(parts) {
  const seen = parts.filter((part) => part.getBoundingClientRect().top < innerHeight);
  for (const part of seen) part.draw();
  performance.mark("ready");
  setTimeout(() => {
    for (const part of parts) if (!seen.includes(part)) part.draw();
    document.documentElement.dataset.ready = "true";
    performance.mark("all");
  });
}

start();
