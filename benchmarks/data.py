"""`kdlab bench data`: views of real photos a second, over a bare decoder and over other loaders.

The limit is the quickest decoder there is, called in a loop on bytes that lie in memory: decode,
cut, resize, flip, with the same parts as kdlab cuts; on one thread, in processor time. Peers are
torch's DataLoader with timm's and with torchvision's transforms, as many workers as kdlab has
threads, over the same files in folders. Repeats alternate.

The same photos are written anew at the size that views need (`kdlab data --store`), and views of
both are made in turns, on one thread.

A set of a million small JPEGs in zips is made, indexed and opened, each time in a process of its
own, where its memory is measured.
"""

import io
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from PIL import Image

from benchmarks.harness import Scratch, in_turns, quiet, report, runs_apart, timed
from benchmarks.many_files import opened
from kdlab.config.check import construct
from kdlab.config.load import from_dict, merged
from kdlab.data.augment import Augment
from kdlab.data.encoded.decode import Box, head, resized
from kdlab.data.encoded.pictures import EncodedData
from kdlab.data.image_folder import ImageFolder
from kdlab.data.image_list import TABLE, ImageList
from kdlab.data.images import PHOTO_VIEWS
from kdlab.data.smaller_set import write_smaller
from kdlab.errors import BadInput
from kdlab.report.figures import EmitLine, Figure, Report, at, figure, over

_VIEWS = 768  # of each measurement
_BATCH = 64
_WORKERS = 2
_FILES = 1_000_000
_SHARD = 250_000  # files of a zip
_CLASSES = 1000
_STEPS = 300  # on them, of 64 samples
_FEW = 30_000  # files of a set to compare with: as many as these steps take
_NEEDS = 0.8  # of the views that can be made, by the student of `student_waits_share`
_PATIENCE_S = 1800.0  # for all processes of a kind
_CROP = 0.25  # smallest share of the area


def measure(
    overrides: Iterable[str] = (), repeats: int = 5, say: EmitLine = quiet
) -> Report:
    """`root=photos.zip` names the photos; `files=0` leaves the million files out.

    Raises:
        BadInput: there are no photos, or a setting is none of these.
    """
    asked = merged(list(overrides))
    root, files = asked.pop("root", None), asked.pop("files", _FILES)
    if asked or not isinstance(files, int) or files < 0:
        raise BadInput("bench data takes root=PHOTOS and files=NUMBER from 0, no more.")
    if not isinstance(root, str):
        raise BadInput(
            "bench data needs photos, a folder or zip of JPEGs in class folders: kdlab bench data "
            "root=photos.zip"
        )
    torch.set_num_threads(1)
    with runs_apart(), tempfile.TemporaryDirectory() as folder:
        figures = [f for size in (224, 128) for f in _over_limit(root, size, repeats, say)]
        figures += _over_peers(root, Path(folder), repeats, say)
        figures += _waits(root, repeats, say)
        for size in (96, 128, 224):
            figures += _over_originals(root, Path(folder), size, repeats, say)
        if files:
            figures += _many_files(Path(folder), files, say)
    return report("data", figures)


def _opened(root: str, size: int, **augment: object) -> EncodedData:
    spec = ImageFolder(
        root=root,
        size=size,
        kept="encoded",
        augment=Augment(flip=True, resized_crop=_CROP, **augment),  # type: ignore[arg-type]
    )
    data = spec.load()
    assert isinstance(data, EncodedData)
    return data


def _with_threads(data: EncodedData, threads: int) -> EncodedData:
    return replace(data, inputs=replace(data.inputs, threads=threads))


def _over_limit(root: str, size: int, repeats: int, say: EmitLine) -> list[Figure]:
    """Figures of one thread, in processor time."""
    plain = _with_threads(_opened(root, size), 1)
    random = _with_threads(_opened(root, size, policy="rand_augment"), 1)
    ids = plain.train[:_VIEWS]
    raws = [plain.inputs.store.read(int(row)) for row in ids]
    boxes = plain.augment.boxes(ids, 0)
    assert boxes is not None
    known = [head(raw) for raw in raws]
    parts = [boxes(i, h.height, h.width) for i, h in enumerate(known)]
    works = {
        "bare": partial(_bare, raws, parts, size),
        "ours": partial(_ours, plain, count()),
        "augmented": partial(_ours, random, count()),
    }
    say(f"photos_{size}")
    rates = in_turns(works, repeats, say, "views/s", warm_up=1)
    bare = rates["bare"]
    return at(
        f"photos_{size}",
        figure("views_per_s_over_limit", over(rates["ours"], bare), "ratio"),
        figure("rand_augment_over_limit", over(rates["augmented"], bare), "ratio"),
        figure("views_per_core_s", rates["ours"], "views/s"),
    )


