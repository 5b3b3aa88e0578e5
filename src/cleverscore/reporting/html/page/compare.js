// The comparison: one scatter plot and one list of the inputs that changed most per pair of runs and norm.
function scatterChart(first, second, names, norm, kind) {
  const largest = (values) => values.reduce((a, b) => Math.max(a, b), 0);
  const high = Math.max(largest(first), largest(second)) * 1.03 || 1;
  const above = second.filter((v, i) => v > first[i]).length;
  const title = `Scores of ${first.length} inputs, ${names[0]} across and ${names[1]} upwards, l${norm}: ${above} lie above the diagonal`;
  const p = plot({ title, xName: `${kind} of ${names[0]}`, yName: `${kind} of ${names[1]}`, x: [0, high], y: [0, high], height: 420 });
  p.svg.append(draw("line", { x1: p.x(0), y1: p.y(0), x2: p.x(high), y2: p.y(high), stroke: "var(--soft)", "stroke-dasharray": "5 4" }));
  const drawn = Math.max(1, Math.floor(first.length / 4000));
  for (let i = 0; i < first.length; i += drawn) {
    const up = second[i] > first[i], x = p.x(first[i]), y = p.y(second[i]);
    p.svg.append(up ? draw("circle", { cx: x, cy: y, r: 3.4, fill: "var(--score)", opacity: 0.75 })
      : draw("path", { d: `M${x - 3.5} ${y - 3}h7l-3.5 6.5z`, fill: "var(--upper)", opacity: 0.75 }));
  }
  return p.svg;
}

function changedTable(doc, arrays, pair, names) {
  const head = make("tr", {}, ...["picture", "input", names[0], names[1], "difference"].map((name) => make("th", { scope: "col" }, name)));
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
    const chart = captioned("Circles above the diagonal: more robust in the second; triangles below: less", scatterChart(arrays[`${k}.first`], arrays[`${k}.second`], names, pair.norm, `${pair.method} score`));
    const list = make("figure", {}, make("figcaption", {}, pair.most.length ? "Inputs that changed most" : "No score changed"), make("div", { class: "scroll" }, changedTable(doc, arrays, pair, names)));
    const heading = make("h3", {}, `A and ${pair.letter}, l${pair.norm} norm`);
    $("pairs").append(heading);
    if (pair.robust) {
      const runs = [{ name: "A", robust: pair.robust[0], dash: "7 5" }, { name: pair.letter, robust: pair.robust[1] }];
      const words = "Share of inputs that are classified correctly and keep their class under every change up to epsilon; misclassified inputs count as 0";
      const figure = captioned(words, robustChart(runs, pair.norm, window.innerWidth < 760 ? 520 : 1040));
      figure.classList.add("robust");
      figure.append(robustKeys(runs));
      $("pairs").append(figure);
    }
    $("pairs").append(make("div", { class: "pair" }, chart, list));
  });
  document.documentElement.dataset.ready = "yes";
}).catch(failed);
