"""`kdlab doctor`."""

import argparse

from kdlab.commands.command import json_flag, show

ABOUT = "what works on this machine and what to install"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alert", action="store_true", help="send one to your webhook")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run.doctor import examine, printed

    findings = examine(alert=arguments.alert)
    show(printed(findings), findings, as_json=arguments.json)
    return 0 if all(f["state"] != "missing" for f in findings) else 1