def _over_originals(
    root: str, folder: Path, size: int, repeats: int, say: EmitLine
) -> list[Figure]:
    """Views of photos that were written anew at the size needed, over those of the originals."""
    fields = {"size": size, "kept": "encoded", "augment": PHOTO_VIEWS}
    folders = {"type": "data/image_folder", "root": root, **fields}
    spec = construct(ImageFolder, from_dict(folders, "photos"))
    place = folder / f"store_{size}"
    written = write_smaller(spec, place, say=say)
    table = {"type": "data/image_list", "root": str(place / TABLE), **fields}
    small = construct(ImageList, from_dict(table, "store"))
    sets = {"originals": spec.load(), "store": small.load()}
    works = {}
    for name, data in sets.items():
        assert isinstance(data, EncodedData)
        works[name] = partial(_ours, _with_threads(data, 1), count())
    say(f"store of {size} pixels: {written}")
    rates = in_turns(works, repeats, say, "views/s", warm_up=1)
    figures = [
        figure("views_over_originals", over(rates["store"], rates["originals"]), "ratio"),
        figure("bytes_over_originals", written.bytes_after / written.bytes_before, "ratio"),
    ]
    if written.psnr_db is not None:
        figures.append(figure("psnr_db", written.psnr_db, "dB"))
    return at(f"store_{size}", *figures)


