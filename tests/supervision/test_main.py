"""`python -m kdlab.supervision MODULE`: the lifeline first, then the module as a main."""

import sys

from kdlab.supervision import lifeline


def test_the_lifeline_is_watched_before_the_module_is_imported(tmp_path, monkeypatch):
    (tmp_path / "a_main.py").write_text(
        "from kdlab.supervision import lifeline\n"
        "lifeline.order.append((__name__, __import__('sys').argv[0]))\n"
    )
    order = []
    monkeypatch.setattr(lifeline, "order", order, raising=False)
    monkeypatch.setattr(lifeline, "watch", lambda: order.append("watched"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["kdlab.supervision", "a_main"])
    monkeypatch.delitem(sys.modules, "kdlab.supervision.__main__", raising=False)
    import kdlab.supervision.__main__ as started

    assert started
    assert order == ["watched", ("__main__", str(tmp_path / "a_main.py"))]
    monkeypatch.delitem(sys.modules, "kdlab.supervision.__main__")
