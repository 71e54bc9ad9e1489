// A saved page: light or dark as the system, with tables that sort.
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.onchange = () => {
  for (const root of document.querySelectorAll(".kd")) root.dataset.theme = dark.matches ? "dark" : "light";
};
dark.onchange();
// A click on the head of a column sorts by it; a second click reverses the order.
for (const head of document.querySelectorAll("thead th:not([scope])")) {
  head.tabIndex = 0;
  head.style.cursor = "pointer";
  head.title = "sort by this column";
  const sort = () => {
    const body = head.closest("table").tBodies[0], place = head.cellIndex;
    const up = head.ariaSort === "descending";
    for (const cell of head.parentElement.children) cell.ariaSort = null;
    head.ariaSort = up ? "ascending" : "descending";
    const value = row => row.cells[place].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)].map(parseFloat);
      return isNaN(x) || isNaN(y) ? value(a).localeCompare(value(b)) : x - y;
    };
    body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(a, b)));
  };
  head.onclick = sort;
  head.onkeydown = event => { if (event.key === "Enter") sort(); };
}
