// The viewer's page. `D` is the document (weft/frontend/viewer/document.py); nothing is fetched.
const S = {
  tab: "passes", pass: 0, mode: "graph", open: new Set(), lit: new Set(), kernel: null,
  unfolded: new Set(), view: null, code: "", byDevice: true,
};
const TITLE = 18; // pixels of an open box's heading
const MOST = 4000; // boxes that "unfold all" draws at most

const number = (v) => (v === null || v === undefined ? "" : v.toLocaleString("en"));
const digits = (v) => (v === null ? "" : v >= 100 ? v.toFixed(0) : v >= 1 ? v.toFixed(1) : v.toFixed(3));
const base = (path) => path.split(/[\\/]/).pop();

// ----------------------------------------------------------------------------------------- nodes
const idOf = (node) => D.nodes[node][0];
const places = (node) => D.nodes[node][5] || [];
const placeText = ([file, line]) => `${base(D.files[file])}:${line}`;
const graphOf = (pass) => D.graphs[D.passes[pass].graph];
const _ids = new Map();
function nodesIn(graph) { // id -> number of the node, of all in a graph
  if (!_ids.has(graph)) {
    const found = new Map(), seen = new Set();
    const visit = (t) => {
      if (seen.has(t)) return;
      seen.add(t);
      const tree = D.trees[t];
      found.set(idOf(tree[0]), tree[0]);
      if (tree.length > 3) for (const [child] of tree[5]) visit(child);
    };
    for (const [, t] of D.graphs[graph].parts) visit(t);
    _ids.set(graph, found);
  }
  return _ids.get(graph);
}
function pathTo(id) { // the ids of the boxes around a box, outermost first
  let found = null;
  const visit = (t, path) => {
    const tree = D.trees[t];
    if (found) return;
    if (idOf(tree[0]) === id) { found = path; return; }
    if (tree.length > 3) for (const [child] of tree[5]) visit(child, [...path, idOf(tree[0])]);
  };
  for (const [, t] of graphOf(S.pass).parts) visit(t, []);
  return found;
}
function partOf(id) { // the device of the part that has a box
  const holds = (t) => { const tree = D.trees[t]; return idOf(tree[0]) === id || (tree.length > 3 && tree[5].some(([child]) => holds(child))); };
  const found = graphOf(S.pass).parts.find(([, t]) => holds(t));
  return found ? found[0] : "";
}
function select(ids, reveal) {
  S.lit = new Set(ids);
  if (reveal) for (const id of ids) for (const around of pathTo(id) || []) S.open.add(around);
  if (reveal) S.center = ids[0];
  draw();
}

// --------------------------------------------------------------------------------------- devices
// Colours that people with any colour vision tell apart (Okabe and Ito, "Color Universal Design",
// 2008); each with a line pattern, so that they differ in black and white, too.
const DEVICE_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "14 4"];
const deviceNumber = (name) => (name in D.device_of ? D.device_of[name] : null);
const deviceColour = (n) => DEVICE_COLOURS[n % 8];
const deviceDash = (n) => DASHES[((n % 4) + Math.floor(n / 8)) % 5];
const _on = new Map();
function devicesIn(t, part) { // number of the device -> how many ops of it are in a tree
  const key = `${t} ${part}`;
  if (!_on.has(key)) {
    const found = new Map(), tree = D.trees[t], node = D.nodes[tree[0]];
    const add = (n, count) => found.set(n, (found.get(n) || 0) + count);
    const own = node.length > 6 ? deviceNumber(node[6] || part) : null;
    if (own !== null) add(own, 1);
    else if (tree.length > 3) for (const [child] of tree[5]) for (const [n, count] of devicesIn(child, part)) add(n, count);
    _on.set(key, found);
  }
  return _on.get(key);
}
const placed = (graph) => D.devices.length > 1 && D.graphs[graph].parts.some(([part, t]) => devicesIn(t, part).size > 0);
function swatch(n) {
  const rect = svg("rect", { x: 1, y: 1, width: 22, height: 12, rx: 3, style: `fill:${deviceColour(n)};fill-opacity:.45;stroke:${deviceColour(n)};stroke-width:2;stroke-dasharray:${deviceDash(n) || "none"}` });
  return svg("svg", { class: "swatch", width: 24, height: 14 }, rect);
}
function legend(graph) {
  const counts = new Map();
  for (const [part, t] of D.graphs[graph].parts) for (const [n, count] of devicesIn(t, part)) counts.set(n, (counts.get(n) || 0) + count);
  const made = el("div", { class: "legend", id: "legend", "aria-label": "devices" });
  D.devices.forEach(([full, label], n) => made.append(el("span", { title: full }, swatch(n), ` ${label}: ${number(counts.get(n) || 0)} ops`)));
  return made;
}
function deviceStyle(n, open, framed) {
  const frame = framed ? "" : `;stroke:${deviceColour(n)};stroke-opacity:1;stroke-width:1.6;stroke-dasharray:${deviceDash(n) || "none"}`;
  return `fill:${deviceColour(n)};fill-opacity:${open ? 0.1 : 0.4}${frame}`;
}

