"""A page for a widget, with the live view's script and style and no kernel."""

from benchmarks import live as bench
from kdlab.notebook.live_widget import script, style


def open_page(page, title, *, dark, width, height):
    """Open an empty page of this size; the caller gives the widget its traits."""
    page.set_viewport_size({"width": width, "height": height})
    ground, ink = ("#111", "#eee") if dark else ("#fff", "#111")
    page.set_content(
        f'<html lang="en"><title>{title}</title><body style="background:{ground};color:{ink}">'
        f"<main><h1>{title}</h1><h2>view</h2><div id=here></div></main></body></html>"
    )
    page.add_style_tag(content=style())


def run_script(page):
    """Show the widget."""
    page.evaluate(bench._HARNESS, script())
