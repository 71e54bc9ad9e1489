"""Verdicts: did the teacher help, with an interval, reasons and the next step.

With two or more paired seeds, the interval is Student's t of their differences; else it is that
of the binomial distribution for the number of test images.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

VerdictKind = Literal["helped", "did_not_help", "cannot_be_told"]
VerdictBasis = Literal["seeds", "test_images", "one_seed"]
_TONES = {"helped": "good", "did_not_help": "warn"}

_Z = 1.96  # 97.5 % quantile of the normal distribution; below, of Student's t for 1, 2 ... 30
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_FEW_EPOCHS, _FEW_IMAGES = 10, 1000
_STRONGER = "a stronger teacher (pretrained: true in its model, or more teacher epochs)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTraining:
    """One training of a comparison; accuracies in percent.

    validation: top-1 after each epoch.
    recipe: key of the recipe that has the epochs.
    """

    source: str
    seed: int
    top1: float  # on test
    teacher_top1: float | None = None  # on test; None without one
    validation: Sequence[float] = ()
    epochs: int
    recipe: str = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on a teacher, or on a sweep's best setting.

    before: mean top-1 without a teacher, percent; in a sweep, metric of the unchanged setting.
    after: mean top-1 with the teacher; in a sweep, metric of the best setting.
    gained: points, or in the metric's unit; positive is better.
    low, high: 95 % interval of `gained`; None for a sweep with one seed.
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
    half: float  # half width of the interval
    seeds: int  # number of paired seeds

    @property
    def kind(self) -> VerdictKind:
        if self.gained <= 0:
            return "did_not_help"
        # Equal differences have no spread: they show a coarse metric, not certainty.
        return "helped" if self.gained > self.half > 0 else "cannot_be_told"

    def judged(self, it: str, digits: str, unit: str, of: str) -> str:
        """Return the judgement as text; `digits` formats numbers, `of` is the interval's basis."""
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
        single = by == "one_seed"
        return Verdict(
            kind="cannot_be_told" if single else self.kind,
            before=self.before,
            after=self.after,
            gained=self.gained,
            low=None if single else self.gained - self.half,
            high=None if single else self.gained + self.half,
            by=by,
            why=tuple(why),
            next=do,
            sentence=f"{head}.{reasons}{cures if do else ''}",
        )


