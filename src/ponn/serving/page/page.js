// The page of a served policy.

import { get, hasToken, send } from "./api.js";
import { facts, verdict } from "./about.js";
import { make, plain, put, savedAs } from "./dom.js";
import { drawHeatMap } from "./heat.js";
import { mountScore } from "./score.js";
import { mountTrial } from "./trial.js";

const place = (id) => document.getElementById(id);

async function open() {
  const about = await get("policy");
  const action = plain(about.provenance?.columns?.action ?? "action");
  document.title = `Which ${action}? · ponn`;
  put(place("title"), `Which ${action} for this case?`);
  const aim = about.reward.minimize ? "as little" : "as much";
  put(
    place("lead"),
    `Learned from past cases: what was known, which ${action} was chosen, how it turned out. `,
    `It aims at ${aim} “${plain(about.reward.name)}” as possible. `,
    "Fill in a case, then move things and watch what changes.",
  );
  put(place("verdict"), verdict(about.evaluation, about.reward));
  mountTrial(place("trial"), about, "recommend");
  drawHeatMap(place("heat"), about);
  mountScore(place("score"), "score");
  put(place("facts"), ...facts(about));
  if (about.report) showReport();
  place("main").hidden = false;
}

/** The report in a frame; behind a token a frame cannot send it, so the report is fetched and saved. */
function showReport() {
  place("report-part").hidden = false;
  place("report-link").hidden = false;
  if (hasToken()) {
    const fetched = async () => put(
      place("report"),
      savedAs(await (await send("report")).blob(), "report.html", "Save the report"),
    );
    put(place("report"), make("button", { type: "button", class: "button", onclick: fetched }, "Get the report"));
    return;
  }
  const link = make(
    "a",
    { class: "button", href: "report", target: "_blank", rel: "noopener" },
    "Open the report in a tab of its own",
  );
  const frame = make("iframe", { src: "report", title: "The report", loading: "lazy", sandbox: "allow-scripts" });
  put(place("report"), make("p", {}, link), frame);
}

open().catch((error) => {
  put(place("failure"), error.message);
  place("failure").hidden = false;
});
