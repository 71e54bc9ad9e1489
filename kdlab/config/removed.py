"""Keys that earlier versions had, and what to use instead, as in CHANGELOG.md."""

REMOVED = {
    "real": (
        "`real` of a sweep: take the student's rate from a run with `compare: [none]` into the "
        "simulation's card, and run the best setting with `kdlab run`"
    ),
    "method.mix": (
        "`method.mix` of Pipe-BD: no kept result showed that it pays; `method.fine_tune` trains "
        "the blocks to live with each other"
    ),
    "method.prefix": (
        "`method.prefix` of Pipe-BD (the teacher's first blocks from a pool): no kept result "
        "showed that it pays; give the devices of the pool to the pipeline, with `method.devices`"
    ),
    "aggregation.relabel": (
        "`aggregation.relabel` of EC-DNN (relabelling by a pool): the kept result was the same; "
        "the workers compute it themselves, and start on GPUs with `workers`"
    ),
    "method.choose": (
        "`method.choose` of Pipe-BD is a method of its own, with the same keys: "
        "`method: {type: methods/puzzle, faster: 2.0}`"
    ),
    "method.looks_between": (
        "`method.looks_between` of ensembles: models are looked at where they communicate, "
        "`method.looks` times at the most; a shorter `tau` has more looks"
    ),
}


def instead(key: str) -> str:
    """Return what to use instead of a removed key, at any depth; empty for others."""
    return next((REMOVED[k] for k in REMOVED if f".{key}".endswith(f".{k}")), "")


def unset(key: str, value: object) -> bool:
    """True for a removed key that is off: specs that earlier versions wrote list all keys."""
    return value in (None, False) and instead(key) != ""
