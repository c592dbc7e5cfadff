// Elements and words. Text only ever becomes a text node, so nothing from data is read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes, listeners (`onclick: f`) and children (elements, texts; null is left out). */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for a shape of a drawing. */
export function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replace what is in a place. */
export function put(place, ...children) {
  place.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

/** Text for screen readers alone. */
export function unseen(text) {
  return make("span", { class: "unseen" }, text);
}

let made = 0;

/** A new id, to tie a label to its field. */
export function newId(stem) {
  made += 1;
  return `${stem}-${made}`;
}

// Words -------------------------------------------------------------------------------------------------

/** A column's name as people would write it. */
export function plain(name) {
  return String(name).replaceAll("_", " ");
}

/** A number with as many digits as a reader wants. */
export function show(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not known";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

/** A share in per cent; what is neither nothing nor all is not written as such. */
export function percent(share) {
  if (share > 0 && share < 0.005) return "under 1 %";
  if (share < 1 && share > 0.995) return "over 99 %";
  return `${Math.round(100 * share)} %`;
}

/** A count with its noun. */
export function count(number, noun, nouns = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : nouns}`;
}

/** A file's size in words. */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  const [unit, name] = bytes < 1e6 ? [1e3, "kB"] : bytes < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  return `${show(bytes / unit)} ${name}`;
}

/** Call `act` once nothing has asked for it for a while. */
export function afterPause(milliseconds, act) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, milliseconds);
  };
}

/** Offer bytes as a file to save; returns the link. */
export function savedAs(blob, name, words) {
  return make("a", { class: "button", href: URL.createObjectURL(blob), download: name }, words);
}
