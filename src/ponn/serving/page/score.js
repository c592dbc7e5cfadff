// Recommendations for a whole file: choose it, get a file back.

import { send } from "./api.js";
import { count, make, newId, put, savedAs } from "./dom.js";

/** Put the form into a place; the file goes to `path` and comes back with recommendations. */
export function mountScore(place, path) {
  const id = newId("rows");
  const file = make("input", { type: "file", id, accept: ".csv,text/csv", required: true });
  const told = make("div", { class: "told", role: "status", "aria-live": "polite" });
  const button = make("button", { class: "button main" }, "Recommend for every row");
  const work = async (event) => {
    event.preventDefault();
    button.disabled = true;
    put(told, "Working ...");
    try {
      put(told, ...(await scored(path, file.files[0])));
    } catch (error) {
      put(told, make("p", { class: "problem" }, error.message));
    }
    button.disabled = false;
  };
  const label = make("label", { for: id }, "A CSV file with one case per line and the same columns as the log");
  put(place, make("form", { class: "score", onsubmit: work }, label, file, button), told);
}

async function scored(path, file) {
  const answer = await send(path, { method: "POST", headers: { "Content-Type": "text/csv" }, body: file });
  const blob = await answer.blob();
  const rows = (await blob.text()).split("\n").filter((line) => line.trim()).length - 1;
  const name = `${file.name.replace(/\.csv$/i, "")}-recommended.csv`;
  return [make("p", {}, `Done: ${count(rows, "row")}.`), savedAs(blob, name, `Save ${name}`)];
}
