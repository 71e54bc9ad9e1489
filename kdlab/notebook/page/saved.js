// Takes the kernel's place in a saved page: sends all points once and ignores every message.

const saved = JSON.parse(document.getElementById("saved").textContent), listeners = {};
const bytes = Uint8Array.from(atob(saved.points), (c) => c.charCodeAt(0));
render({
  el: document.getElementById("view"),
  model: {
    get: (name) => saved.traits[name],
    on: (name, act) => { listeners[name] = act; },
    off: () => {},
    send: () => setTimeout(() => listeners["msg:custom"](saved.reset, [bytes.buffer])),
  },
});
