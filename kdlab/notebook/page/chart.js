// One chart: curves on a canvas, and over it a second one for what follows the pointer.

const LEFT = 50, RIGHT = 12, TOP = 8, BOTTOM = 34; // of the plot within its canvas
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

// `inside`: text, a node, or several.
function tag(kind, className = "", inside = [], attributes = {}) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  made.append(...[inside].flat());
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function button(words, press, className = "", attributes = {}) {
  const made = tag("button", className, words, { type: "button", ...attributes });
  made.onclick = press;
  return made;
}

function swatch(colour) {
  const made = tag("i");
  made.style.setProperty("--own", colour);
  return made;
}

class Chart {
  // `shared`: {view, hover, smoothing, log, hidden, ink(), redraw(), point()} of all charts.
  constructor(panel, shared) {
    this.panel = panel; // {title, unit, across}
    this.shared = shared;
    this.curves = []; // {name, run, colour, dash, series}
    this.levels = []; // {name, points}: dashed steps
    this.marks = []; // {x, text, kind}
    const unseen = { "aria-hidden": "true" };
    this.base = tag("canvas", "kdlab-curves", [], unseen);
    this.over = tag("canvas", "kd-over", [], unseen);
    this.tip = tag("div", "kd-tip", [], { hidden: "" });
    this.said = tag("div", "kd-hidden", [], { role: "status" });
    this.plot = tag("div", "kd-plot", [this.base, this.over, this.tip, this.said],
      { tabindex: 0, role: "group" });
    this.legend = tag("div", "kd-legend");
    const title = tag("h3", "", [panel.title, tag("span", "kd-unit", panel.unit)]);
    this.card = tag("section", "kd-card kd-chart",
      [tag("div", "kd-card-head", [title, this.legend]), this.plot]);
    this.listen();
  }

  setCurves(curves) {
    this.curves = curves;
    this.legend.replaceChildren(...curves.map((curve) => {
      const { hidden } = this.shared, colour = swatch(curve.colour);
      if (curve.dash) colour.dataset.dash = curve.dash;
      const key = button([colour, curve.label], () => {
        hidden.delete(curve.key) || hidden.add(curve.key);
        key.setAttribute("aria-pressed", !hidden.has(curve.key));
        this.shared.redraw();
      }, "kd-key", { title: "Show or hide this curve", "aria-pressed": !hidden.has(curve.key) });
      return key;
    }));
  }

  get shown() {
    return this.curves.filter((c) => c.series.n && !this.shared.hidden.has(c.key));
  }

  // Limits of x over all curves.
  reach() {
    const all = this.curves.map(({ series }) => series).filter(({ n }) => n);
    const low = Math.min(...all.map(({ x }) => x[0])), high = Math.max(...all.map(({ x, n }) => x[n - 1]));
    return low > high ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  limits() {
    return this.shared.view[this.panel.across] ?? this.reach();
  }

  size() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    const scale = Math.min(2, window.devicePixelRatio || 1);
    for (const [side, size] of [["width", width], ["height", height]]) {
      const wanted = Math.round(size * scale); // to set it clears the canvas
      for (const canvas of [this.base, this.over]) if (canvas[side] !== wanted) canvas[side] = wanted;
    }
    return { width, height, scale };
  }

