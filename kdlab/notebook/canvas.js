// Curves of one run on one canvas. Python appends points as binary rows and sends the
// whole (thinned) history when a view says hello, so a reloaded page shows all of it.
const MOST = 1200, PANEL = 130, LEFT = 62, RIGHT = 12, TOP = 20, BOTTOM = 20;
const COLOURS = ["#3b82c4", "#d1603d", "#3f9d64", "#8f5fb8", "#b98a2f", "#5f7385", "#c4508f"];

function render({ model, el }) {
  const canvas = document.createElement("canvas");
  canvas.style.width = "100%";
  canvas.style.maxWidth = "900px";
  canvas.className = "kdlab-curves";
  const gone = document.createElement("p");
  gone.className = "kdlab-gone";
  gone.setAttribute("role", "status");
  gone.style.cssText = "margin: 4px 0; padding: 6px 10px; border-left: 4px solid #d1603d";
  gone.textContent = "The kernel that followed this run is gone, so this picture no longer " +
    `changes. The run does not need it. To see it again: ${model.get("again")}`;
  gone.hidden = true;
  el.append(gone, canvas);
  let series = [], lines = {}, names = [], alive = true, asking = 0;

  // As kdlab/notebook/curve.py: when there are too many points, neighbours become one, and
  // so do those that come after.
  function point(own, x, y) {
    own.wait.push([x, y]);
    if (own.wait.length < own.stride) return;
    const mean = (k) => own.wait.reduce((sum, p) => sum + p[k], 0) / own.wait.length;
    own.x.push(mean(0));
    own.y.push(mean(1));
    own.wait = [];
    if (own.x.length < MOST) return;
    for (const name of ["x", "y"]) {
      own[name] = own[name].flatMap((v, k, all) => (k % 2 ? [(all[k - 1] + v) / 2] : []));
    }
    own.stride *= 2;
    own.drawn = Infinity; // all of it is drawn again
  }

  function add(values) {
    for (let i = 0; i + 2 < values.length; i += 3) {
      const own = (series[values[i]] ??= { x: [], y: [], wait: [], stride: 1, drawn: 0 });
      point(own, values[i + 1], values[i + 2]);
    }
  }

  // Drawing all takes tens of milliseconds without a GPU, so axes have room to the right, and
  // while new points fit there only these are drawn.
  let frame = null, asked = false;

  function ask(whole) {
    if (whole) frame = null;
    if (asked || !alive) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      if (!alive || !canvas.isConnected) return;
      if (!frame || !more()) draw();
    });
  }

  function of(panel) {
    const own = [];
    names.forEach(([p, name], k) => { if (p === panel && series[k]) own.push([name, series[k]]); });
    return own;
  }

  // The new points of all panels; false when one does not fit.
  function more() {
    for (const { own, x1, y0, y1 } of frame.panels) for (const [, s] of own) {
      if (s.x.length < s.drawn) return false;
      for (let i = s.drawn; i < s.x.length; i++) {
        if (s.x[i] > x1 || s.y[i] < y0 || s.y[i] > y1) return false;
      }
    }
    const known = frame.panels.reduce((sum, { own }) => sum + own.length, 0);
    if (known !== series.filter((s) => s).length) return false;
    frame.panels.forEach(curves);
    return true;
  }

  function curves({ own, px, py }) {
    const c = canvas.getContext("2d");
    own.forEach(([, s], k) => {
      if (s.drawn === s.x.length) return;
      c.strokeStyle = COLOURS[k % COLOURS.length];
      c.lineWidth = 1; // wider ones take ten times as long to draw
      c.beginPath();
      let down = false;
      for (let i = Math.max(0, s.drawn - 1); i < s.x.length; i++) {
        if (!Number.isFinite(s.y[i])) { down = false; continue; }
        down ? c.lineTo(px(s.x[i]), py(s.y[i])) : c.moveTo(px(s.x[i]), py(s.y[i]));
        down = true;
      }
      c.stroke();
      s.drawn = s.x.length;
    });
  }

  function draw() {
    const panels = [];
    for (const [panel] of names) if (!panels.includes(panel)) panels.push(panel);
    const width = canvas.clientWidth || 720, height = Math.max(1, panels.length) * PANEL + 4;
    const scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    c.font = "11px sans-serif";
    const ink = getComputedStyle(canvas).color;
    frame = { panels: [] };
    panels.forEach((panel, number) => {
      const top = number * PANEL, own = of(panel), limits = lines[panel] || {};
      let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
      for (const [, s] of own) for (let i = 0; i < s.x.length; i++) {
        x0 = Math.min(x0, s.x[i]);
        x1 = Math.max(x1, s.x[i]);
        if (Number.isFinite(s.y[i])) { y0 = Math.min(y0, s.y[i]); y1 = Math.max(y1, s.y[i]); }
      }
      for (const value of Object.values(limits)) { y0 = Math.min(y0, value); y1 = Math.max(y1, value); }
      c.fillStyle = ink;
      c.textAlign = "left";
      c.fillText(panel, LEFT, top + 13);
      for (const [, s] of own) s.drawn = 0;
      if (!(x1 >= x0) || !(y1 >= y0)) return;
      const room = 0.05 * (y1 - y0) || Math.max(1e-9, 0.05 * Math.abs(y1));
      y0 -= room;
      y1 += room;
      x1 = Math.max(x1, x0 + 1e-9);
      x1 += 0.03 * (x1 - x0);
      const right = width - RIGHT, tall = PANEL - TOP - BOTTOM;
      const px = (x) => LEFT + (right - LEFT) * (x - x0) / (x1 - x0);
      const py = (y) => top + TOP + tall * (1 - (y - y0) / (y1 - y0));
      const level = (y, dash) => {
        c.globalAlpha = dash.length ? 0.7 : 0.25;
        c.strokeStyle = ink;
        c.lineWidth = 1;
        c.setLineDash(dash);
        c.beginPath();
        c.moveTo(LEFT, py(y));
        c.lineTo(right, py(y));
        c.stroke();
        c.setLineDash([]);
        c.globalAlpha = 1;
      };
      for (const y of [y0, y1]) {
        level(y, []);
        c.textAlign = "right";
        c.fillText(Number(y.toPrecision(4)).toString(), LEFT - 6, py(y) + 4);
      }
      for (const [name, value] of Object.entries(limits)) {
        level(value, [5, 4]);
        c.textAlign = "right";
        c.fillText(`${name} ${Number(value.toPrecision(4))}`, right, py(value) - 3);
      }
      own.forEach(([name], k) => {
        c.fillStyle = COLOURS[k % COLOURS.length];
        c.textAlign = "left";
        c.fillText(name, LEFT + 200 + 130 * k, top + 13);
      });
      const placed = { own, px, py, x1, y0, y1 };
      frame.panels.push(placed);
      curves(placed);
      c.fillStyle = ink;
      c.textAlign = "left";
      c.fillText(Math.round(x0).toString(), LEFT, top + PANEL - 5);
      c.textAlign = "right";
      c.fillText(Math.round(x1).toString(), right, top + PANEL - 5);
    });
  }

  function hear(message, buffers) {
    if (message.names) names = message.names;
    if (message.lines) lines = message.lines;
    if (message.kind === "reset") {
      series = [];
      gone.hidden = true;
      clearInterval(asking);
    }
    ask(message.kind === "reset" || message.names || message.lines);
    if (buffers && buffers.length) {
      const raw = buffers[0];
      const bytes = raw.buffer ? raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.byteLength) : raw;
      add(new Float64Array(bytes));
    }
    // What was sent is thinned already; what comes is not.
    (message.strides || []).forEach((stride, k) => {
      if (series[k]) series[k].stride *= stride;
    });
  }

  const resized = new ResizeObserver(() => ask(true));
  resized.observe(el);
  model.on("msg:custom", hear);
  // While a reloaded page still finds its kernel a message can be lost, either way.
  function greet() {
    let hellos = 0;
    const hello = () => {
      if (++hellos === 60) clearInterval(asking);
      model.send({ kind: "hello" });
    };
    clearInterval(asking);
    asking = setInterval(hello, 1000);
    hello();
  }
  // The connection was lost, or is back: a kernel that still lives answers with a reset.
  function reconnect() {
    gone.hidden = false;
    greet();
  }
  model.on("comm_live_update", reconnect);
  greet();
  return () => {
    alive = false;
    clearInterval(asking);
    resized.disconnect();
    model.off("msg:custom", hear);
    model.off("comm_live_update", reconnect);
  };
}

export default { render };
