"""All that a custom method imports from kdlab, in one place (docs/own_method.md)."""

from kdlab.codec import from_builtins, to_builtins
from kdlab.config import Fault, Range, register
from kdlab.config.home import write_json
from kdlab.errors import BadInput, RunStopped
from kdlab.events.event import Event
from kdlab.experiment.groups import rank_group
from kdlab.experiment.method import MemberTraining, MethodSpec, recipe_faults
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec
from kdlab.models.exported import load_exported
from kdlab.renamed import renamed
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.source import LoadedTeacher, SourceSpec
from kdlab.train.recipe import Recipe
from kdlab.train.result import MemberResult
from kdlab.train.teacher import frozen

__all__ = ["BadInput", "Event", "ExperimentSpec", "Fault", "InProcess", "LoadedTeacher"]
__all__ += ["MemberResult", "MemberTraining", "MethodSpec", "Range", "Recipe", "RunStopped"]
__all__ += ["SourceSpec", "TrainingSetup", "from_builtins", "frozen", "load_exported"]
__all__ += ["rank_group", "recipe_faults", "register", "to_builtins", "write_json"]

__getattr__ = renamed(__name__, {"plain": "to_builtins", "typed": "from_builtins"})
