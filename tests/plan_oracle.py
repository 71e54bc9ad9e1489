"""The best plan of a small table by trying everything; knows nothing of kdlab.

The cost model is that of docs/pipe_bd.md ("How the plan is found"), written down again: one step of
a device is its teacher's and student's blocks, what of its transfers and its loading its own
processor does, and the all-reduce of its stage. Every cut into consecutive blocks is tried, every
set of devices for each stage (some may be left out), and every number of rows of each device.
"""

import random
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise, product
from math import inf

KINDS_OF_TABLES = (
    "uniform", "log-normal", "heavy tails", "near ties", "unlike devices", "tight memory",
    "unlike memory", "few rows measured", "dear meetings", "steps of one",
)  # fmt: skip


@dataclass(frozen=True)
class Link:
    rate: float = inf  # bytes per second
    latency: float = 0.0
    overlap: float = 1.0
    meet: float | None = None


@dataclass
class Table:
    """Blocks on devices, by chance; sizes in bytes, times in seconds."""

    batch: int
    of: list[str]  # the type of each device
    teacher: dict[str, list[dict[int, float]]]  # of each type's blocks, by rows
    student: dict[str, list[dict[int, float]]]
    output: list[float]
    gradient: list[float]
    fixed: list[float]
    row: list[float]
    norms: list[int]
    links: dict[str, Link]
    load: float = 0.0
    load_overlap: float = 0.0
    memory: list[float] | None = None
    lead: int = 2

    @property
    def blocks(self):
        return len(self.output)


