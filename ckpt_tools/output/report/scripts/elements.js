// Pieces of the page. Texts are only ever set as texts: no markup is made from data.

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, given] of Object.entries(attributes || {})) {
    if (given === null || given === undefined || given === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(given)) made.addEventListener(event, listener);
    else if (name === "css") for (const [property, to] of Object.entries(given)) made.style.setProperty(property, to);
    else made.setAttribute(name, given === true ? "" : given);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

function tell(text) { document.getElementById("live").textContent = text; }

function badge(verdict, text) { return element("span", { class: "badge " + verdict }, text || verdict); }

function button(text, act, more) { return element("button", { type: "button", class: "button", ...more, on: { click: act } }, text); }

function command(text, what) {
  const copy = button("Copy", () => copyText(text, copy), { "aria-label": "Copy the command: " + text });
  return element("div", { class: "command" }, element("div", {}, what ? element("span", { class: "what" }, what) : null, element("code", {}, text)), copy);
}

async function copyText(text, from) {
  let copied = true;
  try { await navigator.clipboard.writeText(text); } catch { copied = copyBySelection(text); }
  from.textContent = copied ? "Copied" : "Select it";
  tell(copied ? "Copied" : "It could not be copied");
  setTimeout(() => { from.textContent = "Copy"; }, 1500);
}

// Pages from a disk may not use the clipboard in every browser.
function copyBySelection(text) {
  const area = element("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

function card(id, title, lead, ...children) {
  return element("section", { class: "card", id, "aria-labelledby": id + "-title" }, element("h2", { id: id + "-title" }, title), lead ? element("p", { class: "lead" }, lead) : null, children);
}

// A bar of parts, each [class, share, what it is].
function stack(parts, label) {
  const total = parts.reduce((sum, [, share]) => sum + share, 0) || 1;
  const shown = parts.filter(([, share]) => share > 0);
  return element("div", { class: "stack", role: "img", "aria-label": label }, shown.map(([kind, share, what]) => element("span", { class: kind, title: what, css: { width: (100 * share) / total + "%" } })));
}

function findingItem(found, root, others) {
  const where = found.path ? below(found.path, root) + (found.offset === null ? "" : " at byte " + count(found.offset)) : found.offset === null ? "" : "at byte " + count(found.offset);
  return element("li", { class: found.severity },
    element("span", { class: "line" }, element("code", {}, found.code), where ? element("span", { class: "quiet mono" }, where) : null),
    element("span", { class: "message" }, printable(found.message)),
    others ? element("span", { class: "quiet" }, "and the same in " + plural(others, "more file")) : null);
}

function findingList(found, omitted, root) {
  return [
    element("ul", { class: "reasons" }, found.map((one) => findingItem(one, root))),
    omitted ? element("p", { class: "quiet" }, "and " + plural(omitted, "more finding")) : null,
  ];
}

// What may be wider than the screen: a keyboard reaches it, and moves it sideways.
function scrolling(label, ...inside) {
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, ...inside);
}
