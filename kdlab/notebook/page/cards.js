// Cards beside the curves.

const SVG = "http://www.w3.org/2000/svg";

function shape(kind, attributes, text) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Shows one entry of the state, or what `facts` returns of it; `draw` runs only when that has changed.
class Card {
  constructor(key, title, place = div(), note = tag("p", "kd-note")) {
    this.card = tag("section", `kd-card kd-${key}`, [tag("h3", "", title), place, note], { hidden: "" });
    Object.assign(this, { key, place, note });
  }

  facts(state) {
    return state[this.key]?.length && state[this.key];
  }

  show(state) {
    const facts = this.facts(state), text = JSON.stringify(facts);
    this.card.hidden = !facts;
    if (facts && text !== this.drawn) this.draw(facts);
    this.drawn = text;
  }
}

// An element that scrolls, by keyboard too.
function scrollable(kind, className, label) {
  return tag(kind, className, [], { tabindex: 0, role: kind === "div" ? "group" : "list", "aria-label": label });
}

// Rows of cells; the first row has the names of the columns.
class Table extends Card {
  constructor(key, title) {
    super(key, title, scrollable("div", "kd-scroll", title));
  }

  draw(rows) {
    this.place.replaceChildren(tag("table", "", rows.map((cells, k) =>
      tag("tr", "", cells.map((cell) => tag(k ? "td" : "th", "", cell))))));
  }
}

function drawing(tall, label) {
  return shape("svg", { viewBox: `0 0 720 ${tall}`, role: "img", class: "kd-svg", "aria-label": label });
}

function duration(seconds) {
  return seconds < 90 ? `${round(seconds)} s` : seconds < 5400 ? `${round(seconds / 60)} min`
    : `${(seconds / 3600).toFixed(1)} h`;
}

// A row for each teacher: when it served and how it left, over the time of the run.
class Lanes extends Card {
  constructor() {
    super("lanes", "Teachers over time", scrollable("div", "kd-rows", "Teachers"), div("kd-row"));
  }

  facts({ teachers, clock }) {
    return teachers?.length && { teachers, clock };
  }

  draw({ teachers, clock }) {
    const total = max(1, clock.now - clock.start);
    const share = (t) => 100 * min(1, max(0, (t - clock.start) / total));
    this.place.replaceChildren(...teachers.map((teacher) => {
      const bars = teacher.spans.map(([from, to, how]) => {
        const bar = tag("i", "", [], { "data-how": how,
          title: `${how} for ${duration((to ?? clock.now) - from)}` });
        bar.style.left = `${share(from)}%`;
        bar.style.width = `${max(0.4, share(to ?? clock.now) - share(from))}%`;
        return bar;
      });
      const { name, device, state, rate, resends } = teacher;
      return div("kd-row", [
        span("kd-name", name, { title: [name, device].filter(Boolean).join(", ") }),
        span("kd-lane", bars),
        span("kd-how", state, { "data-how": state }),
        span("kd-number", `${exact(rate)}/s`,
          { title: "samples/s, measured when it joined" }),
        span("kd-number", resends ? `${resends} resent` : "",
          { title: "batches that were sent again to another teacher" }),
      ]);
    }));
    this.note.replaceChildren(span(),
      span("kd-lane-ends", ["begin", span("", duration(total))]));
  }
}

// Activity of each device of a pipeline in the last steps of an epoch.
class Gantt extends Card {
  constructor() {
    super("gantt", "Devices, latest steps");
  }

  facts({ spans, parts }) {
    return spans?.length && { spans, parts };
  }

