// A few test images with the latest predictions of the student and its teacher.

class Film extends Card {
  constructor() {
    super("film", "Test images: predictions", scrollable("ul", "kd-frames", "Test images"));
  }

  facts({ film, strip }) {
    this.strip = strip; // too long to compare
    return film && { film, length: strip.length };
  }

  draw({ film }) {
    const { strip } = this;
    this.place.replaceChildren(...film.labels.map((label, k) => this.frame(film, strip, label, k)));
    const student = film.answers.find(({ who }) => who === "student");
    const first = film.answers.find(({ who }) => who === "student at first");
    const begin = student && first && student.epoch > first.epoch
      ? `, at first is epoch ${first.epoch}` : "";
    this.note.textContent = student ? `student after epoch ${student.epoch}${begin}` : "";
  }

  frame({ side, answers }, strip, label, k) {
    const picture = div("kd-picture", [],
      { role: "img", "aria-label": `test image ${k + 1}, ${label}` });
    picture.style.backgroundImage = strip ? `url(${JSON.stringify(strip)})` : "none";
    picture.style.backgroundPosition = `${-k * side}px 0`;
    picture.style.width = picture.style.height = `${side}px`;
    const frame = tag("li", "", [picture, tag("b", "", label)]);
    const newest = answers.find(({ who }) => who === "student");
    for (const { who, epoch, classes, shares } of answers) {
      if (who === "student at first" && newest && newest.epoch === epoch) continue;
      frame.append(span("kd-prediction", [
        tag("small", "", who === "student at first" ? "at first " : `${who} `),
        `${classes[k]} ${round(shares[k])} %`,
      ], { "data-right": classes[k] === label, title: `${who}: ${classes[k]}, ${exact(shares[k])} %` }));
    }
    return frame;
  }
}