  draw() {
    const { width, height, scale } = this.size();
    if (width < 60 || height < 40) return;
    const c = this.base.getContext("2d"), ink = this.shared.ink();
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = "11px system-ui, sans-serif";
    const [x0, x1] = this.limits();
    const wide = width - LEFT - RIGHT, tall = height - TOP - BOTTOM;
    const drawn = this.shown.map((curve) => {
      const { series } = curve;
      const i = Math.max(0, series.at(x0) - 1), j = Math.min(series.n, series.at(x1) + 2);
      return { curve, points: series.thin(i, j, Math.max(3, Math.round(wide))) };
    });
    const [y0, y1, log] = this.range(drawn, x0, x1);
    const level = log ? Math.log : (y) => y;
    const px = (x) => LEFT + wide * (x - x0) / (x1 - x0);
    const py = (y) => TOP + tall * (1 - (level(y) - level(y0)) / (level(y1) - level(y0)));
    this.frame = { x0, x1, px, py, width, height, wide, tall };
    this.axes(c, ink, y0, y1, log);
    if (!drawn.length) {
      c.fillStyle = ink.faint;
      c.textAlign = "center";
      c.fillText("no point yet", LEFT + wide / 2, TOP + tall / 2);
    }
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP - 1, wide + 1, tall + 2);
    c.clip();
    this.drawMarks(c, ink);
    this.drawLevels(c, ink);
    for (const { curve, points } of drawn) this.line(c, curve, points);
    c.restore();
    this.label(drawn);
    this.point();
  }

  range(drawn, x0, x1) {
    let low = Infinity, high = -Infinity;
    const see = (y) => {
      if (!Number.isFinite(y)) return;
      low = Math.min(low, y);
      high = Math.max(high, y);
    };
    for (const { curve, points } of drawn) for (const i of points) see(curve.series.y[i]);
    for (const { points } of this.levels) {
      points.forEach(([x, y], k) => {
        const until = k + 1 < points.length ? points[k + 1][0] : Infinity;
        if (x <= x1 && until >= x0) see(y);
      });
    }
    if (low > high) return [0, 1, false];
    const log = this.shared.log && low > 0;
    if (log) return high > low ? [low, high, true] : [low / 1.1, high * 1.1, true];
    const room = 0.06 * (high - low) || 0.06 * Math.abs(high) || 1;
    // What cannot be negative shows no negative numbers.
    return [low >= 0 ? Math.max(0, low - room) : low - room, high + room, false];
  }

  axes(c, ink, y0, y1, log) {
    const { px, py, width, height, wide, tall, x0, x1 } = this.frame;
    c.lineWidth = 1;
    c.strokeStyle = ink.grid;
    c.fillStyle = ink.faint;
    c.textBaseline = "middle";
    c.textAlign = "right";
    c.beginPath();
    for (const y of log ? logTicks(y0, y1) : ticks(y0, y1, Math.max(2, tall / 24))) {
      const at = Math.round(py(y)) + 0.5;
      c.moveTo(LEFT, at);
      c.lineTo(width - RIGHT, at);
      c.fillText(short(y), LEFT - 6, at);
    }
    c.textBaseline = "top";
    for (const x of ticks(x0, x1, Math.max(2, wide / 60))) {
      const at = Math.round(px(x)) + 0.5;
      c.moveTo(at, TOP);
      c.lineTo(at, TOP + tall);
      c.textAlign = at > width - RIGHT - 14 ? "right" : "center";
      c.fillText(short(x), at, TOP + tall + 5);
    }
    c.stroke();
    c.textAlign = "center";
    c.fillText(this.panel.across, LEFT + wide / 2, height - 13);
  }

  drawMarks(c, ink) {
    const { px, tall, x0, x1 } = this.frame;
    for (const mark of this.marks) {
      if (mark.x < x0 || mark.x > x1) continue;
      const at = Math.round(px(mark.x)) + 0.5;
      c.strokeStyle = c.fillStyle = ink[mark.kind] ?? ink.faint;
      c.setLineDash([2, 3]);
      c.beginPath();
      c.moveTo(at, TOP);
      c.lineTo(at, TOP + tall);
      c.stroke();
      c.setLineDash([]);
      c.beginPath();
      c.moveTo(at - 4, TOP);
      c.lineTo(at + 4, TOP);
      c.lineTo(at, TOP + 6);
      c.fill();
    }
  }

  drawLevels(c, ink) {
    const { px, py, x1, width } = this.frame;
    c.strokeStyle = c.fillStyle = ink.faint;
    for (const { name, points } of this.levels) {
      if (!points.length) continue;
      c.setLineDash([5, 4]);
      c.beginPath();
      c.moveTo(px(points[0][0]), py(points[0][1]));
      points.forEach(([, y], k) => {
        if (k) c.lineTo(px(points[k][0]), py(y));
        c.lineTo(px(k + 1 < points.length ? points[k + 1][0] : x1), py(y));
      });
      c.stroke();
      c.setLineDash([]);
      c.textAlign = "right";
      const last = points.filter(([x]) => x <= x1).at(-1) ?? points[0], at = py(last[1]);
      const below = at < TOP + 13; // there is no room above
      c.textBaseline = below ? "top" : "bottom";
      c.fillText(`${name} ${exact(last[1])}`, width - RIGHT - 3, at + (below ? 2 : -1));
    }
  }

  line(c, curve, points) {
    const { series } = curve, weight = this.shared.smoothing;
    if (weight && !curve.dots) {
      c.globalAlpha = 0.25;
      this.stroke(c, curve, points, series.y);
      c.globalAlpha = 1;
      this.stroke(c, curve, points, series.smoothed(weight));
    } else this.stroke(c, curve, points, series.y);
  }

  stroke(c, curve, points, y) {
    const { px, py } = this.frame, { x, gaps } = curve.series;
    c.strokeStyle = c.fillStyle = curve.colour;
    if (curve.dots) {
      for (const i of points) {
        c.beginPath();
        c.arc(px(x[i]), py(y[i]), 2.5, 0, 7);
        curve.name === "pruned" ? c.stroke() : c.fill();
      }
      return;
    }
    c.lineWidth = 1; // wider ones take ten times as long to draw without a GPU
    c.setLineDash(DASHES[(curve.dash || 0) % DASHES.length]);
    c.beginPath();
    let before = -1, gap = 0;
    for (const i of points) {
      while (gap < gaps.length && gaps[gap] < before) gap++;
      const broken = before < 0 || (gap < gaps.length && gaps[gap] < i);
      broken ? c.moveTo(px(x[i]), py(y[i])) : c.lineTo(px(x[i]), py(y[i]));
      before = i;
    }
    c.stroke();
    c.setLineDash([]);
    if (points.length > 60) return;
    for (const i of points) { // few points are seen as such
      c.beginPath();
      c.arc(px(x[i]), py(y[i]), points.length === 1 ? 3 : 2, 0, 7);
      c.fill();
    }
  }

  label(drawn) {
    const { title, unit, across } = this.panel;
    const now = drawn.map(({ curve: { label, series } }) =>
      `${label} ${exact(series.y[series.n - 1])}`);
    const said = now.length ? `newest: ${now.join(", ")}` : "no point yet";
    this.plot.setAttribute("aria-label",
      `${title}${unit ? ` in ${unit}` : ""} over ${across}; ${said}. ` +
      "Arrow keys point, plus and minus zoom, 0 shows all.");
  }

  // What is below the pointer, of this chart or of another one over the same x.
  point() {
    const { hover } = this.shared, f = this.frame;
    if (!f) return;
    const c = this.over.getContext("2d"), scale = this.over.width / f.width;
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, f.width, f.height);
    const here = hover && hover.across === this.panel.across;
    if (this.drag && this.drag.from !== undefined && !this.drag.pan) {
      const { from, to } = this.drag;
      c.fillStyle = this.shared.ink().select;
      c.fillRect(from, TOP, to - from, f.tall);
    }
    if (!here || !this.shown.length) { this.tip.hidden = true; return; }
    const rows = this.shown.map((curve) => [curve, curve.series.nearest(hover.x)]);
    const x = rows[0][0].series.x[rows[0][1]], at = f.px(x);
    if (at < LEFT - 1 || at > f.width - RIGHT + 1) { this.tip.hidden = true; return; }
    c.strokeStyle = this.shared.ink().faint;
    c.beginPath();
    c.moveTo(Math.round(at) + 0.5, TOP);
    c.lineTo(Math.round(at) + 0.5, TOP + f.tall);
    c.stroke();
    for (const [curve, i] of rows) {
      c.fillStyle = curve.colour;
      c.beginPath();
      c.arc(f.px(curve.series.x[i]), f.py(curve.series.y[i]), 3, 0, 7);
      c.fill();
    }
    this.tell(hover, x, at, rows, f);
  }

  tell(hover, x, at, rows, f) {
    const lines = rows.map(([curve, i]) => tag("div", "",
      [swatch(curve.colour), `${curve.label} ${exact(curve.series.y[i])}`]));
    const near = this.marks.filter((mark) => Math.abs(f.px(mark.x) - at) < 6).slice(0, 4);
    lines.push(...near.map((mark) => tag("div", "kd-tip-mark", mark.text)));
    this.tip.replaceChildren(tag("b", "", `${this.panel.across} ${exact(x)}`), ...lines);
    this.tip.hidden = false;
    const right = at > f.width / 2;
    this.tip.style.left = right ? "" : `${at + 10}px`;
    this.tip.style.right = right ? `${f.width - at + 10}px` : "";
    if (hover.spoken && hover.chart === this) {
      this.said.textContent = lines.map((line) => line.textContent).join(", ");
    }
  }

  listen() {
    const { plot } = this;
    const x = (event) => event.clientX - plot.getBoundingClientRect().left;
    const value = (p) => this.frame.x0 + (this.frame.x1 - this.frame.x0) *
      (p - LEFT) / this.frame.wide;
    plot.addEventListener("pointerdown", (event) => {
      if (!this.frame || event.button > 1) return;
      this.drag = { from: x(event), to: x(event), pan: event.shiftKey || event.button === 1,
        view: [this.frame.x0, this.frame.x1] };
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      if (!this.frame) return;
      if (this.drag) {
        this.drag.to = x(event);
        if (this.drag.pan) {
          const by = (this.drag.from - this.drag.to) / this.frame.wide;
          this.pan(by, this.drag.view);
        }
      }
      this.shared.point({ across: this.panel.across, x: value(x(event)), chart: this });
    });
    plot.addEventListener("pointerup", () => {
      const drag = this.drag;
      this.drag = null;
      if (drag && !drag.pan && Math.abs(drag.to - drag.from) > 6) {
        this.look([value(drag.from), value(drag.to)].sort((a, b) => a - b));
      } else if (this.frame) this.point();
    });
    plot.addEventListener("pointerleave", () => this.shared.point(null));
    plot.addEventListener("blur", () => this.shared.point(null));
    plot.addEventListener("dblclick", () => this.look(null));
    plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, value(x(event)));
    }, { passive: false });
    plot.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (!this.frame || event.ctrlKey || event.metaKey || event.altKey) return;
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (way && event.shiftKey) this.pan(0.2 * way, this.limits());
    else if (way) {
      const curve = this.shown[0];
      if (!curve) return;
      const { hover } = this.shared, { series } = curve;
      const from = hover && hover.chart === this ? series.nearest(hover.x) : series.n - 1 - way;
      const by = Math.max(1, Math.round((series.at(this.frame.x1) - series.at(this.frame.x0)) / 50));
      const i = Math.min(series.n - 1, Math.max(0, from + way * by));
      this.shared.point({ across: this.panel.across, x: series.x[i], chart: this, spoken: true });
    } else if (event.key === "+" || event.key === "=") this.zoom(0.7);
    else if (event.key === "-") this.zoom(1.4);
    else if (event.key === "0" || event.key === "Escape") this.look(null);
    else return;
    event.preventDefault();
  }

  look(view) {
    this.shared.view[this.panel.across] = view ?? undefined;
    this.shared.redraw();
  }

  pan(share, [x0, x1]) {
    const by = share * (x1 - x0);
    this.look([x0 + by, x1 + by]);
  }

  zoom(factor, around) {
    const [x0, x1] = this.limits(), at = around ?? (x0 + x1) / 2;
    const [low, high] = this.reach();
    const view = [at - (at - x0) * factor, at + (x1 - at) * factor];
    this.look(view[1] - view[0] >= high - low ? null : view);
  }
}
