"""What a study keeps of a trial beside what Optuna itself does: its user attributes."""

from optuna.trial import FrozenTrial, Trial

from kdlab.tuning.space import Values

WHY, RETRY_OF, TRIES, VALUES, ERROR, RUN = "why", "retry_of", "tries", "set", "error", "run"
METRICS = "metrics"
PARAMETERS = "enqueued"  # as Optuna names them


def values_of(trial: FrozenTrial) -> Values:
    """What the keys of the space were set to."""
    return dict(trial.user_attrs[VALUES])


def metrics_of(trial: FrozenTrial) -> dict[str, float]:
    """All metrics of a trial that ended well."""
    return dict(trial.user_attrs.get(METRICS, {}))


def why(trial: FrozenTrial | Trial) -> str:
    """Who chose its values."""
    return str(trial.user_attrs.get(WHY, "suggested"))
