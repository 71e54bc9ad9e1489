"""A live view as one HTML file, which needs no kernel, server or network."""

import base64
import html
import json
from collections.abc import Mapping

from kdlab.notebook.live_view import LiveView
from kdlab.notebook.live_widget import read, script, style
from kdlab.report.page import html_document


def page_file(view: LiveView, title: str) -> str:
    """Return a page of the view's current state, with zoomable charts, without controls.

    Args:
        view: view of a run, several runs or a sweep; it need not be displayed.
        title: title of the page.
    """
    with view.page.capture() as messages:
        view.on_hello()
    reset, points = messages[-1]
    snapshot: Mapping[str, object] = {
        "traits": {"state": view.page.state, "strip": view.page.strip, "controls": {}},
        "reset": reset,
        "points": base64.b64encode(points).decode(),
    }
    # Untrusted names must not end the script element.
    data = json.dumps(snapshot).replace("<", "\\u003c")
    content = f'<h1 class="kd-hidden">{html.escape(title)}</h1><div id="view"></div>'
    scripts = (
        f'<script type="application/json" id="saved">{data}</script>'
        f'<script type="module">{script()}{read("saved.js")}</script>'
    )
    return html_document(title, f"<style>{style()}</style>{content}", scripts)
