// What a policy is worth and where it comes from, in words.

import { count, make, plain, show } from "./dom.js";

const VERDICTS = {
  better: ["good", "Better than current practice"],
  "not better": ["bad", "Not better than current practice"],
  "not enough evidence": ["open", "Not enough evidence that it is better"],
};

/** The verdict on rows kept aside, with its numbers; null where the policy was never valued. */
export function verdict(evaluation, reward) {
  if (!evaluation?.value?.policy) return null;
  const [look, words] = VERDICTS[evaluation.verdict] ?? ["open", evaluation.verdict];
  const { policy, logging } = evaluation.value;
  const would = `following it would have brought a mean ${plain(reward.name)} of ${interval(policy)}`;
  const told = `On ${count(policy.n, "past case")} kept aside, ${would}; what was done brought ${interval(logging)}.`;
  return make(
    "div",
    { class: `verdict ${look}` },
    make("p", {}, make("b", {}, words)),
    make("p", {}, told),
    policy.trusted !== false && evaluation.over_best_fixed?.told ? make("p", {}, evaluation.over_best_fixed.told) : null,
    doubts(policy),
  );
}

function doubts({ trusted, warnings }) {
  if (trusted !== false) return null;
  const why = make("ul", {}, ...(warnings ?? []).map((one) => make("li", {}, one)));
  const words = "The log says too little about this policy: do not trust the number.";
  return make("details", {}, make("summary", { class: "problem" }, words), why);
}

function interval({ value, low, high }) {
  return `${show(value)} (between ${show(low)} and ${show(high)})`;
}

/** Facts about the policy as a list of terms. */
export function facts(about) {
  const made = about.provenance ?? {};
  const rows = made.rows ? Object.values(made.rows).reduce((sum, some) => sum + some, 0) : null;
  const lines = [
    ["Method", about.method],
    ["Learned from", rows === null ? null : count(rows, "past case")],
    ["Actions", about.actions.map(show).join(", ")],
    ["Facts about a case", count(about.features.length, "column")],
    ["Seed", made.seed],
    ["Version", made.versions?.ponn],
    ["Fingerprint", about.digest?.slice(0, 16)],
    ...(made.notes ?? []).map((note, at) => [at ? "" : "Notes", note]),
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const settings = Object.entries(about.settings ?? {}).map(([name, value]) => [name, JSON.stringify(value)]);
  return [terms(lines), make("details", { class: "more" }, make("summary", {}, "Every setting"), terms(settings))];
}

function terms(lines) {
  return make(
    "dl",
    { class: "terms" },
    ...lines.flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, String(value))]),
  );
}
