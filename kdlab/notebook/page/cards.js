// Cards beside the curves.

const SVG = "http://www.w3.org/2000/svg";

function shape(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Of one list in the state, or of what `facts` finds there; `draw` is called when that has changed.
class Card {
  constructor(key, title, place = div(), note = tag("p", "kd-note")) {
    this.card = tag("section", `kd-card kd-${key}`, [tag("h3", "", title), place, note], { hidden: "" });
    Object.assign(this, { key, place, note });
  }

  facts(state) {
    return state[this.key]?.length && state[this.key];
  }

  show(state) {
    const facts = this.facts(state), now = JSON.stringify(facts);
    this.card.hidden = !facts;
    if (facts && now !== this.drawn) this.draw(facts);
    this.drawn = now;
  }
}

// It scrolls, by keyboard too.
function scrolls(kind, className, label) {
  return tag(kind, className, [], { tabindex: 0, role: kind === "div" ? "group" : "list", "aria-label": label });
}

// Rows of cells; the first are names.
class Table extends Card {
  constructor(key, title) {
    super(key, title, scrolls("div", "kd-scroll", title));
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

// When each teacher served, and how it left: a row a teacher, the time of the run across.
class Lanes extends Card {
  constructor() {
    super("lanes", "Teachers over time", scrolls("div", "kd-rows", "Teachers"), div("kd-row"));
  }

  facts({ teachers, clock }) {
    return teachers?.length && { teachers, clock };
  }

  draw({ teachers, clock }) {
    const whole = max(1, clock.now - clock.start);
    const share = (t) => 100 * min(1, max(0, (t - clock.start) / whole));
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
          { title: "samples/s it measured when it joined" }),
        span("kd-number", resends ? `${resends} again` : "",
          { title: "batches that had to be sent to another one" }),
      ]);
    }));
    this.note.replaceChildren(span(),
      span("kd-lane-ends", ["begin", span("", duration(whole))]));
  }
}

// What each device of a pipeline did in the last steps of an epoch.
class Gantt extends Card {
  constructor() {
    super("gantt", "Devices, newest steps");
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

// Errors of every round: local models, what they are together, and what it was compressed to.
class Rounds extends Card {
  constructor() {
    super("rounds", "Rounds: test error, %");
  }

  draw(rounds) {
    const shown = rounds.slice(-14);
    const all = shown.flatMap((r) => [...r.locals, ...r.compressed, r.together]);
    const low = min(...all), high = max(...all);
    const wide = 720, tall = 190, left = 46;
    const y = (v) => 10 + (tall - 40) * (1 - (v - low) / (high - low || 1));
    const newest = rounds.at(-1);
    const drawn = drawing(tall, `test errors of ${rounds.length} rounds; newest: together ` +
      `${exact(newest.together)} %, local models ${newest.locals.map(exact).join(", ")} %`);
    for (const value of ticks(low, high, 4)) {
      drawn.append(shape("line", { x1: left, x2: wide, y1: y(value), y2: y(value), class: "kd-grid" }),
        shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
    }
    const each = (wide - left) / shown.length;
    shown.forEach(({ round, locals, together, compressed }, k) => {
      const x = left + each * (k + 0.5);
      const dot = (v, by, name) => {
        const made = shape("circle", { cx: x + by, cy: y(v), r: 4, class: `kd-${name.split(" ")[0]}` });
        made.append(shape("title", {}, `${name}: ${exact(v)} %`));
        drawn.append(made);
      };
      locals.forEach((v, w) => dot(v, -12, `local model ${w}`));
      dot(together, 0, "together");
      compressed.forEach((v, w) => dot(v, 12, `compressed model ${w}`));
      drawn.append(shape("text", { x, y: tall - 8, "text-anchor": "middle" }, round));
    });
    this.place.replaceChildren(drawn);
    this.note.replaceChildren(...["local", "together", "compressed"].slice(0, newest.compressed.length ? 3 : 2)
      .map((name) => span("", [tag("i", `kd-${name}`), name])));
  }
}

class Events extends Card {
  constructor() {
    super("ticker", "What happened", scrolls("ol", "kd-list", "Newest events first"));
  }

  draw(ticker) {
    this.place.replaceChildren(...ticker.map(([at, text]) => tag("li", "", [
      tag("time", "", new Date(1e3 * at).toTimeString().slice(0, 8)), span("", text)])));
  }
}

// Findings, issues first.
class Checks extends Card {
  constructor() {
    super("checks", "Checks", scrolls("ol", "kd-list", "Findings, issues first"));
  }

  draw(checks) {
    const told = checks.filter(([result]) => result !== "passed");
    this.place.replaceChildren(...told.map(([result, code, found, advice]) => tag("li", "", [
      tag("b", "", `${result} ${code}`, { "data-tone": result === "tip" ? "warn" : "bad" }), tag("span", "", `${found}\n${advice}`)])));
    this.note.textContent = `${checks.length - told.length} passed; kdlab show CODE is a page`;
  }
}
