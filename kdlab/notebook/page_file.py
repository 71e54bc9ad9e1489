"""A live view as one HTML file that opens anywhere, without a kernel, a server or the network."""

import base64
import html
import json
from collections.abc import Mapping

from kdlab.notebook.live_view import LiveView
from kdlab.notebook.live_widget import read, script, style
from kdlab.report.page import whole


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
    shown = f'<h1 class="kd-hidden">{html.escape(title)}</h1><div id="view"></div>'
    scripts = (
        f'<script type="application/json" id="kept">{data}</script>'
        f'<script type="module">{script()}{read("kept.js")}</script>'
    )
    return whole(title, f"<style>{style()}</style>{shown}", scripts)
