// Buttons and dials. Python says which there are, carries out what is pressed, and answers.

class Controls {
  constructor(send) {
    [this.row, this.pool, this.dials] = ["", "", "kd-dials"].map((name) => div(name));
    this.asked = div("", [], { role: "alert" });
    this.answer = tag("p", "kd-note kd-answer", [], { role: "status" });
    this.card = tag("section", "kd-card kd-controls",
      [this.row, this.pool, this.dials, this.answer, this.asked], { "aria-label": "Controls" });
    this.made = new Map(); // dials by name
    this.send = (order) => {
      this.asked.replaceChildren();
      this.answer.textContent = "…"; // a kernel that computes answers later
      send(order);
    };
    this.teacher = tag("select", "", [], { "aria-label": "Teacher" });
    const act = (order) => button(order, () => this.send({ do: order, name: this.teacher.value }));
    this.pool.append(act("add teacher"), this.teacher, act("drain"), act("kill"));
  }

  show({ buttons = [], off = false, undo, teachers, dials = [], said: [count, tone, text] = [0, "", ""] }) {
    this.card.hidden = !buttons.length;
    const wanted = undo ? [...buttons, "undo"] : buttons;
    while (this.row.children.length > wanted.length) this.row.lastChild.remove();
    wanted.forEach((order, k) => { // the same elements: one of them may have the focus
      const own = this.row.children[k] ?? this.row.appendChild(button());
      own.disabled = off;
      own.textContent = order === "undo" ? `undo: ${undo}` : order;
      own.onclick = () => this.send({ do: order });
    });
    this.pool.hidden = !teachers;
    if (teachers) this.choose(teachers);
    this.dials.hidden = !dials.length;
    const names = dials.map(({ name }) => name);
    for (const [name, { row }] of this.made) {
      if (!names.includes(name)) { row.remove(); this.made.delete(name); }
    }
    for (const dial of dials) this.dial(dial, count);
    if (count === this.count) return;
    this.count = count;
    this.answer.textContent = text;
    this.answer.dataset.tone = tone;
  }

  // Nobody is chosen instead of one that has left: that one would be killed.
  choose(names) {
    const { teacher } = this, known = [...teacher.options].map(({ value }) => value);
    if (names.join() === known.join()) return;
    const kept = teacher.value;
    teacher.replaceChildren(...names.map((name) => tag("option", "", name, { value: name })));
    teacher.value = known.length ? kept : names[0];
  }

  dial(now, count) {
    const made = this.made.get(now.name) ?? this.make(now);
    const { low, high, log, value } = made.now = now;
    const shown = JSON.stringify([value, count]);
    if (shown === made.shown) return; // what is being typed stays
    made.shown = shown;
    const share = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    made.slider.value = min(1, max(0, share));
    made.slider.setAttribute("aria-valuetext", exact(value));
    made.field.value = Number(value.toPrecision(6));
  }

  make({ name, log }) {
    const slider = tag("input", "", [],
      { type: "range", min: 0, max: 1, step: log ? 1 / 300 : 1 / 200, "aria-label": name });
    const field = tag("input", "", [], { type: "number", step: "any", "aria-label": `${name}, number` });
    const row = div("kd-dial",
      [span("kd-name", name.split(".").pop(), { title: name }), slider, field]);
    const made = { row, slider, field, now: {} };
    slider.oninput = () => {
      const { low, high, log } = made.now, share = Number(slider.value);
      const value = log ? low * (high / low) ** share : low + (high - low) * share;
      field.value = Number(value.toPrecision(3));
      slider.setAttribute("aria-valuetext", field.value);
    };
    slider.onchange = field.onchange = () => {
      const { low, high, least, most } = made.now, typed = field.valueAsNumber;
      made.shown = "";
      if (!isNumber(typed)) this.dial(made.now, this.count);
      else if ((typed < low && typed >= (least ?? -Infinity)) || (typed > high && typed <= (most ?? Infinity))) {
        this.ask(made, typed);
      } else this.send({ do: "set", values: { [name]: typed } }); // Python says why it is refused
    };
    this.made.set(name, made);
    this.dials.append(row);
    return made;
  }

  // Far from what it began with: a slip of the finger would ruin the training.
  ask(made, value) {
    const { name, low, high } = made.now;
    const back = button("leave it", () => {
      this.asked.replaceChildren();
      this.dial(made.now, this.count);
      made.field.focus();
    });
    this.asked.replaceChildren(`${name} = ${value} is beyond ${exact(low)} to ${exact(high)}.`,
      button("set it", () => this.send({ do: "set", values: { [name]: value } })), back);
    back.focus();
  }
}
