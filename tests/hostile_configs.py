"""Hostile configs and overrides: what is written in them, and how kdlab's own are damaged."""

import re
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]

# What broke a loader once, here or elsewhere.
VALUES = [
    "9" * 400, "9" * 5000, "1e999", "-1e400", ".nan", ".inf", "-.inf", "0x" + "f" * 300,
    "190:20:30", "!!bool x", "!!int abc", "!!float x", "!!timestamp x", "!!binary x",
    "!!null x", "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1]",
    "!!python/object/apply:os.system [true]", "!!str 3", "!x y", "&a [1]", "*a", "&a [*a]",
    "<<", "{<<: {a: 1}}", "=", "~", "null", "", " ", "- - - -", "?", "? a", "[" * 2000,
    "{a: " * 500, "[[[[[[[[1]]]]]]]]", "[" + "1, " * 3000 + "]", "{" * 50, "}", "]", ":", "|",
    ">", '"\\ud800"', '"\\0"', '"\\x07"', "a\x00b", "\x01", "\x85", "\u2028", "\ufeff",
    "\udcff", "é" * 300, "${", "${}", "${train.batch}", "${train.batch}" * 400, "${seeds}",
    "${oc.env:HOME}", "${oc.decode:x}", "${a.b.c.d}", "[${data}, ${data}]", "${data}", "${.}",
    "${..}", "${teacher_pool}", "$", "${train[batch]}", "%s%n", "../../etc/passwd",
    "/etc/passwd", "~root", "file:///etc/passwd", "tcp://127.0.0.1:9", "\\\\host\\x",
    "data/digits", "losses/hinton", "losses/" + "x" * 500, "timm/" + "y" * 5000,
    "models/../../x", "a/b/c/d/e", "0", "-1", "1", "3.5", "true", "on", "1e12", "1000000000000",
    "18446744073709551616", "-9223372036854775809", "{type: losses/hinton}",
    "{use: data/digits}", "{type: {type: x}}", "{use: [1]}", "{type: null}", "{1: 2}",
    "{[1]: 2}", "{{a: 1}: 2}", "{null: 1}", "{true: 1}", "{a: 1, a: 2}",
    "{type: data/image_folder, root: '\\0'}",
]  # fmt: skip
KEYS = [
    "train.epochs", "train.lr", "train.batch", "seeds", "seeds.0", "seeds.²", "seeds.٣",
    "seeds.-1", "seeds.99999", "loss", "loss.temperature", "loss.type", "data", "data.use",
    "data.size", "student", "student.type", "teacher", "teacher.model", "teacher.0.weight",
    "teacher_pool", "teacher_pool.teachers", "soft_labels", "soft_labels.lt",
    "soft_labels.path", "soft_labels.views", "method", "method.type", "aggregation", "compare",
    "tracking.uri", "chaos", "chaos.kills", "workers", "workers.address", "about", "use",
    "type", "", ".", "..", "a.", ".a", "a" * 300, "a.b" * 40, "." * 4000, "x" * 5000, "\x00",
    "\udcff", "é", "train..lr", "train.lr.x.y.z", "experiment", "space", "space.loss", "trials",
    "${data}", "__class__", "train.__init__", "0", "-",
]  # fmt: skip
WORDS = st.one_of(
    st.sampled_from(VALUES),
    st.text(max_size=40),
    st.floats().map(str),
    st.integers(-(10**25), 10**25).map(str),
)
OVERRIDES = st.lists(
    st.one_of(
        st.builds("{}={}".format, st.sampled_from(KEYS), WORDS),
        st.builds("{}={}".format, st.text(max_size=20), WORDS),
        st.builds(lambda key, value: {key: value}, st.sampled_from(KEYS), WORDS),
        WORDS,
    ),
    max_size=3,
)


@cache
def shipped() -> dict[str, str]:
    """Text of every config and card of kdlab, by its path."""
    shelves = ("configs", "registry", "benchmarks")
    files = [p for shelf in shelves for p in (ROOT / shelf).rglob("*.yaml")]
    files = [p for p in files if "results" not in p.parts]
    return {p.relative_to(ROOT).as_posix(): p.read_text("utf-8") for p in sorted(files)}


@st.composite
def damaged(draw):
    """The bytes of a shipped config with up to four damages."""
    configs = [name for name in shipped() if name.startswith("configs/")]
    text = shipped()[draw(st.sampled_from(configs))]
    for _ in range(draw(st.integers(1, 4))):
        text = _damage(draw, text)
    raw = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=8)) + raw[at:]
    return raw


def _damage(draw, text):
    how = draw(st.integers(0, 6))
    at = draw(st.integers(0, len(text)))
    if how == 0:  # another value behind a key
        values = list(re.finditer(r"(?<=: )[^\s,{}\[\]]+", text))
        if values:
            value = draw(st.sampled_from(values))
            return text[: value.start()] + draw(WORDS) + text[value.end() :]
    if how == 1:  # a piece is missing
        return text[:at] + text[at + draw(st.integers(1, 30)) :]
    if how == 2:  # a piece is there twice
        return text[:at] + text[at : at + draw(st.integers(1, 60))] + text[at:]
    if how == 3:  # a line more
        line = f"{draw(st.sampled_from(KEYS))}: {draw(WORDS)}\n"
        return text + line if draw(st.booleans()) else line + text
    if how == 4:  # one letter is another
        return text[:at] + draw(st.characters(codec=None)) + text[at + 1 :]
    if how == 5:  # cut off
        return text[:at]
    return text[:at] + draw(WORDS) + text[at:]
