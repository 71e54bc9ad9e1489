// The form of an experiment. Python says its fields and what is wrong, and is told what was typed.

const TYPED_MS = 400; // from the last key until what was typed is told

function labelled(name, value) {
  if (value === null) return "(none)";
  return value.use ? `${name}  (card)` : value.type ? `${name}  (component)` : name;
}

// One value: a text, a box to tick, or one of several. `take` is told what it was set to.
class Entry {
  constructor({ key, kind, options = [] }, name, take) {
    const type = kind === "yes_no" ? "checkbox" : "text";
    const id = `kd-${Math.random().toString(36).slice(2)}`;
    this.own = options.length ? tag("select") : tag("input", "", [],
      { type, autocomplete: "off", spellcheck: "false" });
    this.about = tag("p", "kd-note", [], { id: `${id}-about` });
    this.fault = tag("p", "kd-fault", [], { id: `${id}-fault` });
    for (const [attribute, value] of Object.entries({ id, title: key, "aria-label": key,
      "aria-describedby": `${id}-fault ${id}-about` })) this.own.setAttribute(attribute, value);
    this.row = div("kd-field",
      [tag("label", "", name, { for: id, title: key }), this.own, this.fault, this.about]);
    this.take = take;
    this.own.onchange = () => this.tell();
    this.own.oninput = () => {
      clearTimeout(this.waits);
      if (type === "text") this.waits = setTimeout(() => this.tell(), TYPED_MS);
    };
  }

  get text() {
    return this.own.type === "checkbox" ? String(this.own.checked) : this.own.value;
  }

  set text(text) {
    if (this.own.type === "checkbox") this.own.checked = text === "true";
    else this.own.value = text;
    this.told = this.text;
  }

  tell() {
    clearTimeout(this.waits);
    if (this.text === this.told) return;
    this.told = this.text;
    this.take(this.text);
  }

  // What somebody is typing stays as it was typed. Returns whether there is a fault.
  show({ text, options = [], about = "", fault = "" }) {
    const names = JSON.stringify(options);
    if (options.length && names !== this.names) {
      this.own.replaceChildren(...options.map(([name, value]) =>
        tag("option", "", labelled(name, value), { value: name })));
      this.shown = undefined;
    }
    this.names = names;
    const typing = this.own.type === "text" && this.own.matches(":focus");
    if (text !== this.shown && !typing) this.text = text;
    this.shown = text;
    this.about.textContent = about;
    this.fault.textContent = fault.trim();
    this.own.setAttribute("aria-invalid", Boolean(fault));
    return Boolean(fault);
  }
}

// What can be opened: a part with its dropdown and its own fields, or all the rest.
class Section {
  constructor(row, name, tell) {
    const { key, options = [] } = row;
    this.summary = tag("summary", "", [name, this.said = span("kd-note")]);
    this.inside = new Fields(tell);
    this.about = tag("p", "kd-note");
    this.row = tag("details", "kd-section", [this.summary]);
    if (options.length) {
      this.choice = new Entry(row, name, (text) => this.pick(text, tell));
      this.variant = new Entry({ key: `${key}.*` }, "variant",
        (text) => text && tell(key, this.choice.text.replace("*", text)));
      this.variant.own.placeholder = "which of the family, such as resnet18";
      this.row.append(this.choice.row, this.variant.row);
    }
    this.row.append(this.about, this.inside.place);
  }

  // Which one of a family is typed next.
  pick(text, tell) {
    if (!text.endsWith("/*")) tell(this.key, text);
    else this.variant.text = text === this.choice.shown ? this.variant.shown : "";
    this.fold();
  }

  fold() {
    const { text, shown } = this.choice, family = text.endsWith("/*");
    this.variant.row.hidden = !family;
    this.inside.place.hidden = this.about.hidden = family && text !== shown;
  }

  show({ key, text = "", options = [], about = "", fault = "", rows }) {
    this.key = key;
    if (this.choice) {
      const known = options.some(([name]) => name === text), [family] = text.split("/", 1);
      this.choice.show({ text: known ? text : `${family}/*`, options, fault });
      this.variant.show({ text: known ? "" : text.slice(family.length + 1) });
      this.fold();
    }
    this.about.textContent = about;
    const wrong = this.inside.show(rows) || Boolean(fault);
    this.said.textContent = [text === "null" ? "(none)" : text, wrong && "has a fault"].filter(Boolean).join(", ");
    this.said.dataset.tone = wrong ? "bad" : "";
    return wrong;
  }
}

// Fields one below the other. Those that stay are the same elements, where they were: one of them
// may have the focus, others are open.
class Fields {
  constructor(tell) {
    this.place = div("kd-fields");
    this.made = new Map();
    this.tell = tell;
  }

  show(rows) {
    const before = this.made;
    this.made = new Map(rows.map((row) => {
      const { key, kind, rows: inner, options = [] } = row, { tell } = this;
      const id = `${key} ${kind} ${options.length > 0}`, name = row.name ?? key.split(".").pop();
      const own = before.get(id) ?? (inner ? new Section(row, name, tell)
        : new Entry(row, name, (text) => tell(key, text)));
      return [id, own];
    }));
    for (const [id, { row }] of before) if (!this.made.has(id)) row.remove();
    [...this.made.values()].forEach(({ row }, k) => {
      const there = this.place.children[k];
      if (there !== row) this.place.insertBefore(row, there ?? null);
    });
    const own = [...this.made.values()];
    return rows.map((row, k) => own[k].show(row)).some(Boolean);
  }
}

class Form extends View {
  build() {
    const order = (said) => this.model.send({ kind: "order", ...said });
    this.gone = tag("p", "kd-gone", [], { role: "status", hidden: "" });
    this.title = tag("strong");
    this.badge = span("kd-state", "", { role: "status" });
    this.fields = new Fields((name, text) => order({ do: "set", name, text }));
    this.verdict = tag("p", "kd-verdict", [], { role: "status" });
    this.as = tag("input", "", [], { type: "text", value: "my/experiment", spellcheck: "false" });
    this.controls = new Controls((said) => order({ name: this.as.value, ...said }));
    this.controls.card.prepend(tag("label", "", ["save as configs/ ", this.as]));
    this.yaml = tag("pre", "kd-yaml", [], { tabindex: 0, role: "group", "aria-label": "YAML" });
    const below = tag("section", "kd-card", [tag("h3", "", "As it would be saved"), this.yaml]);
    this.root.append(this.gone, tag("header", "kd-head", div("kd-title", [this.title, this.badge])),
      div("kd-cards kd-form", [this.fields.place, div("kd-side", [this.verdict, this.controls.card, below])]));
  }

  show({ form: { title, fault, rows, yaml } }) {
    const rest = { key: "", name: "all else", rows: rows.filter((row) => !row.rows) };
    this.fields.show([...rows.filter((row) => row.rows), rest]);
    this.title.textContent = title;
    this.badge.textContent = fault ? "has faults" : "could run";
    this.badge.dataset.tone = this.verdict.dataset.tone = fault ? "bad" : "good";
    this.verdict.hidden = !fault;
    this.verdict.textContent = fault;
    this.yaml.textContent = yaml;
    this.ask();
  }

  name() {} // curves, of which it has none

  hear(message, buffers) {
    super.hear(message, buffers);
    this.fields.place.inert = false;
  }

  lost() {
    super.lost();
    this.gone.textContent = "The kernel of this form is gone. " +
      `To go on with what was changed: ${this.model.get("again")}`;
    this.fields.place.inert = true;
  }
}
