"""ImageNet-1k as torchvision reads it: its validation images are the test set here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from kdlab.config import Range, register
from kdlab.data.from_torchvision import TorchvisionData, split_in_two
from kdlab.data.image_folder import decode_all
from kdlab.data.images import Decoded, Say
from kdlab.errors import DataError


class FileSet(Protocol):
    """A set that torchvision holds as paths of image files with their labels."""

    samples: Sequence[tuple[str, int]]
    classes: Sequence[tuple[str, ...]]


@register("data/imagenet")
@dataclass(frozen=True, kw_only=True)
class ImageNet(TorchvisionData):
    """ImageNet-1k from its official archives; its 50,000 validation images are `test`.

    size: pixels of a side; images are shrunk and cropped at the centre, once.
    """

    root: str = "~/data/imagenet"
    size: Annotated[int, Range(ge=16)] = 224
    validation_share: Annotated[float, Range(ge=0, lt=1)] = 0.01

    def expected_bytes(self) -> int:
        return 1_331_167 * 3 * self.size**2

    def identity(self) -> str:
        return f"{super().identity()} size={self.size}"

    def open_all(self) -> tuple[FileSet, FileSet]:
        from torchvision.datasets import ImageNet as Torchvision

        if self.download:
            raise DataError(
                "data/imagenet cannot be downloaded: its licence asks each user to fetch the "
                f"archives from image-net.org. Put them under {self.folder()} and leave "
                "`download` off."
            )
        return self.open(Torchvision, split="train"), self.open(Torchvision, split="val")

    def decode(self, say: Say) -> Decoded:
        train, test = self.open_all()
        paths = [Path(path) for path, _ in (*train.samples, *test.samples)]
        first, last = ([label for _, label in own.samples] for own in (train, test))
        classes = [names[0] for names in train.classes]
        inputs = decode_all(
            lambda i: str(paths[i]),
            lambda i: paths[i].read_bytes(),
            len(paths),
            self.size,
            3,
            say,
        )
        return split_in_two(inputs, first, last, classes)
