// The page of a history: two boxes to choose what is compared. The table is made as
// weft/frontend/viewer/history.py makes the first one, from texts that stand in the page.
const MARKS = { slower: "▲ ", faster: "▼ " };
const BACKWARDS = { slower: "faster", faster: "slower" };
const PAIRS = new Map(D.pairs.map((pair) => [`${pair[0]},${pair[1]}`, pair]));
const S = { old: D.chosen[0], new: D.chosen[1] };

function comparison(old, now) {
  if (old === now) return [el("p", {}, "These are the same runs: choose another.")];
  const back = old > now, pair = PAIRS.get(back ? `${now},${old}` : `${old},${now}`);
  if (!pair) return [el("p", {}, "They have no workload in common.")];
  const [, , rows, notes, across, confidence, percent] = pair;
  const withPeer = rows.some((row) => D.texts[row[5]]);
  const counts = { slower: 0, faster: 0, same: 0, "cannot tell": 0 }, body = el("tbody", {});
  for (const row of rows) {
    const [workload, before, after, time, timeBack, control, controlBack, found, note] = row.map((n) => D.texts[n]);
    const verdict = (back && BACKWARDS[found]) || found;
    counts[verdict] += 1;
    const cells = [workload, ...(back ? [after, before, timeBack] : [before, after, time])];
    if (withPeer) cells.push(back ? controlBack : control);
    cells.push((MARKS[verdict] || "") + verdict + (note ? ` (${note})` : ""));
    body.append(el("tr", { class: verdict.replace(" ", "-") }, ...cells.map((c) => el("td", {}, c))));
  }
  const heads = ["workload", ...(across ? ["old", "new"] : ["old, us", "new, us"]), "new / old", ...(withPeer ? ["against a peer"] : []), "verdict"];
  const summary = Object.entries(counts).map(([word, count]) => `${count} ${word}`).join(", ");
  return [
    el("p", {}, el("b", {}, summary), ` (${D.texts[confidence]} intervals; a change counts from ${D.texts[percent]} %)`),
    el("table", { class: "compared" }, el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", {}, h)))), body),
    el("ul", {}, ...notes.map((n) => el("li", {}, D.texts[n[back ? 1 : 0]]))),
  ];
}
function choice(which, label) {
  const made = el("select", { id: which, onchange: (e) => {
    S[which] = Number(e.target.value);
    $("compared").replaceChildren(...comparison(S.old, S.new));
  } });
  for (let i = D.sides.length - 1; i >= 0; i -= 1) made.append(el("option", { value: i, selected: i === S[which] }, D.sides[i]));
  return el("label", {}, label, made);
}
if ($("chosen")) {
  const swap = el("button", { id: "swap", onclick: () => {
    [S.old, S.new] = [S.new, S.old];
    $("old").value = S.old;
    $("new").value = S.new;
    $("compared").replaceChildren(...comparison(S.old, S.new));
  } }, "swap");
  $("chosen").replaceChildren(choice("old", "old "), swap, choice("new", "new "));
  $("compared").setAttribute("aria-live", "polite");
}