// ---------------------------------------------------------------------------------------- layout
// A box that is open takes the room of what is in it: what is below it moves down, what is right of
// its middle moves right, and nothing else moves.
function measured(t) {
  const tree = D.trees[t], id = idOf(tree[0]);
  const made = { t, node: tree[0], id, w: tree[1], h: tree[2], kids: null };
  if (tree.length > 3 && S.open.has(id)) arrange(made, tree);
  return made;
}
function arrange(made, tree) {
  const kids = tree[5].map(([t, x, y]) => ({ box: measured(t), x, y, w: D.trees[t][1], h: D.trees[t][2] }));
  const grown = new Map(), wider = [];
  for (const k of kids) {
    const middle = Math.round(k.y + k.h / 2), more = k.box.h - k.h;
    if (more > 0) grown.set(middle, Math.max(grown.get(middle) || 0, more));
    if (k.box.w > k.w) wider.push(k);
  }
  const steps = [];
  const before = (x) => steps.reduce((sum, [at, by]) => sum + (at < x ? by : 0), 0);
  wider.sort((a, b) => a.x + a.w - b.x - b.w);
  for (const k of wider) {
    const has = before(k.x + k.w) - before(k.x);
    if (k.box.w - k.w > has) steps.push([k.x + k.w / 2, k.box.w - k.w - has]);
  }
  const down = (y) => [...grown].reduce((sum, [at, by]) => sum + (at < Math.round(y) ? by : 0), 0);
  for (const k of kids) {
    k.left = k.x + before(k.x);
    k.top = k.y + down(k.y + k.h / 2) + TITLE;
  }
  made.kids = kids;
  made.edges = tree[6].map(([a, b, count, note, points]) => {
    const from = kids[a], to = kids[b], route = [];
    for (let i = 2; i < points.length - 2; i += 2) {
      route.push([points[i] + before(points[i]), points[i + 1] + down(points[i + 1]) + TITLE]);
    }
    const start = [from.left + from.box.w / 2, from.top + from.box.h];
    const far = points.length === 4 && points[3] - points[1] > 400;
    return { a, b, count, note, far, points: [start, ...route, [to.left + to.box.w / 2, to.top]] };
  });
  made.w = Math.max(tree[1], tree[3] + [...steps].reduce((s, [, by]) => s + by, 0));
  made.h = tree[4] + [...grown.values()].reduce((s, by) => s + by, 0) + TITLE;
}
function curve(points) {
  let [x, y] = points[0], text = `M${x} ${y}`;
  for (const [a, b] of points.slice(1)) {
    const middle = (y + b) / 2;
    text += `C${x} ${middle} ${a} ${middle} ${a} ${b}`;
    [x, y] = [a, b];
  }
  return text;
}

