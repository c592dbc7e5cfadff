// A form made from the policy's schema: one field per feature, with a slider for numbers. Keeps the case as a row.

import { make, newId, plain, put, show } from "./dom.js";

const FIRST = 12; // fields shown before "more facts"; a screenful

/** The form. `onchange` is called with the row after every change a person made. */
export class CaseForm {
  constructor(place, features, { order, unused, onchange }) {
    this.fields = new Map();
    for (const feature of features) this.fields.set(feature.name, makeField(feature, onchange));
    const sorted = [...features].sort((one, two) => order(two.name) - order(one.name));
    const used = sorted.filter((one) => !unused.has(one.name));
    const groups = [
      [null, used.slice(0, FIRST)],
      [`${used.length - FIRST} more facts`, used.slice(FIRST)],
      ["Facts this policy does not look at", sorted.filter((one) => unused.has(one.name))],
    ];
    put(place, ...groups.filter(([, some]) => some.length).map(([title, some]) => this.group(title, some)));
  }

  group(title, features) {
    const fields = make("div", { class: "fields" }, ...features.map((one) => this.fields.get(one.name).element));
    return title ? make("details", { class: "more" }, make("summary", {}, title), fields) : fields;
  }

  /** The case as the server takes it. */
  get row() {
    return Object.fromEntries([...this.fields].map(([name, field]) => [name, field.get()]));
  }

  set row(row) {
    for (const [name, field] of this.fields) field.set(row[name] ?? null);
  }

  /** Is every field readable? */
  get valid() {
    return [...this.fields.values()].every((field) => field.valid());
  }

  /** Say what is wrong at a field; an empty text clears it. */
  complain(name, text) {
    for (const [other, field] of this.fields) field.complain(other === name ? text : "");
    const at = this.fields.get(name);
    if (at && text) at.element.closest("details")?.setAttribute("open", "");
  }
}

function makeField(feature, onchange) {
  if (feature.kind === "boolean") return choiceField({ ...feature, levels: [true, false] }, onchange);
  return feature.kind === "category" ? choiceField(feature, onchange) : numberField(feature, onchange);
}

/** What every field has: a label, a place for a complaint. */
function frame(feature, id, ...parts) {
  const problem = make("p", { class: "problem", id: `${id}-problem`, hidden: true });
  const element = make("div", { class: "field" }, make("label", { for: id }, plain(feature.name)), ...parts, problem);
  const complain = (text) => {
    put(problem, text);
    problem.hidden = !text;
    element.querySelector(`#${id}`).setAttribute("aria-invalid", text ? "true" : "false");
  };
  return { element, complain };
}

const NOT_KNOWN = "\u0000";

function choiceField(feature, onchange) {
  const id = newId("field");
  const options = feature.levels.map((level, at) => make("option", { value: String(at) }, show(level)));
  const unknown = make("option", { value: NOT_KNOWN }, "not known");
  const select = make("select", { id, "aria-describedby": `${id}-problem`, onchange }, ...options, unknown);
  const levels = [...feature.levels];
  const set = (value) => {
    if (value === null) {
      select.value = NOT_KNOWN;
      return;
    }
    let at = levels.findIndex((level) => String(level) === String(value));
    if (at < 0) {
      at = levels.push(value) - 1; // a level the policy never saw: shown, and the server says so
      unknown.before(make("option", { value: String(at) }, show(value)));
    }
    select.value = String(at);
  };
  const get = () => (select.value === NOT_KNOWN ? null : levels[Number(select.value)]);
  return { ...frame(feature, id, select), get, set, valid: () => true };
}

function numberField(feature, onchange) {
  const id = newId("field");
  const isDate = feature.kind === "date";
  const [low, high] = [Number(feature.low), Number(feature.high)];
  const box = make("input", {
    id,
    type: isDate ? "date" : "number",
    step: isDate ? null : "any",
    placeholder: "not known",
    "aria-describedby": `${id}-hint ${id}-problem`,
  });
  const slides = !isDate && Number.isFinite(low) && Number.isFinite(high) && high > low;
  const slider = slides ? makeSlider(feature) : null;
  const hint = make("span", { class: "hint", id: `${id}-hint` });
  const reflect = () => {
    const value = Number(box.value);
    const known = box.value !== "";
    const outside = slides && known && (value < low || value > high);
    put(hint, !known ? "not known" : outside ? `outside the log: ${show(low)} to ${show(high)}` : "");
    hint.classList.toggle("warns", outside);
    if (slider) slider.classList.toggle("dim", !known);
    if (slider && known) slider.value = box.value;
  };
  box.addEventListener("input", () => {
    reflect();
    onchange();
  });
  slider?.addEventListener("input", () => {
    box.value = slider.value;
    reflect();
    onchange();
  });
  const set = (value) => {
    box.value = value ?? "";
    if (slider) slider.value = value ?? feature.usual ?? (low + high) / 2;
    reflect();
  };
  const get = () => (box.value === "" ? null : isDate ? box.value : Number(box.value));
  const number = make("div", { class: "number" }, box, hint);
  const framed = frame(feature, id, number, slider, slides ? ends(low, high) : null);
  const valid = () => {
    framed.complain(box.validity.badInput ? "This is not a number." : "");
    return !box.validity.badInput;
  };
  return { ...framed, get, set, valid };
}

function makeSlider(feature) {
  const [step, name] = [stepOf(feature), `${plain(feature.name)}, slider`];
  return make("input", { type: "range", min: feature.low, max: feature.high, step, "aria-label": name });
}

function ends(low, high) {
  const both = [low, high].map((end) => make("span", {}, show(end)));
  return make("span", { class: "ends", "aria-hidden": "true" }, ...both);
}

/** Whole steps where the column holds whole numbers, else a round step near a hundredth of the range. */
function stepOf({ low, high, usual, whole }) {
  if (whole || (whole === undefined && [low, high, usual].every(Number.isInteger))) return 1;
  const rough = 10 ** Math.floor(Math.log10((high - low) / 100));
  return [1, 2, 5, 10].map((one) => Number((one * rough).toPrecision(1))).find((step) => (high - low) / step <= 200);
}
