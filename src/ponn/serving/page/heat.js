// The relevance heat map: which fact matters for which action. A table, so that it can be read without seeing colours.

import { make, newId, plain, put, show, unseen } from "./dom.js";

const FIRST = 15; // rows shown at first
const [LIGHT, DARK] = [[240, 247, 249], [9, 78, 92]]; // ends of a single-hue scale

/** Draw the map of `about.relevance` into a place. */
export function drawHeatMap(place, about) {
  if (!about.relevance?.length) {
    put(place, make("p", {}, "This policy was learned by a method that looks at every fact for every action."));
    return;
  }
  const lines = new Map(about.relevance.map((one) => [key(one.action, one.feature), one]));
  const most = Math.max(...about.relevance.map((one) => one.relevance), 0) || 1;
  const names = [...new Set(about.relevance.map((one) => one.feature))];
  const strongest = (name) => Math.max(...about.actions.map((action) => lines.get(key(action, name))?.relevance ?? 0));
  names.sort((one, two) => strongest(two) - strongest(one));
  const rows = names.map((name, at) => heatRow(name, about.actions, lines, most, at >= FIRST));
  const head = make(
    "tr",
    {},
    make("td", {}),
    ...about.actions.map((action) => make("th", { scope: "col" }, make("span", {}, show(action)))),
  );
  const legend = make(
    "p",
    { class: "hint" },
    "The darker, the more a fact tells about how an action turns out. A dot: the policy looks at it.",
  );
  const table = make("table", { class: "heat" }, make("thead", {}, head), make("tbody", {}, ...rows));
  const scroll = make(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Relevance of each fact for each action" },
    table,
  );
  put(place, legend, scroll, controls(table, rows));
}

const key = (action, feature) => JSON.stringify([action, feature]);

function heatRow(name, actions, lines, most, hidden) {
  const cells = actions.map((action) => heatCell(lines.get(key(action, name)), most));
  return make("tr", { hidden }, make("th", { scope: "row" }, plain(name)), ...cells);
}

function heatCell(line, most) {
  if (!line) return make("td", {});
  const strength = Math.sqrt(Math.max(line.relevance, 0) / most); // the root keeps small values apart
  const place = `${show(line.action)}, ${plain(line.feature)}`;
  const told = `${place}: ${show(line.relevance)}${line.selected ? ", looked at" : ""}`;
  const cell = make(
    "td",
    { title: told },
    make("span", { class: "dot", "aria-hidden": "true" }, line.selected ? "●" : ""),
    make("span", { class: "number" }, show(line.relevance)),
    line.selected ? unseen("looked at") : null,
  );
  const ground = LIGHT.map((from, at) => Math.round(from + (DARK[at] - from) * strength));
  cell.style.backgroundColor = `rgb(${ground.join(" ")})`;
  cell.style.color = luminance(ground) > 0.179 ? "#000" : "#fff"; // whichever stands out more: at least 4.5 to 1
  return cell;
}

/** How bright a colour is, by the rule of the accessibility guidelines. */
function luminance(colour) {
  const [red, green, blue] = colour.map(
    (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4),
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function controls(table, rows) {
  const id = newId("numbers");
  const box = make("input", { type: "checkbox", id, onchange: () => table.classList.toggle("numbers", box.checked) });
  const showAll = () => {
    for (const row of rows) row.hidden = false;
    all.remove();
  };
  const all = make("button", { type: "button", class: "button", onclick: showAll }, `Show all ${rows.length} facts`);
  return make(
    "p",
    { class: "controls" },
    box,
    make("label", { for: id }, "Show the numbers"),
    rows.length > FIRST ? all : null,
  );
}
