"""`kdlab page RUN...`."""

import argparse

from kdlab.commands.command import print_text
from kdlab.config.folders import user_path
from kdlab.errors import BadInput
from kdlab.report.page import write
from kdlab.session import find_job

ABOUT = "a run, a comparison of runs or a sweep as one HTML file to send"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", help="id, a part of it, last; or sweeps/NAME")
    parser.add_argument("--out", default="page.html", help="the file (default page.html)")
    parser.add_argument("--force", action="store_true", help="overwrite it")


def do(arguments: argparse.Namespace) -> int:
    out = user_path(arguments.out)
    if out.exists() and not arguments.force:
        raise BadInput(f"{out} exists already. Add --force, or name another with --out.")
    shown = [find_job(name) for name in dict.fromkeys(arguments.run)]
    from kdlab.session import page  # imports ipywidgets

    text = page(*shown)
    write(out, text)
    print_text(f"written to {out} ({len(text) / 1e6:.1f} MB)", as_json=False)
    return 0
