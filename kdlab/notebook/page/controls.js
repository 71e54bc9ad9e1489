// Buttons and dials. Python lists them, carries out orders, and replies.

class Controls {
  constructor(send) {
    [this.row, this.pool, this.dials] = ["", "", "kd-dials"].map((name) => div(name));
    this.question = div("", [], { role: "alert" });
    this.answer = tag("p", "kd-note kd-answer", [], { role: "status" });
    this.card = tag("section", "kd-card kd-controls",
      [this.row, this.pool, this.dials, this.answer, this.question], { "aria-label": "Controls" });
    this.dialsByName = new Map(); // name: elements and latest state of a dial
    this.send = (order) => {
      this.question.replaceChildren();
      this.answer.textContent = "…"; // a busy kernel replies later
      send(order);
    };
    this.teacher = tag("select", "", [], { "aria-label": "Teacher" });
    const act = (order) => button(order, () => this.send({ do: order, name: this.teacher.value }));
    this.pool.append(act("add teacher"), this.teacher, act("drain"), act("kill"));
  }

  show({ buttons = [], off = false, undo, teachers, dials = [], reply: [count, tone, text] = [0, "", ""] }) {
    this.card.hidden = !buttons.length;
    const orders = undo ? [...buttons, "undo"] : buttons;
    while (this.row.children.length > orders.length) this.row.lastChild.remove();
    orders.forEach((order, k) => { // elements are reused: one may have the focus
      const element = this.row.children[k] ?? this.row.appendChild(button());
      element.disabled = off;
      element.textContent = order === "undo" ? `undo: ${undo}` : order;
      element.onclick = () => this.send({ do: order });
    });
    this.pool.hidden = !teachers;
    if (teachers) this.choose(teachers);
    this.dials.hidden = !dials.length;
    const names = dials.map(({ name }) => name);
    for (const [name, { row }] of this.dialsByName) {
      if (!names.includes(name)) { row.remove(); this.dialsByName.delete(name); }
    }
    for (const dial of dials) this.dial(dial, count);
    if (count === this.count) return;
    this.count = count;
    this.answer.textContent = text;
    this.answer.dataset.tone = tone;
  }

  // When the chosen teacher has left, none is chosen: "kill" would hit another one.
  choose(names) {
    const { teacher } = this, present = [...teacher.options].map(({ value }) => value);
    if (names.join() === present.join()) return;
    const chosen = teacher.value;
    teacher.replaceChildren(...names.map((name) => tag("option", "", name, { value: name })));
    teacher.value = present.length ? chosen : names[0];
  }

  dial(state, count) {
    const parts = this.dialsByName.get(state.name) ?? this.make(state);
    const { low, high, log, value } = parts.state = state;
    const text = JSON.stringify([value, count]);
    if (text === parts.text) return; // keeps what is being typed
    parts.text = text;
    const share = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    parts.slider.value = min(1, max(0, share));
    parts.slider.setAttribute("aria-valuetext", exact(value));
    parts.field.value = Number(value.toPrecision(6));
  }

  make({ name, log }) {
    const slider = tag("input", "", [],
      { type: "range", min: 0, max: 1, step: log ? 1 / 300 : 1 / 200, "aria-label": name });
    const field = tag("input", "", [], { type: "number", step: "any", "aria-label": `${name}, number` });
    const row = div("kd-dial",
      [span("kd-name", name.split(".").pop(), { title: name }), slider, field]);
    const parts = { row, slider, field, state: {} };
    slider.oninput = () => {
      const { low, high, log } = parts.state, share = Number(slider.value);
      const value = log ? low * (high / low) ** share : low + (high - low) * share;
      field.value = Number(value.toPrecision(3));
      slider.setAttribute("aria-valuetext", field.value);
    };
    slider.onchange = field.onchange = () => {
      const { low, high, least, most } = parts.state, typed = field.valueAsNumber;
      parts.text = "";
      if (!isNumber(typed)) this.dial(parts.state, this.count);
      else if ((typed < low && typed >= (least ?? -Infinity)) || (typed > high && typed <= (most ?? Infinity))) {
        this.confirm(parts, typed);
      } else this.send({ do: "set", values: { [name]: typed } }); // Python replies why it is refused
    };
    this.dialsByName.set(name, parts);
    this.dials.append(row);
    return parts;
  }

  // Asks before setting a value far from the first one: a slip would ruin the training.
  confirm(parts, value) {
    const { name, low, high } = parts.state;
    const cancel = button("keep the old value", () => {
      this.question.replaceChildren();
      this.dial(parts.state, this.count);
      parts.field.focus();
    });
    this.question.replaceChildren(`${name} = ${value} is outside ${exact(low)} to ${exact(high)}, the usual range.`,
      button("set it anyway", () => this.send({ do: "set", values: { [name]: value } })), cancel);
    cancel.focus();
  }
}
