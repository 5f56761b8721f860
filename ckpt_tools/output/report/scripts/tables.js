// Tables that are searched, sorted and paged: however many rows there are, only one page is in the document, but for paper.

const TABLES = [];
const PRINTED = 10000; // rows: hundreds of sheets, and as much as a browser lays out within seconds
const RANK_OF = { broken: 0, unknown: 1, suspect: 2, ok: 3 };

// columns: [{ name, title, kind, cell(i), key(i) }]; text(i) is what the search looks into; inside(i) opens below a row.
class Table {
  constructor(total, columns, options) {
    Object.assign(this, { total, columns, options, page: options.page || 25, query: "", keep: null, at: 0, printing: false, sort: options.sort, open: new Set() });
    this.body = element("tbody", {});
    this.said = element("span", { class: "quiet" });
    this.cut = element("p", { class: "quiet only-paper" });
    TABLES.push(this);
    this.before = button("Previous", () => this.go(-1));
    this.after = button("Next", () => this.go(1));
    this.heads = columns.map((column) => this.head(column));
    this.box = element("div", { class: "table-box" },
      scrolling(options.label, element("table", {}, element("thead", {}, element("tr", {}, this.heads)), this.body)),
      element("div", { class: "pager" }, this.said, element("span", { class: "controls" }, this.before, this.after)), this.cut);
    this.box.style.display = "grid";
    this.box.style.gap = ".7rem";
    this.refresh();
  }

  head(column) {
    const turn = element("button", { type: "button", on: { click: () => this.sortBy(column.name) } }, column.title);
    return element("th", { scope: "col", class: column.kind === "number" ? "number" : null }, turn);
  }

  sortBy(name) {
    const down = this.sort[0] === name ? !this.sort[1] : false;
    this.sort = [name, down];
    this.refresh();
    tell("Sorted by " + name + (down ? ", descending" : ", ascending"));
  }

  // Rows that the search and the filter leave, in order.
  refresh() {
    const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [];
    for (let i = 0; i < this.total; i++) {
      if (this.keep && !this.keep(i)) continue;
      if (words.length) {
        const text = this.options.text(i).toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
      }
      rows.push(i);
    }
    const column = this.columns.find((one) => one.name === this.sort[0]) || { key: (i) => i };
    const keys = new Array(this.total);
    for (const i of rows) keys[i] = column.key(i);
    const sign = this.sort[1] ? -1 : 1;
    const after = (a, b) => sign * compared(keys[a], keys[b]) || a - b;
    if (rows.some((row, at) => at > 0 && after(rows[at - 1], row) > 0)) rows.sort(after);
    this.rows = rows;
    this.at = 0;
    this.open.clear();
    this.columns.forEach((one, n) => { if (one === column) this.heads[n].setAttribute("aria-sort", this.sort[1] ? "descending" : "ascending"); else this.heads[n].removeAttribute("aria-sort"); });
    this.show();
  }

  go(by) { this.at = Math.max(0, Math.min(this.at + by * this.page, Math.floor((this.rows.length - 1) / this.page) * this.page)); this.show(); this.box.scrollIntoView({ block: "nearest" }); }

  show() {
    const begin = this.printing ? 0 : this.at;
    const end = Math.min(this.rows.length, begin + (this.printing ? PRINTED : this.page));
    this.cut.textContent = this.printing && end < this.rows.length ? "The first " + count(end) + " of " + count(this.rows.length) + " rows: search or filter before printing to choose others." : "";
    this.body.replaceChildren(...this.rows.slice(begin, end).flatMap((i) => this.row(i)));
    if (!this.rows.length) this.body.append(element("tr", {}, element("td", { class: "empty", colspan: this.columns.length }, "Nothing here is as you asked.")));
    const of = this.rows.length === this.total ? "" : " (of " + count(this.total) + ")";
    this.said.textContent = this.rows.length ? count(this.at + 1) + "–" + count(end) + " of " + count(this.rows.length) + of : "0" + of;
    this.before.disabled = this.at === 0;
    this.after.disabled = end >= this.rows.length;
    if (this.options.changed) this.options.changed(this);
  }

  row(i) {
    const opens = Boolean(this.options.inside);
    const cells = this.columns.map((column) => element("td", { class: column.kind || null }, column.opens && opens ? element("button", { type: "button", class: "open", "aria-expanded": String(this.open.has(i)) }, column.cell(i)) : column.cell(i)));
    const made = element("tr", { class: opens ? "opens" : null, "data-row": i, on: opens ? { click: (event) => { if (!getSelection().toString() || event.detail === 0) this.toggle(i); } } : {} }, cells);
    return this.open.has(i) ? [made, element("tr", { class: "inside" }, element("td", { colspan: this.columns.length }, element("div", { class: "box" }, this.options.inside(i))))] : [made];
  }

  // On paper nobody turns pages: all rows that the search and the filter leave.
  print(all) { this.printing = all; this.show(); }

  toggle(i) {
    if (!this.open.delete(i)) this.open.add(i);
    this.show();
    const again = this.body.querySelector('[data-row="' + i + '"] .open');
    if (again) again.focus();
  }
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return a < b ? -1 : a > b ? 1 : 0;
}

const shownFiles = { table: null, doc: null, search: null, filter: null, chips: null };

