"""Any tree of class folders, on disk, inside zip and tar files, or at a URL."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.data.encoded.inventory import Inventory
from kdlab.data.encoded.walk import walk
from kdlab.data.image_files import ImageFiles


@register("data/image_folder")
@dataclass(frozen=True, kw_only=True)
class ImageFolder(ImageFiles):
    """A class-per-folder tree, also in zip and tar files: [train|val|test]/[...]/CLASS/image."""

    def find(self, root: str, inventory: Inventory) -> None:
        walk(root, inventory)
