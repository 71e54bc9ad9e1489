// The live view: a header with the state of the run, then cards in one or two columns.
// Python sends `state` as a trait, and points as binary rows (curve, x, y).

const ASIDE = ["machine", "memory"]; // panels that do not concern learning
const REDRAW_MS = 180; // between drawings while points arrive; actions of the user are drawn at once

function badge(state) {
  return span("kd-state", state, { "data-state": state });
}

class View {
  constructor(model, el) {
    this.model = model;
    this.el = el;
    this.root = div("kd", [], { "data-lm-suppress-shortcuts": true }); // JupyterLab's shortcuts:
    this.root.onkeydown = (event) => event.stopPropagation(); // keys belong to the view
    // Hides the saved picture of this view, which is for pages without a kernel.
    const still = `.kd-still[data-of=${JSON.stringify(model.get("of") ?? "")}]`;
    el.append(tag("style", "", `${still} { display: none; }`), this.root);
    this.charts = new Map();
    this.series = [];
    this.curves = [];
    this.shared = {
      view: {}, hover: null, smoothing: 0, log: false, hidden: new Set(),
      ink: () => this.ink, redraw: () => this.draw(), point: (hover) => this.pointAt(hover),
    };
    this.palette = [];
    this.ink = {};
    this.build();
  }

  build() {
    this.head = tag("header", "kd-head");
    this.gone = tag("p", "kd-gone", [], { role: "status", hidden: "" });
    this.verdict = tag("p", "kd-verdict", [], { role: "status" });
    this.controls = new Controls((order) => this.model.send({ kind: "order", ...order }));
    this.runs = div("kd-runs");
    this.blank = tag("section", "kd-card kd-blank");
    this.tools = this.toolbar();
    this.cards = div("kd-cards");
    this.wide = div("kd-cards kd-more");
    this.aside = div("kd-cards kd-more");
    this.folded = tag("details", "kd-card kd-more",
      [tag("summary", "", "machine and memory"), this.aside], { hidden: "" });
    const results = new Table("results", "Test results");
    this.parts = [new Parallel(), new Importance(), new Table("trials", "Best trials so far"),
      new Film(), new Lanes(), new Gantt(), new Rounds(), new Checks(), new Events()];
    this.wide.append(...this.parts.map(({ card }) => card));
    this.parts.push(results);
    this.root.append(this.gone, this.head, this.verdict, results.card, this.controls.card, this.runs, this.tools,
      this.cards, this.wide, this.folded);
  }

  toolbar() {
    const slider = tag("input", "", [], { type: "range", min: 0, max: 0.98, step: 0.02, value: 0 });
    slider.oninput = () => {
      this.shared.smoothing = Number(slider.value);
      this.draw();
    };
    const log = button("log scale", () => {
      this.shared.log = !this.shared.log;
      log.setAttribute("aria-pressed", this.shared.log);
      this.draw();
    }, "", { "aria-pressed": "false" });
    const all = button("show all", () => {
      Object.assign(this.shared, { view: {}, showAll: true });
      this.draw();
    });
    return div("kd-tools", [tag("label", "", ["smoothing ", slider]), log, all,
      span("kd-note", "drag to zoom, shift-drag to move")]);
  }

