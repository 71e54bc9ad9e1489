"""`kdlab data NAME`."""

import argparse

from kdlab.commands.command import CLOSELY, json_flag, overrides, print_text, say, show
from kdlab.config import registry
from kdlab.config.folders import names, require_path, user_path
from kdlab.errors import BadInput

ABOUT = "a data set before training: classes, broken and duplicate images, views, speed"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        help="a folder, zip, tar or table of images, a card such as data/digits, or a config",
    )
    overrides(parser)
    parser.add_argument("--html", default=None, help="write it with its views as a page")
    parser.add_argument("--closely", action="store_true", default=None, help=CLOSELY)
    new = "write its images into a new folder at the size that views need, say size=96"
    parser.add_argument("--store", metavar="FOLDER", help=new)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quality", type=int, help="with --store: of JPEG (default 85)")
    form.add_argument(
        "--lossless", action="store_true", default=None, help="with --store: WebP"
    )
    parser.add_argument(
        "--factor", type=float, help="with --store: shorter sides / a view's"
    )
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    _refuse_unused(arguments)
    name = arguments.name.removeprefix("configs/").removesuffix(".yaml")
    cards = [*registry.known_names(), *names("registry")]
    known = [*names("configs"), *(card for card in cards if card.startswith("data/"))]
    if name not in known:
        require_path(arguments.name, known)
    if arguments.store is not None:
        return _store(arguments)
    from kdlab.run.outputs.data_sheet import look_at  # imports torch

    closely = bool(arguments.closely)
    sheet = look_at(arguments.name, *arguments.overrides, say=say, closely=closely)
    show(repr(sheet), sheet.to_json(), as_json=arguments.json)
    if arguments.html:
        print_text(f"written to {sheet.save(arguments.html)}", as_json=arguments.json)
    return 1 if sheet.broken else 0


def _refuse_unused(arguments: argparse.Namespace) -> None:
    flags, why = ["quality", "lossless", "factor"], "only possible with --store FOLDER"
    if arguments.store is not None:
        flags, why = ["html", "closely"], "not possible with --store, which makes no page"
    unused = [f"--{name}" for name in flags if getattr(arguments, name) is not None]
    if unused:
        raise BadInput(f"{', '.join(unused)}: {why}. Nothing was written.")


def _store(arguments: argparse.Namespace) -> int:
    """A path alone is taken as in a config: with the views of photos."""
    from kdlab.codec import to_builtins
    from kdlab.data.encoded.formats import kind_of
    from kdlab.data.image_files import ImageFiles
    from kdlab.data.images import PHOTO_SIZE, PHOTO_VIEWS
    from kdlab.data.smaller_set import write_smaller
    from kdlab.run.outputs.data_sheet import data_spec

    name, folder = arguments.name, user_path(arguments.store).resolve()
    crop = PHOTO_VIEWS["resized_crop"]
    photos = (f"size={PHOTO_SIZE}", f"augment.resized_crop={crop}") if kind_of(name) else ()
    spec = data_spec(name, *photos, *arguments.overrides)
    if not isinstance(spec, ImageFiles):
        raise BadInput(f"{name} is no set of image files: its images are small already.")
    quality = 85 if arguments.quality is None else arguments.quality
    quality = None if arguments.lossless else quality
    facts = write_smaller(spec, folder, quality, arguments.factor, say)
    sizes = (
        f"{facts.bytes_before / 1e6:,.1f} MB before, {facts.bytes_after / 1e6:,.1f} after"
    )
    use = f"use it: data.type=data/image_list data.root={folder}/images.csv"
    text = f"{facts.images:,} images {facts}\n{sizes}\n{use}"
    show(text, to_builtins(facts), as_json=arguments.json)
    return 0