// ----------------------------------------------------------------------------------------- graph
function boxElement(box, x, y, fresh, drawn, part) {
  const node = D.nodes[box.node], tree = D.trees[box.t], inner = tree.length > 3;
  const lit = S.lit.has(box.id) || (inner && !box.kids && holdsLit(box.t));
  const classes = ["box", node[1], box.kids ? "open" : "", lit ? "lit" : "", fresh(box.id) ? "fresh" : ""];
  const label = (inner ? (box.kids ? "▾ " : "▸ ") : "") + node[2];
  const made = svg("g", {
    class: classes.join(" ").trim(), transform: `translate(${x} ${y})`, "data-id": box.id, tabindex: 0,
    role: "button", "aria-label": `${node[2]} ${node[3]}`,
    onclick: (event) => { event.stopPropagation(); if (!S.dragged) choose(box, inner && onMarker(event)); },
    ondblclick: (event) => { event.stopPropagation(); if (inner) toggle(box); },
    onkeydown: (event) => { if (event.key === "Enter") { event.stopPropagation(); inner ? toggle(box) : choose(box); } },
  });
  made.append(svg("title", {}, node[3] ? `${node[2]}: ${node[3]}` : node[2]));
  const round = node[1] === "input" || node[1] === "output" ? 10 : 4;
  const on = part !== null && node[1] !== "input" && node[1] !== "output" ? [...devicesIn(box.t, part).keys()].sort((a, b) => a - b) : [];
  const framed = lit || fresh(box.id);
  const style = on.length === 1 ? deviceStyle(on[0], box.kids, framed) : on.length ? "fill:none" : part !== null ? "fill:var(--op)" : null;
  if (on.length > 1 && !box.kids) on.forEach((n, i) => made.append(svg("path", { d: `M${(box.w / on.length) * i} 0h${box.w / on.length}v${box.h}h${-box.w / on.length}z`, style: deviceStyle(n, false, true) })));
  made.append(svg("rect", { width: box.w, height: box.h, rx: round, style }));
  const at = box.kids ? { x: 8, y: 13 } : { x: box.w / 2, y: box.h / 2 + 4, "text-anchor": "middle" };
  made.append(svg("text", at, label));
  drawn.set(box.id, made);
  if (!box.kids) return made;
  const edges = svg("g", {});
  for (const e of box.edges) {
    const ends = [box.kids[e.a].box.id, box.kids[e.b].box.id];
    const on = ends.some((id) => S.lit.has(id));
    const cls = `edge${e.far ? " far" : ""}${on ? " on" : ""}`;
    const path = svg("path", { class: cls, d: curve(e.points) });
    path.append(svg("title", {}, e.note + (e.count > 1 ? ` (${e.count} values)` : "")));
    edges.append(path);
  }
  made.append(edges);
  for (const k of box.kids) made.append(boxElement(k.box, k.left, k.top, fresh, drawn, part));
  return made;
}
function onMarker(event) { // the ▸ or ▾ at a label's begin
  const text = event.currentTarget.querySelector("text").getBoundingClientRect();
  return event.clientX < text.left + 16 && event.clientX > text.left - 8;
}
const _held = new Map();
function holdsLit(t) {
  if (!S.lit.size) return false;
  if (!_held.has(t)) {
    const ids = [], visit = (u) => { ids.push(idOf(D.trees[u][0])); if (D.trees[u].length > 3) D.trees[u][5].forEach(([c]) => visit(c)); };
    visit(t);
    _held.set(t, ids);
  }
  return _held.get(t).some((id) => S.lit.has(id));
}
function choose(box, marker) {
  if (marker) return toggle(box);
  S.lit = new Set([box.id]);
  S.kernel = null;
  draw();
}
function toggle(box) {
  S.anchor = box.id;
  S.open.has(box.id) ? S.open.delete(box.id) : S.open.add(box.id);
  draw();
}
function screenPlace(id) {
  const found = document.querySelector(`svg.graph [data-id="${CSS.escape(id)}"]`);
  if (!found || !S.view) return null;
  const at = found.getBoundingClientRect();
  return [at.left, at.top];
}
function drawGraph(into) {
  const anchor = S.anchor || [...S.lit][0], was = anchor && !S.center ? screenPlace(anchor) : null;
  const graph = D.passes[S.pass].graph, known = graph > 0 ? nodesIn(graph - 1) : null;
  const fresh = (id) => known !== null && !known.has(id);
  const drawn = new Map(), byDevice = S.byDevice && placed(graph);
  const canvas = svg("svg", { class: byDevice ? "graph by-device" : "graph", role: "application", "aria-label": "graph" });
  const world = svg("g", {});
  let left = 10, height = 0;
  for (const [device, t] of D.graphs[graph].parts) {
    S.open.add(idOf(D.trees[t][0]));
    const box = measured(t);
    world.append(boxElement(box, left, 10, fresh, drawn, byDevice ? device : null));
    if (D.graphs[graph].parts.length > 1) world.append(svg("text", { x: left, y: 6 }, device));
    left += box.w + 30;
    height = Math.max(height, box.h);
  }
  canvas.append(world);
  into.replaceChildren(canvas);
  const size = into.getBoundingClientRect();
  if (!S.view) {
    const scale = Math.min(1, Math.max(0.35, (size.width - 20) / left));
    S.view = { x: Math.max(0, (size.width - left * scale) / 2), y: 4, k: scale };
  }
  const apply = () => world.setAttribute("transform", `translate(${S.view.x} ${S.view.y}) scale(${S.view.k})`);
  apply();
  const target = S.center ? drawn.get(S.center) : was ? drawn.get(anchor) : null;
  if (target) { // what one looks at stays where it is, or comes to the middle
    const now = target.getBoundingClientRect();
    const wanted = S.center ? [size.left + size.width / 2 - now.width / 2, size.top + size.height / 3] : was;
    S.view.x += wanted[0] - now.left;
    S.view.y += wanted[1] - now.top;
    apply();
  }
  S.anchor = S.center = null;
  moves(canvas, apply);
  S.fit = () => {
    const k = Math.min((size.width - 20) / left, (size.height - 20) / (height + 20), 1.5);
    S.view = { x: (size.width - left * k) / 2, y: 8, k };
    apply();
  };
}
function moves(canvas, apply) {
  let from = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = canvas.getBoundingClientRect(), x = event.clientX - at.left, y = event.clientY - at.top;
    const k = Math.min(4, Math.max(0.02, S.view.k * Math.exp(-event.deltaY / 500)));
    S.view.x = x - ((x - S.view.x) * k) / S.view.k;
    S.view.y = y - ((y - S.view.y) * k) / S.view.k;
    S.view.k = k;
    apply();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { from = [event.clientX - S.view.x, event.clientY - S.view.y, event.clientX, event.clientY]; S.dragged = false; });
  canvas.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) { from = null; return; }
    if (Math.hypot(event.clientX - from[2], event.clientY - from[3]) > 4) S.dragged = true;
    if (!S.dragged) return;
    S.view.x = event.clientX - from[0];
    S.view.y = event.clientY - from[1];
    apply();
  });
  canvas.addEventListener("click", () => { if (!S.dragged && S.lit.size) { S.lit = new Set(); S.kernel = null; draw(); } });
}
function unfoldAll() {
  let count = 0;
  const visit = (t) => {
    const tree = D.trees[t];
    if (tree.length <= 3 || count > MOST) return;
    count += tree[5].length;
    S.open.add(idOf(tree[0]));
    for (const [child] of tree[5]) visit(child);
  };
  for (const [, t] of graphOf(S.pass).parts) visit(t);
  draw();
}