def table(seed, kind, blocks=6, devices=5, batch=6):
    """A table of this kind (of KINDS_OF_TABLES), at most so large."""
    chance = random.Random(f"{kind} {seed}")
    blocks, devices = chance.randint(1, blocks), chance.randint(1, devices)
    batch = chance.randint(min(2, batch), batch)
    types = chance.randint(1, 3)
    if kind == "unlike devices":
        types = devices
    names = [f"type{k}" for k in range(types)]
    of = [chance.choice(names) for _ in range(devices)]
    if kind == "unlike devices":
        of = names

    def number():
        if kind == "log-normal":
            return chance.lognormvariate(0.0, 1.5)
        if kind == "heavy tails":
            return chance.paretovariate(0.7)
        if kind == "near ties":
            return chance.choice((1.0, 2.0, 3.0)) * (1 + 1e-10 * chance.random())
        return chance.uniform(0.05, 10.0)

    rows = range(1, batch + 1)
    if kind == "few rows measured":
        rows = sorted({1 + batch // 3, 1 + batch // 2, batch})

    def times():
        full, floor = number(), chance.random()
        if chance.random() < 0.3:  # whatever order: more rows may be measured to be quicker
            return {r: number() for r in rows}
        return {r: full * (floor + (1 - floor) * r / batch) for r in rows}

    def sizes():
        return [chance.choice((0.0, 1.0, 1.0)) * number() for _ in range(blocks)]

    meeting = 10.0 if kind == "dear meetings" else 1.0
    table = Table(
        batch=batch,
        of=of,
        teacher={n: [times() for _ in range(blocks)] for n in names},
        student={n: [times() for _ in range(blocks)] for n in names},
        output=sizes(),
        gradient=[meeting * size for size in sizes()],
        fixed=sizes(),
        row=sizes(),
        norms=[chance.choice((0, 0, 1, 2)) for _ in range(blocks)],
        links={
            n: Link(
                chance.choice((inf, chance.uniform(0.5, 50.0))),
                chance.choice((0.0, meeting * chance.uniform(0.0, 0.5))),
                chance.choice((0.0, chance.random(), 1.0)),
                chance.choice((None, chance.random())),
            )
            for n in names
        },
        load=chance.choice((0.0, number(), 5 * number())),
        load_overlap=chance.choice((0.0, chance.random(), 1.0)),
        lead=1 if kind == "steps of one" else 2,
    )
    most = sum(table.fixed) + batch * (sum(table.row) + table.lead * max(table.output))
    if kind == "tight memory":
        table.memory = [most * chance.uniform(0.2, 0.9)] * devices
    elif kind == "unlike memory" or (kind == "unlike devices" and chance.random() < 0.5):
        low = chance.choice((0.1, 0.5, 0.9))
        table.memory = [most * chance.uniform(low, 1.2) for _ in range(devices)]
    return table


class Everything:
    """All plans of a table, with a barrier before each update or decoupled."""

    def __init__(self, table, *, decoupled, widest=None):
        self.t, self.decoupled, self.widest = table, decoupled, widest or len(table.of)
        self.ways = cache(self._ways)
        self.best_of = cache(self._best_of)

    def best(self):
        """Seconds of the shortest step; infinite where nothing fits."""
        return self.best_of(0, frozenset(range(len(self.t.of))))

    def _best_of(self, first, left):
        """Seconds of the best plan of blocks from `first` on, on some devices of `left`."""
        t, shortest = self.t, inf
        if first == t.blocks:
            return 0.0
        for group in groups(sorted(left), self.widest):
            for stop in range(first + 1, t.blocks + 1):
                for seconds, relay in self.ways(first, stop, group):
                    if seconds < shortest:
                        behind = self.best_of(stop, left - set(group))
                        shortest = min(shortest, max(seconds, relay + behind))
        return shortest

    def one_by_one(self):
        """Compute `best` by writing down every plan from its beginning to its end."""
        t, shortest = self.t, inf
        for inner in all_sets(range(1, t.blocks)):
            spans = list(pairwise([0, *inner, t.blocks]))
            for stage_of in product(range(-1, len(spans)), repeat=len(t.of)):
                teams = [
                    tuple(d for d, s in enumerate(stage_of) if s == k)
                    for k in range(len(spans))
                ]
                if not all(1 <= len(group) <= self.widest for group in teams):
                    continue
                ways = [self.ways(a, z, g) for (a, z), g in zip(spans, teams, strict=True)]
                for plan in product(*ways):
                    relayed, latest = 0.0, 0.0
                    for seconds, relay in plan:
                        latest = max(latest, relayed + seconds)
                        relayed += relay
                    shortest = min(shortest, latest)
        return shortest

    def _ways(self, first, stop, group):
        """(seconds, seconds until the next stage begins) for every way to share the rows."""
        t, ways = self.t, []
        shared = self.all_reduce(first, stop, group)
        for cuts in combinations(range(1, t.batch), len(group) - 1):
            rows = [b - a for a, b in pairwise([0, *cuts, t.batch])]
            each = [
                self.device(first, stop, *share, shared)
                for share in zip(group, rows, strict=True)
            ]
            seconds, relay = map(max, zip(*each, strict=True))
            if seconds < inf:
                ways.append((seconds, 0.0 if self.decoupled else relay))
        # A way is useless if another one is as good in both.
        useful = []
        for seconds, relay in sorted(set(ways)):
            if not useful or relay < useful[-1][1]:
                useful.append((seconds, relay))
        return useful

    def device(self, first, stop, device, rows, shared):
        t, blocks = self.t, range(first, stop)
        name = t.of[device]
        link = t.links[name]
        sent = t.output[stop - 1] if stop < t.blocks else 0.0
        if t.memory is not None:
            of_row = sum(t.row[b] for b in blocks) + t.lead * sent
            if sum(t.fixed[b] for b in blocks) + rows * of_row > t.memory[device]:
                return inf, inf
        taught = sum(seconds(t.teacher[name][b], rows) for b in blocks)
        learned = sum(seconds(t.student[name][b], rows) for b in blocks)
        came = over(link, rows * t.output[first - 1]) if first else 0.0
        left = over(link, rows * sent)
        loads = t.load * rows / t.batch if first == 0 else 0.0
        copied = (1 - link.overlap) * (came + left)
        busy = taught + learned + copied + (1 - t.load_overlap) * loads + shared
        if not self.decoupled:
            before = (1 - link.overlap) * came + (1 - t.load_overlap) * loads
            return max(busy, loads), before + taught + left
        if t.lead == 1:
            busy += max(0.0, link.overlap * left - learned)
        return max(busy, loads, link.overlap * came, link.overlap * left), 0.0

    def all_reduce(self, first, stop, group):
        t, count = self.t, len(group)
        if count == 1:
            return 0.0
        size, norms = (sum(x[b] for b in range(first, stop)) for x in (t.gradient, t.norms))
        turns = 2 * (count - 1)
        links = [t.links[t.of[d]] for d in group]
        rings = [turns * (k.latency + size / count / k.rate) for k in links]
        meets = [turns * k.latency if k.meet is None else k.meet for k in links]
        return max(rings) + norms * 2 * max(meets)


def seconds(by_rows, rows):
    """Time for so many rows, on a line through measured ones; more rows never take less."""
    known, longest, points = sorted(by_rows), 0.0, []
    for r in known:
        longest = max(longest, by_rows[r])
        points.append((r, longest))
    if len(points) == 1:
        return points[0][1] * rows / points[0][0]
    beside = max(k for k in range(len(points) - 1) if k == 0 or points[k][0] < rows)
    (a, from_s), (b, to_s) = points[beside : beside + 2]
    line = from_s + (to_s - from_s) * (rows - a) / (b - a)
    return max(line, points[0][1] * min(1.0, rows / points[0][0]))


def over(link, size):
    return link.latency + size / link.rate if size else 0.0


def all_sets(some):
    some = list(some)
    return (part for k in range(len(some) + 1) for part in combinations(some, k))


def groups(devices, widest):
    return (group for group in all_sets(devices) if 0 < len(group) <= widest)
