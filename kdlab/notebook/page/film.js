// A few test images, and what the student and its teacher take them for, newest answers.

class Film {
  constructor() {
    this.card = titled("kd-film", "Test images: what each is taken for");
    this.place = element("ul", "kd-frames");
    this.place.tabIndex = 0;
    this.place.setAttribute("aria-label", "Test images");
    this.note = element("p", "kd-note");
    this.card.append(this.place, this.note);
    this.drawn = "";
  }

  show({ film, strip }) {
    this.card.hidden = !film;
    if (!film) return;
    const now = JSON.stringify([film.answers, strip.length]);
    if (now === this.drawn) return;
    this.drawn = now;
    this.place.replaceChildren(...film.labels.map((label, k) => this.frame(film, strip, label, k)));
    const student = film.answers.find(({ who }) => who === "student");
    const first = film.answers.find(({ who }) => who === "student at first");
    const moved = student && first && student.epoch > first.epoch
      ? `, at first is epoch ${first.epoch}` : "";
    this.note.textContent = student ? `student after epoch ${student.epoch}${moved}` : "";
  }

  frame({ side, answers }, strip, label, k) {
    const made = element("li");
    const picture = element("div", "kd-picture");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", `test image ${k + 1}, ${label}`);
    picture.style.backgroundImage = strip ? `url(${JSON.stringify(strip)})` : "none";
    picture.style.backgroundPosition = `${-k * side}px 0`;
    picture.style.width = picture.style.height = `${side}px`;
    made.append(picture, element("b", "", label));
    const newest = answers.find(({ who }) => who === "student");
    for (const { who, epoch, said, shares } of answers) {
      if (who === "student at first" && newest && newest.epoch === epoch) continue;
      const line = element("span", "kd-said");
      line.dataset.right = String(said[k] === label);
      line.title = `${who}: ${said[k]}, ${exact(shares[k])} %`;
      line.append(element("small", "", who === "student at first" ? "at first " : `${who} `),
        `${said[k]} ${Math.round(shares[k])} %`);
      made.append(line);
    }
    return made;
  }
}
