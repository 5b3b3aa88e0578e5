// What all pages share: elements, numbers, packed data, pictures, themes.
// Text from outside reaches the page through textContent alone.
"use strict";
const KINDS = { f4: Float32Array, u2: Uint16Array, u1: Uint8Array, i4: Int32Array };
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  fill(element, attributes, children);
  return element;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
}

function short(value, digits = 4) {
  if (value === null || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(digits - 1) : Number(value.toPrecision(digits)).toString();
}

const $ = (id) => document.getElementById(id);

async function unpack(text) {
  const coded = atob(text), bytes = new Uint8Array(coded.length);
  for (let i = 0; i < coded.length; i++) bytes[i] = coded.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8, arrays = {};
  for (const [name, [kind, offset, size]] of Object.entries(header.arrays)) arrays[name] = new KINDS[kind](buffer, start + offset, size);
  return [header, arrays];
}

// A term that explains itself where a reader points at it.
function term(doc, name, text = name) {
  const words = doc.terms && doc.terms[name];
  return words ? make("span", { class: "term", tabindex: "0", "data-tip": words }, text) : text;
}

// The picture of the input at a place, on a canvas; null where there is none.
function pictureOf(doc, arrays, i, label) {
  const shape = doc.pictures, place = shape ? arrays.picture[i] : -1;
  if (place < 0) return null;
  const { height, width, channels } = shape, size = height * width * channels;
  return canvasOf(shape, label, (k, c) => arrays.pixels[place * size + k * channels + (channels === 3 ? c : 0)]);
}

// A picture from a function that gives the brightness of pixel k in colour c.
function canvasOf({ height, width }, label, value) {
  const canvas = make("canvas", { width, height, role: "img", "aria-label": label });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let k = 0; k < height * width; k++) {
    for (let c = 0; c < 3; c++) image.data[4 * k + c] = value(k, c);
    image.data[4 * k + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function setUpTheme() {
  const root = document.documentElement, button = $("theme"), order = ["auto", "light", "dark"];
  const use = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    button.querySelector("span").textContent = name;
  };
  let now = "auto";
  try { now = localStorage.getItem("cleverscore-theme") || "auto"; } catch { /* pages opened from a file may have no storage */ }
  use(order.includes(now) ? now : "auto");
  button.addEventListener("click", () => {
    now = order[(order.indexOf(now) + 1) % order.length];
    use(now);
    try { localStorage.setItem("cleverscore-theme", now); } catch { /* as above */ }
  });
}

function failed(error) {
  document.documentElement.classList.add("no-program");
  $("count").textContent = `This part of the page cannot be shown (${error.message}); a browser from 2023 or newer is needed.`;
  console.error(error);
}