// ------------------------------------------------------------------------------------------ text
function lineElement(n) {
  const [text, node, at] = D.lines[n];
  const lit = node >= 0 && S.lit.has(idOf(node));
  const made = el("div", { class: lit ? "line mono lit" : "line mono", onclick: () => node >= 0 && select([idOf(node)], true) }, el("span", {}, text));
  if (at && !/^\s*[}^]/.test(text)) made.append(el("span", { class: "loc" }, placeText(at)));
  return made;
}
const scopeOfLine = (n) => (D.lines[n][2] && !/[{^}]$|^\s*[}^]/.test(D.lines[n][0]) ? D.lines[n][2][3] : "");
function drawText(into) {
  const lines = D.texts[D.passes[S.pass].graph], made = el("div", { class: "lines" });
  for (let i = 0; i < lines.length;) {
    const scope = scopeOfLine(lines[i]);
    let j = i + 1;
    while (scope && j < lines.length && scopeOfLine(lines[j]) === scope) j += 1;
    const key = `${S.pass}:${i}`, part = lines.slice(i, j);
    if (j - i > 2) {
      const shut = !S.unfolded.has(key) && !part.some((n) => D.lines[n][1] >= 0 && S.lit.has(idOf(D.lines[n][1])));
      const text = `${/^ */.exec(D.lines[lines[i]][0])[0]}${shut ? "▸" : "▾"} ${scope}  (${j - i} lines)`;
      made.append(el("button", { class: "fold mono", "aria-expanded": !shut, onclick: () => { shut ? S.unfolded.add(key) : S.unfolded.delete(key); draw(); } }, text));
      if (!shut) made.append(...part.map(lineElement));
    } else made.append(...part.map(lineElement));
    i = j;
  }
  into.replaceChildren(made);
  const lit = made.querySelector(".lit");
  if (lit) lit.scrollIntoView({ block: "center" });
}
function drawDiff(into) {
  const graph = D.passes[S.pass].graph;
  if (graph === 0 || !D.passes[S.pass].changed) {
    into.replaceChildren(el("p", { class: "empty" }, graph === 0 ? "This is what the passes began with." : "This pass changed nothing."));
    return;
  }
  const [old, now] = [D.texts[graph - 1], D.texts[graph]], made = el("div", { class: "diff mono" });
  const cell = (text, cls) => el("div", { class: cls }, text);
  const text = (lines, i, to) => (i < to ? D.lines[lines[i]][0] : "");
  const same = (i, k, count) => {
    for (let n = 0; n < count; n += 1) made.append(cell(text(old, i + n, old.length), ""), cell(text(now, k + n, now.length), ""));
  };
  for (const [tag, a, b, c, d] of D.diffs[graph - 1]) {
    if (tag === "e") {
      const key = `d${graph}:${a}`, count = b - a;
      if (count <= 8 || S.unfolded.has(key)) { same(a, c, count); continue; }
      same(a, c, 3);
      made.append(el("div", { class: "skip", onclick: () => { S.unfolded.add(key); draw(); } }, `${count - 6} lines are the same`));
      same(b - 3, d - 3, 3);
      continue;
    }
    for (let n = 0; n < Math.max(b - a, d - c); n += 1) {
      made.append(cell(text(old, a + n, b), a + n < b ? "del" : ""), cell(text(now, c + n, d), c + n < d ? "ins" : ""));
    }
  }
  into.replaceChildren(made);
}

