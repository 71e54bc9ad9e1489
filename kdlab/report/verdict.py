"""Whether the teacher helped, in a sentence with its interval, why not, and what to do next.

Where two seeds or more were trained both ways the interval is Student's t of their differences;
else it is what chance does to the share of right answers among so many test images (binomial).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

VerdictKind = Literal["helped", "did_not_help", "cannot_be_told"]
VerdictBasis = Literal["seeds", "test_images", "one_seed"]
_TONES = {"helped": "good", "did_not_help": "warn"}

_Z = 1.96  # 97.5 % quantile of the normal distribution; below of Student's t with 1, 2 ... 30
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_FEW_EPOCHS, _FEW_IMAGES = 10, 1000
_STRONGER = "a stronger teacher (pretrained: true in its model, or more epochs of its own)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTraining:
    """One training of a comparison; percent.

    validation: top-1 after each epoch.
    """

    source: str
    seed: int
    top1: float  # on test
    teacher_top1: float | None = None  # on test; None without one
    validation: Sequence[float] = ()
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Did it help?

    before: mean top-1 without a teacher, percent; of a sweep the metric of the unchanged setting.
    after: the same with the teacher; of a sweep that of the best setting.
    gained: points, or in the metric's unit; positive is better.
    low, high: ends of the 95 % interval of `gained`; None where one seed of a sweep is all.
    """

    kind: VerdictKind
    before: float
    after: float
    gained: float
    low: float | None
    high: float | None
    by: VerdictBasis
    why: tuple[str, ...] = ()
    next: str = ""
    sentence: str


@dataclass(frozen=True, slots=True)
class _Gain:
    before: float
    after: float
    gained: float
    half: float  # of the interval
    seeds: int  # that were trained both ways

    @property
    def kind(self) -> VerdictKind:
        if self.gained <= 0:
            return "did_not_help"
        # Differences that are all the same show how coarse a number is, and no certainty.
        return "helped" if self.gained > self.half > 0 else "cannot_be_told"

    def judged(self, it: str, digits: str, unit: str, of: str) -> str:
        """In words; `digits` is the format of a number, `of` what the interval is of."""
        low, high = self.gained - self.half, self.gained + self.half
        ends = f"{low:{digits}} to {high:{digits}} with 95 % confidence: {of}"
        if self.kind == "helped":
            return f"{it} helped by {self.gained:{digits}}{unit} ({ends})"
        words = f"{it} made it worse" if high < 0 else f"{it} did not help"
        if self.kind == "cannot_be_told":
            words = f"whether {it} helped cannot be told"
        return f"{words} ({self.gained:+{digits}}{unit}, {ends})"

    def verdict(
        self, by: VerdictBasis, head: str, why: Sequence[str] = (), do: str = ""
    ) -> Verdict:
        reasons, cures = f" Why: {'; '.join(why)}." if why else "", f" Next: {do}."
        one = by == "one_seed"
        return Verdict(
            kind="cannot_be_told" if one else self.kind,
            before=self.before,
            after=self.after,
            gained=self.gained,
            low=None if one else self.gained - self.half,
            high=None if one else self.gained + self.half,
            by=by,
            why=tuple(why),
            next=do,
            sentence=f"{head}.{reasons}{cures if do else ''}",
        )


def of_comparison(
    members: Sequence[ComparedTraining], described: str, images: int, validated: int
) -> Verdict | None:
    """The verdict on the teacher; None where nothing was trained without one, or with one.

    Args:
        members: all trainings of the run.
        described: the source that is compared with `none`; the last with a teacher where it has
            none.
        images: test images; 0 has no verdict.
        validated: validation images; 0 where nothing was validated.
    """
    alone = [m for m in members if m.source == "none"]
    known = [m for m in members if m.source != "none" and m.teacher_top1 is not None]
    sources = list(dict.fromkeys(m.source for m in known))
    source = described if described in sources else next(reversed(sources), "")
    taught = [m for m in known if m.source == source]
    unknown = any(math.isnan(m.top1) for m in (*alone, *taught))
    if not alone or not taught or not images or unknown:
        return None
    gain = _gain({m.seed: m.top1 for m in alone}, {m.seed: m.top1 for m in taught}, images)
    named = f"its teacher ({source})" if len(sources) > 1 else "its teacher"
    of = f"{gain.seeds} seeds" if gain.seeds > 1 else f"{images:,} test images"
    head = f"With {named} {gain.after:.1f} %, alone {gain.before:.1f} %: "
    head += gain.judged("the teacher", ".1f", " points", of)
    by: VerdictBasis = "seeds" if gain.seeds > 1 else "test_images"
    if gain.kind == "helped":
        return gain.verdict(by, head)
    found = knowledge(gain.before, taught, images, gain.half)
    found += too_few_epochs([alone, taught], validated)
    why, cures = [words for words, _ in found], [cure for _, cure in found]
    if gain.kind == "cannot_be_told" or not cures:
        more = " or more test images" if images < _FEW_IMAGES else ""
        wanted = list(range(max(3, 2 * gain.seeds)))
        cures.append(f"more seeds (seeds: {wanted}){more}")
    return gain.verdict(by, head, why, " and ".join(cures))


