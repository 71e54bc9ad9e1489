// A chart: curves on one canvas, and above it a second canvas for what follows the pointer.

const LEFT = 50, RIGHT = 12, TOP = 8, BOTTOM = 34; // of the plot within its canvas
const FLAGS = 12; // the newest events, which get one
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

// `inside`: text, a node, or several.
function tag(kind, className = "", inside = [], attributes = {}) {
  const element = document.createElement(kind);
  if (className) element.className = className;
  element.append(...[inside].flat());
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const div = (...rest) => tag("div", ...rest), span = (...rest) => tag("span", ...rest);

function button(words, press, className = "", attributes = {}) {
  const element = tag("button", className, words, { type: "button", ...attributes });
  element.onclick = press;
  return element;
}

function swatch(colour) {
  const mark = tag("i");
  mark.style.setProperty("--own", colour);
  return mark;
}

function dot(c, x, y, size, how = "fill") {
  c.beginPath();
  c.arc(x, y, size, 0, 7);
  c[how]();
}

function wedge(c, x, y, tall) {
  c.beginPath();
  c.moveTo(x - 4, y);
  c.lineTo(x + 4, y);
  c.lineTo(x, y + tall);
  c.fill();
}

function upright(c, x, from, to) {
  c.beginPath();
  c.moveTo(x, from);
  c.lineTo(x, to);
  c.stroke();
}

function write(c, words, x, y, align = "center", baseline = "top") {
  c.textAlign = align;
  c.textBaseline = baseline;
  c.fillText(words, x, y);
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
    this.over = tag("canvas", "", [], unseen);
    this.tip = div("kd-tip", [], { hidden: "" });
    this.speech = div("kd-hidden", [], { role: "status" });
    this.plot = div("kd-plot", [this.base, this.over, this.tip, this.speech],
      { tabindex: 0, role: "group" });
    this.legend = div("kd-legend");
    const title = tag("h3", "", [panel.title, span("kd-unit", panel.unit)]);
    this.card = tag("section", "kd-card kd-chart",
      [div("kd-card-head", [title, this.legend]), this.plot]);
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

  get visible() {
    return this.curves.filter((c) => c.series.n && !this.shared.hidden.has(c.key));
  }

  // Limits of x over all curves.
  extent() {
    const all = this.curves.map(({ series }) => series).filter(({ n }) => n);
    const low = min(...all.map(({ x }) => x[0])), high = max(...all.map(({ x, n }) => x[n - 1]));
    return low > high ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  limits() {
    return this.shared.view[this.panel.across] ?? this.extent();
  }

  size() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    const scale = min(2, window.devicePixelRatio || 1);
    for (const [side, size] of [["width", width], ["height", height]]) {
      const pixels = round(size * scale); // setting it clears the canvas
      for (const canvas of [this.base, this.over]) if (canvas[side] !== pixels) canvas[side] = pixels;
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
    const drawn = this.visible.map((curve) => {
      const { series } = curve;
      const i = max(0, series.at(x0) - 1), j = min(series.n, series.at(x1) + 2);
      return { curve, points: series.thin(i, j, max(3, round(wide))) };
    });
    const [y0, y1, log] = this.range(drawn, x0, x1);
    const level = log ? Math.log : (y) => y;
    const px = (x) => LEFT + wide * (x - x0) / (x1 - x0);
    const py = (y) => TOP + tall * (1 - (level(y) - level(y0)) / (level(y1) - level(y0)));
    this.frame = { x0, x1, px, py, width, height, wide, tall };
    this.axes(c, ink, y0, y1, log);
    if (!drawn.length) {
      c.fillStyle = ink.faint;
      write(c, "no point yet", LEFT + wide / 2, TOP + tall / 2);
    }
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP - 1, wide + 1, tall + 2);
    c.clip();
    this.drawMarks(c, ink);
    this.drawLevels(c, ink);
    for (const { curve, points } of drawn) this.line(c, curve, points);
    this.drawBeyond(c, ink, drawn, y0, y1);
    c.restore();
    this.label(drawn);
    this.point();
  }

  range(drawn, x0, x1) {
    const all = drawn.flatMap(({ curve: { series }, points }) => points.map((i) => series.y[i]));
    for (const { points } of this.levels) {
      points.forEach(([x, y], k) => {
        if (x <= x1 && (points[k + 1]?.[0] ?? Infinity) >= x0) all.push(y);
      });
    }
    const values = Float64Array.from(all.filter(isNumber)).sort();
    if (!values.length) return [0, 1, false];
    const at = (share) => values[round(share * (values.length - 1))];
    let low = at(0), high = at(1);
    const log = this.shared.log && low > 0;
    if (log) return high > low ? [low, high, true] : [low / 1.1, high * 1.1, true];
    const usual = at(0.98) - at(0.02);
    if (usual && !this.panel.unit && !this.shared.showAll) { // a few spikes do not flatten the rest
      const begins = drawn.map(({ curve, points }) => curve.series.y[points[0]]).filter(isNumber);
      high = min(high, max(at(0.98) + 1.5 * usual, ...begins));
      low = max(low, min(at(0.02) - 1.5 * usual, ...begins));
    }
    const room = 0.06 * (high - low) || 0.06 * abs(high) || 1;
    // Without negative values the axis has no negative numbers.
    return [low >= 0 ? max(0, low - room) : low - room, high + room, false];
  }

  axes(c, ink, y0, y1, log) {
    const { px, py, width, height, wide, tall, x0, x1 } = this.frame;
    c.lineWidth = 1;
    c.strokeStyle = ink.grid;
    c.fillStyle = ink.faint;
    c.beginPath();
    for (const y of log ? logTicks(y0, y1) : ticks(y0, y1, max(2, tall / 24))) {
      const at = round(py(y)) + 0.5;
      c.moveTo(LEFT, at);
      c.lineTo(width - RIGHT, at);
      write(c, short(y), LEFT - 6, at, "right", "middle");
    }
    for (const x of ticks(x0, x1, max(2, wide / 60))) {
      const at = round(px(x)) + 0.5;
      c.moveTo(at, TOP);
      c.lineTo(at, TOP + tall);
      write(c, short(x), at, TOP + tall + 5, at > width - RIGHT - 14 ? "right" : "center");
    }
    c.stroke();
    write(c, this.panel.across, LEFT + wide / 2, height - 13);
  }

  // Events: the newest with a line and a flag, all others as ticks at the foot.
  drawMarks(c, ink) {
    const { px, tall, x0, x1 } = this.frame, foot = TOP + tall;
    const flags = this.marks.filter(({ kind }) => kind !== "faint").slice(-FLAGS);
    for (const mark of this.marks) {
      if (mark.x < x0 || mark.x > x1) continue;
      const at = round(px(mark.x)) + 0.5, flag = flags.includes(mark);
      c.strokeStyle = c.fillStyle = ink[mark.kind] ?? ink.faint;
      c.setLineDash(flag ? [2, 3] : []);
      upright(c, at, flag ? TOP : foot - 6, foot);
      c.setLineDash([]);
      if (flag) wedge(c, at, TOP, 6);
    }
  }

  // Marks where a curve leaves the axis.
  drawBeyond(c, ink, drawn, y0, y1) {
    const { px, tall, wide } = this.frame;
    let count = 0;
    for (const { curve: { series: { x, y }, colour }, points } of drawn) {
      c.fillStyle = colour;
      for (const i of points.filter((k) => y[k] > y1 || y[k] < y0)) {
        count += 1;
        y[i] > y1 ? wedge(c, px(x[i]), TOP + 6, -6) : wedge(c, px(x[i]), TOP + tall - 6, 6);
      }
    }
    c.fillStyle = ink.faint;
    if (count) write(c, `${count} beyond: show all`, LEFT + wide - 3, TOP + 8, "right");
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
      const last = points.filter(([x]) => x <= x1).at(-1) ?? points[0], at = py(last[1]);
      const below = at < TOP + 13; // there is no room above
      write(c, `${name} ${exact(last[1])}`, width - RIGHT - 3, at + (below ? 2 : -1), "right", below ? "top" : "bottom");
    }
  }

  line(c, curve, points) {
    const { series } = curve, weight = curve.dots ? 0 : this.shared.smoothing;
    c.globalAlpha = weight ? 0.25 : 1;
    this.stroke(c, curve, points, series.y);
    c.globalAlpha = 1;
    if (weight) this.stroke(c, curve, points, series.smoothed(weight));
  }

  stroke(c, curve, points, y) {
    const { px, py } = this.frame, { x, gaps } = curve.series;
    c.strokeStyle = c.fillStyle = curve.colour;
    if (curve.dots) {
      for (const i of points) dot(c, px(x[i]), py(y[i]), 2.5, curve.name === "pruned" ? "stroke" : "fill");
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
    if (points.length > 60) return; // few points are drawn as points
    for (const i of points) dot(c, px(x[i]), py(y[i]), points.length === 1 ? 3 : 2);
  }

  label(drawn) {
    const { title, unit, across } = this.panel;
    const latest = drawn.map(({ curve: { label, series } }) =>
      `${label} ${exact(series.y[series.n - 1])}`);
    const summary = latest.length ? `newest: ${latest.join(", ")}` : "no point yet";
    this.plot.setAttribute("aria-label",
      `${title}${unit ? ` in ${unit}` : ""} over ${across}; ${summary}. ` +
      "Arrow keys point, plus and minus zoom, 0 shows all.");
  }

  // Values at the pointer, which is on this chart or on another one with the same x axis.
  point() {
    const { hover } = this.shared, f = this.frame;
    if (!f) return;
    const c = this.over.getContext("2d"), scale = this.over.width / f.width;
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, f.width, f.height);
    const applies = hover && hover.across === this.panel.across;
    if (this.drag && this.drag.from !== undefined && !this.drag.pan) {
      const { from, to } = this.drag;
      c.fillStyle = this.shared.ink().select;
      c.fillRect(from, TOP, to - from, f.tall);
    }
    if (!applies || !this.visible.length) { this.tip.hidden = true; return; }
    const rows = this.visible.map((curve) => [curve, curve.series.nearest(hover.x)]);
    const x = rows[0][0].series.x[rows[0][1]], at = f.px(x);
    if (at < LEFT - 1 || at > f.width - RIGHT + 1) { this.tip.hidden = true; return; }
    c.strokeStyle = this.shared.ink().faint;
    upright(c, round(at) + 0.5, TOP, TOP + f.tall);
    for (const [curve, i] of rows) {
      c.fillStyle = curve.colour;
      dot(c, f.px(curve.series.x[i]), f.py(curve.series.y[i]), 3);
    }
    this.showTip(hover, x, at, rows, f);
  }

  showTip(hover, x, at, rows, f) {
    const lines = rows.map(([curve, i]) => div("",
      [swatch(curve.colour), `${curve.label} ${exact(curve.series.y[i])}`]));
    const near = this.marks.filter((mark) => abs(f.px(mark.x) - at) < 6).slice(-4);
    lines.push(...near.map((mark) => div("kd-tip-mark", mark.text)));
    this.tip.replaceChildren(tag("b", "", `${this.panel.across} ${exact(x)}`), ...lines);
    this.tip.hidden = false;
    const right = at > f.width / 2;
    this.tip.style.left = right ? "" : `${at + 10}px`;
    this.tip.style.right = right ? `${f.width - at + 10}px` : "";
    if (hover.spoken && hover.chart === this) {
      this.speech.textContent = lines.map((line) => line.textContent).join(", ");
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
      if (drag && !drag.pan && abs(drag.to - drag.from) > 6) {
        this.setView([value(drag.from), value(drag.to)].sort((a, b) => a - b));
      } else if (this.frame) this.point();
    });
    for (const away of ["pointerleave", "blur"]) plot.addEventListener(away, () => this.shared.point(null));
    plot.addEventListener("dblclick", () => this.setView(null));
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
      const curve = this.visible[0];
      if (!curve) return;
      const { hover } = this.shared, { series } = curve;
      const from = hover && hover.chart === this ? series.nearest(hover.x) : series.n - 1 - way;
      const by = max(1, round((series.at(this.frame.x1) - series.at(this.frame.x0)) / 50));
      const i = min(series.n - 1, max(0, from + way * by));
      this.shared.point({ across: this.panel.across, x: series.x[i], chart: this, spoken: true });
    } else if (event.key === "+" || event.key === "=") this.zoom(0.7);
    else if (event.key === "-") this.zoom(1.4);
    else if (event.key === "0" || event.key === "Escape") this.setView(null);
    else return;
    event.preventDefault();
  }

  setView(view) {
    this.shared.view[this.panel.across] = view ?? undefined;
    this.shared.showAll = !view;
    this.shared.redraw();
  }

  pan(share, [x0, x1]) {
    const by = share * (x1 - x0);
    this.setView([x0 + by, x1 + by]);
  }

  zoom(factor, around) {
    const [x0, x1] = this.limits(), at = around ?? (x0 + x1) / 2;
    const [low, high] = this.extent();
    const view = [at - (at - x0) * factor, at + (x1 - at) * factor];
    this.setView(view[1] - view[0] >= high - low ? null : view);
  }
}
