// A few test images, and what the student and its teacher take them for, newest answers.

class Film extends Card {
  constructor() {
    super("film", "Test images: what each is taken for", scrolls("ul", "kd-frames", "Test images"));
  }

  facts({ film, strip }) {
    this.strip = strip; // too long to be compared
    return film && { film, length: strip.length };
  }

  draw({ film }) {
    const { strip } = this;
    this.place.replaceChildren(...film.labels.map((label, k) => this.frame(film, strip, label, k)));
    const student = film.answers.find(({ who }) => who === "student");
    const first = film.answers.find(({ who }) => who === "student at first");
    const moved = student && first && student.epoch > first.epoch
      ? `, at first is epoch ${first.epoch}` : "";
    this.note.textContent = student ? `student after epoch ${student.epoch}${moved}` : "";
  }

  frame({ side, answers }, strip, label, k) {
    const picture = div("kd-picture", [],
      { role: "img", "aria-label": `test image ${k + 1}, ${label}` });
    picture.style.backgroundImage = strip ? `url(${JSON.stringify(strip)})` : "none";
    picture.style.backgroundPosition = `${-k * side}px 0`;
    picture.style.width = picture.style.height = `${side}px`;
    const made = tag("li", "", [picture, tag("b", "", label)]);
    const newest = answers.find(({ who }) => who === "student");
    for (const { who, epoch, said, shares } of answers) {
      if (who === "student at first" && newest && newest.epoch === epoch) continue;
      made.append(span("kd-said", [
        tag("small", "", who === "student at first" ? "at first " : `${who} `),
        `${said[k]} ${round(shares[k])} %`,
      ], { "data-right": said[k] === label, title: `${who}: ${said[k]}, ${exact(shares[k])} %` }));
    }
    return made;
  }
}
