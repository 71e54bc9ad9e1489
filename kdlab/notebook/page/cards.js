// Cards beside the curves. Each has `card`, and `show(state)` that hides it where there is nothing.

const SVG = "http://www.w3.org/2000/svg";

function shape(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function titled(className, title) {
  const card = element("section", `kd-card ${className}`);
  card.append(element("h3", "", title));
  card.hidden = true;
  return card;
}

function duration(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// When each teacher served, and how it left: a row a teacher, the time of the run across.
class Lanes {
  constructor() {
    this.card = titled("kd-lanes", "Teachers over time");
    this.rows = element("div", "kd-rows");
    this.rows.tabIndex = 0; // so that it scrolls by keyboard
    this.rows.setAttribute("role", "group");
    this.rows.setAttribute("aria-label", "Teachers");
    this.axis = element("div", "kd-row kd-lane-axis");
    this.card.append(this.rows, this.axis);
  }

  show({ teachers = [], clock }) {
    this.card.hidden = !teachers.length;
    if (!teachers.length) return;
    const span = Math.max(1, clock.now - clock.start);
    const share = (t) => 100 * Math.min(1, Math.max(0, (t - clock.start) / span));
    this.rows.replaceChildren(...teachers.map((teacher) => {
      const row = element("div", "kd-row");
      const name = element("span", "kd-name", teacher.name);
      name.title = [teacher.name, teacher.device].filter(Boolean).join(", ");
      const lane = element("span", "kd-lane");
      for (const [from, to, how] of teacher.spans) {
        const bar = element("i");
        bar.dataset.how = how;
        bar.style.left = `${share(from)}%`;
        bar.style.width = `${Math.max(0.4, share(to ?? clock.now) - share(from))}%`;
        bar.title = `${how} for ${duration((to ?? clock.now) - from)}`;
        lane.append(bar);
      }
      const state = element("span", "kd-how", teacher.state);
      state.dataset.how = teacher.state;
      const rate = element("span", "kd-number", `${exact(teacher.rate)}/s`);
      rate.title = "samples/s it measured when it joined";
      const again = element("span", "kd-number", teacher.resends ? `${teacher.resends} again` : "");
      again.title = "batches that had to be sent to another one";
      row.append(name, lane, state, rate, again);
      return row;
    }));
    this.axis.replaceChildren(element("span"), element("span", "kd-lane-ends"));
    this.axis.lastChild.append(element("span", "", "begin"),
      element("span", "", `${duration(span)}`));
  }
}

// What each device of a pipeline did in the last steps of an epoch.
class Gantt {
  constructor() {
    this.card = titled("kd-gantt", "Devices, newest steps");
    this.place = element("div");
    this.legend = element("p", "kd-note kd-parts");
    this.card.append(this.place, this.legend);
    this.drawn = "";
  }

  show({ spans = [], parts = {} }) {
    this.card.hidden = !spans.length;
    const now = JSON.stringify(spans);
    if (!spans.length || now === this.drawn) return;
    this.drawn = now;
    const devices = [...new Set(spans.map(([device]) => device))].sort((a, b) => a - b);
    const ends = Math.max(...spans.map((span) => span[4])) || 1e-9;
    const high = 26, left = 70, wide = 720 - left;
    const busy = {};
    const drawing = shape("svg", {
      viewBox: `0 0 720 ${high * devices.length + 20}`, role: "img", class: "kd-svg",
      "aria-label": `${devices.length} devices over ${exact(1e3 * ends)} milliseconds`,
    });
    devices.forEach((device, row) => drawing.append(
      shape("text", { x: 0, y: high * row + 17 }, `device ${device}`)));
    for (const [device, part, step, begin, end] of spans) {
      busy[part] = (busy[part] ?? 0) + end - begin;
      const bar = shape("rect", {
        x: left + wide * begin / ends, y: high * devices.indexOf(device) + 3,
        width: Math.max(0.4, wide * (end - begin) / ends), height: high - 6,
        fill: parts[part] ?? "#888888",
      });
      bar.append(shape("title", {}, `${part}, step ${step}: ${exact(1e3 * (end - begin))} ms`));
      drawing.append(bar);
    }
    for (const t of ticks(0, 1e3 * ends, 6)) {
      drawing.append(shape("text", {
        x: Math.min(700, left + wide * t / (1e3 * ends)), y: high * devices.length + 15,
        "text-anchor": "middle",
      }, `${short(t)}${t ? "" : " ms"}`));
    }
    this.place.replaceChildren(drawing);
    this.legend.replaceChildren(...Object.keys(parts).filter((part) => busy[part]).map((part) => {
      const key = element("span", "",
        `${part} ${Math.round(100 * busy[part] / (ends * devices.length))} %`);
      const swatch = element("i");
      swatch.style.setProperty("--own", parts[part]);
      key.prepend(swatch);
      return key;
    }));
  }
}

// Errors of every round: local models, what they are together, and what it was compressed to.
class Rounds {
  constructor() {
    this.card = titled("kd-rounds", "Rounds: test error, %");
    this.place = element("div");
    this.note = element("p", "kd-note");
    this.card.append(this.place, this.note);
    this.drawn = -1;
  }

  show({ rounds = [] }) {
    this.card.hidden = !rounds.length;
    if (!rounds.length || rounds.length === this.drawn) return;
    this.drawn = rounds.length;
    const shown = rounds.slice(-14);
    const all = shown.flatMap((r) => [...r.locals, ...r.compressed, r.together]);
    const low = Math.min(...all), high = Math.max(...all), span = high - low || 1;
    const wide = 720, tall = 190, left = 46;
    const y = (v) => 10 + (tall - 40) * (1 - (v - low) / span);
    const newest = rounds.at(-1);
    const drawing = shape("svg", {
      viewBox: `0 0 ${wide} ${tall}`, role: "img", class: "kd-svg",
      "aria-label": `test errors of ${rounds.length} rounds; newest: together ` +
        `${exact(newest.together)} %, local models ${newest.locals.map(exact).join(", ")} %`,
    });
    for (const value of ticks(low, high, 4)) {
      drawing.append(shape("line", { x1: left, x2: wide, y1: y(value), y2: y(value), class: "kd-grid" }),
        shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
    }
    const each = (wide - left) / shown.length;
    shown.forEach((round, k) => {
      const x = left + each * (k + 0.5);
      const dot = (v, by, name, className) => {
        const made = shape("circle", { cx: x + by, cy: y(v), r: 4, class: className });
        made.append(shape("title", {}, `${name}: ${exact(v)} %`));
        drawing.append(made);
      };
      round.locals.forEach((v, w) => dot(v, -12, `local model ${w}`, "kd-local"));
      dot(round.together, 0, "together", "kd-together");
      round.compressed.forEach((v, w) => dot(v, 12, `compressed model ${w}`, "kd-compressed"));
      drawing.append(shape("text", { x, y: tall - 8, "text-anchor": "middle" }, `${round.round}`));
    });
    this.place.replaceChildren(drawing);
    this.note.replaceChildren(...[["kd-local", "local models"], ["kd-together", "together"],
      ["kd-compressed", "compressed"]].filter(([name]) => name !== "kd-compressed" ||
      newest.compressed.length).map(([className, name]) => {
      const key = element("span", "", name);
      key.prepend(element("i", className));
      return key;
    }));
  }
}

class Events {
  constructor() {
    this.card = titled("kd-events", "What happened");
    this.list = element("ol", "kd-list");
    this.list.tabIndex = 0;
    this.list.setAttribute("aria-label", "Newest events first");
    this.card.append(this.list);
  }

  show({ ticker = [] }) {
    this.card.hidden = !ticker.length;
    this.list.replaceChildren(...ticker.map(([at, text]) => {
      const item = element("li");
      item.append(element("time", "", new Date(1e3 * at).toTimeString().slice(0, 8)),
        element("span", "", text));
      return item;
    }));
  }
}
