// The live view: a head that says where the run stands, then cards in one or two columns.
// Python sends `state` as a trait, and points as binary rows (curve, x, y).

const REDRAW_MS = 180; // between drawings while points come; what a person does is drawn at once

class View {
  constructor(model, el) {
    this.model = model;
    this.el = el;
    this.root = element("div", "kd");
    // The saved picture of the same is for pages on which this is not.
    const hides = element("style");
    hides.textContent = `.kd-still[data-of=${JSON.stringify(model.get("of") ?? "")}] { display: none; }`;
    el.append(hides);
    el.append(this.root);
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
    this.head = element("header", "kd-head");
    this.gone = element("p", "kd-gone");
    this.gone.setAttribute("role", "status");
    this.gone.hidden = true;
    this.verdict = element("p", "kd-verdict");
    this.verdict.setAttribute("role", "status");
    this.runs = element("div", "kd-runs");
    this.tools = this.toolbar();
    this.cards = element("div", "kd-cards");
    this.wide = element("div", "kd-cards kd-more");
    this.parts = SWEEP_PARTS.concat([Film, Lanes, Gantt, Rounds, Events]).map((Part) => new Part());
    this.wide.append(...this.parts.map(({ card }) => card));
    this.root.append(this.gone, this.head, this.verdict, this.runs, this.tools, this.cards, this.wide);
  }

  toolbar() {
    const bar = element("div", "kd-tools");
    const label = element("label", "", "smoothing ");
    const slider = element("input");
    Object.assign(slider, { type: "range", min: 0, max: 0.98, step: 0.02, value: 0 });
    slider.oninput = () => {
      this.shared.smoothing = Number(slider.value);
      slider.setAttribute("aria-valuetext", slider.value);
      this.draw();
    };
    label.append(slider);
    const log = element("button", "", "log scale");
    log.setAttribute("aria-pressed", "false");
    log.onclick = () => {
      this.shared.log = !this.shared.log;
      log.setAttribute("aria-pressed", String(this.shared.log));
      this.draw();
    };
    const all = element("button", "", "show all");
    all.onclick = () => {
      this.shared.view = {};
      this.draw();
    };
    const keys = element("span", "kd-note", "drag to zoom, shift-drag to move");
    for (const button of [log, all]) button.type = "button";
    bar.append(label, log, all, keys);
    return bar;
  }

