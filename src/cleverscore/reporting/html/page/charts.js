// Charts as inline SVG.
function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) || 10 * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

// An empty plot: {svg, x(), y()} with axes; labels are in the figure's words, for those who cannot see it.
function plot({ title, xName, yName, x: [x0, x1], y: [y0, y1], height = 260, left = 58, width = 520, logX = false, xTicks, yTicks, bottom = 44, yFormat = (v) => short(v, 6) }) {
  const right = 12, top = 12;
  const fx = logX ? Math.log : (v) => v;
  const spanX = fx(x1) - fx(x0) || 1, spanY = y1 - y0 || 1;
  const x = (v) => left + ((fx(v) - fx(x0)) / spanX) * (width - left - right);
  const y = (v) => height - bottom - ((v - y0) / spanY) * (height - bottom - top);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  svg.append(named(title));
  for (const tick of xTicks || ticks(x0, x1, 6)) {
    const at = x(tick);
    svg.append(draw("line", { class: "grid", x1: at, x2: at, y1: top, y2: height - bottom }));
    svg.append(draw("text", { class: "soft", x: at, y: height - bottom + 16, "text-anchor": "middle" }, short(tick, 6)));
  }
  for (const tick of yTicks || ticks(y0, y1, 4)) {
    const at = y(tick);
    svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
    svg.append(draw("text", { class: "soft", x: left - 6, y: at + 4, "text-anchor": "end" }, yFormat(tick)));
  }
  svg.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (xName) svg.append(draw("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xName));
  if (yName) svg.append(draw("text", { x: 12, y: (height - bottom + top) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom + top) / 2})` }, yName));
  return { svg, x, y, left, right: width - right, top, bottom: height - bottom };
}

function named(text) {
  return draw("title", {}, text);
}

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function captioned(text, svg) {
  return make("figure", {}, make("figcaption", {}, text), svg);
}

const LINE_DASHES = { certified: "8 3 2 3", estimated: null, attacked: "7 5" };
const LINE_COLORS = { certified: "var(--lower)", estimated: "var(--score)", attacked: "var(--upper)" };

// How a line of robust accuracy is drawn. One run: a colour for each kind of line. Several runs: a colour for each run,
// and a style for each kind of line.
const strokeOf = (run, kind, width) => ({ stroke: run.color || LINE_COLORS[kind], "stroke-width": width, "stroke-dasharray": run.color ? LINE_DASHES[kind] : null });

// Robust accuracy against epsilon. Each run is {name, robust, color}; bands are drawn where there is one run.
function robustChart(runs, norm, width = 1040) {
  const grids = runs.map((run) => run.robust.epsilon), high = Math.max(...grids.map((grid) => grid[grid.length - 1]));
  const percent = (v) => `${Math.round(100 * v)}%`, words = [];
  const p = plot({ title: "", xName: `epsilon, l${norm}`, yName: "robust accuracy", x: [0, high], y: [0, 1], yTicks: [0, 0.2, 0.4, 0.6, 0.8, 1], yFormat: percent, width, height: width > 700 ? 380 : 330 });
  // A share holds until the next epsilon of the grid: steps.
  const steps = (grid, values) => {
    const points = [];
    values.forEach((v, k) => {
      if (v === null) return;
      if (points.length) points.push([p.x(grid[k]), points[points.length - 1][1]]);
      points.push([p.x(grid[k]), p.y(v)]);
    });
    return points;
  };
  runs.forEach((run, k) => {
    for (const [kind, , , low, top] of run.robust.lines) {
      const upper = steps(grids[k], top), lower = steps(grids[k], low);
      if (runs.length === 1 && upper.length) p.svg.append(draw("path", { d: `${path(upper)}L${path(lower.reverse()).slice(1)}Z`, fill: LINE_COLORS[kind], opacity: 0.1 }));
    }
  });
  runs.forEach((run, k) => {
    for (const [kind, label, value] of run.robust.lines) {
      const points = steps(grids[k], value);
      if (!points.length) continue;
      const name = `${run.name ? `${run.name}: ` : ""}${label}`;
      p.svg.append(draw("path", { d: path(points), fill: "none", ...strokeOf(run, kind, 2.4) }, named(name)));
      const half = value.findIndex((v) => v !== null && v < 0.5);
      words.push(`${name} begins at ${percent(value[0])}` + (half > 0 ? `, falls below 50% at ${short(grids[k][half], 3)}` : ""));
    }
  });
  const title = `Robust accuracy against epsilon in the l${norm} norm: ${words.join("; ")}`;
  p.svg.setAttribute("aria-label", title);
  p.svg.querySelector("title").textContent = title;
  return p.svg;
}

// The lines of robustChart by name.
function robustKeys(runs) {
  const keys = runs.flatMap((run) => run.robust.lines.map(([kind, label]) => {
    const line = draw("line", { x1: 2, x2: 32, y1: 7, y2: 7, ...strokeOf(run, kind, 3) });
    return make("span", { class: "key" }, draw("svg", { viewBox: "0 0 34 14", "aria-hidden": "true" }, line), `${run.name ? `${run.name}: ` : ""}${label}`);
  }));
  return make("p", { class: "note keys" }, ...keys);
}

function quantile(sorted, share) {
  if (!sorted.length) return NaN;
  const at = share * (sorted.length - 1), below = Math.floor(at);
  return sorted[below] + (at - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

// Histogram of all scores in one norm.
function distributionChart(scores, norm, median) {
  const known = scores.filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
  if (!known.length) return make("p", { class: "note" }, "no score yet");
  const high = known[known.length - 1] || 1, bins = Math.max(6, Math.min(40, Math.round(2 * Math.sqrt(known.length))));
  const counts = new Array(bins).fill(0);
  for (const value of known) counts[Math.min(bins - 1, Math.floor((value / high) * bins))]++;
  const most = Math.max(...counts);
  const title = `Histogram of ${known.length} scores in the l${norm.name} norm: smallest ${short(known[0])}, median ${short(median)}, largest ${short(high)}`;
  const p = plot({ title, xName: `score, l${norm.name}`, yName: "inputs", x: [0, high], y: [0, most], yTicks: ticks(0, most, 4).filter(Number.isInteger) });
  counts.forEach((count, i) => {
    const a = p.x((i / bins) * high), b = p.x(((i + 1) / bins) * high);
    if (count) p.svg.append(draw("rect", { x: a + 0.5, width: Math.max(0.5, b - a - 1), y: p.y(count), height: p.bottom - p.y(count), fill: "var(--bar)" },
      named(`${short((i / bins) * high, 3)} to ${short(((i + 1) / bins) * high, 3)}: ${count}`)));
  });
  const at = p.x(median);
  p.svg.append(draw("line", { x1: at, x2: at, y1: p.top, y2: p.bottom, stroke: "var(--score)", "stroke-width": 2 }));
  const late = at > 380;
  p.svg.append(draw("text", { x: at + (late ? -6 : 6), y: p.top + 10, "text-anchor": late ? "end" : "start" }, `median ${short(median, 3)}`));
  return p.svg;
}

// One line per predicted class: smallest to largest, the middle half, the median; the least robust classes first.
function classChart(groups, norm) {
  const most = 15;
  const rows = groups.map((g) => ({ ...g, values: g.values.filter((v) => !Number.isNaN(v)).sort((a, b) => a - b) })).filter((g) => g.values.length);
  if (!rows.length) return null;
  rows.sort((a, b) => quantile(a.values, 0.5) - quantile(b.values, 0.5));
  const shown = rows.slice(0, most);
  const high = Math.max(...shown.map((g) => g.values[g.values.length - 1])) || 1;
  const height = 56 + 19 * shown.length;
  const title = `Scores by predicted class in the l${norm.name} norm, least robust class first: ` +
    shown.map((g) => `${g.name} median ${short(quantile(g.values, 0.5), 3)} of ${g.values.length}`).join("; ");
  const p = plot({ title, xName: `score, l${norm.name}` + (rows.length > most ? ` (the ${most} least robust of ${rows.length} classes)` : ""), x: [0, high], y: [0, 1], yTicks: [], height: Math.max(120, height), left: 130 });
  const step = (p.bottom - p.top) / shown.length;
  shown.forEach((group, i) => {
    const y = p.top + (i + 0.5) * step, at = (share) => p.x(quantile(group.values, share));
    const name = group.name.length > 13 ? group.name.slice(0, 12) + "…" : group.name;
    p.svg.append(draw("text", { x: p.left - 6, y: y + 4, "text-anchor": "end" }, `${name} (${group.values.length})`));
    p.svg.append(draw("line", { x1: at(0), x2: at(1), y1: y, y2: y, stroke: "var(--soft)" }));
    p.svg.append(draw("rect", { x: at(0.25), width: Math.max(1, at(0.75) - at(0.25)), y: y - 5, height: 10, fill: "var(--bar)" }));
    p.svg.append(draw("line", { x1: at(0.5), x2: at(0.5), y1: y - 7, y2: y + 7, stroke: "var(--score)", "stroke-width": 3 }));
  });
  return p.svg;
}

// Certificate, score with interval and attack on one line; each has a shape of its own.
function bracketBar(row, scale, width = 240, scaled = false) {
  const height = scaled ? 54 : 26, middle = 13, end = width - 14;
  const x = (v) => 4 + Math.min(1, v / scale) * (end - 4);
  const words = [];
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(draw("line", { class: "grid", x1: 4, x2: end, y1: middle, y2: middle }));
  svg.append(draw("line", { class: "axis", x1: 4, x2: 4, y1: middle - 5, y2: middle + 5 }));
  if (scaled) for (const tick of ticks(0, scale, 6)) {
    svg.append(draw("line", { class: "axis", x1: x(tick), x2: x(tick), y1: 26, y2: 31 }));
    svg.append(draw("text", { class: "soft", x: x(tick), y: 46, "text-anchor": "middle" }, short(tick, 6)));
  }
  if (!Number.isNaN(row.certified)) {
    svg.append(draw("rect", { x: 4, y: middle - 5, width: Math.max(1.5, x(row.certified) - 4), height: 10, fill: "var(--lower)" }));
    words.push(`certified ${short(row.certified)}`);
  }
  if (!Number.isNaN(row.second ?? NaN)) {
    svg.append(draw("circle", { cx: x(row.second), cy: middle, r: 4.2, fill: "var(--paper)", stroke: "var(--score)", "stroke-width": 2 }));
    words.push(`${row.other} ${short(row.second)}`);
  }
  if (!Number.isNaN(row.score)) {
    if (!Number.isNaN(row.low) && !row.other) {
      svg.append(draw("line", { x1: x(row.low), x2: x(row.high), y1: middle, y2: middle, stroke: "var(--score)", "stroke-width": 3, opacity: 0.55 }));
      for (const v of [row.low, row.high]) svg.append(draw("line", { x1: x(v), x2: x(v), y1: middle - 4, y2: middle + 4, stroke: "var(--score)", "stroke-width": 1.5 }));
    }
    svg.append(draw("circle", { cx: x(row.score), cy: middle, r: 5, fill: "var(--score)", stroke: "var(--paper)", "stroke-width": 1.5 }));
    words.push(`${row.other ? row.method : "score"} ${row.capped ? "at least " : ""}${short(row.score)}` + (Number.isNaN(row.low) || row.other ? "" : `, interval ${short(row.low)} to ${short(row.high)}`));
  } else words.push("no score");
  if (Number.isFinite(row.upper)) {
    const at = x(row.upper);
    svg.append(draw("path", { d: `M${at - 5} ${middle - 6}L${at + 5} ${middle + 6}M${at + 5} ${middle - 6}L${at - 5} ${middle + 6}`, stroke: "var(--upper)", "stroke-width": 2.5, fill: "none" }));
    words.push(`attack ${short(row.upper)}`);
  } else if (row.upper === Infinity) words.push("no attack succeeded");
  if (Math.max(row.score || 0, Number.isFinite(row.upper) ? row.upper : 0) > scale)
    svg.append(draw("path", { d: `M${end + 4} ${middle - 4}l5 4l-5 4`, fill: "none", stroke: "var(--soft)", "stroke-width": 1.5 }));
  svg.setAttribute("aria-label", words.join("; "));
  svg.prepend(named(words.join("; ")));
  return svg;
}

// The density and the distribution function of the reverse Weibull law.
function weibullDensity(v, law) {
  const z = (law.location - v) / law.scale;
  return z <= 0 ? 0 : (law.shape / law.scale) * z ** (law.shape - 1) * Math.exp(-(z ** law.shape));
}

function weibullQuantile(share, law) {
  return law.location - law.scale * (-Math.log(share)) ** (1 / law.shape);
}

// Share of maxima below v, from thinned order statistics.
function shareBelow(values, v) {
  const last = values.length - 1;
  if (v <= values[0]) return 0;
  if (v >= values[last]) return 1;
  let a = 0, b = last;
  while (b - a > 1) { const m = (a + b) >> 1; if (values[m] <= v) a = m; else b = m; }
  return (a + (v - values[a]) / (values[b] - values[a] || 1)) / last;
}

function fitChart(values, law, blocks) {
  const low = values[0], top = values[values.length - 1];
  const end = law ? Math.max(top, law.location) : top;
  const reach = end - low > 6 * (top - low) && top > low ? low + 6 * (top - low) : end;
  const bins = Math.max(5, Math.min(24, Math.round(2 * blocks ** (1 / 3) * 1.2)));
  const width = (top - low) / bins || 1, bars = [];
  for (let i = 0; i < bins; i++) bars.push((shareBelow(values, low + (i + 1) * width) - shareBelow(values, low + i * width)) / width);
  const curve = [];
  if (law) for (let i = 0; i < 160; i++) { const v = low + ((reach - low) * i) / 160; curve.push([v, weibullDensity(v, law)]); }
  const most = Math.max(...bars, ...curve.map((c) => Math.min(c[1], 3 * Math.max(...bars))));
  const title = `Histogram of ${blocks} block maxima from ${short(low)} to ${short(top)}` + (law ? `; fitted end-point ${short(law.location)}, shape ${short(law.shape, 3)}` : "");
  const p = plot({ title, xName: "largest gradient norm of a block", yName: "density", x: [low, reach], y: [0, most] });
  bars.forEach((value, i) => p.svg.append(draw("rect", { x: p.x(low + i * width) + 0.5, width: Math.max(0.5, p.x(low + width) - p.x(low) - 1), y: p.y(value), height: Math.max(0, p.bottom - p.y(value)), fill: "var(--bar)" })));
  if (law) {
    p.svg.append(draw("path", { d: path(curve.map(([v, d]) => [p.x(v), p.y(Math.min(d, most))])), fill: "none", stroke: "var(--upper)", "stroke-width": 2 }));
    if (law.location <= reach) p.svg.append(draw("line", { x1: p.x(law.location), x2: p.x(law.location), y1: p.top, y2: p.bottom, stroke: "var(--lower)", "stroke-width": 2, "stroke-dasharray": "6 4" }));
    else p.svg.append(draw("text", { class: "soft", x: p.right, y: p.top + 10, "text-anchor": "end" }, `end-point ${short(law.location)} lies further right →`));
  }
  return p.svg;
}

function quantileChart(values, law, blocks) {
  const n = values.length, points = [];
  for (let i = 0; i < n; i++) {
    const rank = n > 1 ? Math.round((i * (blocks - 1)) / (n - 1)) : 0;
    points.push([weibullQuantile((rank + 0.5) / blocks, law), values[i]]);
  }
  const low = Math.min(points[0][0], values[0]), high = Math.max(points[n - 1][0], values[n - 1]);
  const title = "Quantiles of the block maxima against quantiles of the fitted law; a good fit follows the diagonal";
  const p = plot({ title, xName: "fitted law", yName: "block maxima", x: [low, high], y: [low, high] });
  p.svg.append(draw("line", { x1: p.x(low), y1: p.y(low), x2: p.x(high), y2: p.y(high), stroke: "var(--upper)", "stroke-width": 1.5 }));
  for (const [a, b] of points) p.svg.append(draw("circle", { cx: p.x(a), cy: p.y(b), r: 2.6, fill: "var(--score)", opacity: 0.8 }));
  return p.svg;
}

function convergenceChart(points, row) {
  const values = points.map((q) => q[1]), ends = [row.low, row.high].filter((v) => !Number.isNaN(v));
  const high = Math.max(...values, ...ends) * 1.05 || 1;
  const title = "Score from the first blocks: " + points.map(([b, v]) => `${b} blocks ${short(v, 3)}`).join(", ");
  const first = points[0][0], last = points[points.length - 1][0];
  const p = plot({ title, xName: "blocks", yName: "score", x: [first, Math.max(last, first + 1)], y: [0, high], logX: true, xTicks: points.map((q) => q[0]) });
  if (ends.length === 2) p.svg.append(draw("line", { x1: p.x(last), x2: p.x(last), y1: p.y(row.low), y2: p.y(row.high), stroke: "var(--score)", "stroke-width": 3, opacity: 0.5 }));
  p.svg.append(draw("path", { d: path(points.map(([b, v]) => [p.x(b), p.y(v)])), fill: "none", stroke: "var(--score)", "stroke-width": 2 }));
  for (const [b, v] of points) p.svg.append(draw("circle", { cx: p.x(b), cy: p.y(v), r: 4, fill: "var(--score)" }));
  return p.svg;
}

// End-points of blocks merged into larger ones: where the law is reached, they stay.
function stabilityChart(points, row) {
  const values = [...points.map((q) => q[1]), row.location, row.largest];
  const low = Math.min(...values), high = Math.max(...values), room = (high - low) * 0.08 || 1;
  const title = "End-point from larger blocks: " + points.map(([b, v]) => `${b} points ${short(v, 3)}`).join(", ");
  const p = plot({ title, xName: "points in a block", yName: "end-point", x: [points[0][0], points[points.length - 1][0]], y: [low - room, high + room], logX: true, xTicks: points.map((q) => q[0]) });
  const level = (v, dash) => p.svg.append(draw("line", { x1: p.left, x2: p.right, y1: p.y(v), y2: p.y(v), stroke: "var(--lower)", "stroke-dasharray": dash, "stroke-width": 1.5 }));
  level(row.location, "6 4");
  level(row.largest, "2 3");
  p.svg.append(draw("path", { d: path(points.map(([b, v]) => [p.x(b), p.y(v)])), fill: "none", stroke: "var(--score)", "stroke-width": 2 }));
  for (const [b, v] of points) p.svg.append(draw("circle", { cx: p.x(b), cy: p.y(v), r: 4, fill: "var(--score)" }));
  return p.svg;
}

function profileChart(radii, slopes, row) {
  const high = Math.max(...slopes), title = `Steepest fall of the margin found across each shell; the score is ${short(row.score)}`;
  const p = plot({ title, xName: "distance from the input", yName: "fall per length", x: [0, radii[radii.length - 1]], y: [0, high] });
  slopes.forEach((slope, i) => p.svg.append(draw("rect", { x: p.x(radii[i]), y: p.y(slope), width: p.x(radii[i + 1]) - p.x(radii[i]), height: p.y(0) - p.y(slope), fill: "var(--score)", opacity: 0.35, stroke: "var(--score)" })));
  p.svg.append(draw("line", { x1: p.x(row.score), x2: p.x(row.score), y1: p.top, y2: p.bottom, stroke: "var(--lower)", "stroke-dasharray": "6 4", "stroke-width": 2 }));
  return p.svg;
}

// Dark to light blue: small scores are strong; monotone in brightness, so it survives any colour vision and grey print.
function heat(part) {
  const from = [8, 48, 107], to = [222, 235, 247];
  return `rgb(${from.map((c, i) => Math.round(c + (to[i] - c) * part)).join(",")})`;
}

function targetChart(cells, row, className) {
  const columns = window.innerWidth < 760 ? 4 : 10, size = { w: 104, h: 44 };
  const lines = Math.ceil(cells.length / columns);
  const title = "Score against each target class: " + cells.map((c) => `${className(c.target)} ${c.eliminated ? "at least about " : ""}${short(c.value, 3)}`).join(", ");
  const svg = draw("svg", { viewBox: `0 0 ${columns * size.w} ${lines * size.h}`, role: "img", "aria-label": title }, named(title));
  const logs = cells.map((c) => Math.log(c.value || 1e-12)), low = Math.min(...logs), high = Math.max(...logs);
  cells.forEach((cell, i) => {
    const x = (i % columns) * size.w, y = Math.floor(i / columns) * size.h;
    const part = high > low ? (logs[i] - low) / (high - low) : 0;
    const name = className(cell.target);
    const nearest = cell.target === row.target;
    svg.append(draw("rect", { x: x + 2, y: y + 2, width: size.w - 4, height: size.h - 4, rx: 5, fill: heat(part), stroke: nearest ? "var(--upper)" : "none", "stroke-width": 3 }));
    svg.append(draw("text", { x: x + size.w / 2, y: y + 18, "text-anchor": "middle", class: part < 0.5 ? "on-dark" : "on-light" }, name.length > 13 ? name.slice(0, 12) + "…" : name));
    svg.append(draw("text", { x: x + size.w / 2, y: y + 34, "text-anchor": "middle", class: part < 0.5 ? "on-dark" : "on-light" }, (cell.eliminated ? "≳ " : "") + short(cell.value, 3)));
  });
  return svg;
}
