// Try the policy on a case: the form on one side, the answer on the other, live. Used by the page and by the studio.

import { Refused, post } from "./api.js";
import { AnswerPanel } from "./answer.js";
import { afterPause, make, plain, put, show } from "./dom.js";
import { CaseForm } from "./form.js";

const PAUSE = 150; // milliseconds without a change before the server is asked

/** Put form and answer into a place; recommendations come from `path`. */
export function mountTrial(place, about, path) {
  const form = make(
    "form",
    { class: "case card", "aria-label": "The case", onsubmit: (event) => event.preventDefault() },
  );
  const panel = make("section", { class: "result card", "aria-label": "The recommendation" });
  put(place, form, panel);
  return new Trial(form, panel, about, path);
}

class Trial {
  constructor(form, panel, about, path) {
    this.path = path;
    this.asked = 0; // the number of the newest question: only its answer is shown
    this.waiting = null;
    this.start = null; // the case that changes are compared with, and its answer
    this.panel = new AnswerPanel(panel, about);
    const fields = make("div", {});
    const askSoon = afterPause(PAUSE, () => this.ask());
    this.undo = make(
      "button",
      { type: "button", class: "button", hidden: true, onclick: () => this.load(this.start.row) },
      "Undo my changes",
    );
    put(form, this.starts(about), fields, this.undo);
    this.form = new CaseForm(fields, fieldsOf(about), {
      order: strongestRelevance(about),
      unused: unusedFeatures(about),
      onchange: () => {
        this.panel.wait();
        askSoon();
      },
    });
    this.load(casesOf(about)[0][1]);
  }

  /** Buttons that fill the form. */
  starts(about) {
    const order = strongestRelevance(about);
    const telling = [...about.features].sort((one, two) => order(two.name) - order(one.name)).slice(0, 3);
    const cases = casesOf(about);
    const buttons = cases.map(([name, row]) => {
      const title = telling.map((one) => `${plain(one.name)} ${show(row[one.name] ?? null)}`).join(", ");
      return make("button", { type: "button", class: "chip", title, onclick: () => this.load(row) }, name);
    });
    return make(
      "div",
      { class: "starts", role: "group", "aria-label": "Start from" },
      make("span", {}, "Start from"),
      ...buttons,
    );
  }

  load(row) {
    this.form.row = row;
    this.start = null;
    this.ask();
  }

  /** Ask for the case as it stands. An answer that comes after a newer question is dropped. */
  async ask() {
    this.waiting?.abort();
    if (!this.form.valid) return;
    const [number, row] = [++this.asked, this.form.row];
    this.waiting = new AbortController();
    this.panel.wait();
    try {
      const body = { rows: [row], reasons: true, probabilities: true };
      const found = await post(this.path, body, this.waiting.signal);
      if (number === this.asked) this.show(row, found.recommendations[0]);
    } catch (error) {
      if (error.name !== "AbortError" && number === this.asked) this.fail(error);
    }
  }

  show(row, answer) {
    this.form.complain(null, "");
    this.start ??= { row, answer };
    const changes = Object.keys(row).filter((name) => row[name] !== this.start.row[name]);
    const told = changes.map((name) => ({ name, from: this.start.row[name], to: row[name] }));
    this.undo.hidden = !changes.length;
    this.panel.show(answer, changes.length ? this.start.answer : null, told);
  }

  fail(error) {
    if (error instanceof Refused && error.field) this.form.complain(error.field, error.message);
    this.panel.fail(error.message);
  }
}

/** How much a feature matters for the action for which it matters most. */
function strongestRelevance(about) {
  const found = new Map();
  for (const one of about.relevance ?? []) {
    const value = one.relevance + (one.selected ? 1e6 : 0); // what the policy looks at comes first
    found.set(one.feature, Math.max(found.get(one.feature) ?? 0, value));
  }
  return (name) => found.get(name) ?? 0;
}

/** Features that no action looks at. */
function unusedFeatures(about) {
  const used = new Set(Object.values(about.selected ?? {}).flat());
  return new Set(used.size ? about.features.map((one) => one.name).filter((name) => !used.has(name)) : []);
}

/** Cases to start from, with their names; a policy without examples has its usual values. */
function casesOf(about) {
  if (about.examples?.length) return about.examples.map((row, at) => [`Example ${at + 1}`, row]);
  return [["A usual case", Object.fromEntries(fieldsOf(about).map((one) => [one.name, one.usual ?? null]))]];
}

/** The fields of a case: the features, and what the policy's rules look at beside them. */
function fieldsOf(about) {
  return [...about.features, ...(about.eligibility?.fields ?? [])];
}