// --------------------------------------------------------------------------------------- details
function sourceElement(marks) { // the user's lines, those of `marks` ([file, line]) lit
  const made = el("div", {}), byFile = new Map();
  for (const [file, line] of marks) byFile.set(file, [...(byFile.get(file) || []), line]);
  for (const [file, lit] of byFile) {
    const text = D.sources[file];
    made.append(el("dt", {}, base(D.files[file])));
    if (text === undefined) { made.append(el("dd", {}, `lines ${[...new Set(lit)].join(", ")} (the file is not in this page)`)); continue; }
    const rows = text.split("\n"), near = new Set();
    for (const line of lit) for (let n = line - 2; n <= line + 2; n += 1) if (n >= 1 && n <= rows.length) near.add(n);
    const pre = el("pre", { class: "source" });
    let last = null;
    for (const n of [...near].sort((a, b) => a - b)) {
      if (last !== null && n > last + 1) pre.append(el("span", { class: "src" }, "      ..."));
      pre.append(el("span", { class: lit.includes(n) ? "src lit" : "src" }, el("i", {}, `${String(n).padStart(4)}  `), rows[n - 1]));
      last = n;
    }
    made.append(pre);
  }
  return made;
}
function drawDetails() {
  const made = el("dl", {}), ids = [...S.lit], here = nodesIn(D.passes[S.pass].graph);
  const add = (name, value) => value && made.append(el("dt", {}, name), el("dd", { class: "mono" }, value));
  if (ids.length === 1 && here.has(ids[0])) {
    const node = D.nodes[here.get(ids[0])];
    made.append(el("dd", {}, el("b", { class: "mono" }, node[2])));
    add("type", node[3]);
    add("op", node[6] !== undefined ? node[4] : null);
    add("attributes", node[7]);
    const on = deviceNumber(node[6] || partOf(ids[0]));
    if (on !== null) made.append(el("dt", {}, "device"), el("dd", { class: "mono" }, swatch(on), ` ${D.devices[on][0]}`));
    else add("device", node[6]);
    add("scope", (node[5] && node[5][0] && node[5][0][3]) || null);
    for (const k of D.kernels.filter((k) => k.nodes.some((n) => idOf(n) === ids[0]))) {
      made.append(el("dt", {}, "kernel"), el("dd", {}, el("a", { onclick: () => { S.tab = "kernels"; pick(k); } }, `#${k.number} ${k.name}`)));
    }
    if (node[5] && node[5].length) made.append(sourceElement(node[5]));
  } else if (ids.length) {
    made.append(el("dd", {}, `${ids.length} ops are lit, ${ids.filter((id) => here.has(id)).length} of them in this graph`));
  } else {
    const p = D.passes[S.pass];
    made.append(el("dd", {}, el("b", {}, p.name)));
    add("ops", number(p.ops));
    add("kernels", number(p.kernels));
    add("bytes moved", number(p.bytes));
    add("peak bytes", number(p.peak));
    add("milliseconds", p.ms === null ? "" : p.ms.toFixed(2));
    made.append(el("dt", {}, "in the graph"), el("dd", {}, "▸ opens a box, a click shows an op, the wheel zooms; green frames are new in this pass"));
  }
  $("details").replaceChildren(made);
}

// ---------------------------------------------------------------------------------------- passes
function go(pass) {
  S.pass = pass;
  if (!S.lit.size) S.view = null; // what nobody looks at need not stay where it is
  draw();
}
function drawPasses() {
  const list = el("aside", { id: "list", "aria-label": "passes" });
  let ops = null;
  D.passes.forEach((p, i) => {
    const change = ops === null || !p.changed ? "" : ` (${p.ops >= ops ? "+" : ""}${p.ops - ops})`;
    ops = p.ops;
    const told = p.changed ? `${number(p.ops)} ops${change}` : "unchanged";
    const row = el("button", { class: p.changed ? "row" : "row idle", "aria-selected": i === S.pass, "data-pass": p.name, onclick: () => go(i) }, p.name);
    row.append(el("small", {}, told + (p.ms === null ? "" : ` · ${p.ms.toFixed(2)} ms`)));
    list.append(row);
  });
  const bar = el("div", { class: "bar" });
  for (const mode of ["graph", "text", "diff"]) {
    bar.append(el("button", { "aria-pressed": S.mode === mode, "data-mode": mode, onclick: () => { S.mode = mode; draw(); } }, mode));
  }
  if (S.mode === "graph") {
    bar.append(el("button", { id: "fit", onclick: () => S.fit() }, "fit"), el("button", { id: "unfold", onclick: unfoldAll }, "unfold all"),
      el("button", { id: "fold", onclick: () => { S.open = new Set(); S.view = null; draw(); } }, "fold all"));
  }
  const into = el("div", { class: "fill", id: "pane" });
  const section = el("section", {}, bar, into), graph = D.passes[S.pass].graph;
  if (S.mode === "graph" && placed(graph)) {
    bar.append(el("button", { id: "by-device", "aria-pressed": S.byDevice, onclick: () => { S.byDevice = !S.byDevice; draw(); } }, "colours: devices"));
    if (S.byDevice) bar.after(legend(graph));
  }
  $("main").replaceChildren(list, section, el("aside", { class: "right", id: "details", "aria-label": "details" }));
  ({ graph: drawGraph, text: drawText, diff: drawDiff })[S.mode](into);
  drawDetails();
  const chosen = list.querySelector('[aria-selected="true"]');
  if (chosen) chosen.scrollIntoView({ block: "nearest" });
}

