"""`kdlab ui`."""

import argparse

from kdlab.commands.command import number
from kdlab.config.folders import require_path

ABOUT = "the MLflow UI on loopback"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=number(1, 65535), default=5000)
    parser.add_argument("--uri", default=None, help="default: the store beside the runs")
    parser.add_argument(
        "--open", action="store_true", help="open a browser once the server answers"
    )


def do(arguments: argparse.Namespace) -> int:
    if arguments.uri is not None:
        require_path(arguments.uri)
    from kdlab.run.ui import serve_ui

    return serve_ui(arguments.port, arguments.uri, browser=arguments.open)