def _ours(
    data: EncodedData,
    epochs: Iterator[int],
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Measure views a second, of another epoch each time."""
    ids, epoch, start = data.train[:_VIEWS], next(epochs), clock()
    for begin in range(0, len(ids), _BATCH):
        data.views(ids[begin : begin + _BATCH], epoch)
    return len(ids) / (clock() - start)


def _bare(raws: list[bytes], parts: list[Box], size: int) -> float:
    """Measure the least work of a view: decode, cut, resize, flip every second, copy."""
    out = np.empty((_BATCH, 3, size, size), np.uint8)
    begin = time.process_time()
    for i, (raw, (left, top, width, height)) in enumerate(zip(raws, parts, strict=True)):
        pixels = simplejpeg.decode_jpeg(raw)
        view = resized(pixels[top : top + height, left : left + width], (size, size))
        out[i % _BATCH] = (view[:, ::-1] if i % 2 else view).transpose(2, 0, 1)
    return len(raws) / (time.process_time() - begin)


def _over_peers(root: str, folder: Path, repeats: int, say: EmitLine) -> list[Figure]:
    """Wall-clock views a second with two workers, of 224 pixels."""
    data = _with_threads(_opened(root, 224), _WORKERS)
    ids = data.train[:_VIEWS]
    files = folder / "photos"
    for row in ids:
        path = files / data.classes[data.labels[row]] / f"{row}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.inputs.store.read(int(row)))
    loaders = {
        "torch_dataloader_timm": _timm_loader(files),
        "torchvision_v2": _torchvision_loader(files),
    }
    single, wall = _with_threads(data, 1), time.perf_counter
    works = {
        "ours": partial(_ours, data, count(), wall),
        "one": partial(_ours, single, count(), wall),
        **{name: partial(_loader_rate, loader) for name, loader in loaders.items()},
    }
    unit = f"views/s of {_WORKERS} workers"
    rates = in_turns(works, repeats, say, unit, warm_up=1)
    ours = rates["ours"]
    return [
        *(
            figure(f"views_over_peer/{name}", over(ours, rates[name]), "ratio")
            for name in loaders
        ),
        figure("two_threads_over_one", over(ours, rates["one"]), "ratio"),
        figure("views_per_s/two_threads", ours, "views/s"),
    ]


def _waits(root: str, repeats: int, say: EmitLine) -> list[Figure]:
    """Measure how long a student waits for views; its own steps leave the processor idle."""
    data, epochs = _with_threads(_opened(root, 224), _WORKERS), count()
    batches = [data.train[at : at + _BATCH] for at in range(0, _VIEWS, _BATCH)]

    def share() -> float:
        step_s = _BATCH / (_NEEDS * _ours(data, epochs, time.perf_counter))
        views = data.views_ahead(batches, next(epochs))
        next(views)  # nothing was ahead of it
        begin, waited = time.perf_counter(), 0.0
        for _ in batches[1:]:
            time.sleep(step_s)  # it computes
            waited += timed(lambda: next(views))
        return waited / (time.perf_counter() - begin)

    shares = in_turns({"waits": share}, repeats, say, "of its time", warm_up=1)["waits"]
    return [figure("student_waits_share", shares, "of its time")]


def _loader_rate(loader: "torch.utils.data.DataLoader[object]") -> float:
    """Measure views a second from the first batch on, when all workers have started."""
    batches = iter(loader)
    first = next(batches)
    assert isinstance(first, list | tuple)
    begin, seen = time.perf_counter(), 0
    for batch in batches:
        assert isinstance(batch, list | tuple)
        seen += len(batch[1])
    return seen / (time.perf_counter() - begin)


def _timm_loader(files: Path) -> "torch.utils.data.DataLoader[object]":
    from timm.data import create_dataset, create_transform

    transform = create_transform(
        224,
        is_training=True,
        scale=(_CROP, 1.0),
        color_jitter=None,
        interpolation="bilinear",
        use_prefetcher=True,  # 8 bits, normalised on the device, as kdlab does
    )
    return _loader(create_dataset("", str(files), transform=transform))


def _torchvision_loader(files: Path) -> "torch.utils.data.DataLoader[object]":
    from torchvision.datasets import ImageFolder as Folder
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(224, (_CROP, 1.0)),
        v2.RandomHorizontalFlip(),
        v2.PILToTensor(),
    ]
    return _loader(Folder(str(files), v2.Compose(steps)))


def _loader(dataset: object) -> "torch.utils.data.DataLoader[object]":
    return torch.utils.data.DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=_BATCH,
        num_workers=_WORKERS,
        shuffle=True,
    )


def _many_files(folder: Path, files: int, say: EmitLine) -> list[Figure]:
    """Index many files in one process, and open them in others."""
    say(f"making {files:,} small JPEGs")
    shards = [str(path) for path in _shards(folder, files)]
    few = [str(path) for path in _shards(folder / "few", _FEW)]
    arguments = {"shards": shards, "home": str(folder / "home")}
    with Scratch(folder) as scratch:
        all_of = partial(scratch.results, opened, patience_s=_PATIENCE_S)
        index_s = timed(lambda: all_of([arguments]))
        openings = all_of([arguments] * 3)
        say(f"training {_STEPS} steps on them")
        fewer = arguments | {"shards": few, "home": str(folder / "few")}
        small, trained = all_of([each | {"steps": _STEPS} for each in (fewer, arguments)])
    name = f"{files // 1000}k_files" if files != _FILES else "1M_files"
    more = trained.rss_mb - small.rss_mb
    return at(
        name,
        figure("open_s", [f.open_s for f in openings], "s"),
        figure("rss_mb", [f.rss_mb for f in openings], "MB"),
        figure("rss_mb_of_the_set", [f.mb for f in openings], "MB"),
        figure("index_s", index_s, "s"),
        figure("plan_s", trained.trained["plan_s"], "s"),
        figure("rss_mb_of_training", trained.rss_mb, "MB"),
        # The rest is torch: the same steps on a set of few files.
        figure("more_rss_mb_of_training", more, "MB"),
        figure("samples_per_s_of_training", trained.trained["samples_per_s"], "samples/s"),
    )


def _shards(folder: Path, files: int) -> Iterator[Path]:
    """Write zips of class folders, all of whose files are the same small JPEG."""
    raw, pixels = io.BytesIO(), np.arange(3072, dtype=np.uint32).astype(np.uint8)
    Image.fromarray(pixels.reshape(32, 32, 3)).save(raw, "JPEG")
    names = (f"train/{k % _CLASSES:04}/{k:07}.jpg" for k in range(files))
    folder.mkdir(exist_ok=True)
    for shard in range(-(-files // _SHARD)):
        path = folder / f"{shard}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name in islice(names, _SHARD):
                archive.writestr(name, raw.getvalue())
        yield path