// --------------------------------------------------------------------------------------- kernels
const seconds = (k) => (k.many ?? k.microseconds ?? 0) * (k.runs ?? 1);
function pick(kernel) {
  S.kernel = kernel.number;
  S.lit = new Set(kernel.nodes.map(idOf));
  S.pass = D.passes.length - 1;
  draw();
}
function drawKernels() {
  const missing = D.missing.map((line) => el("p", { class: "missing" }, line));
  if (!D.kernels.length) {
    const why = missing.length ? missing : [el("p", {}, "No kernels: this page was made of graphs alone. f.view(x) of a compiled function shows its kernels, with times and code.")];
    $("main").replaceChildren(el("div", { class: "empty" }, ...why));
    return;
  }
  const total = D.kernels.reduce((sum, k) => sum + seconds(k), 0);
  const timed = D.kernels.some((k) => k.microseconds !== null);
  const wherePut = (k) => {
    const n = deviceNumber(k.device);
    return n === null ? k.region : el("span", {}, swatch(n), ` ${D.devices[n][1]} ${k.region}`);
  };
  const columns = [ // those with nothing in them are left out
    ["#", (k) => k.number], ["kernel", (k) => k.name], ["in", wherePut],
    ["of all", (k) => (total ? `${((100 * seconds(k)) / total).toFixed(1)} %` : "")],
    ["us", (k) => (k.microseconds === null ? k.untimed : digits(k.microseconds))], ["us, all threads", (k) => digits(k.many)],
    ["runs", (k) => (k.runs !== null ? k.runs : timed ? "?" : "")],
    ["grid × block", (k) => (k.blocks === null ? "" : `${number(k.blocks)} × ${number(k.threads)}`)],
    ["shared", (k) => number(k.shared)], ["bytes", (k) => number(k.bytes)], ["flops", (k) => number(k.flops)],
    ["of peak", (k) => (k.percent === null ? "" : `${k.percent.toFixed(0)} % ${k.bound}`)],
  ].filter(([, cell]) => D.kernels.some((k) => cell(k) !== ""));
  const body = el("tbody", {});
  for (const k of [...D.kernels].sort((a, b) => seconds(b) - seconds(a) || a.number - b.number)) {
    body.append(el("tr", { class: k.number === S.kernel ? "lit" : null, "data-kernel": k.number, onclick: () => pick(k) }, ...columns.map(([, cell]) => el("td", {}, cell(k)))));
  }
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...columns.map(([head]) => el("th", {}, head)))), body);
  const right = el("aside", { class: "right wide", id: "details" });
  const kernel = D.kernels.find((k) => k.number === S.kernel);
  if (kernel) right.append(kernelElement(kernel));
  else right.append(el("p", { class: "empty" }, "Choose a kernel: its ops, your lines and its code are shown here, and its ops are lit in the graph."));
  $("main").replaceChildren(el("section", {}, el("div", { class: "fill" }, ...missing, table)), right);
}
function kernelElement(k) {
  const made = el("div", {}, el("b", { class: "mono" }, `#${k.number} ${k.name}`), el("p", {}, el("a", { id: "in-graph", onclick: () => { S.tab = "passes"; S.mode = "graph"; select(k.nodes.map(idOf), false); S.center = k.nodes.length ? idOf(k.nodes[0]) : null; for (const a of (S.center && pathTo(S.center)) || []) S.open.add(a); draw(); } }, "show its ops in the graph"), ` · key ${k.key}`));
  for (const note of k.notes) made.append(el("p", {}, note));
  const ops = el("p", { class: "mono" });
  for (const n of k.nodes) ops.append(el("a", { onclick: () => { S.tab = "passes"; S.mode = "text"; select([idOf(n)], true); } }, D.nodes[n][2]), " ");
  made.append(el("dt", {}, "ops"), ops, sourceElement(k.places));
  const names = Object.keys(k.code);
  if (names.length) {
    const shown = names.includes(S.code) ? S.code : names[0];
    const bar = el("div", { class: "bar" });
    for (const name of names) bar.append(el("button", { "aria-pressed": name === shown, "data-code": name, onclick: () => { S.code = name; draw(); } }, name));
    made.append(bar, el("pre", { class: "code" }, D.codes[k.code[shown]]));
  }
  return made;
}

