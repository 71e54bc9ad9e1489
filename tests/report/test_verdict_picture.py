"""A picture of the verdict: the three numbers, the sentence, nothing unescaped."""

from xml.etree import ElementTree

from kdlab.report.bars import svg_document
from kdlab.report.verdict_picture import PICTURE, write_picture


def result(**more):
    sentence = "With its teacher 61.5 %, alone 43.1 %: <b>the teacher</b> helped. " * 4
    verdict = {"before": 43.06, "after": 61.47, "sentence": sentence}
    return {"teacher_top1": 63.03, "verdict": verdict} | more


def test_it_has_the_numbers_and_the_sentence(tmp_path):
    write_picture(tmp_path, result())
    drawn = ElementTree.fromstring((tmp_path / PICTURE).read_text())
    words = [element.text or "" for element in drawn.iter() if element.tag.endswith("text")]
    assert {"43.1 %", "61.5 %", "63.0 %"} <= set(words)
    assert "<b>the teacher</b> helped." in " ".join(words)
    bars = [e for e in drawn.iter() if e.tag.endswith("rect")]
    wide = [float(bar.get("width")) for bar in bars]
    assert wide[0] < wide[1] < wide[2]
    lines = [float(e.get("y")) for e in drawn.iter() if e.tag.endswith("text")]
    assert max(lines) < float(drawn.get("height"))


def test_a_note_is_text_and_no_markup():
    drawn = ElementTree.fromstring(svg_document("<b>1 & 2</b>", "", 40))
    assert "<b>1 & 2</b>" in [element.text for element in drawn.iter()]


def test_a_run_without_a_verdict_has_none(tmp_path):
    write_picture(tmp_path, result(verdict=None))
    write_picture(tmp_path, {})
    assert not (tmp_path / PICTURE).exists()
