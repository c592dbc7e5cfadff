// The studio: a new policy in four steps, and what was learned so far. The address says what is shown: #new or #job-ID.

import { get, post, send } from "./api.js";
import { drawCheck } from "./check.js";
import { ColumnsForm } from "./columns.js";
import { count, make, newId, plain, put, size } from "./dom.js";
import { JobView, stateWords } from "./job.js";

const LIST_EVERY = 2000; // milliseconds between two looks at the list while something is learned
const place = (id) => document.getElementById(id);

class Studio {
  constructor(options) {
    this.options = options;
    this.view = null;
    this.checking = new AbortController(); // of the newest check: only its answer is waited for
    this.drawLearn();
    addEventListener("hashchange", () => this.route());
  }

  /** Show what the address says. */
  async route() {
    this.view?.leave();
    this.view = null;
    const id = location.hash.match(/^#job-(\w+)$/)?.[1];
    place("new-view").hidden = Boolean(id);
    place("job-view").hidden = !id;
    await this.listJobs();
    if (id) {
      this.view = new JobView(place("job-view"), id, () => this.listJobs());
      await this.view.follow();
    } else await this.listFiles();
  }

  // Step 1: files

  async listFiles() {
    const files = await get("/studio/files");
    const id = newId("upload");
    const told = make("p", { role: "status", "aria-live": "polite" });
    const upload = make(
      "input",
      {
        type: "file",
        id,
        accept: ".csv,.tsv,.gz,.parquet,.feather,.arrow,.jsonl",
        onchange: () => this.upload(upload.files[0], told),
      },
    );
    const drop = make(
      "div",
      { class: "drop" },
      make("label", { for: id }, "Upload a CSV or Parquet file, or drop it here"),
      upload,
      told,
    );
    drop.addEventListener("dragover", (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      if (event.dataTransfer.files.length) this.upload(event.dataTransfer.files[0], told);
    });
    put(
      place("files"),
      files.length ? this.choices(files) : null,
      drop,
      make("p", { class: "hint" }, `Files are kept in ${this.options.folder}.`),
    );
  }

  choices(files) {
    const rows = files.map((one) => {
      const id = newId("file");
      const chosen = one.name === this.file?.name;
      const radio = make(
        "input",
        { type: "radio", name: "file", id, value: one.name, checked: chosen, onchange: () => this.choose(one.name) },
      );
      return make(
        "li",
        {},
        radio,
        make("label", { for: id }, one.name),
        make("span", { class: "hint" }, size(one.bytes)),
      );
    });
    return make("fieldset", {}, make("legend", {}, "Files that are here"), make("ul", { class: "files" }, ...rows));
  }

  async upload(file, told) {
    if (file.size > this.options.largest) {
      const limit = `${file.name} has ${size(file.size)}; this studio takes ${size(this.options.largest)} at most. `;
      const remedy = "Start it with a larger --max-upload, or put the file into its folder yourself.";
      put(told, make("span", { class: "problem" }, limit + remedy));
      return;
    }
    put(told, `Uploading ${file.name} ...`);
    try {
      const path = `/studio/files?name=${encodeURIComponent(file.name)}`;
      const kept = await (await send(path, { method: "POST", body: file })).json();
      this.file = { name: kept.name };
      await this.listFiles();
      await this.choose(kept.name);
    } catch (error) {
      put(told, make("span", { class: "problem" }, error.message));
    }
  }

  // Step 2: columns; step 3: check

  async choose(name) {
    for (const part of ["columns-part", "check-part", "learn-part"]) place(part).hidden = true;
    place("columns-part").hidden = false;
    put(place("columns"), "Reading ...");
    try {
      this.file = await get(`/studio/files/${encodeURIComponent(name)}`);
    } catch (error) {
      put(place("columns"), make("p", { class: "problem", role: "alert" }, error.message));
      return;
    }
    this.columns = new ColumnsForm(place("columns"), this.file, () => this.check());
    place("columns").querySelector("select").focus();
    await this.check();
  }

  /** Look at the log as the columns say; an answer that comes after a newer question is dropped. */
  async check() {
    this.checking.abort();
    this.checking = new AbortController();
    const [{ signal }, roles] = [this.checking, this.columns.roles];
    place("check-part").hidden = false;
    place("learn-part").hidden = true;
    const problem = this.columns.problem;
    if (problem) {
      put(place("check"), make("p", {}, problem));
      return;
    }
    put(place("check"), `Looking at ${count(this.file.rows, "row")} ...`);
    try {
      const found = await post(`/studio/check?file=${encodeURIComponent(this.file.name)}`, roles, signal);
      if (signal.aborted) return;
      drawCheck(place("check"), found, roles, () => this.columns.leaveOut());
      place("learn-part").hidden = !found.ready;
    } catch (error) {
      if (!signal.aborted) put(place("check"), make("p", { class: "problem" }, error.message));
    }
  }

  // Step 4: learn

  drawLearn() {
    const [method, tune, seed, settings] = ["method", "tune", "seed", "settings"].map(newId);
    const names = this.options.methods.map(
      (one) => make(
        "option",
        { value: one.name, selected: one.name === this.options.default },
        `${one.name}: ${one.about}`,
      ),
    );
    this.ask = {
      method: make("select", { id: method }, ...names),
      tune: make("input", { type: "checkbox", id: tune }),
      seed: make("input", { type: "number", id: seed, value: "0", min: "0", step: "1", required: true }),
      settings: make("textarea", { id: settings, rows: "3", spellcheck: "false", placeholder: "epochs=50" }),
    };
    this.told = make("p", { class: "problem", role: "alert" });
    const details = make(
      "details",
      { class: "more" },
      make("summary", {}, "More choices"),
      make(
        "div",
        { class: "fields" },
        make("div", { class: "field" }, make("label", { for: method }, "Method"), this.ask.method),
        make(
          "div",
          { class: "field" },
          make("label", { for: seed }, "Seed (the same seed gives the same policy)"),
          this.ask.seed,
        ),
        make(
          "div",
          { class: "field" },
          make("label", { for: settings }, "Settings, one NAME=VALUE per line"),
          this.ask.settings,
        ),
      ),
    );
    put(
      place("learn"),
      make(
        "p",
        {},
        "A part of the cases is kept aside. In the end the policy is tried on them, so that you know what it is worth.",
      ),
      make(
        "form",
        { class: "learn", onsubmit: (event) => this.learn(event) },
        make(
          "p",
          { class: "controls" },
          this.ask.tune,
          make("label", { for: tune }, "Try several variants and keep the best (takes longer)"),
        ),
        details,
        make("p", {}, make("button", { class: "button main" }, "Learn a policy")),
        this.told,
      ),
    );
  }

  async learn(event) {
    event.preventDefault();
    put(this.told);
    const settings = this.ask.settings.value.split("\n").map((line) => line.trim()).filter(Boolean);
    const order = {
      file: this.file.name,
      columns: this.columns.roles,
      method: this.ask.method.value,
      tune: this.ask.tune.checked,
      seed: Number(this.ask.seed.value),
      settings,
    };
    try {
      const job = await post("/studio/jobs", order);
      location.hash = `#job-${job.id}`;
      scrollTo(0, 0);
    } catch (error) {
      put(this.told, error.message);
    }
  }

  // What was learned so far

  /** List all jobs, and again as long as one of them is about to change. */
  async listJobs() {
    clearTimeout(this.later);
    const jobs = await get("/studio/jobs");
    if (jobs.some((job) => job.state === "running" || job.state === "waiting")) {
      this.later = setTimeout(() => this.listJobs().catch(() => {}), LIST_EVERY);
    }
    const standing = JSON.stringify(jobs.map((job) => [job.id, job.state]));
    if (standing === this.standing) return; // drawn as it is: whoever is in the list with the keyboard stays there
    this.standing = standing;
    place("past").hidden = !jobs.length;
    const rows = jobs.map((job) => {
      const { action, reward, minimize } = job.order.columns;
      const what = `${plain(action)} for ${minimize ? "less" : "more"} ${plain(reward)}`;
      const when = new Date(1000 * job.created).toLocaleString();
      return make(
        "li",
        {},
        make("a", { href: `#job-${job.id}` }, `${job.order.file || job.id}: ${what}`),
        make("span", { class: `state ${job.state}` }, stateWords(job)),
        make("span", { class: "hint" }, when),
      );
    });
    const at = place("jobs").contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    put(place("jobs"), make("ul", { class: "jobs" }, ...rows));
    if (at) place("jobs").querySelector(`a[href="${at}"]`)?.focus();
  }
}

function fail(error) {
  put(place("failure"), error.message ?? String(error));
  place("failure").hidden = false;
}

addEventListener("unhandledrejection", (event) => fail(event.reason));
get("/studio/options")
  .then((options) => new Studio(options).route())
  .catch(fail);
