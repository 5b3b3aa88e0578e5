// The report: reads the packed data, lists the inputs, opens one. Nothing is loaded from anywhere.
const PAGE = 25;
const ELIMINATED = 1 << 30, STEPS = 65535, OCTAVES = 4, FIRST_PREFIX = 16, PREFIXES = 10, MERGES = 5;
const FLAG_WORDS = {
  misclassified: "misclassified", capped: "score is the radius", open: "bounded from above only",
  budget: "budget used up", no_score: "no score", above_attack: "score above the attack", below_certificate: "score below the certificate",
};

const FIT_WORDS = {
  too_few: "too few blocks", zero: "gradient is zero", shape_at_one: "not extrapolated",
  no_endpoint: "no end-point seen", drifting: "end-point drifts", poor: "fitted law rejected", unsettled: "search not settled",
};

function startReport(doc, arrays) {
  const count = arrays.ids.length;
  const state = { norm: 0, page: 0, rows: [] };
  const column = (name) => arrays[`${state.norm}.${name}`];
  const norm = () => doc.norms[state.norm];
  const className = (number) => (number < 0 ? "–" : doc.classes && doc.classes[number] !== undefined ? doc.classes[number] : String(number));

  function row(i) {
    const bits = column("flags")[i];
    const flags = norm().flags.filter((_, bit) => bits & (1 << bit));
    const found = { i, id: arrays.ids[i], label: arrays.labels[i], predicted: arrays.predicted[i], flags, capped: flags.includes("capped") };
    for (const name of ["score", "low", "high", "margin", "ks", "ad", "drift", "upper", "certified", "target", "blocks", "location", "scale", "shape", "smallest", "largest", "sampled", "second"]) found[name] = column(name)[i];
    found.method = norm().method;
    found.other = norm().other;
    const outcome = doc.outcomes[column("outcome")[i]];
    found.outcome = outcome ? outcome[0] : "";
    found.advice = outcome ? outcome[1] : "";
    const fit = doc.outcomes[column("fit")[i]];
    found.fit = fit ? fit[0] : "";
    found.law = fit && fit[2] ? { location: found.location, scale: found.scale, shape: found.shape } : null;
    found.stopped = doc.stopped[column("stopped")[i]] || "";
    found.attack = doc.attacks[column("attack")[i]] || "";
    return found;
  }

  // Without a lower limit the score is bounded from above only.
  const intervalWords = (r, digits) => (Number.isNaN(r.low) ? "–" : r.low === 0 && r.score > 0 ? `at most ${short(r.high, digits)}` : `${short(r.low, digits)} to ${short(r.high, digits)}`);
  const picture = (i, label) => pictureOf(doc, arrays, i, label);

  // The nearest adversarial input at a place, and its difference from the input: grey is none, the largest is black or white.
  function adversarial(i) {
    const places = column("adversarial"), place = places ? places[i] : -1;
    if (!(place >= 0) || arrays.picture[i] < 0) return null;
    const { height, width, channels } = doc.pictures, size = height * width * channels, pixels = column("adversarial_pixels");
    const at = (k, c) => k * channels + (channels === 3 ? c : 0);
    const gap = (k, c) => pixels[place * size + at(k, c)] - arrays.pixels[arrays.picture[i] * size + at(k, c)];
    let most = 1;
    for (let k = 0; k < height * width; k++) for (let c = 0; c < channels; c++) most = Math.max(most, Math.abs(gap(k, c)));
    const found = className(column("found")[i]);
    return {
      found, times: 127 / most,
      attacked: canvasOf(doc.pictures, `The input after the best attack, classified as ${found}`, (k, c) => pixels[place * size + at(k, c)]),
      difference: canvasOf(doc.pictures, "What the attack changed", (k, c) => 128 + (127 * gap(k, c)) / most),
    };
  }

  const sorting = {
    score: (i) => column("score")[i], input: (i) => arrays.ids[i], predicted: (i) => arrays.predicted[i],
    second: (i) => column("second")[i], target: (i) => column("target")[i], width: (i) => column("high")[i] - column("low")[i], margin: (i) => column("margin")[i],
    ks: (i) => column("ks")[i], ad: (i) => column("ad")[i], upper: (i) => column("upper")[i], certified: (i) => column("certified")[i],
  };

  function sortable(key) {
    const value = sorting[key];
    for (let i = 0; i < count; i++) if (!Number.isNaN(value(i))) return true;
    return false;
  }

  function idFilter(text) {
    const parts = text.split(",").map((part) => part.trim()).filter(Boolean).map((part) => part.match(/^(\d+)(?:-(\d+))?$/));
    if (!parts.length) return () => true;
    return (id) => parts.some((m) => m && id >= Number(m[1]) && id <= Number(m[2] ?? m[1]));
  }

  function choose() {
    const form = $("filters").elements, wanted = idFilter(form.input.value);
    const predicted = form.predicted.value, target = form.target.value, flag = form.flag.value;
    const least = form.least.value === "" ? -Infinity : Number(form.least.value), most = form.most.value === "" ? Infinity : Number(form.most.value);
    const bounded = form.least.value !== "" || form.most.value !== "";
    const bit = norm().flags.indexOf(flag), outcome = flag.startsWith("outcome:") ? doc.outcomes.findIndex((o) => o[0] === flag.slice(8)) : -1;
    const scores = column("score"), targets = column("target"), flags = column("flags"), outcomes = column("outcome");
    const rows = [];
    for (let i = 0; i < count; i++) {
      if (outcomes[i] === 255 || !wanted(arrays.ids[i])) continue;
      if (predicted !== "" && arrays.predicted[i] !== Number(predicted)) continue;
      if (target !== "" && targets[i] !== Number(target)) continue;
      if (bit >= 0 && !(flags[i] & (1 << bit))) continue;
      if (outcome >= 0 && outcomes[i] !== outcome) continue;
      if (bounded && !(scores[i] >= least && scores[i] <= most)) continue;
      rows.push(i);
    }
    const key = sorting[form.sort.value] || sorting.score, sign = form.order.value === "down" ? -1 : 1;
    const keys = new Map(rows.map((i) => [i, key(i)]));
    rows.sort((a, b) => {
      const x = keys.get(a), y = keys.get(b), nx = Number.isNaN(x), ny = Number.isNaN(y);
      return nx || ny ? nx - ny || a - b : sign * (x - y) || a - b;
    });
    state.rows = rows;
    state.page = 0;
    list();
  }

  function headers() {
    const names = [[null, "picture"], ["input", "input"], ["predicted", "predicted"], [null, "label"], ["target", "nearest class"], ["score", norm().other ? norm().method : "score"], ...(norm().other ? [["second", norm().other]] : []), ["width", norm().other ? `${norm().other}, ${doc.interval}` : doc.interval], [null, "0 to far"], [null, "to know"]];
    if (!doc.pictures) names.shift();
    if (!arrays.labels.some((l) => l >= 0)) names.splice(names.findIndex((n) => n[1] === "label"), 1);
    const form = $("filters").elements, line = make("tr", {});
    for (const [key, name] of names) {
      const cell = make("th", { scope: "col" });
      if (key && sortable(key)) {
        const active = form.sort.value === key, up = form.order.value !== "down";
        cell.setAttribute("aria-sort", active ? (up ? "ascending" : "descending") : "none");
        cell.append(make("button", { type: "button", "data-sort": key, onclick: () => {
          form.order.value = active && up ? "down" : "up";
          form.sort.value = key;
          choose();
          document.querySelector(`th button[data-sort="${key}"]`).focus();
        } }, `${name} ${active ? (up ? "↑" : "↓") : ""}`));
      } else cell.append(name === "0 to far" ? "certificate, score, attack" : name);
      const about = name.includes("interval") ? "95% interval" : name;
      if (doc.terms[about]) cell.append(term(doc, about, "?"));
      line.append(cell);
    }
    document.querySelector("#inputs thead").replaceChildren(line);
  }

  function scaleOfBars() {
    const reach = [];
    for (let i = 0; i < count; i++) {
      const upper = column("upper")[i], high = column("high")[i], score = column("score")[i];
      const most = Math.max(Number.isFinite(upper) ? upper : 0, Number.isFinite(high) ? high : 0, score || 0);
      if (most > 0) reach.push(most);
    }
    reach.sort((a, b) => a - b);
    return reach.length ? quantile(reach, 0.95) * 1.05 : 1;
  }

  function list() {
    headers();
    const pages = Math.max(1, Math.ceil(state.rows.length / PAGE)), first = state.page * PAGE;
    const labelled = arrays.labels.some((l) => l >= 0);
    const lines = state.rows.slice(first, first + PAGE).map((i) => {
      const r = row(i), wrong = r.label >= 0 && r.label !== r.predicted;
      const words = `input ${r.id}, classified as ${className(r.predicted)}`;
      const line = make("tr", { onclick: () => open(i) });
      if (doc.pictures) line.append(make("td", { class: "picture" }, make("div", { class: "pictures" }, picture(i, `Picture of ${words}`), adversarial(i)?.attacked)));
      line.append(make("td", { "data-name": "input" }, make("button", { type: "button", class: "open", "data-input": r.id, "aria-haspopup": "dialog", "aria-label": `Open ${words}`, onclick: (event) => { event.stopPropagation(); open(i); } }, `#${r.id}`)));
      line.append(make("td", { "data-name": "predicted", class: wrong ? "wrong" : "" }, className(r.predicted)));
      if (labelled) line.append(make("td", { "data-name": "label" }, className(r.label)));
      line.append(make("td", { "data-name": "nearest class" }, className(r.target)));
      line.append(make("td", { class: "number score", "data-name": r.other ? r.method : "score" }, (r.capped ? "≥ " : "") + short(r.score)));
      if (r.other) line.append(make("td", { class: "number", "data-name": r.other }, short(r.second)));
      line.append(make("td", { class: "number", "data-name": doc.interval }, intervalWords(r, 3)));
      line.append(make("td", { class: "bracket" }, bracketBar(r, state.scale)));
      const marks = r.flags.filter((flag) => !(flag === "misclassified" && wrong)).map((flag) => make("span", { class: "mark" }, FLAG_WORDS[flag]));
      if (FIT_WORDS[r.outcome]) marks.push(make("span", { class: "mark", title: r.advice }, FIT_WORDS[r.outcome]));
      if (wrong) marks.unshift(make("span", { class: "mark" }, "misclassified"));
      line.append(make("td", { class: "marks" }, ...marks));
      return line;
    });
    document.querySelector("#inputs tbody").replaceChildren(...lines);
    $("inputs").classList.toggle("no-pictures", !doc.pictures);
    const total = column("outcome").reduce((sum, o) => sum + (o !== 255), 0);
    $("count").textContent = state.rows.length ? `${state.rows.length} of ${total} inputs; ${first + 1} to ${Math.min(first + PAGE, state.rows.length)} shown` : `0 of ${total} inputs: no input passes these filters`;
    const turn = (by) => () => { state.page += by; list(); $("count").scrollIntoView({ block: "nearest" }); };
    $("pages").replaceChildren(...(pages > 1 ? [
      make("button", { type: "button", disabled: state.page === 0, onclick: turn(-state.page) }, "First"),
      make("button", { type: "button", disabled: state.page === 0, onclick: turn(-1) }, "Previous"),
      make("span", {}, `page ${state.page + 1} of ${pages}`),
      make("button", { type: "button", id: "next", disabled: state.page === pages - 1, onclick: turn(1) }, "Next"),
      make("button", { type: "button", disabled: state.page === pages - 1, onclick: turn(pages - 1 - state.page) }, "Last")] : []));
  }

  function maxima(i, r) {
    const kept = Math.min(norm().quantiles, r.blocks), table = column("quantiles"), values = [];
    let sum = 0;
    for (let k = 0; k < kept; k++) {
      sum += table[i * norm().quantiles + k];
      values.push(r.smallest + (sum / STEPS) * (r.largest - r.smallest));
    }
    return values;
  }

  function convergence(i, r) {
    const points = [];
    for (let k = 0; k < PREFIXES; k++) {
      const blocks = FIRST_PREFIX * 2 ** k, code = column("convergence")[i * PREFIXES + k];
      if (blocks < r.blocks && code) points.push([blocks, r.sampled * 2 ** (((code - 1) / (STEPS - 1)) * 2 * OCTAVES - OCTAVES)]);
    }
    if (r.blocks && !Number.isNaN(r.sampled)) points.push([r.blocks, r.sampled]);
    return points;
  }

  function stability(i, r) {
    const points = [];
    for (let k = 0; k < MERGES; k++) {
      const code = column("stability")[i * MERGES + k];
      if (code) points.push([norm().block_size * 2 ** k, r.largest * 2 ** (((code - 1) / (STEPS - 1)) * 2 * OCTAVES - OCTAVES)]);
    }
    return points;
  }

  function targets(i) {
    const kept = norm().kept_targets, scale = norm().scale, cells = [];
    if (!scale) return cells;
    for (let k = 0; k < kept; k++) {
      const level = column("target_scores")[i * kept + k], code = column("targets")[i * kept + k];
      if (level) cells.push({ target: code & ~ELIMINATED, eliminated: Boolean(code & ELIMINATED), value: Math.exp(Math.log(scale[0]) + ((level - 1) / 254) * Math.log(scale[1] / scale[0])) });
    }
    return cells.sort((a, b) => a.target - b.target);
  }

  function open(i) {
    const r = row(i), dialog = $("detail"), words = `input ${r.id}, classified as ${className(r.predicted)}`;
    const details = [[r.other ? r.method : "score", (r.capped ? "≥ " : "") + short(r.score)], [doc.interval, intervalWords(r)], ["nearest class", className(r.target)], ["margin", short(r.margin)], ["largest gradient norm", short(r.location)], ["K-S p", short(r.ks, 2)], ["A-D p", short(r.ad, 2)], ["fit", r.fit], ["blocks", r.blocks ? `${r.blocks}` : "–"]];
    if (r.other) details.splice(1, 0, [r.other, short(r.second)]);
    if (r.label >= 0) details.splice(2, 0, ["label", className(r.label)]);
    if (!Number.isNaN(r.certified)) details.push(["certified", short(r.certified)]);
    if (!Number.isNaN(r.upper)) details.push(["attack", Number.isFinite(r.upper) ? `${short(r.upper)} (${r.attack})` : "none succeeded"]);
    const list = make("dl", { class: "values" }, ...details.map(([name, value]) => make("div", {}, make("dt", {}, term(doc, name === doc.interval ? "95% interval" : name, name)), make("dd", {}, value))));
    const charts = make("div", { class: "charts" });
    const values = maxima(i, r), points = convergence(i, r), cells = targets(i), profile = norm().profiles && norm().profiles[i];
    if (profile) charts.append(captioned("Radial profile: the steepest fall of the margin across each shell; their area is the margin, and the score is where it is used up (dashed)", profileChart(profile[0], profile[1], r)));
    if (values.length > 1 && r.largest > r.smallest) {
      charts.append(captioned("Block maxima (bars), fitted law (line), end-point (dashed)", fitChart(values, r.law, r.blocks)));
      if (r.law) charts.append(captioned("Q-Q plot: a good fit follows the line", quantileChart(values, r.law, r.blocks)));
    } else if (r.blocks) charts.append(make("p", { class: "note" }, `All ${r.blocks} block maxima are ${short(r.largest)}: there is no tail to draw.`));
    if (points.length > 1) charts.append(captioned("Convergence: the score from the first blocks, and the final interval", convergenceChart(points, r)));
    const merged = stability(i, r);
    if (merged.length > 1) {
      const growth = Number.isNaN(r.drift) ? "" : `, ${r.drift < 0 ? "" : "+"}${short(100 * r.drift, 2)}% per doubling`;
      charts.append(captioned(`Stability: the end-point when blocks are merged${growth}; that of the score (dashed), largest norm met (dotted)`, stabilityChart(merged, r)));
    }
    charts.append(captioned("Certificate (bar), score with interval (dot), attack (cross)", bracketBar(r, Math.max(r.score || 0, Number.isFinite(r.high) ? r.high : 0, Number.isFinite(r.upper) ? r.upper : 0) * 1.05 || 1, 520, true)));
    if (cells.length > 1) {
      const figure = captioned("Score against each target class: dark is near, the outlined one is nearest" + (cells.some((c) => c.eliminated) ? "; ≳ was eliminated early and is rough" : ""), targetChart(cells, r, className));
      figure.classList.add("wide");
      charts.append(figure);
    }
    const place = state.rows.indexOf(i), step = (by) => () => open(state.rows[place + by]);
    const buttons = make("div", { class: "pages" },
      make("button", { type: "button", disabled: place <= 0, onclick: step(-1) }, "Previous input"),
      make("button", { type: "button", disabled: place < 0 || place >= state.rows.length - 1, onclick: step(1) }, "Next input"),
      make("button", { type: "button", id: "close", onclick: () => dialog.close() }, "Close"));
    const title = make("h2", { id: "detail-title", tabindex: "-1" }, `Input ${r.id}, l${norm().name}: ${className(r.predicted)}, nearest ${className(r.target)}`);
    title.style.marginTop = "0";
    const texts = make("div", { class: "grow" }, title, list, make("p", { class: "note" }, `${r.advice}${r.stopped ? ` ${r.stopped}` : ""}`));
    const attacked = adversarial(i), shown = picture(i, `Picture of ${words}`);
    const under = (canvas, text) => make("figure", {}, canvas, make("figcaption", {}, text));
    const pictures = !attacked ? shown : make("div", { class: "triptych" }, under(shown, className(r.predicted)), under(attacked.attacked, `${attacked.found}, after the best attack`), under(attacked.difference, `difference, ${short(attacked.times, 2)} times`));
    dialog.replaceChildren(buttons, make("div", { class: attacked ? "detail-top with-attack" : "detail-top" }, pictures, texts), charts);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    title.focus();
  }

  function options(select, pairs, first) {
    const before = select.value;
    select.replaceChildren(make("option", { value: "" }, first), ...pairs.map(([value, text]) => make("option", { value }, text)));
    select.value = pairs.some(([value]) => String(value) === before) ? before : "";
  }

  function showNorm() {
    state.scale = scaleOfBars();
    const runs = norm().robust ? [{ name: "", robust: norm().robust }] : [];
    const narrow = window.innerWidth < 760;
    $("robust").replaceChildren(...(runs.length ? [make("figcaption", {}, "Share of inputs that are classified correctly and keep their class under every change up to epsilon; misclassified inputs count as 0; bands: 95% intervals over inputs"), robustChart(runs, norm().name, narrow ? 520 : 1040), robustKeys(runs)] : []));
    // A misclassified input counts as 0, as in every median.
    const scores = Array.from(column("score"), (v, i) => (arrays.labels[i] >= 0 && arrays.labels[i] !== arrays.predicted[i] ? 0 : v)), known = scores.filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
    $("distribution").replaceChildren(make("figcaption", {}, `All inputs, l${norm().name}`), distributionChart(scores, norm(), quantile(known, 0.5)));
    const groups = new Map();
    scores.forEach((value, i) => {
      const c = arrays.predicted[i];
      if (!groups.has(c)) groups.set(c, { name: className(c), values: [] });
      groups.get(c).values.push(value);
    });
    const chart = groups.size > 1 ? classChart([...groups.values()], norm()) : null;
    $("by-class").replaceChildren(...(chart ? [make("figcaption", {}, "By predicted class (and its inputs): range (line), middle half (bar), median (tick)"), chart] : []));
    for (const button of $("norms").children) button.setAttribute("aria-checked", String(Number(button.dataset.norm) === state.norm));
    const present = new Set(), outcomes = new Set();
    for (let i = 0; i < count; i++) {
      if (column("outcome")[i] === 255) continue;
      norm().flags.forEach((flag, bit) => { if (column("flags")[i] & (1 << bit)) present.add(flag); });
      outcomes.add(doc.outcomes[column("outcome")[i]][0]);
    }
    const form = $("filters").elements;
    options(form.flag, [...[...present].map((f) => [f, FLAG_WORDS[f]]), ...[...outcomes].sort().map((o) => [`outcome:${o}`, `fit: ${o}`])], "all inputs");
    for (const option of form.sort.options) option.hidden = option.disabled = !sortable(option.value);
    options(form.target, [...new Set(column("target"))].filter((c) => c >= 0).sort((a, b) => a - b).map((c) => [c, className(c)]), "any");
    choose();
  }

  function setUp() {
    const form = $("filters");
    options(form.elements.predicted, [...new Set(arrays.predicted)].sort((a, b) => a - b).map((c) => [c, className(c)]), "any");
    form.addEventListener("input", choose);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(choose));
    doc.norms.forEach((n, place) => $("norms").append(make("button", { type: "button", role: "radio", "data-norm": place, "aria-checked": "false", onclick: () => { state.norm = place; showNorm(); } }, `l${n.name} norm`)));
    if (doc.norms.length < 2) $("norms").hidden = true;
    $("norms").addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      state.norm = (state.norm + by + doc.norms.length) % doc.norms.length;
      showNorm();
      $("norms").children[state.norm].focus();
    });
    const key = (words, part) => make("span", { class: "key" }, part, words);
    const sample = (...parts) => draw("svg", { viewBox: "0 0 34 14", "aria-hidden": "true" }, ...parts);
    const both = doc.norms.find((n) => n.other);
    const keys = [key(both ? both.method : `score with ${doc.interval}`, sample(draw("line", { x1: 3, x2: 31, y1: 7, y2: 7, stroke: "var(--score)", "stroke-width": 3, opacity: 0.55 }), draw("circle", { cx: 17, cy: 7, r: 5, fill: "var(--score)" })))];
    if (both) keys.push(key(both.other, sample(draw("circle", { cx: 17, cy: 7, r: 4.5, fill: "var(--paper)", stroke: "var(--score)", "stroke-width": 2 }))));
    if (doc.norms.some((n) => n.certified)) keys.unshift(key("certified", sample(draw("rect", { x: 3, y: 3, width: 28, height: 9, fill: "var(--lower)" }))));
    if (doc.norms.some((n) => n.attacked)) keys.push(key("best attack", sample(draw("path", { d: "M12 1L22 13M22 1L12 13", stroke: "var(--upper)", "stroke-width": 2.5 }))));
    $("legend").replaceChildren(...keys);
    for (const button of document.querySelectorAll("[data-flag]")) button.addEventListener("click", () => {
      form.reset();
      state.norm = Number(button.dataset.norm);
      showNorm();
      form.elements.flag.value = button.dataset.flag;
      choose();
      $("gallery").scrollIntoView();
      form.elements.flag.focus();
    });
    $("detail").addEventListener("click", (event) => { if (event.target === $("detail")) $("detail").close(); });
    showNorm();
  }
  if (count && doc.norms.length) setUp();
  else document.documentElement.classList.add("no-program");

  const values = () => Object.fromEntries([...$("filters").elements].filter((e) => e.name).map((e) => [e.name, e.value]));
  return {
    view: () => ({ norm: state.norm, page: state.page, values: values() }),
    restore: (view) => {
      if (!count) return;
      state.norm = view.norm;
      showNorm();
      for (const [name, value] of Object.entries(view.values)) $("filters").elements[name].value = value;
      choose();
      state.page = Math.min(view.page, Math.max(0, Math.ceil(state.rows.length / PAGE) - 1));
      list();
    },
  };
}

// A live page asks its own server whether there is more, and then shows the new page with the same filters; an open
// dialog is left alone.
function keepFresh(live, shown) {
  const key = "cleverscore-view";
  try {
    const view = sessionStorage.getItem(key);
    if (view) shown.restore(JSON.parse(view));
  } catch { /* no storage: filters start anew */ }
  setInterval(async () => {
    if ($("detail").open || document.hidden) return;
    try {
      const answer = await fetch("state", { cache: "no-store" });
      if (!answer.ok || (await answer.text()) === live) return;
      try { sessionStorage.setItem(key, JSON.stringify(shown.view())); } catch { /* as above */ }
      location.reload();
    } catch { /* the server has ended: the page stays as it is */ }
  }, 2000);
}

setUpTheme();
unpack($("data").textContent).then(([doc, arrays]) => {
  const shown = startReport(doc, arrays);
  if (doc.live) keepFresh(doc.live, shown);
  document.documentElement.dataset.ready = "yes";
}).catch(failed);
