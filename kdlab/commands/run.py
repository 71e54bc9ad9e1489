"""`kdlab run EXPERIMENT`."""

import argparse

from kdlab.commands.command import json_flag, overrides, say, show, start_run
from kdlab.report.check_table import in_words
from kdlab.run import load

ABOUT = "run an experiment from configs/"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", help="name under configs/, or a path to a YAML file")
    overrides(parser)
    parser.add_argument("--detach", action="store_true", help="start it and return")
    about = "check everything, measure for some seconds, and estimate time and memory"
    parser.add_argument("--dry-run", action="store_true", help=about)
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    experiment = load(arguments.experiment, *arguments.overrides)
    if arguments.dry_run:
        experiment.check(say)
        findings, estimate = experiment.checks(), experiment.estimate(say)
        words = f"{estimate!r}\n\n{in_words(findings)}"
        checks = {"checks": [one.to_json() for one in findings]}
        show(words, estimate.to_json() | checks, as_json=arguments.json)
        return 0
    return start_run(lambda: experiment.start(say), arguments)
