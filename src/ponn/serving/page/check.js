// What `check` found, for people.

import { count, make, percent, plain, put, show } from "./dom.js";

const FLAGS = / \(drop_missing=True, --drop-missing\)/; // the remedy for those who type; here it is a button

/** Draw the answer into a place. `leaveOut` is called when rows without action or outcome are to be left out. */
export function drawCheck(place, found, roles, leaveOut) {
  put(
    place,
    answer(found, leaveOut),
    actions(found, roles),
    list("Worth a look", found.suspicious, "warns"),
    list("What reading changed", found.notes),
    features(found),
  );
}

function answer(found, leaveOut) {
  const words = found.ready ? `Yes: ${found.why}` : `Not yet: ${found.why.replace(FLAGS, "")}`;
  const remedy = !found.ready && FLAGS.test(found.why)
    ? make("p", {}, make("button", { type: "button", class: "button", onclick: leaveOut }, "Leave these rows out"))
    : null;
  return make("div", { class: `verdict ${found.ready ? "good" : "bad"}` }, make("p", {}, make("b", {}, words)), remedy);
}

function actions(found, roles) {
  if (!found.actions.length) return null;
  const most = Math.max(...found.actions.map((one) => one.rows));
  const overlap = new Map(found.overlap.map((one) => [one.action, one]));
  const rows = found.actions.map((one) => {
    const length = make("span", { class: "length" });
    length.style.width = `${(100 * one.rows) / most}%`;
    const weighs = overlap.get(one.action)?.effective_rows;
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, show(one.action)),
      make("td", { class: "wider" }, make("span", { class: "track", "aria-hidden": "true" }, length)),
      make("td", { class: "share" }, `${one.rows.toLocaleString("en")} (${percent(one.rows / found.rows)})`),
      make("td", { class: "share" }, show(one.mean_reward)),
      make("td", { class: "share" }, weighs === undefined ? "" : show(Math.round(weighs))),
    );
  });
  const heads = ["What was done", "", "Cases", `Mean ${plain(roles.reward)}`, "Counts as"];
  const table = make(
    "table",
    { class: "plain" },
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows),
  );
  const hint = make(
    "p",
    { class: "hint" },
    "The cases of an action were not chosen at random. With that evened out they count as fewer; the more, the better.",
  );
  return make(
    "div",
    {},
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Actions" }, table),
    found.overlap.length ? hint : null,
  );
}

function list(title, lines, look = "") {
  if (!lines.length) return null;
  return make(
    "section",
    {},
    make("h3", {}, title),
    make("ul", { class: look }, ...lines.map((one) => make("li", {}, one))),
  );
}

function features(found) {
  const rows = found.features.map((one) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, plain(one.name)),
      make("td", {}, one.kind),
      make("td", {}, one.values),
      make("td", {}, one.missing ? `${one.missing.toLocaleString("en")} missing` : ""),
    ),
  );
  const table = make("table", { class: "plain" }, make("tbody", {}, ...rows));
  return make(
    "details",
    { class: "more" },
    make("summary", {}, count(found.features.length, "fact about each case", "facts about each case")),
    table,
  );
}
