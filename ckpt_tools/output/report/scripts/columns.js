// The way back of columns.py.

function unpackNumbers(packed) {
  const out = [];
  let at = 0;
  const put = (difference) => { at += difference; out.push(at === 0 ? null : at - 2); };
  if (packed.runs) {
    for (let i = 0; i < packed.runs.length; i += 2) for (let n = 0; n < packed.runs[i + 1]; n++) put(packed.runs[i]);
  } else packed.differences.forEach(put);
  return out;
}

function unpack(packed) {
  if (packed.words) return unpackNumbers(packed.index).map((i) => packed.words[i]);
  if (packed.patterns) return unpackTexts(packed);
  return unpackNumbers(packed);
}

function unpackTexts(packed) {
  const numbers = packed.numbers.map(unpackNumbers);
  return unpackNumbers(packed.index).map((pattern, row) => {
    const [pieces, widths] = packed.patterns[pattern];
    let text = pieces[0];
    for (let i = 0; i < widths.length; i++) text += String(numbers[i][row]).padStart(widths[i], "0") + pieces[i + 1];
    return text;
  });
}
