// Which column is what: two choices that matter, the others behind them. Starts from the server's guess.

import { make, newId, plain, put } from "./dom.js";

const NONE = "";
const OTHERS = [
  ["propensity", "The probability with which the action was chosen, where a system recorded it"],
  ["group", "The person (or shop, class, ...) that several rows belong to"],
  ["time", "The date: judge the policy on later cases than it learned from"],
  ["weight", "How much each row counts"],
];

/** The form. `onchange` is called after every change. */
export class ColumnsForm {
  constructor(place, file, onchange) {
    this.file = file;
    this.selects = {};
    const main = make(
      "div",
      { class: "fields two" },
      this.choice("action", "What was done? (the action)", file.guess.action, onchange),
      this.choice("reward", "How did it turn out? (a number or true/false)", file.guess.reward, onchange),
    );
    const others = OTHERS.map(([role, words]) => this.choice(role, words, file.guess[role], onchange));
    this.less = make("input", { type: "checkbox", id: newId("less"), checked: file.guess.minimize, onchange });
    this.drop = make("input", { type: "checkbox", id: newId("drop"), onchange });
    put(
      place,
      main,
      make(
        "p",
        { class: "controls" },
        this.less,
        make("label", { for: this.less.id }, "A small outcome is good (cost, days in hospital, death)"),
      ),
      make(
        "details",
        { class: "more" },
        make("summary", {}, "Which columns count as facts, and rarer roles"),
        this.table(onchange),
        make("div", { class: "fields two" }, ...others),
        make(
          "p",
          { class: "controls" },
          this.drop,
          make("label", { for: this.drop.id }, "Leave out rows without action or outcome"),
        ),
      ),
    );
    this.reflect();
  }

  choice(role, words, guess, onchange) {
    const id = newId(role);
    const options = this.file.columns.map(
      (one) => make("option", { value: one.name, selected: one.name === guess }, describe(one)),
    );
    const none = make(
      "option",
      { value: NONE, selected: guess === null || guess === undefined },
      role === "action" || role === "reward" ? "choose a column" : "none",
    );
    const changed = () => {
      this.reflect();
      onchange();
    };
    this.selects[role] = make("select", { id, onchange: changed }, none, ...options);
    return make("div", { class: "field" }, make("label", { for: id }, words), this.selects[role]);
  }

  /** Every column with a tick whether it counts as a fact about the case. */
  table(onchange) {
    this.ticks = new Map();
    const rows = this.file.columns.map((one) => {
      const id = newId("fact");
      const tick = make("input", { type: "checkbox", id, checked: Boolean(one.kind) && !one.identifier, onchange });
      const note = make("span", { class: "hint" });
      this.ticks.set(one.name, { tick, note });
      const missing = one.missing ? `${one.missing.toLocaleString("en")} missing` : "";
      return make(
        "tr",
        {},
        make("td", {}, tick),
        make("td", {}, make("label", { for: id }, one.name), " ", note),
        make("td", {}, one.kind || "cannot be used"),
        make("td", {}, one.examples.join(", ")),
        make("td", {}, missing),
      );
    });
    const head = ["Fact", "Column", "Kind", "Such as", ""].map((text) => make("th", { scope: "col" }, text));
    const hint = make(
      "p",
      { class: "hint" },
      "Take the tick away from everything that was not known before the decision.",
    );
    return make(
      "div",
      {},
      hint,
      make(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Columns" },
        make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)),
      ),
    );
  }

  /** A column with a role is no fact. */
  reflect() {
    const taken = new Map(Object.entries(this.selects).map(([role, select]) => [select.value, role]));
    for (const [name, { tick, note }] of this.ticks) {
      tick.disabled = taken.has(name);
      put(note, taken.has(name) ? `(${taken.get(name) === "reward" ? "outcome" : taken.get(name)})` : null);
    }
  }

  /** Why one cannot go on yet; null if one can. */
  get problem() {
    const used = Object.values(this.selects).map((select) => select.value).filter((value) => value !== NONE);
    if (this.selects.action.value === NONE || this.selects.reward.value === NONE) {
      return "Say above which column holds the action and which the outcome.";
    }
    return new Set(used).size < used.length ? "One column has two roles: give each role a column of its own." : null;
  }

  /** Leave out rows without action or outcome. */
  leaveOut() {
    this.drop.click();
  }

  /** The roles as the server takes them. */
  get roles() {
    const named = Object.fromEntries(
      Object.entries(this.selects).map(([role, select]) => [role, select.value === NONE ? null : select.value]),
    );
    const ignore = [...this.ticks].filter(([, { tick }]) => !tick.checked && !tick.disabled).map(([name]) => name);
    return { ...named, ignore, minimize: this.less.checked, drop_missing: this.drop.checked };
  }
}

function describe(column) {
  const values = column.examples.join(", ");
  const short = values.length > 40 ? `${values.slice(0, 40)} ...` : values;
  return values ? `${plain(column.name)} (${short})` : plain(column.name);
}
