// The form of an experiment. Python sends fields and faults; the form sends what was typed.

const TYPED_MS = 400; // from the last key until the text is sent

function labelled(name, value) {
  if (value === null) return "(none)";
  return value.use ? `${name}  (card)` : value.type ? `${name}  (component)` : name;
}

// One value: a text, a checkbox, or a choice. `take` receives the value that was set.
class Entry {
  constructor({ key, kind, options = [] }, name, take) {
    const type = kind === "yes_no" ? "checkbox" : "text";
    const id = `kd-${Math.random().toString(36).slice(2)}`;
    this.input = options.length ? tag("select") : tag("input", "", [],
      { type, autocomplete: "off", spellcheck: "false" });
    this.about = tag("p", "kd-note", [], { id: `${id}-about` });
    this.fault = tag("p", "kd-fault", [], { id: `${id}-fault` });
    for (const [attribute, value] of Object.entries({ id, title: key, "aria-label": key,
      "aria-describedby": `${id}-fault ${id}-about` })) this.input.setAttribute(attribute, value);
    this.row = div("kd-field",
      [tag("label", "", name, { for: id, title: key }), this.input, this.fault, this.about]);
    this.take = take;
    this.input.onchange = () => this.send();
    this.input.oninput = () => {
      clearTimeout(this.waits);
      if (type === "text") this.waits = setTimeout(() => this.send(), TYPED_MS);
    };
  }

  get text() {
    return this.input.type === "checkbox" ? String(this.input.checked) : this.input.value;
  }

  set text(text) {
    if (this.input.type === "checkbox") this.input.checked = text === "true";
    else this.input.value = text;
    this.sent = this.text;
  }

  send() {
    clearTimeout(this.waits);
    if (this.text === this.sent) return;
    this.sent = this.text;
    this.take(this.text);
  }

  // Keeps a text that is being typed. Returns whether there is a fault.
  show({ text, options = [], about = "", fault = "" }) {
    const names = JSON.stringify(options);
    if (options.length && names !== this.names) {
      this.input.replaceChildren(...options.map(([name, value]) =>
        tag("option", "", labelled(name, value), { value: name })));
      this.shown = undefined;
    }
    this.names = names;
    const typing = this.input.type === "text" && this.input.matches(":focus");
    if (text !== this.shown && !typing) this.text = text;
    this.shown = text;
    this.about.textContent = about;
    this.fault.textContent = fault.trim();
    this.input.setAttribute("aria-invalid", Boolean(fault));
    return Boolean(fault);
  }
}

// A section that opens: a component with its dropdown and fields, or all other fields.
class Section {
  constructor(row, name, tell) {
    const { key, options = [] } = row;
    this.summary = tag("summary", "", [name, this.summaryNote = span("kd-note")]);
    this.inside = new Fields(tell);
    this.about = tag("p", "kd-note");
    this.row = tag("details", "kd-section", [this.summary]);
    if (options.length) {
      this.choice = new Entry(row, name, (text) => this.pick(text, tell));
      this.variant = new Entry({ key: `${key}.*` }, "variant",
        (text) => text && tell(key, this.choice.text.replace("*", text)));
      this.variant.input.placeholder = "which of the family, such as resnet18";
      this.row.append(this.choice.row, this.variant.row);
    }
    this.row.append(this.about, this.inside.place);
  }

  // A choice of a family asks for the variant.
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
      const listed = options.some(([name]) => name === text), [family] = text.split("/", 1);
      this.choice.show({ text: listed ? text : `${family}/*`, options, fault });
      this.variant.show({ text: listed ? "" : text.slice(family.length + 1) });
      this.fold();
    }
    this.about.textContent = about;
    const wrong = this.inside.show(rows) || Boolean(fault);
    this.summaryNote.textContent = [text === "null" ? "(none)" : text, wrong && "has a fault"].filter(Boolean).join(", ");
    this.summaryNote.dataset.tone = wrong ? "bad" : "";
    return wrong;
  }
}

// A column of fields. Elements are reused and stay in place: one may have the focus, some are open.
class Fields {
  constructor(tell) {
    this.place = div("kd-fields");
    this.fieldsById = new Map();
    this.tell = tell;
  }

  show(rows) {
    const before = this.fieldsById;
    this.fieldsById = new Map(rows.map((row) => {
      const { key, kind, rows: inner, options = [] } = row, { tell } = this;
      const id = `${key} ${kind} ${options.length > 0}`, name = row.name ?? key.split(".").pop();
      const field = before.get(id) ?? (inner ? new Section(row, name, tell)
        : new Entry(row, name, (text) => tell(key, text)));
      return [id, field];
    }));
    for (const [id, { row }] of before) if (!this.fieldsById.has(id)) row.remove();
    [...this.fieldsById.values()].forEach(({ row }, k) => {
      const present = this.place.children[k];
      if (present !== row) this.place.insertBefore(row, present ?? null);
    });
    const fields = [...this.fieldsById.values()];
    return rows.map((row, k) => fields[k].show(row)).some(Boolean);
  }
}

class Form extends View {
  build() {
    const order = (message) => this.model.send({ kind: "order", ...message });
    this.gone = tag("p", "kd-gone", [], { role: "status", hidden: "" });
    this.title = tag("strong");
    this.badge = span("kd-state", "", { role: "status" });
    this.fields = new Fields((name, text) => order({ do: "set", name, text }));
    this.verdict = tag("p", "kd-verdict", [], { role: "status" });
    this.as = tag("input", "", [], { type: "text", value: "my/experiment", spellcheck: "false" });
    this.controls = new Controls((message) => order({ name: this.as.value, ...message }));
    this.controls.card.prepend(tag("label", "", ["save as configs/ ", this.as]));
    this.yaml = tag("pre", "kd-yaml", [], { tabindex: 0, role: "group", "aria-label": "YAML" });
    const below = tag("section", "kd-card", [tag("h3", "", "The file to be saved"), this.yaml]);
    this.root.append(this.gone, tag("header", "kd-head", div("kd-title", [this.title, this.badge])),
      div("kd-cards kd-form", [this.fields.place, div("kd-side", [this.verdict, this.controls.card, below])]));
  }

  show({ form: { title, fault, rows, yaml } }) {
    const rest = { key: "", name: "other settings", rows: rows.filter((row) => !row.rows) };
    this.fields.show([...rows.filter((row) => row.rows), rest]);
    this.title.textContent = title;
    this.badge.textContent = fault ? "has faults" : "ready to run";
    this.badge.dataset.tone = this.verdict.dataset.tone = fault ? "bad" : "good";
    this.verdict.hidden = !fault;
    this.verdict.textContent = fault;
    this.yaml.textContent = yaml;
    this.schedule();
  }

  setCurves() {} // a form has none

  hear(message, buffers) {
    super.hear(message, buffers);
    this.fields.place.inert = false;
  }

  lost() {
    super.lost();
    this.gone.textContent = "The kernel of this form is gone. " +
      `Continue with your changes: ${this.model.get("again")}`;
    this.fields.place.inert = true;
  }
}