def of_comparison(
    members: Sequence[ComparedTraining], described: str, images: int, validated: int
) -> Verdict | None:
    """Return the verdict on the teacher; None without trainings both with and without one.

    Args:
        members: all trainings of the run.
        described: source to compare with `none`; if it has no teacher, the last one with a
            teacher.
        images: number of test images; 0 gives None.
        validated: number of validation images; 0 without validation.
    """
    untaught = [m for m in members if m.source == "none"]
    with_teacher = [m for m in members if m.source != "none" and m.teacher_top1 is not None]
    sources = list(dict.fromkeys(m.source for m in with_teacher))
    source = described if described in sources else next(reversed(sources), "")
    taught = [m for m in with_teacher if m.source == source]
    unknown = any(math.isnan(m.top1) for m in (*untaught, *taught))
    if not untaught or not taught or not images or unknown:
        return None
    before, after = ({m.seed: m.top1 for m in group} for group in (untaught, taught))
    gain = _gain(before, after, images)
    source_label = f"its teacher ({source})" if len(sources) > 1 else "its teacher"
    basis = f"{gain.seeds} seeds" if gain.seeds > 1 else f"{images:,} test images"
    head = f"With {source_label} {gain.after:.1f} %, alone {gain.before:.1f} %: "
    head += gain.judged("the teacher", ".1f", " points", basis)
    by: VerdictBasis = "seeds" if gain.seeds > 1 else "test_images"
    if gain.kind == "helped":
        return gain.verdict(by, head)
    reasons = knowledge(gain.before, taught, images, gain.half)
    reasons += too_few_epochs([untaught, taught], validated)
    why, cures = [words for words, _ in reasons], [cure for _, cure in reasons]
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
    """Return the verdict on a sweep's best setting; None without values of both settings.

    Args:
        metric: name of the first objective.
        before: values of the unchanged experiment, by seed.
        after: values of the best setting, by seed.
        sign: 1 where more is better, -1 where less is.
        confirmed: whether values are from fresh seeds, not from the search.
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
    """Compare by paired seeds if there are two or more, else by the means of all."""
    pairs = sorted(before.keys() & after.keys())
    seeds = len(pairs)
    if seeds > 1:
        each = [sign * (after[seed] - before[seed]) for seed in pairs]
        # Beyond the table: next term of the quantile's expansion, accurate to 0.003.
        t = _T[seeds - 2] if seeds - 2 < len(_T) else _Z + (_Z**3 + _Z) / (4 * seeds - 4)
        half = t * stdev(each) / math.sqrt(seeds)
        old, new = (fmean(own[seed] for seed in pairs) for own in (before, after))
        return _Gain(old, new, fmean(each), half, seeds)
    old, new = fmean(before.values()), fmean(after.values())
    half = 0.0 if images is None else chance((old, new), images)
    return _Gain(old, new, sign * (new - old), half, 1)


def chance(shares: Sequence[float], images: int) -> float:
    """Return half the 95 % interval of a sum or difference of shares in percent."""
    return _Z * math.sqrt(sum(share * (100 - share) / images for share in shares))


def guessed(guessing: float, images: int) -> float:
    """Return the top-1 in percent below which a model only guesses: 3 standard errors above.

    Args:
        guessing: accuracy of the most frequent class, or of any, percent.
        images: number of evaluated images.
    """
    share = guessing / 100
    return guessing + 300 * math.sqrt(share * (1 - share) / max(1, images))


def shown(verdict: object) -> tuple[str, str]:
    """Return tone and sentence of a result's verdict for a view; empty without one."""
    if not isinstance(verdict, Mapping):
        return "", ""
    return _TONES.get(str(verdict.get("kind")), "plain"), str(verdict.get("sentence", ""))


# Reasons


def knowledge(
    before: float,
    taught: Sequence[ComparedTraining],
    images: int,
    half: float | None = None,
) -> list[tuple[str, str]]:
    """Return why a teacher could not help, each reason with its cure.

    Args:
        before: mean test accuracy without it, percent.
        taught: trainings with it.
        images: number of test images.
        half: half width of the gain's interval; None is that of one share.
    """
    room = 100 - before
    if room <= (chance((before,), images) if half is None else half):
        reason = f"little is left to gain (alone {before:.1f} %)"
        return [(reason, "fewer labelled images, a smaller student or a harder set")]
    teacher = fmean(m.teacher_top1 for m in taught if m.teacher_top1 is not None)
    if teacher > before + chance((before,), images):
        return []
    degree = "no more" if teacher <= before else "hardly more"
    reason = f"the teacher knows {degree} than the student does alone"
    return [(f"{reason}: {teacher:.1f} % against {before:.1f} %", _STRONGER)]


def too_few_epochs(
    sources: Sequence[Sequence[ComparedTraining]], validated: int
) -> list[tuple[str, str]]:
    """Return a reason and its cure if all sources were trained for too few epochs.

    Args:
        sources: trainings of each source.
        validated: number of validation images; 0 without.
    """
    epochs, recipe = min((m.epochs, m.recipe) for members in sources for m in members)
    cure = f"more epochs ({recipe}.epochs={2 * epochs})"
    rises = [[_rise(m.validation) for m in members] for members in sources]
    means = [fmean(each) for each in rises if not any(math.isnan(rise) for rise in each)]
    # One standard error: the same images are evaluated again.
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
    """Return the rise in points between the means of the last two quarters; NaN if too short."""
    quarter = max(1, len(curve) // 4)
    if len(curve) < 2 * quarter:
        return math.nan
    return fmean(curve[-quarter:]) - fmean(curve[-2 * quarter : -quarter])