function filesSection(doc) {
  const { files } = doc;
  const table = new Table(files.n, fileColumns(doc), {
    label: "Files", sort: ["verdict", false],
    text: (i) => files.path[i] + " " + files.codes[i] + " " + files.format[i] + " " + files.role[i] + " " + files.verdict[i] + (files.checkpoint[i] === null ? "" : " " + doc.checkpoints[files.checkpoint[i]].label),
    inside: (i) => fileInside(doc, i),
  });
  const search = element("input", { class: "search", type: "search", placeholder: "Search names, codes, formats, steps", "aria-label": "Search files", autocomplete: "off", spellcheck: "false" });
  search.addEventListener("input", () => { table.query = search.value; table.refresh(); });
  const chips = verdictChips(doc, table);
  const filter = element("div", { class: "controls", id: "files-filter" });
  Object.assign(shownFiles, { table, doc, search, filter, chips });
  const omitted = doc.files_omitted ? element("p", { class: "quiet" }, plural(doc.files_omitted, "sound file") + " more than can be listed here: 'ckpt verify --json' has all.") : null;
  return long(card("files", "Files", "Every file that was recognised. A row opens: what was found in it, and commands to copy. Press / to search.", element("div", { class: "chart-bar only-screen" }, search, chips.box), filter, omitted, table.box));
}

function verdictChips(doc, table) {
  const counts = {};
  doc.files.verdict.forEach((name) => { counts[name] = (counts[name] || 0) + 1; });
  const chips = { chosen: null, filter: null };
  const apply = () => {
    const { chosen, filter } = chips;
    table.keep = chosen || filter ? (i) => (!chosen || doc.files.verdict[i] === chosen) && (!filter || filter(i)) : null;
    made.forEach(([name, one]) => one.setAttribute("aria-pressed", String(name === chosen)));
    table.refresh();
  };
  const made = ["broken", "unknown", "suspect", "ok"].filter((name) => counts[name]).map((name) => [name, button(name + " " + count(counts[name]), () => { chips.chosen = chips.chosen === name ? null : name; apply(); }, { "aria-pressed": "false" })]);
  return Object.assign(chips, { apply, box: element("div", { class: "controls", role: "group", "aria-label": "Verdict" }, made.map(([, one]) => one)) });
}

// What other parts of the page ask for: the files of a cell, of a checkpoint, with a code.
function showFiles({ checkpoint, places, label, search }) {
  const { table, doc, chips, filter } = shownFiles;
  if (!table) return;
  const { files } = doc;
  const placed = (i) => !places || places.has(files.rank[i] !== null ? files.rank[i] : files.place[i] || files.role[i] || "shared");
  chips.filter = checkpoint === undefined ? null : (i) => files.checkpoint[i] === checkpoint && placed(i);
  chips.chosen = null;
  shownFiles.search.value = table.query = search || "";
  const words = checkpoint === undefined ? null : [label, printable(doc.checkpoints[checkpoint].label)].filter(Boolean).join(" · ");
  filter.replaceChildren(...(words ? [element("span", { class: "badge chosen" }, "only " + words), button("Show all files", () => showFiles({}))] : []));
  chips.apply();
  document.getElementById("files").scrollIntoView();
  tell(plural(table.rows.length, "file") + " listed");
}

function fileColumns(doc) {
  const { files } = doc;
  const step = (i) => (files.checkpoint[i] === null ? null : doc.checkpoints[files.checkpoint[i]]);
  return [
    { name: "verdict", title: "Verdict", kind: "nowrap", cell: (i) => badge(files.verdict[i]), key: (i) => RANK_OF[files.verdict[i]] },
    { name: "file", title: "File", kind: "path", opens: true, cell: (i) => below(files.path[i], rootOf(doc, i)), key: (i) => files.path[i] },
    { name: "checkpoint", title: "Checkpoint", kind: "nowrap", cell: (i) => (step(i) ? printable(step(i).label) : "–"), key: (i) => (step(i) ? (progressOf(step(i)) ?? -1) : -2) },
    { name: "rank", title: "Rank", kind: "number", cell: (i) => (files.rank[i] === null ? files.place[i] || "–" : count(files.rank[i])), key: (i) => (files.rank[i] === null ? -1 : files.rank[i]) },
    { name: "size", title: "Size", kind: "number", cell: (i) => bytes(files.size[i]), key: (i) => files.size[i] },
    { name: "coverage", title: "Under checksums", kind: "number", cell: (i) => percent(files.coverage[i]), key: (i) => files.coverage[i] },
    { name: "found", title: "Found", cell: (i) => (files.codes[i] || "–").split(" ").join(", "), key: (i) => files.codes[i] || "~" },
  ];
}

function rootOf(doc, i) {
  const at = doc.files.checkpoint[i];
  const home = at === null ? doc.roots.find((root) => doc.files.path[i].startsWith(root)) : doc.roots[doc.checkpoints[at].root];
  return home || "";
}

function fileInside(doc, i) {
  const { files } = doc;
  const found = doc.findings.filter((one) => one.file === i);
  const facts = [["path", element("span", { class: "mono" }, printable(files.path[i]))], ["format", (files.format[i] || "not known") + (files.role[i] ? ", " + files.role[i] : "")], ["looked at", DEPTHS[files.level[i]]], ["saved", moment(files.mtime[i])]];
  const path = quoted(files.path[i]);
  return [element("dl", { class: "facts" }, facts.map(([name, given]) => [element("dt", {}, name), element("dd", {}, given)])),
    found.length ? findingList(found.slice(0, 12).map((one) => ({ ...one, path: "" })), Math.max(0, found.length - 12), "") : files.codes[i] ? element("p", { class: "quiet" }, "Notes: " + files.codes[i]) : null,
    element("div", { class: "commands" }, command("ckpt verify " + path + " --explain-bytes", "look again, byte by byte"), command("ckpt show " + path, "what is in it"), files.codes[i] ? command("ckpt explain " + files.codes[i].split(" ")[0], "what the finding means") : null)];
}
