// What the policy says of one case, in words and pictures.

import { count, make, percent, plain, put, shape, show } from "./dom.js";

const MOST_BARS = 10; // more actions than that: the likeliest, and the others together

/** The panel with the recommendation. `about` is what the server says of the policy. */
export class AnswerPanel {
  constructor(place, about) {
    this.about = about;
    this.status = make("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.body = make("div", { class: "answer" });
    this.brief = make("div", { class: "brief", "aria-hidden": "true" });
    put(place, this.status, this.body, this.brief);
  }

  /** Show an answer; `before` is the answer to the case that changes are compared with, or null. */
  show(answer, before, changes) {
    this.body.classList.remove("stale");
    put(
      this.body,
      this.headline(answer),
      this.difference(answer, before, changes),
      this.support(answer),
      this.outlook(answer),
      this.leanings(answer, before),
      reasonsOf(answer, this.about.reward),
      notesOf(answer),
    );
    put(this.status, this.sentence(answer));
    put(this.brief, make("b", {}, show(answer.action)), ` ${percent(answer.probability)}`, this.briefOutlook(answer));
  }

  /** The last answer no longer fits the form. */
  wait() {
    this.body.classList.add("stale");
  }

  /** Say why there is no answer. */
  fail(message) {
    this.body.classList.add("stale");
    put(this.status, message);
    this.body.querySelector(".failure")?.remove();
    this.body.prepend(make("p", { class: "problem failure" }, message));
  }

  headline(answer) {
    return make(
      "div",
      { class: "headline" },
      make("p", { class: "kicker" }, "Recommended"),
      make("p", { class: "action" }, show(answer.action)),
      nextBest(answer),
      drawn(answer, this.about),
    );
  }

  difference(answer, before, changes) {
    if (!before || !changes.length) return null;
    const what = changes.map(({ name, from, to }) => `${plain(name)} ${show(from)} → ${show(to)}`).join(", ");
    const moved =
      answer.action === before.action
        ? `still ${show(answer.action)} (${percent(before.probability)} before, ${percent(answer.probability)} now)`
        : `${show(answer.action)} instead of ${show(before.action)}`;
    return make("p", { class: "whatif" }, make("b", {}, "What if: "), `${what}: ${moved}.`);
  }

  support(answer) {
    const action = show(answer.action);
    if (answer.supported === null || answer.supported === undefined) return null;
    if (!answer.supported) {
      const told = `Cases like this one hardly ever got ${action}: the log cannot tell how it would do. `;
      return make("p", { class: "support no" }, sign("!"), `${told}Ask someone who knows.`);
    }
    return make(
      "p",
      { class: "support yes" },
      sign("✓"),
      `Cases like this one got ${action} often enough for the log to tell.`,
    );
  }

  outlook(answer) {
    const expected = answer.expected_reward;
    if (expected === null || expected === undefined) return null;
    const { name, range, minimize } = this.about.reward;
    const [low, high] = [answer.expected_low, answer.expected_high];
    const known = Number.isFinite(low) && Number.isFinite(high);
    const practice = this.about.evaluation?.value?.logging?.value ?? null;
    return make(
      "section",
      { class: "outlook" },
      make("h3", {}, `Expected ${plain(name)}`),
      make(
        "p",
        {},
        make("b", { class: "figure" }, show(expected)),
        known ? ` probably between ${show(low)} and ${show(high)}` : null,
        make("span", { class: "hint" }, ` ${minimize ? "less" : "more"} is better`),
      ),
      range ? scale(range, expected, known ? [low, high] : null, practice) : null,
      practice === null ? null : keyTo(` the mean of all cases today, ${show(practice)}`),
    );
  }

  leanings(answer, before) {
    const shares = Object.entries(answer.probabilities ?? {});
    if (!shares.length) return null;
    const bars = shares.length > MOST_BARS ? likeliest(shares) : shares;
    return make(
      "section",
      { class: "leanings" },
      make("h3", {}, "How strongly the policy leans to each action"),
      make(
        "ul",
        { class: "bars" },
        ...bars.map(
          ([action, share]) => bar(action, share, before?.probabilities?.[action], action === String(answer.action)),
        ),
      ),
      before ? keyTo(" before your changes") : null,
    );
  }

  sentence(answer) {
    const parts = [`Recommended: ${show(answer.action)}, ${percent(answer.probability)}.`];
    if (Number.isFinite(answer.expected_reward)) {
      parts.push(`Expected ${plain(this.about.reward.name)} ${show(answer.expected_reward)}.`);
    }
    if (answer.supported === false) parts.push("The log cannot tell: such cases hardly ever got it.");
    return parts.join(" ");
  }

  briefOutlook(answer) {
    if (!Number.isFinite(answer.expected_reward)) return null;
    const doubt = answer.supported === false ? " · the log cannot tell" : "";
    return make("span", {}, ` · ${plain(this.about.reward.name)} ${show(answer.expected_reward)}${doubt}`);
  }
}

/** The runner-up, with what it promises where that is known. */
function nextBest(answer) {
  if (answer.runner_up === null || answer.runner_up === undefined) return null;
  const promised = answer.reasons?.runner_up?.expected_reward;
  const more = Number.isFinite(promised) ? `, expected ${show(promised)}` : "";
  return make("p", { class: "next" }, "Next best: ", make("b", {}, show(answer.runner_up)), more);
}

/** Where the server draws actions instead of taking the best, say so. */
function drawn(answer, about) {
  if (!about.mode || about.mode.serve === "best") return null;
  const told = "This server tries actions out to keep learning: this one was drawn with a chance of";
  return make("p", { class: "hint" }, `${told} ${percent(answer.served)}.`);
}

/** What the upright marks stand for. */
function keyTo(text) {
  return make("p", { class: "hint key" }, make("i", { class: "mark" }), text);
}

function sign(text) {
  return make("span", { class: "sign", "aria-hidden": "true" }, text);
}

function likeliest(shares) {
  const sorted = [...shares].sort((one, two) => two[1] - one[1]);
  const rest = sorted.slice(MOST_BARS).reduce((sum, [, share]) => sum + share, 0);
  return [...sorted.slice(0, MOST_BARS), [`${sorted.length - MOST_BARS} others`, rest]];
}

function bar(action, share, before, chosen) {
  const length = make("span", { class: "length" });
  length.style.width = `${100 * share}%`;
  const track = make("span", { class: "track", "aria-hidden": "true" }, length);
  if (before !== undefined && before !== null) {
    const mark = make("i", { class: "mark" });
    mark.style.left = `${100 * before}%`;
    track.append(mark);
  }
  return make(
    "li",
    { class: chosen ? "chosen" : null },
    make("span", { class: "name" }, action),
    track,
    make("span", { class: "share" }, percent(share)),
  );
}

/** A line over the reward's range with the expected value, its interval and today's mean. */
function scale([low, high], value, interval, practice) {
  const at = (x) => 10 + 380 * Math.min(Math.max((x - low) / (high - low || 1), 0), 1);
  const told = `On a scale from ${show(low)} to ${show(high)}: ${show(value)}`;
  const ends = [low, high].map(
    (end) => shape("text", { x: at(end), y: 46, "text-anchor": end === low ? "start" : "end" }, show(end)),
  );
  return shape(
    "svg",
    { viewBox: "0 0 400 50", class: "scale", role: "img", "aria-label": told },
    shape("title", {}, told),
    shape("line", { class: "axis", x1: 10, x2: 390, y1: 20, y2: 20 }),
    practice === null ? null : shape("line", { class: "today", x1: at(practice), x2: at(practice), y1: 8, y2: 32 }),
    interval ? shape("line", { class: "interval", x1: at(interval[0]), x2: at(interval[1]), y1: 20, y2: 20 }) : null,
    shape("circle", { class: "dot", cx: at(value), cy: 20, r: 7 }),
    ...ends,
  );
}

// Reasons -----------------------------------------------------------------------------------------------

/** The facts that moved the recommendation, the strongest first, and how many past cases were like this one. */
function reasonsOf(answer, reward) {
  const reasons = answer.reasons;
  if (!reasons) return null;
  return make(
    "section",
    { class: "reasons" },
    make("h3", {}, `Why ${show(answer.action)}`),
    reasons.features ? moves(reasons, answer.action, reward) : null,
    similar(reasons.similar, answer.action),
  );
}

/** Effects are told of the action's probability or, by some methods, of the expected outcome. */
function moves(reasons, action, reward) {
  const onReward = reasons.moves === "expected_reward";
  const least = onReward ? 0.005 * (reward.range[1] - reward.range[0]) : 0.005;
  const moved = reasons.features.filter((one) => Math.abs(one.effect) >= least);
  if (!moved.length) {
    return make("p", {}, "Nothing in this case moves the policy much away from what it does for a usual case.");
  }
  const most = Math.max(...moved.map((one) => Math.abs(one.effect)));
  const against = onReward && reward.minimize ? 1 : -1; // the sign of an effect that speaks against the action
  const about = onReward ? `what to expect (${plain(reward.name)})` : `the leaning to ${show(action)}, in points`;
  return make(
    "div",
    {},
    make("p", { class: "hint" }, `How each fact, instead of its usual value, changes ${about}:`),
    make("ul", { class: "moved" }, ...moved.map((one) => reason(one, most, against, onReward))),
  );
}

function reason({ feature, value, usual, effect, seen }, most, against, onReward) {
  const length = make("span", { class: Math.sign(effect) === against ? "length less" : "length" });
  length.style.width = `${(50 * Math.abs(effect)) / most}%`;
  const size = Math.abs(onReward ? effect : Math.round(100 * effect));
  const hint = make("span", { class: "hint" }, seen === false ? " never seen in the log" : ` usually ${show(usual)}`);
  return make(
    "li",
    {},
    make("span", { class: "name" }, `${plain(feature)}: `, make("b", {}, show(value)), hint),
    make("span", { class: "track middle", "aria-hidden": "true" }, length),
    make("span", { class: "share" }, `${effect < 0 ? "−" : "+"}${show(size)}`),
  );
}

function similar(found, action) {
  if (!found || !found.rows) return null;
  const took = `${found.took_action.toLocaleString("en")} got ${show(action)}`;
  return make("p", {}, `Of the ${count(found.rows, "past case")} most like this one, ${took}.`);
}

function notesOf(answer) {
  if (!answer.notes?.length) return null;
  return make(
    "section",
    { class: "notes" },
    make("h3", {}, "Worth knowing"),
    make("ul", {}, ...answer.notes.map((one) => make("li", {}, one))),
  );
}
