// Names, numbers and times -> short texts. What others have named is never shown raw.

// As output/words.py: what could make one name look like another is shown by its number.
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function printable(text) {
  return String(text).replace(UNSAFE, (found) => {
    const point = found.charCodeAt(0);
    if (point >= 0xdc80 && point <= 0xdcff) return "\\x" + (point - 0xdc00).toString(16);
    return point < 0x100 ? "\\x" + point.toString(16).padStart(2, "0") : "\\u" + point.toString(16).padStart(4, "0");
  });
}

// A word for a shell. What is not printable goes as bytes, so that what is seen is what is copied.
function quoted(text) {
  if (printable(text) !== text) return "$'" + ansi(text) + "'";
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  return "'" + text.replaceAll("'", "'\"'\"'") + "'";
}

function ansi(text) {
  let out = "";
  for (const letter of text) {
    const point = letter.codePointAt(0);
    if (point >= 0xdc80 && point <= 0xdcff) out += "\\x" + (point - 0xdc00).toString(16);
    else if (letter === "'" || letter === "\\") out += "\\" + letter;
    else if (printable(letter) === letter) out += letter;
    else for (const byte of new TextEncoder().encode(letter)) out += "\\x" + byte.toString(16).padStart(2, "0");
  }
  return out;
}

const plainNumber = new Intl.NumberFormat("en-US");
const shortNumber = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });

function count(n) { return plainNumber.format(n); }

function plural(n, noun) { return count(n) + " " + noun + (n === 1 ? "" : "s"); }

function bytes(n) {
  if (n === null || n < 0) return "?";
  let unit = 0;
  for (; n >= 1024 && unit < 5; unit++) n /= 1024;
  return (unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
}

// Never rounded up to 100 or down to 0, because both are promises.
function percent(fraction) {
  if (fraction === null) return "–";
  if (fraction > 0 && fraction < 0.01) return "<1 %";
  if (fraction > 0.99 && fraction < 1) return ">99 %";
  return Math.round(fraction * 100) + " %";
}

function span(seconds) {
  if (seconds < 100) return shortNumber.format(seconds) + " s";
  if (seconds < 6000) return Math.round(seconds / 60) + " min";
  return seconds < 172800 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
}

function moment(seconds) {
  if (!seconds) return "–";
  return new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";
}

// A number of a tensor as its file has it: JSON holds NaN and infinities as texts.
function value(n) { return n === null ? "–" : typeof n === "string" ? n : Number(n.toPrecision(4)).toString(); }

function below(path, root) {
  if (!root) return printable(path);
  const home = root.endsWith("/") ? root : root + "/";
  return printable(path.startsWith(home) ? path.slice(home.length) : path);
}