def of_setting(
    metric: str,
    before: Mapping[int, float],
    after: Mapping[int, float],
    sign: int,
    *,
    confirmed: bool,
) -> Verdict | None:
    """The same of the best setting of a sweep beside the unchanged one; None without both.

    Args:
        metric: its first objective.
        before: of the experiment as it is, by seed.
        after: of the best setting.
        sign: 1 where more of the metric is better, -1 where less is.
        confirmed: by fresh seeds; otherwise the values are the search's own.
    """
    if not before or not after:
        return None
    gain = _gain(before, after, None, sign)
    head = f"{metric} is {gain.after:.4g}, with the unchanged setting {gain.before:.4g}: "
    if gain.seeds < 2:
        seed = "one fresh seed" if confirmed else "one seed, not confirmed"
        head += f"whether the setting helped cannot be told ({gain.gained:+.3g}, {seed})"
        return gain.verdict("one_seed", head, (), "fresh seeds (confirm.seeds)")
    head += gain.judged("the setting", ".3g", "", f"{gain.seeds} fresh seeds")
    unsure = gain.kind == "cannot_be_told"
    return gain.verdict("seeds", head, (), "more fresh seeds (confirm.seeds)" * unsure)


def _gain(
    before: Mapping[int, float],
    after: Mapping[int, float],
    images: int | None,
    sign: int = 1,
) -> _Gain:
    """From the seeds that both have, where these are two or more; else from the means of all."""
    pairs = sorted(before.keys() & after.keys())
    seeds = len(pairs)
    if seeds > 1:
        each = [sign * (after[seed] - before[seed]) for seed in pairs]
        # Beyond the table the next term of the quantile's expansion: right to 0.003.
        t = _T[seeds - 2] if seeds - 2 < len(_T) else _Z + (_Z**3 + _Z) / (4 * seeds - 4)
        half = t * stdev(each) / math.sqrt(seeds)
        old, new = (fmean(own[seed] for seed in pairs) for own in (before, after))
        return _Gain(old, new, fmean(each), half, seeds)
    old, new = fmean(before.values()), fmean(after.values())
    half = 0.0 if images is None else chance((old, new), images)
    return _Gain(old, new, sign * (new - old), half, 1)


def chance(shares: Sequence[float], images: int) -> float:
    """Half the 95 % interval of a sum or difference of shares (percent) of so many images each."""
    return _Z * math.sqrt(sum(share * (100 - share) / images for share in shares))


def guessed(guessing: float, images: int) -> float:
    """Top-1 below which nothing is known: three standard errors above guessing; percent.

    Args:
        guessing: that is right by saying the commonest class, or any, percent.
        images: that were looked at.
    """
    share = guessing / 100
    return guessing + 300 * math.sqrt(share * (1 - share) / max(1, images))


def shown(kept: object) -> tuple[str, str]:
    """Tone and words that a live view has for the verdict of a result; empty where it has none."""
    if not isinstance(kept, Mapping):
        return "", ""
    return _TONES.get(str(kept.get("kind")), "plain"), str(kept.get("sentence", ""))


# Why not


def knowledge(
    before: float,
    taught: Sequence[ComparedTraining],
    images: int,
    half: float | None = None,
) -> list[tuple[str, str]]:
    """What a teacher could not give, each with what helps against it.

    Args:
        before: mean top-1 without it, percent on test.
        taught: trainings with it.
        images: test images.
        half: of the gain's interval; None is that of one share.
    """
    left = 100 - before
    if left <= (chance((before,), images) if half is None else half):
        words = f"little is left to gain (alone {before:.1f} %)"
        return [(words, "fewer labelled images, a smaller student or a harder set")]
    teacher = fmean(m.teacher_top1 for m in taught if m.teacher_top1 is not None)
    if teacher > before + chance((before,), images):
        return []
    more = "no more" if teacher <= before else "hardly more"
    words = f"the teacher knows {more} than the student does alone"
    return [(f"{words}: {teacher:.1f} % against {before:.1f} %", _STRONGER)]


def too_few_epochs(
    sources: Sequence[Sequence[ComparedTraining]], validated: int
) -> list[tuple[str, str]]:
    """That all sources were trained for too short a time, by their curves on validation.

    Args:
        sources: the trainings of each.
        validated: validation images; 0: none.
    """
    epochs = min(m.epochs for members in sources for m in members)
    cure = f"more epochs (train.epochs={2 * epochs})"
    rises = [[_rise(m.validation) for m in members] for members in sources]
    means = [fmean(each) for each in rises if not any(math.isnan(rise) for rise in each)]
    # One standard error: it is the same images that are looked at again.
    ends = [m.validation[-1] for members in sources for m in members if m.validation]
    noise = chance((fmean(ends),), validated) / _Z if validated and ends else math.inf
    if means and len(means) == len(sources) and min(means) > noise:
        by = " and ".join(f"{rise:+.1f}" for rise in means)
        still = {1: "it still rises", 2: "both still rise"}.get(
            len(means), "all still rise"
        )
        return [(f"too few epochs: {still} on validation ({by} points at the end)", cure)]
    return [(f"few epochs ({epochs})", cure)] if epochs < _FEW_EPOCHS else []


def _rise(curve: Sequence[float]) -> float:
    """Points from the quarter before the last one to that, means; NaN where it is too short."""
    quarter = max(1, len(curve) // 4)
    if len(curve) < 2 * quarter:
        return math.nan
    return fmean(curve[-quarter:]) - fmean(curve[-2 * quarter : -quarter])
