// The comparison: one scatter plot and one list of the inputs that changed most per pair of runs and norm.
// Every model has a colour, the same in all plots and tables of the page.
function scatterChart(first, second, names, colors, norm, kind) {
  const largest = (values) => values.reduce((a, b) => Math.max(a, b), 0);
  const high = Math.max(largest(first), largest(second)) * 1.03 || 1;
  const above = second.filter((v, i) => v > first[i]).length;
  const title = `Scores of ${first.length} inputs, ${names[0]} across and ${names[1]} upwards, l${norm}: ${above} lie above the diagonal`;
  const p = plot({ title, xName: `${kind} of ${names[0]}`, yName: `${kind} of ${names[1]}`, x: [0, high], y: [0, high], height: 420 });
  p.svg.append(draw("line", { x1: p.x(0), y1: p.y(0), x2: p.x(high), y2: p.y(high), stroke: "var(--soft)", "stroke-dasharray": "5 4" }));
  const drawn = Math.max(1, Math.floor(first.length / 4000));
  for (let i = 0; i < first.length; i += drawn) {
    const up = second[i] > first[i], x = p.x(first[i]), y = p.y(second[i]);
    p.svg.append(up ? draw("circle", { cx: x, cy: y, r: 3.4, fill: colors[1], opacity: 0.75 })
      : draw("path", { d: `M${x - 3.5} ${y - 3}h7l-3.5 6.5z`, fill: colors[0], opacity: 0.75 }));
  }
  return p.svg;
}

const marked = (name, color) => make("span", { class: `model model-${color}` }, name);

function changedTable(doc, arrays, pair, names) {
  const head = make("tr", {}, ...["picture", "input", marked(names[0], 0), marked(names[1], pair.color), "difference"].map((name) => make("th", { scope: "col" }, name)));
  const lines = pair.most.map(([place, id, first, second]) => {
    const gap = second - first;
    return make("tr", {}, make("td", {}, pictureOf(doc, arrays, place, `Picture of input ${id}`) || "–"), make("td", {}, `#${id}`), make("td", { class: "number" }, short(first)),
      make("td", { class: "number" }, short(second)), make("td", { class: "number" }, `${gap > 0 ? "+" : ""}${short(gap)}`));
  });
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines));
}

setUpTheme();
unpack($("data").textContent).then(([doc, arrays]) => {
  doc.pairs.forEach((pair, k) => {
    if (!arrays[`${k}.first`].length) return;
    const names = ["A", pair.letter];
    const colors = [0, pair.color].map((number) => `var(--model-${number})`);
    const chart = captioned(`Circles above the diagonal: inputs that are more robust in ${names[1]}; triangles below: in ${names[0]}`, scatterChart(arrays[`${k}.first`], arrays[`${k}.second`], names, colors, pair.norm, `${pair.method} score`));
    const list = make("figure", {}, make("figcaption", {}, pair.most.length ? "Inputs that changed most" : "No score changed"), make("div", { class: "scroll" }, changedTable(doc, arrays, pair, names)));
    const heading = make("h3", {}, marked("A", 0), " and ", marked(pair.letter, pair.color), `, l${pair.norm} norm`);
    $("pairs").append(heading);
    if (pair.robust) {
      const runs = names.map((name, i) => ({ name, robust: pair.robust[i], color: colors[i] }));
      const words = "Share of inputs that are classified correctly and keep their class under every change up to epsilon; misclassified inputs count as 0. A colour for each model, a line style for each kind";
      const figure = captioned(words, robustChart(runs, pair.norm, window.innerWidth < 760 ? 520 : 1040));
      figure.classList.add("robust");
      figure.append(robustKeys(runs));
      $("pairs").append(figure);
    }
    $("pairs").append(make("div", { class: "pair" }, chart, list));
  });
  document.documentElement.dataset.ready = "yes";
}).catch(failed);
