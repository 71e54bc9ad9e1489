"""A live view as one HTML file that opens anywhere, without a kernel, a server or the network."""

import base64
import html
import json
from collections.abc import Mapping

from kdlab.notebook.live_view import LiveView
from kdlab.notebook.live_widget import script, style

# A browser that keeps to it loads nothing, and sends nothing to anybody.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
# Stands for the kernel: answers the page's hello with all points, and hears nothing else.
_KERNEL = """
const kept = JSON.parse(document.getElementById("kept").textContent), heard = {};
const bytes = Uint8Array.from(atob(kept.points), (one) => one.charCodeAt(0));
render({
  el: document.getElementById("view"),
  model: {
    get: (name) => kept.traits[name],
    on: (name, act) => { heard[name] = act; },
    off: () => {},
    send: () => setTimeout(() => heard["msg:custom"](kept.reset, [bytes.buffer])),
  },
});
"""


def page_file(view: LiveView, title: str) -> str:
    """The view as it is now, with its charts that zoom; its controls are left out.

    Args:
        view: of a run, several runs or a sweep; it need not be shown.
        title: of the page.
    """
    with view.page.caught() as sent:
        view.greeted()
    reset, points = sent[-1]
    kept: Mapping[str, object] = {
        "traits": {"state": view.page.state, "strip": view.page.strip, "controls": {}},
        "reset": reset,
        "points": base64.b64encode(points).decode(),
    }
    # Within a script nothing but the end of it is read: names are somebody's words.
    data = json.dumps(kept).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 12px; }}
h1 {{ position: absolute; clip-path: inset(50%); }}
{style()}</style></head>
<body><main><h1>{html.escape(title)}</h1><div id="view"></div></main>
<script type="application/json" id="kept">{data}</script>
<script type="module">{script()}{_KERNEL}</script></body></html>
"""