// ------------------------------------------------------------------------------ timeline, memory
const COLOURS = ["#4c8dff", "#2da44e", "#d4a72c", "#a371f7", "#f0883e", "#39c5cf", "#db61a2", "#8b949e"];
const colourOf = (text) => COLOURS[[...text].reduce((sum, c) => (sum * 31 + c.charCodeAt(0)) >>> 0, 7) % COLOURS.length];
const pen = document.createElement("canvas").getContext("2d");
pen.font = '11px ui-monospace, "DejaVu Sans Mono", Menlo, monospace'; // as view.css has it
const namesWidth = (names) => Math.max(100, ...names.map((name) => Math.ceil(pen.measureText(name).width) + 16)); // at the left of a plot
const plotWidth = (left) => Math.max(500, window.innerWidth - left - 60);
function rectangles(rows, left, wide, high, label) { // rows: {x, y, w, h, text, colour, click, lit}
  const canvas = svg("svg", { class: "track", width: left + wide + 20, height: high + 40, role: "img", "aria-label": label });
  for (const r of rows) {
    const made = svg("rect", { x: left + r.x, y: r.y, width: Math.max(r.w, 0.7), height: Math.max(r.h, 1), fill: r.colour, class: r.lit ? "lit" : null, onclick: r.click });
    made.append(svg("title", {}, r.text));
    canvas.append(made);
  }
  return canvas;
}
function drawTimeline() {
  if (!D.events.length) { $("main").replaceChildren(el("p", { class: "empty" }, "No run was recorded for this page.")); return; }
  const into = el("div", { class: "fill", id: "pane" }), lanes = [...new Set(D.events.map((e) => e.lane))];
  const left = namesWidth(lanes), wide = plotWidth(left) * (S.zoom || 1), end = Math.max(...D.events.map((e) => e.end));
  const rows = D.events.map((e) => ({
    x: (e.begin / end) * wide, w: ((e.end - e.begin) / end) * wide, y: lanes.indexOf(e.lane) * 30 + 4, h: 24,
    colour: colourOf(e.name), text: `${e.name}\n${(e.end - e.begin).toFixed(2)} us, ${e.kind}\n${e.lines.map(base).join(" ")} ${e.note}`,
    click: () => { S.event = e; draw(); }, lit: S.event === e,
  }));
  const canvas = rectangles(rows, left, wide, lanes.length * 30, "timeline");
  lanes.forEach((lane, i) => canvas.append(svg("text", { x: 4, y: i * 30 + 20 }, lane)));
  const tick = (share) => `${(end * share).toFixed(1)} us`, room = 1.5 * pen.measureText(tick(1)).width + 12; // the last one ends at its place
  const count = Math.min(8, Math.max(1, Math.floor(wide / room)));
  for (let i = 0; i <= count; i += 1) canvas.append(svg("text", { class: "tick", x: left + (wide * i) / count, y: lanes.length * 30 + 22, "text-anchor": i === count ? "end" : "middle" }, tick(i / count)));
  into.append(canvas);
  if (D.recorded) into.append(el("p", { class: "empty" }, D.recorded));
  const bar = el("div", { class: "bar" }, ...[["−", 0.5], ["+", 2]].map(([t, by]) => el("button", { "aria-label": by > 1 ? "zoom in" : "zoom out", onclick: () => { S.zoom = Math.max(1, (S.zoom || 1) * by); draw(); } }, t)), el("span", { class: "note" }, `${D.events.length} events, ${end.toFixed(1)} us`));
  const details = el("div", {});
  if (S.event) {
    const marks = S.event.lines.map((l) => [D.files.indexOf(l.slice(0, l.lastIndexOf(":"))), Number(l.slice(l.lastIndexOf(":") + 1))]).filter(([f]) => f >= 0);
    details.append(el("p", { class: "mono" }, `${S.event.name}: ${(S.event.end - S.event.begin).toFixed(2)} us ${S.event.note}`), sourceElement(marks));
  }
  into.append(details);
  $("main").replaceChildren(el("section", {}, bar, into));
}
function drawMemory() {
  const m = D.memory;
  if (!m || !m.ranges.length) { $("main").replaceChildren(el("p", { class: "empty" }, "The plan takes no memory for values in between, or this page was made of graphs alone.")); return; }
  const into = el("div", { class: "fill", id: "pane" }), high = 420, ticks = [0, 1, 2, 3, 4].map((i) => number(Math.round((m.bytes * i) / 4)));
  const left = namesWidth(ticks), wide = plotWidth(left);
  const rows = m.ranges.map(([offset, size, start, end, label, types, node]) => ({
    x: (start / m.events) * wide, w: ((end - start) / m.events) * wide, y: 10 + high - ((offset + size) / m.bytes) * high, h: (size / m.bytes) * high,
    colour: colourOf(label), text: `${label}: ${types}\n${number(size)} bytes at ${number(offset)}`, lit: node >= 0 && S.lit.has(idOf(node)),
    click: () => { if (node >= 0) { S.lit = new Set([idOf(node)]); S.tab = "passes"; S.mode = "text"; S.pass = D.passes.length - 1; draw(); } },
  }));
  const canvas = rectangles(rows, left, wide, high, "memory");
  ticks.forEach((tick, i) => canvas.append(svg("text", { x: 4, y: 14 + high - (high * i) / 4 }, tick)));
  canvas.append(svg("text", { x: left, y: high + 28 }, "the order of the plan, from its first op to its last; up: bytes of the arena"));
  into.append(canvas);
  $("main").replaceChildren(el("section", {}, el("div", { class: "bar" }, `${number(m.bytes)} bytes for ${m.ranges.length} values in between`), into));
}
function drawExplain() {
  const made = el("div", { class: "fill" }), lines = D.explain.split("\n");
  let title = lines[0], body = [];
  const flush = (open) => { if (title !== null) made.append(body.length ? el("details", { open: open ? "" : null }, el("summary", {}, title), el("pre", {}, body.join("\n"))) : el("p", { class: "row" }, title)); };
  for (const line of lines.slice(1)) {
    if (!line) continue;
    if (!line.startsWith(" ")) { flush(SHOWN.some((s) => title.startsWith(s))); title = line; body = []; } else body.push(line);
  }
  flush(false);
  $("main").replaceChildren(el("section", {}, made));
}
const SHOWN = ["in short", "signature", "compiled because"];