  // Light or dark as what is behind it is, whatever program shows it.
  theme() {
    let at = this.el, colour = null;
    for (; at; at = at.parentElement) {
      const found = getComputedStyle(at).backgroundColor.match(/[\d.]+/g);
      if (found && (found.length < 4 || Number(found[3]) > 0.5)) { colour = found; break; }
    }
    const system = window.matchMedia("(prefers-color-scheme: dark)").matches;
    // Outside of a page nothing has a colour yet; the first drawing asks again.
    if (!getComputedStyle(this.root).getPropertyValue("--kd-faint")) return;
    const dark = colour ? 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] < 128
      : system && getComputedStyle(document.documentElement).colorScheme.includes("dark");
    const name = dark ? "dark" : "light";
    if (this.palette.length && this.root.dataset.theme === name) return;
    this.root.dataset.theme = name;
    const style = getComputedStyle(this.root);
    const own = (key) => style.getPropertyValue(`--kd-${key}`).trim();
    this.palette = [1, 2, 3, 4, 5, 6, 7, 8].map((k) => own(`c${k}`));
    this.ink = { faint: own("faint"), grid: own("grid"), select: own("select"), bad: own("bad"),
      warn: own("warn"), good: own("good"), set: own("accent") };
    this.name(this.curves);
  }

  // Which curves there are; those of one run have one colour, of one alone each its own.
  name(curves) {
    this.curves = curves;
    const runs = [...new Set(curves.map(({ run }) => run))].filter(Boolean);
    const panels = new Map();
    curves.forEach(({ panel, name, run, dots }, k) => {
      const series = (this.series[k] ??= new Series());
      if (!panels.has(panel)) panels.set(panel, []);
      const own = panels.get(panel), several = runs.length > 1;
      const names = [...new Set(own.map((c) => c.name))];
      const place = names.includes(name) ? names.indexOf(name) : names.length;
      own.push({
        name, run, series, key: `${panel}|${run}|${name}`, dots,
        label: name,
        colour: this.palette[(several ? runs.indexOf(run) : own.length) % this.palette.length],
        dash: several ? place : 0,
      });
    });
    if (runs.length > 1) {
      for (const own of panels.values()) {
        const one = new Set(own.map((c) => c.name)).size === 1;
        for (const curve of own) curve.label = one ? curve.run : `${curve.run} · ${curve.name}`;
      }
    }
    this.panels = panels;
    this.lay();
  }

  // Charts in the order of the state's panels, made once and moved.
  lay() {
    const state = this.state ?? {};
    const wanted = (state.panels ?? []).filter(({ title }) => this.panels.has(title));
    for (const panel of wanted) {
      if (!this.charts.has(panel.title)) {
        const chart = new Chart(panel, this.shared);
        this.charts.set(panel.title, chart);
        this.seen?.observe(chart.card);
      }
      const chart = this.charts.get(panel.title);
      chart.setCurves(this.panels.get(panel.title));
      this.dress(chart);
    }
    const cards = wanted.map(({ title }) => this.charts.get(title).card);
    if (!cards.length) cards.push(this.waiting());
    const same = cards.length === this.cards.children.length &&
      cards.every((card, k) => card === this.cards.children[k]);
    if (!same) this.cards.replaceChildren(...cards);
    this.tools.hidden = !wanted.length;
    this.draw();
  }

  // Bounds, and where something happened.
  dress(chart) {
    const { levels = [], marks = [] } = this.state ?? {}, { title, across } = chart.panel;
    chart.levels = levels.filter(({ panel }) => panel === title);
    chart.marks = marks.map((mark) => ({ ...mark, x: mark[across === "epoch" ? "epoch" : "step"] }));
  }

  waiting() {
    const state = this.state ?? {};
    this.blank ??= element("section", "kd-card kd-blank");
    this.blank.hidden = Boolean(state.sweep);
    this.blank.textContent = state.waiting ?? "Waiting for the kernel…";
    return this.blank;
  }

  show(state) {
    this.state = state;
    this.header(state);
    const { verdict } = state;
    this.verdict.hidden = !verdict;
    if (verdict) {
      this.verdict.textContent = verdict.text;
      this.verdict.dataset.tone = verdict.tone;
    }
    this.several(state.runs ?? []);
    const strip = this.model.get("strip") ?? "";
    for (const part of this.parts) part.show({ ...state, strip });
    if (this.blank) this.waiting();
    for (const chart of this.charts.values()) this.dress(chart);
    const missing = (state.panels ?? []).some(({ title }) =>
      this.panels?.has(title) && !this.charts.has(title));
    if (missing) this.lay();
    this.ask();
  }

  header({ title = "", detail = "", state = "", done = 0, of = 0, left = "", facts = [] }) {
    const first = element("div", "kd-title");
    const badge = element("span", "kd-state", state);
    badge.dataset.state = state;
    first.append(element("strong", "", title), element("span", "kd-detail", detail), badge);
    const bar = element("div", "kd-bar");
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", "progress of the training");
    bar.setAttribute("aria-valuemin", "0");
    bar.setAttribute("aria-valuemax", "100");
    const share = of ? Math.min(1, done / of) : 0;
    if (of) bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    const fill = element("i");
    fill.style.width = `${100 * share}%`;
    fill.dataset.state = state;
    bar.append(fill);
    const below = element("div", "kd-facts");
    for (const [name, value] of facts) {
      const fact = element("span");
      fact.append(element("small", "", name), ` ${value}`);
      below.append(fact);
    }
    if (left) below.append(element("span", "kd-left", left));
    this.head.replaceChildren(first, bar, below);
  }

  several(runs) {
    this.runs.hidden = runs.length < 2;
    if (runs.length < 2) return;
    this.runs.replaceChildren(...runs.map((run, k) => {
      const row = element("div", "kd-run");
      const swatch = element("i");
      swatch.style.setProperty("--own", this.palette[k % this.palette.length]);
      const badge = element("span", "kd-state", run.state);
      badge.dataset.state = run.state;
      row.append(swatch, element("b", "", run.label), badge, element("span", "", run.said));
      return row;
    }));
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    const wait = Math.max(0, REDRAW_MS - (performance.now() - (this.drawnAt ?? 0)));
    setTimeout(() => requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    }), wait);
  }

  draw() {
    if (!this.root.isConnected) return;
    if (!this.palette.length) this.theme();
    if (!this.palette.length) { this.ask(); return; } // its style sheet is not there yet
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
      clearInterval(this.asking);
    }
    if (message.curves) this.name(message.curves);
    const raw = buffers?.[0];
    if (!raw) return;
    const bytes = raw.buffer
      ? raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.byteLength) : raw;
    const rows = new Float64Array(bytes);
    for (let k = 0; k + 2 < rows.length; k += 3) this.series[rows[k]]?.push(rows[k + 1], rows[k + 2]);
    this.ask();
  }

  // While a reloaded page still finds its kernel a message can be lost, either way.
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

  // The connection was lost, or is back: a kernel that still lives answers with a reset.
  lost() {
    this.gone.textContent = "The kernel that followed this run is gone, so this picture no longer " +
      `changes. The run does not need it. To see it again: ${this.model.get("again")}`;
    this.gone.hidden = false;
    this.greet();
  }
}

function render({ model, el }) {
  const view = new View(model, el);
  const off = [];
  const on = (name, call) => {
    model.on(name, call);
    off.push(() => model.off(name, call));
  };
  // A chart that is not in sight is not drawn.
  view.seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      target.dataset.away = String(!isIntersecting);
    }
    view.draw();
  });
  on("msg:custom", (message, buffers) => view.hear(message, buffers));
  const show = () => view.show(model.get("state") ?? {});
  on("change:state", show);
  on("change:strip", show);
  on("comm_live_update", () => view.lost());
  const sized = new ResizeObserver(() => view.draw());
  sized.observe(el);
  const themed = new MutationObserver(() => { view.theme(); view.draw(); });
  for (const at of [document.documentElement, document.body]) {
    themed.observe(at, { attributes: true });
  }
  show();
  view.greet();
  return () => {
    clearInterval(view.asking);
    for (const watcher of [view.seen, sized, themed]) watcher.disconnect();
    for (const undo of off) undo();
  };
}

export default { render };
