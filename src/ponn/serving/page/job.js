// One policy of the studio: its progress while it is learned, then what it is worth, and trying it.

import { get, post } from "./api.js";
import { facts, verdict } from "./about.js";
import { make, plain, put } from "./dom.js";
import { drawHeatMap } from "./heat.js";
import { mountScore } from "./score.js";
import { mountTrial } from "./trial.js";

const EVERY = 500; // milliseconds between two looks at a running job
// The shares of the whole that are behind us when a step begins and when it ends, by the words it is told with; where
// several fit, the last counts. How the steps are told is the server's business
const STEPS = [
  ["Reading", 0.02, 0.08],
  ["Steps A and B", 0.08, 0.1],
  ["Step B", 0.1, 0.15],
  ["Reward models", 0.15, 0.6],
  ["Step C", 0.1, 0.7],
  ["Step C: one small network", 0.6, 0.7],
  ["Models", 0.7, 0.8],
  ["Valuing", 0.8, 0.9],
  ["Report", 0.9, 1],
];

const STATES = { waiting: "waiting", running: "being learned", failed: "failed", interrupted: "interrupted" };
const VERDICTS = { better: "better than current practice", "not better": "not better than current practice" };

/** How a job stands, in words. */
export function stateWords(job) {
  return STATES[job.state] ?? VERDICTS[job.result?.verdict] ?? "not enough evidence";
}

/** The view of a job. `onend` is called when it ends. */
export class JobView {
  constructor(place, id, onend) {
    Object.assign(this, { place, path: `/studio/jobs/${id}`, onend });
    this.turn = 0; // counts how often the view was drawn; who began in an earlier turn draws no more
  }

  /** Nobody looks any more. */
  leave() {
    this.turn += 1;
    put(this.place);
  }

  /** Show the job, and its progress until it ends. */
  async follow() {
    const turn = ++this.turn;
    const job = await get(this.path);
    const about = job.state === "done" ? await get(`${this.path}/about`).catch((error) => error) : null;
    if (this.turn !== turn) return;
    put(this.place, ...heading(job));
    this.place.querySelector("h1").focus();
    if (about instanceof Error) this.showDamage(about);
    else if (about) this.showPolicy(job, about);
    else if (job.state === "running") await this.watch(job, turn);
    else if (job.state === "waiting") await this.waitFor(job, turn);
    else this.showEnd(job);
  }

  /** Say how many come before it, until its turn comes. */
  async waitFor(job, turn) {
    const words = make("p", { role: "status", "aria-live": "polite" });
    const stop = make("button", { type: "button", class: "button danger", onclick: () => this.act("cancel") }, "Stop");
    const hint = make("p", { class: "hint" }, "You may leave this page or close it; its turn comes all the same.");
    this.place.append(card("Waiting", words, hint, stop));
    job = await this.lookAgain(job, turn, "waiting", (now) => {
      const [who, are] = now.ahead === 1 ? ["One policy", "is"] : [`${now.ahead} policies`, "are"];
      const told = `${who} ${are} learned before this one.`;
      if (words.textContent !== told && now.ahead) put(words, told);
    });
    if (job) await this.changed();
  }

  /** Draw a job again and again while its state stays; what became of it, null if nobody looks any more. */
  async lookAgain(job, turn, state, draw) {
    while (job.state === state) {
      draw(job);
      await new Promise((resolve) => setTimeout(resolve, EVERY));
      job = await this.look(job);
      if (this.turn !== turn) return null;
    }
    return job;
  }

  async changed() {
    this.onend();
    await this.follow();
  }

  async watch(job, turn) {
    const bar = make("progress", { max: "1", "aria-label": "Progress" });
    const words = make("p", { role: "status", "aria-live": "polite" });
    const clock = make("p", { class: "hint" });
    const stop = make("button", { type: "button", class: "button danger", onclick: () => this.act("cancel") }, "Stop");
    this.place.append(card("Learning", words, bar, clock, stop));
    job = await this.lookAgain(job, turn, "running", (now) => {
      bar.value = shareDone(now) ?? bar.value;
      if (words.textContent !== now.message) put(words, now.message);
      const counted = now.total ? `, ${now.done.toLocaleString("en")} of ${now.total.toLocaleString("en")}` : "";
      put(clock, `${Math.round(now.seconds)} seconds${counted}`);
    });
    if (job) await this.changed();
  }

  /** The job as it stands now; while the studio does not answer, as it stood. */
  async look(job) {
    try {
      return await get(this.path);
    } catch (error) {
      return { ...job, message: error.message };
    }
  }

  showDamage(error) {
    this.place.append(card("This did not work", make("p", { class: "problem", role: "alert" }, error.message)));
  }

  showEnd(job) {
    const title = job.state === "failed" ? "This did not work" : "Interrupted";
    const restart = { type: "button", class: "button main", onclick: () => this.act("restart") };
    const told = make("p", { class: "problem", role: "alert" }, job.message);
    this.place.append(card(title, told, make("button", restart, "Start it again")));
  }

  async act(what) {
    try {
      await post(`${this.path}/${what}`, {});
    } catch (error) {
      this.place.append(make("p", { class: "problem", role: "alert" }, error.message));
      return;
    }
    await this.changed();
  }

  showPolicy(job, about) {
    const [heat, score, told] = [make("div"), make("div"), make("div")];
    const trial = make("div", { class: "trial" });
    const policy = { class: "button main", href: `${this.path}/policy`, download: true };
    this.place.append(
      verdict(about.evaluation, about.reward) ?? "",
      make("p", { class: "buttons" }, make("a", policy, "Download the policy"), job.report ? this.reportLink() : null),
      make("h2", {}, "Try it"),
      trial,
      card("Which facts matter for which action", heat),
      job.report ? card("The report", this.reportFrame()) : "",
      card("Recommend for a whole file", score),
      card("About this policy", told),
    );
    mountTrial(trial, about, `${this.path}/recommend`);
    drawHeatMap(heat, about);
    mountScore(score, `${this.path}/score`);
    put(told, ...facts(about));
  }

  reportLink() {
    const report = { class: "button", href: `${this.path}/report`, target: "_blank", rel: "noopener" };
    return make("a", report, "Open the report");
  }

  reportFrame() {
    const report = { src: `${this.path}/report`, title: "The report", loading: "lazy", sandbox: "allow-scripts" };
    return make("iframe", report);
  }
}

function heading(job) {
  const { action, reward, minimize } = job.order.columns;
  const learned = job.state === "done" ? "Learned" : "To be learned";
  const aim = `${minimize ? "as little" : "as much"} “${plain(reward)}” as possible`;
  return [
    make("h1", { tabindex: "-1" }, `Which ${plain(action)} for each case?`),
    make("p", { class: "lead" }, `${learned} from ${job.order.file}, for ${aim}.`),
    job.trouble ? make("p", { class: "problem" }, job.trouble) : "",
  ];
}

function card(title, ...parts) {
  return make("section", { class: "card" }, make("h2", {}, title), ...parts);
}

/** How much of the whole is behind us: the step's beginning, and within it what was counted. */
function shareDone(job) {
  const step = STEPS.findLast(([words]) => job.message.startsWith(words));
  if (!step) return null; // not known
  const [, start, end] = step;
  return start + (end - start) * (job.total ? job.done / job.total : 0);
}
