// Talking to the server: JSON in and out, the token where one is wanted, errors in words.

import { make, newId } from "./dom.js";

const TOKEN = "ponn-token";

/** What the server refused, in its own words, with the field at fault where it named one. */
export class Refused extends Error {
  constructor(status, told) {
    super(told.error || told.detail || `The server answered with status ${status}.`);
    this.status = status;
    this.field = told.field ?? null;
  }
}

/** Send a request; asks for the token when the server wants one. The answer is the Response. */
export async function send(path, options = {}) {
  for (;;) {
    const answer = await reach(path, options);
    if (answer.status !== 401) {
      if (answer.ok) return answer;
      throw new Refused(answer.status, await words(answer));
    }
    await askForToken(sessionStorage.getItem(TOKEN) !== null);
  }
}

/** GET a JSON answer. */
export async function get(path) {
  return (await send(path)).json();
}

/** POST JSON, get a JSON answer. `signal` ends a request nobody waits for. */
export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await send(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

/** Does this server want a token? */
export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

async function reach(path, options) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
}

async function words(answer) {
  try {
    return await answer.json();
  } catch {
    return {};
  }
}

let asking = null;

/** Ask for the token; requests that fail together ask once. */
function askForToken(again) {
  asking ??= tokenDialog(again).finally(() => {
    asking = null;
  });
  return asking;
}

function tokenDialog(again) {
  return new Promise((resolve) => {
    const id = newId("token");
    const field = make("input", { id, type: "password", required: true, autocomplete: "off", spellcheck: "false" });
    const dialog = make(
      "dialog",
      { "aria-labelledby": `${id}-title`, oncancel: (event) => event.preventDefault() },
      make(
        "form",
        {
          onsubmit: (event) => {
            event.preventDefault();
            sessionStorage.setItem(TOKEN, field.value.trim());
            dialog.remove();
            resolve();
          },
        },
        make("h2", { id: `${id}-title` }, "This server is locked"),
        make("p", {}, "Ask the person who runs it for the token. It is kept until this tab is closed."),
        again ? make("p", { class: "problem", role: "alert" }, "That token was not accepted.") : null,
        make("label", { for: id }, "Token"),
        field,
        make("button", { class: "button main" }, "Open"),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