// ---------------------------------------------------------------------------------------- search
function matches(text) {
  const wanted = text.toLowerCase(), found = [];
  if (!wanted) return found;
  for (const [id, n] of nodesIn(D.passes[S.pass].graph)) {
    const node = D.nodes[n], where = (node[5] || []).map((p) => `${placeText(p)} ${p[3]}`).join(" ");
    if (`${id} ${node[2]} ${node[3]} ${where}`.toLowerCase().includes(wanted)) found.push(id);
  }
  return found;
}
function search(text, next) {
  const found = matches(text);
  S.hit = next && text === S.searched ? ((S.hit ?? -1) + 1) % Math.max(1, found.length) : 0;
  S.searched = text;
  $("hits").textContent = text ? `${found.length ? S.hit + 1 : 0} of ${found.length}` : "";
  if (found.length) { S.tab = "passes"; select([found[S.hit]], true); $("search").focus(); }
}

// ------------------------------------------------------------------------------------------ page
const TABS = { passes: drawPasses, kernels: drawKernels, timeline: drawTimeline, memory: drawMemory, explain: drawExplain };
function draw() {
  for (const name of Object.keys(TABS)) $(`tab-${name}`).setAttribute("aria-selected", name === S.tab);
  TABS[S.tab]();
}
function begin() {
  const nav = el("nav", { role: "tablist" }, ...Object.keys(TABS).map((name) => el("button", { id: `tab-${name}`, role: "tab", onclick: () => { S.tab = name; draw(); } }, name)));
  const find = el("input", { id: "search", type: "search", placeholder: "find an op, type, scope, line", "aria-label": "search", oninput: (e) => search(e.target.value, false), onkeydown: (e) => { if (e.key === "Enter") search(e.target.value, true); } });
  document.body.append(el("header", {}, el("h1", {}, D.title), el("span", { class: "sub" }, D.subtitle), nav, find, el("span", { id: "hits", class: "sub", "aria-live": "polite" })), el("main", { id: "main" }));
  document.addEventListener("keydown", (e) => {
    if (e.target.tagName === "INPUT" || S.tab !== "passes" || e.ctrlKey || e.metaKey) return;
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[e.key];
    if (e.key === "/") { e.preventDefault(); $("search").focus(); }
    if (!step) return;
    e.preventDefault();
    let at = S.pass + step;
    while (D.passes[at] && !D.passes[at].changed) at += step;
    if (D.passes[at]) go(at);
  });
  S.pass = 0;
  draw();
}
begin();