  draw({ spans, parts }) {
    const devices = [...new Set(spans.map(([device]) => device))].sort((a, b) => a - b);
    const ends = max(...spans.map((span) => span[4])) || 1e-9;
    const high = 26, left = 70, wide = 720 - left;
    const busy = {};
    const drawn = drawing(high * devices.length + 20,
      `${devices.length} devices over ${exact(1e3 * ends)} milliseconds`);
    devices.forEach((device, row) => drawn.append(
      shape("text", { x: 0, y: high * row + 17 }, `device ${device}`)));
    for (const [device, part, step, begin, end] of spans) {
      busy[part] = (busy[part] ?? 0) + end - begin;
      const bar = shape("rect", {
        x: left + wide * begin / ends, y: high * devices.indexOf(device) + 3,
        width: max(0.4, wide * (end - begin) / ends), height: high - 6,
        fill: parts[part] ?? "#888888",
      });
      bar.append(shape("title", {}, `${part}, step ${step}: ${exact(1e3 * (end - begin))} ms`));
      drawn.append(bar);
    }
    for (const t of ticks(0, 1e3 * ends, 6)) {
      drawn.append(shape("text", {
        x: min(700, left + wide * t / (1e3 * ends)), y: high * devices.length + 15,
        "text-anchor": "middle",
      }, `${short(t)}${t ? "" : " ms"}`));
    }
    this.place.replaceChildren(drawn);
    this.note.replaceChildren(...Object.keys(parts).filter((part) => busy[part]).map((part) =>
      span("", [swatch(parts[part]),
        `${part} ${round(100 * busy[part] / (ends * devices.length))} %`])));
  }
}

// Test errors of every round: local models, the global model, the compressed models.
class Rounds extends Card {
  constructor() {
    super("rounds", "Rounds: test error, %");
  }

  draw(rounds) {
    const shown = rounds.slice(-14);
    const all = shown.flatMap((r) => [...r.locals, ...r.compressed, r.global]);
    const low = min(...all), high = max(...all);
    const wide = 720, tall = 190, left = 46;
    const y = (v) => 10 + (tall - 40) * (1 - (v - low) / (high - low || 1));
    const newest = rounds.at(-1);
    const drawn = drawing(tall, `test errors of ${rounds.length} rounds; newest: global model ` +
      `${exact(newest.global)} %, local models ${newest.locals.map(exact).join(", ")} %`);
    for (const value of ticks(low, high, 4)) {
      drawn.append(shape("line", { x1: left, x2: wide, y1: y(value), y2: y(value), class: "kd-grid" }),
        shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
    }
    const each = (wide - left) / shown.length;
    shown.forEach(({ round, locals, global, compressed }, k) => {
      const x = left + each * (k + 0.5);
      const dot = (v, by, name) => {
        const circle = shape("circle", { cx: x + by, cy: y(v), r: 4, class: `kd-${name.split(" ")[0]}` });
        circle.append(shape("title", {}, `${name}: ${exact(v)} %`));
        drawn.append(circle);
      };
      locals.forEach((v, w) => dot(v, -12, `local model ${w}`));
      dot(global, 0, "global model");
      compressed.forEach((v, w) => dot(v, 12, `compressed model ${w}`));
      drawn.append(shape("text", { x, y: tall - 8, "text-anchor": "middle" }, round));
    });
    this.place.replaceChildren(drawn);
    this.note.replaceChildren(...["local", "global", "compressed"].slice(0, newest.compressed.length ? 3 : 2)
      .map((name) => span("", [tag("i", `kd-${name}`), name])));
  }
}

class Events extends Card {
  constructor() {
    super("ticker", "Events", scrollable("ol", "kd-list", "Newest events first"));
  }

  draw(ticker) {
    this.place.replaceChildren(...ticker.map(([at, text]) => tag("li", "", [
      tag("time", "", new Date(1e3 * at).toTimeString().slice(0, 8)), span("", text)])));
  }
}

// Findings, issues first.
class Checks extends Card {
  constructor() {
    super("checks", "Checks", scrollable("ol", "kd-list", "Findings, issues first"));
  }

  draw(checks) {
    const faults = checks.filter(([result]) => result !== "passed");
    this.place.replaceChildren(...faults.map(([result, code, finding, advice]) => tag("li", "", [
      tag("b", "", `${result} ${code}`, { "data-tone": result === "tip" ? "warn" : "bad" }), tag("span", "", `${finding}\n${advice}`)])));
    this.note.textContent = `${checks.length - faults.length} passed; kdlab show CODE explains a check`;
  }
}
