// What a sweep adds: its settings side by side, what matters among them, and its best trials.

class Parallel {
  constructor() {
    this.card = titled("kd-parallel", "Settings and what came of them");
    this.place = element("div");
    this.note = element("p", "kd-note",
      "One line a trial, the best ones strong; dashed: pruned. Point at one to see its numbers.");
    this.card.append(this.place, this.note);
    this.drawn = "";
  }

  show({ sweep }) {
    this.card.hidden = !sweep || !sweep.lines.length || sweep.axes.length < 2;
    if (this.card.hidden) return;
    const now = JSON.stringify([sweep.axes, sweep.lines]);
    if (now === this.drawn) return;
    this.drawn = now;
    const { axes, lines } = sweep, wide = 720, tall = 240, top = 34, low = 24;
    const x = (k) => 50 + (wide - 100) * k / (axes.length - 1);
    const y = (share) => top + (tall - top - low) * (1 - share);
    const drawing = shape("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", class: "kd-svg",
      "aria-label": `${lines.length} trials over ${axes.map((a) => a.name).join(", ")}` });
    lines.forEach(({ number, at, score, pruned, said }) => {
      const steps = at.map((share, k) => (share === null ? null : `${x(k)},${y(share)}`));
      const line = shape("polyline", {
        points: steps.filter(Boolean).join(" "), fill: "none", class: "kd-trial",
        "stroke-opacity": pruned ? 0.3 : 0.15 + 0.85 * score ** 2,
        "stroke-dasharray": pruned ? "3 4" : "none",
        "stroke-width": score > 0.99 ? 2.5 : 1.2,
      });
      line.append(shape("title", {}, `trial ${number}: ${said}`));
      drawing.append(line);
    });
    axes.forEach(({ name, marks }, k) => {
      drawing.append(shape("line", { x1: x(k), x2: x(k), y1: top, y2: tall - low, class: "kd-axis" }));
      const anchor = k === 0 ? "start" : k === axes.length - 1 ? "end" : "middle";
      const label = name.length > 100 / axes.length + 8 ? `…${name.slice(-100 / axes.length - 7)}` : name;
      const head = shape("text", { x: k ? (anchor === "end" ? wide : x(k)) : 0,
        y: 14 + 14 * (k % 2) * (axes.length > 4), "text-anchor": anchor, class: "kd-strong" }, label);
      head.append(shape("title", {}, name));
      drawing.append(head);
      for (const [share, text] of marks) {
        drawing.append(shape("text", { x: x(k) + (anchor === "end" ? 5 : -5), y: y(share) + 4,
          "text-anchor": anchor === "end" ? "start" : "end" }, text));
      }
    });
    this.place.replaceChildren(drawing);
  }
}

class Importance {
  constructor() {
    this.card = titled("kd-importance", "Which settings matter");
    this.list = element("div", "kd-bars");
    this.note = element("p", "kd-note");
    this.card.append(this.list, this.note);
  }

  show({ sweep }) {
    const found = sweep?.importance ?? [];
    this.card.hidden = !found.length;
    this.list.replaceChildren(...found.flatMap(([name, share]) => {
      const bar = element("span", "kd-share");
      const fill = element("i");
      fill.style.width = `${100 * share}%`;
      bar.append(fill);
      return [element("span", "kd-name", name), bar, element("span", "kd-number", `${Math.round(100 * share)} %`)];
    }));
    this.note.textContent = sweep?.importance_note ?? "";
  }
}

class Trials {
  constructor() {
    this.card = titled("kd-trials", "Best trials so far");
    this.place = element("div", "kd-scroll");
    this.place.tabIndex = 0;
    this.place.setAttribute("role", "group");
    this.place.setAttribute("aria-label", "Best trials");
    this.card.append(this.place);
  }

  show({ sweep }) {
    this.card.hidden = !sweep?.best.length;
    if (this.card.hidden) return;
    const made = element("table");
    const head = element("tr");
    head.append(...sweep.head.map((name) => element("th", "", name)));
    const rows = sweep.best.map((cells) => {
      const row = element("tr");
      row.append(...cells.map((cell) => element("td", "", cell)));
      return row;
    });
    made.append(head, ...rows);
    this.place.replaceChildren(made);
  }
}

const SWEEP_PARTS = [Parallel, Importance, Trials];
