// Cards of a sweep: settings side by side, their importance, the best trials.

class Parallel extends Card {
  constructor() {
    super("parallel", "Settings and results");
    this.note.append("One line for each trial; the best is the strongest, pruned ones are dashed.");
  }

  facts({ axes, lines }) {
    return lines?.length && axes.length > 1 && { axes, lines };
  }

  draw({ axes, lines }) {
    const wide = 720, tall = 240, top = 34, low = 24;
    const x = (k) => 50 + (wide - 100) * k / (axes.length - 1);
    const y = (share) => top + (tall - top - low) * (1 - share);
    const drawn = drawing(tall, `${lines.length} trials over ${axes.map((a) => a.name).join(", ")}`);
    lines.forEach(({ number, at, score, pruned, text }) => {
      const steps = at.map((share, k) => (share === null ? null : `${x(k)},${y(share)}`));
      const line = shape("polyline", {
        points: steps.filter(Boolean).join(" "), fill: "none", class: "kd-trial",
        "stroke-opacity": pruned ? 0.3 : 0.15 + 0.85 * score ** 2,
        "stroke-dasharray": pruned ? "3 4" : "none",
        "stroke-width": score > 0.99 ? 2.5 : 1.2,
      });
      line.append(shape("title", {}, `trial ${number}: ${text}`));
      drawn.append(line);
    });
    axes.forEach(({ name, marks }, k) => {
      drawn.append(shape("line", { x1: x(k), x2: x(k), y1: top, y2: tall - low, class: "kd-axis" }));
      const anchor = k === 0 ? "start" : k === axes.length - 1 ? "end" : "middle";
      const label = name.length > 100 / axes.length + 8 ? `…${name.slice(-100 / axes.length - 7)}` : name;
      const head = shape("text", { x: k ? (anchor === "end" ? wide : x(k)) : 0,
        y: 14 + 14 * (k % 2) * (axes.length > 4), "text-anchor": anchor, class: "kd-strong" }, label);
      head.append(shape("title", {}, name));
      drawn.append(head);
      for (const [share, text] of marks) {
        drawn.append(shape("text", { x: x(k) + (anchor === "end" ? 5 : -5), y: y(share) + 4,
          "text-anchor": anchor === "end" ? "start" : "end" }, text));
      }
    });
    this.place.replaceChildren(drawn);
  }
}

class Importance extends Card {
  constructor() {
    super("importance", "Which settings matter", div("kd-bars"));
  }

  facts({ importance, importance_note: note }) {
    return importance?.length && { importance, note };
  }

  draw({ importance, note }) {
    this.place.replaceChildren(...importance.flatMap(([name, share]) => {
      const fill = tag("i");
      fill.style.width = `${100 * share}%`;
      return [span("kd-name", name), span("kd-share", fill),
        span("kd-number", `${round(100 * share)} %`)];
    }));
    this.note.textContent = note;
  }
}