  // Light or dark as the background behind the view, in any program.
  theme() {
    let at = this.el, colour = null;
    for (; at; at = at.parentElement) {
      const parts = getComputedStyle(at).backgroundColor.match(/[\d.]+/g);
      if (parts && (parts.length < 4 || Number(parts[3]) > 0.5)) { colour = parts; break; }
    }
    const system = window.matchMedia("(prefers-color-scheme: dark)").matches;
    // Nothing has a colour before the view is in a page; the first drawing tries again.
    if (!getComputedStyle(this.root).getPropertyValue("--faint")) return;
    const dark = colour ? 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] < 128
      : system && getComputedStyle(document.documentElement).colorScheme.includes("dark");
    const name = dark ? "dark" : "light";
    if (this.palette.length && this.root.dataset.theme === name) return;
    this.root.dataset.theme = name;
    const property = (key) => getComputedStyle(this.root).getPropertyValue(`--${key}`).trim();
    this.palette = [1, 2, 3, 4, 5, 6, 7, 8].map((k) => property(`c${k}`));
    this.ink = { set: property("accent") };
    for (const key of ["faint", "grid", "select", "bad", "warn", "good"]) this.ink[key] = property(key);
    this.setCurves(this.curves);
  }

  // Sets the curves. With several runs a colour is a run, otherwise a curve.
  setCurves(curves) {
    this.curves = curves;
    const runs = [...new Set(curves.map(({ run }) => run))].filter(Boolean);
    const panels = new Map();
    curves.forEach(({ panel, name, run, dots }, k) => {
      const series = (this.series[k] ??= new Series());
      if (!panels.has(panel)) panels.set(panel, []);
      const inPanel = panels.get(panel), several = runs.length > 1;
      const names = [...new Set(inPanel.map((c) => c.name))];
      const place = names.includes(name) ? names.indexOf(name) : names.length;
      inPanel.push({
        name, run, series, key: `${panel}|${run}|${name}`, dots,
        label: name,
        colour: this.palette[(several ? runs.indexOf(run) : inPanel.length) % this.palette.length],
        dash: several ? place : 0,
      });
    });
    if (runs.length > 1) {
      for (const inPanel of panels.values()) {
        const single = new Set(inPanel.map((c) => c.name)).size === 1;
        for (const curve of inPanel) curve.label = single ? curve.run : `${curve.run} · ${curve.name}`;
      }
    }
    this.panels = panels;
    this.placeCharts();
  }

  // Places charts in the order of the state's panels; each chart is created once.
  placeCharts() {
    const state = this.state ?? {};
    const panels = (state.panels ?? []).filter(({ title }) => this.panels.has(title));
    for (const panel of panels) {
      if (!this.charts.has(panel.title)) {
        const chart = new Chart(panel, this.shared);
        this.charts.set(panel.title, chart);
        this.visibility?.observe(chart.card);
      }
      const chart = this.charts.get(panel.title);
      chart.setCurves(this.panels.get(panel.title));
      this.annotate(chart);
    }
    const cards = (folded) => panels.filter(({ title }) => ASIDE.includes(title) === folded)
      .map(({ title }) => this.charts.get(title).card);
    this.cards.replaceChildren(...cards(false));
    this.aside.replaceChildren(...cards(true));
    this.folded.hidden = !this.aside.childElementCount;
    if (!this.cards.childElementCount) this.cards.append(this.waiting());
    this.tools.hidden = !panels.length;
    this.draw();
  }

  // Sets the levels and events that a chart draws.
  annotate(chart) {
    const { levels = [], marks = [] } = this.state ?? {}, { title, across } = chart.panel;
    chart.levels = levels.filter(({ panel }) => panel === title);
    chart.marks = marks.map((mark) => ({ ...mark, x: mark[across === "epoch" ? "epoch" : "step"] }));
  }

  waiting() {
    const { axes, waiting = "Waiting for the kernel…" } = this.state ?? {};
    this.blank.hidden = Boolean(axes); // a sweep has them
    this.blank.textContent = waiting;
    return this.blank;
  }

  show(state) {
    this.state = state;
    this.header(state);
    const { verdict } = state;
    this.verdict.hidden = !verdict;
    this.verdict.textContent = verdict?.text;
    this.verdict.dataset.tone = verdict?.tone;
    this.showRuns(state.runs ?? []);
    const strip = this.model.get("strip") ?? "";
    for (const part of this.parts) part.show({ ...state, strip });
    this.waiting();
    for (const chart of this.charts.values()) this.annotate(chart);
    const missing = (state.panels ?? []).some(({ title }) =>
      this.panels?.has(title) && !this.charts.has(title));
    if (missing) this.placeCharts();
    this.schedule();
  }

  header({ title = "", detail = "", state = "", done = 0, of = 0, left = "", facts = [] }) {
    const share = of ? min(1, done / of) : 0;
    const fill = tag("i", "", [], { "data-state": state });
    fill.style.width = `${100 * share}%`;
    const bar = div("kd-bar", fill, { role: "progressbar", "aria-valuemin": 0,
      "aria-valuemax": 100, "aria-label": "progress of the training" });
    if (of) bar.setAttribute("aria-valuenow", round(100 * share));
    const below = facts.map(([name, value]) =>
      span("", [tag("small", "", name), ` ${value}`]));
    if (left) below.push(span("kd-left", left));
    this.head.replaceChildren(div("kd-title", [tag("strong", "", title),
      span("kd-detail", detail), badge(state)]), bar, div("kd-facts", below));
  }

  showRuns(runs) {
    this.runs.hidden = runs.length < 2;
    if (runs.length < 2) return;
    this.runs.replaceChildren(...runs.map(({ label, state, progress }, k) => div("kd-run",
      [swatch(`var(--c${k % 8 + 1})`), tag("b", "", label), badge(state),
        span("", progress)])));
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    const wait = max(0, REDRAW_MS - (performance.now() - (this.drawnAt ?? 0)));
    setTimeout(() => requestAnimationFrame(() => {
      this.scheduled = false;
      this.draw();
    }), wait);
  }

  draw() {
    if (!this.root.isConnected) return;
    if (!this.palette.length) this.theme();
    if (!this.palette.length) { this.schedule(); return; } // the style sheet has not arrived
    this.drawnAt = performance.now();
    for (const chart of this.charts.values()) {
      if (chart.card.isConnected && chart.card.dataset.away !== "true") chart.draw();
    }
  }

  pointAt(hover) {
    this.shared.hover = hover;
    for (const chart of this.charts.values()) chart.point();
  }

  hear(message, buffers) {
    if (message.kind === "reset") {
      this.series = [];
      this.gone.hidden = true;
      this.controls.card.inert = false;
      clearInterval(this.asking);
    }
    if (message.curves) this.setCurves(message.curves);
    const raw = buffers?.[0];
    if (!raw) return;
    const rows = new Float64Array(raw.buffer
      ? raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.byteLength) : raw);
    for (let k = 0; k + 2 < rows.length; k += 3) this.series[rows[k]]?.push(rows[k + 1], rows[k + 2]);
    this.schedule();
  }

  // While a reloaded page connects to its kernel, messages can be lost in both directions.
  greet() {
    let hellos = 0;
    const hello = () => {
      if (++hellos === 60) clearInterval(this.asking);
      this.model.send({ kind: "hello" });
    };
    clearInterval(this.asking);
    this.asking = setInterval(hello, 1000);
    hello();
  }

  // The connection was lost or is back: a living kernel answers with a reset.
  lost() {
    this.gone.textContent = "The kernel that showed this run is gone; the run continues. " +
      `To see it again: ${this.model.get("again")}`;
    this.gone.hidden = false;
    this.controls.card.inert = true;
    this.greet();
  }
}

function render({ model, el }) {
  const view = new (model.get("state")?.form ? Form : View)(model, el);
  const show = () => view.show(model.get("state") ?? {});
  const steer = () => view.controls.show(model.get("controls") ?? {});
  const listeners = Object.entries({
    "msg:custom": (message, buffers) => view.hear(message, buffers),
    "change:state": show, "change:strip": show, "change:controls": steer,
    comm_live_update: () => view.lost(),
  });
  for (const listener of listeners) model.on(...listener);
  // Charts out of sight are not drawn.
  view.visibility = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      target.dataset.away = String(!isIntersecting);
    }
    view.draw();
  });
  const sized = new ResizeObserver(() => view.draw());
  sized.observe(el);
  const themed = new MutationObserver(() => { view.theme(); view.draw(); });
  for (const at of [document.documentElement, document.body]) {
    themed.observe(at, { attributes: true });
  }
  show();
  steer();
  view.greet();
  return () => {
    clearInterval(view.asking);
    for (const watcher of [view.visibility, sized, themed]) watcher.disconnect();
    for (const listener of listeners) model.off(...listener);
  };
}

export default { render };
