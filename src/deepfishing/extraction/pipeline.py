"""Extraction of images into a store in one call, as `deepfish extract` does it.

An existing store supplies its own settings, so adding images needs no options.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deepfishing.core.features import Factor, needed_factors
from deepfishing.core.recipes import parse_recipes
from deepfishing.errors import OptionError, StoreError
from deepfishing.extraction.distributed import check_place, connect
from deepfishing.extraction.options import (
    FEATURES,
    LOCAL,
    FeatureOptions,
    NetworkOptions,
    Resources,
    check_features,
    load_from_options,
    split_options,
)
from deepfishing.extraction.outliers import is_unmeasured, measure_precision
from deepfishing.extraction.relabel import labels_follow_pixels
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import (
    Extraction,
    Local,
    OnFailure,
    extract_to_store,
    start_extractor,
)
from deepfishing.images.item import ImageBytes, Item
from deepfishing.images.sources import find_images
from deepfishing.images.streams import blocks
from deepfishing.networks.caffe.files import given_mean
from deepfishing.networks.prompts import read_classes
from deepfishing.networks.reference import (
    FILES,
    PROTOTXT,
    PYTHON,
    RANDOM,
    WEIGHTS,
    NetworkFile,
    NetworkRef,
    find_preprocess,
)
from deepfishing.networks.zoo import file_of, is_network_file
from deepfishing.store import Store
from deepfishing.store.manifest import MANIFEST, read_manifest
from deepfishing.store.precision import DEFAULT
from deepfishing.util.progress import Progress

if TYPE_CHECKING:
    from torch import nn

    from deepfishing.networks.network import Network


def extract_to(
    store: str | Path,
    images: str | Path | Iterable[Any],
    *,
    network: str | Network | nn.Module | None = None,
    features: str | Iterable[str] = "all",
    precision: str | None = None,
    resources: Resources | None = None,
    name: str = "",
    on: str = LOCAL,
    retry: bool = False,
    prune: bool = False,
    strict: bool = False,
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
    notice: Callable[[str], None] | None = None,
    **options: Any,
) -> Extraction:
    """Extract features of images into a store; stored features are not computed again.

    Parameters
    ----------
    store : path
        Folder, made if absent. An existing store supplies its own settings; options that
        contradict them are refused.
    images : str, path or iterable
        As for `find_images`: a folder, a pattern, a list, a table, a video... or a list of paths.
        Or images that Python has: one image, a Hugging Face data set, a torch Dataset or
        DataLoader, an iterable of PIL images, arrays or (image, label), see `streams`. Their ids
        are numbers in their order, behind `name`: by default the split of a data set, or image.
    network : str, Network or torch module, optional
        A name or file as for `load_network`, a network that is loaded already, or a module as
        `wrap` takes it.
    features : str or list of str
        Names or recipes, such as `x7,dW7`; `all` gives the rows of the paper's Table 1.
    precision : str, optional
        Numbers on disk: int8, int4, float16 or float32; a new store is in int8, or in float16
        where int8 would change the kernel of a forward feature by more than 1 %.
    resources : Resources, optional
        Batch size, memory, engine and device, which decide no number.
    on : str
        `local`, `ray`, or `ray://HOST:PORT` of a Ray cluster.
    retry, prune, strict, progress, on_failure
        See `extract_to_store`.
    notice : callable, optional
        Called with a line for each assumption that was made when the network was loaded.
    options
        weights, prototxt, mean, preprocess, dtype, tau, label, views: see `NetworkOptions` and
        `FeatureOptions`.
    """
    resources, folder = resources or Resources(), Path(store)
    far = on != LOCAL
    if far:
        check_place(on)
    loaded = None
    if not isinstance(network, str | None):
        from deepfishing.networks.load import as_network  # torch takes seconds to load

        loaded = as_network(network)
    wanted = options if loaded else {"network": network, **options}
    network_options, feature_options = split_options(wanted)
    items = _listed(images)
    if items is None and (prune or far):
        raise OptionError(
            "images that Python has are read once and here, so prune and on must be left out; "
            "give a folder or a list of paths for them"
        )
    gpu = far and resources.device.startswith("cuda")
    if loaded is not None:
        if network_options:
            names = ", ".join(field.name for field in FEATURES)
            given = ", ".join(network_options)
            raise OptionError(
                f"options beside a loaded network must be {names}, got {given}"
            )
        settings = Settings.from_network(loaded, **feature_options)
    else:
        if not (folder / MANIFEST).exists():
            check_features(wanted, features)  # before torch is loaded
        # for a cluster on the CPU, since this machine may have no GPU
        settings, loaded = resolve_settings(
            wanted, folder, device="cpu" if far else resources.device
        )
    if notice is not None and loaded is not None:
        for line in loaded.notes:
            notice(line)
    factors = needed_factors(parse_recipes(features, settings.network.layers))
    here = None if far else Local()
    parts: Iterator[list[Item]] = iter(())
    sample: Sequence[Item | Path] = items or []
    if items is None:
        sample, parts = _first(blocks(cast("Iterable[Any]", images), name))
    if precision is None:
        precision = _known_precision(folder, settings.network, factors)
    if precision is None and sample and not (folder / MANIFEST).exists():
        extractor = start_extractor(factors, settings, resources, loaded)
        if here is not None:
            here.extractor = extractor
        precision, why = measure_precision(extractor, sample)
        if why and notice is not None:
            notice(why)
    opened = Store(folder, settings.as_dict(), precision)
    if far and settings.network.source.kind != PYTHON:
        loaded = None  # workers load it themselves
    if gpu:
        # a worker sees its GPU as the only one
        resources = replace(resources, device="cuda")
    with ExitStack() as stack:
        place = here
        if far:
            place = stack.enter_context(connect(on, gpu, resources.batch_size))
        run = partial(
            extract_to_store,
            opened,
            factors=factors,
            settings=settings,
            network=loaded,
            resources=resources,
            on=place,
            retry=retry,
            prune=prune,
            strict=strict,
            progress=progress,
            on_failure=on_failure,
        )
        stack.enter_context(labels_follow_pixels(opened))
        if items is not None:
            return run(items)
        return _joined(map(run, _new(opened, parts)))


def _known_precision(
    store: Path, network: NetworkRef, factors: Sequence[Factor]
) -> str | None:
    """Return the precision of a store that needs no measurement; None for others."""
    if is_unmeasured(network, factors):
        return None
    if (store / MANIFEST).exists():
        return Store.open(store).precision
    return DEFAULT


def _first(
    parts: Iterator[list[Item]],
) -> tuple[list[Item], Iterator[list[Item]]]:
    """Return the first part, empty if there is none, and all of them."""
    first = next(parts, [])
    if not first:
        return first, iter(())
    return first, itertools.chain([first], parts)


def _listed(images: str | Path | Iterable[Any]) -> list[Item | Path] | None:
    """Return the files, or None for images that exist only in Python."""
    if isinstance(images, str | Path):
        return [*find_images(images)]
    if isinstance(images, Sequence) and all(
        isinstance(i, Item | Path | str) for i in images
    ):
        return [Path(one) if isinstance(one, str) else one for one in images]
    return None


def _new(store: Store, parts: Iterable[list[Item]]) -> Iterator[list[Item]]:
    """Yield the parts; refuse an id that is that of another image of the store."""
    before = store.rows()
    for part in parts:
        for item in part:
            row = before.get(item.id)
            if (
                row
                and isinstance(item.path, ImageBytes)
                and row.stamp != item.signature()[1]
            ):
                raise StoreError(
                    f"{item.id} is another image in {store.folder}; pass name= for what ids of "
                    "these images begin with, or choose another folder"
                )
        yield part


def _joined(parts: Iterable[Extraction]) -> Extraction:
    done = list(parts)
    if not done:
        raise OptionError("images must hold at least one image, got none")
    return Extraction(
        keys=tuple(key for part in done for key in part.keys),
        computed=sum(part.computed for part in done),
        failures={id_: why for part in done for id_, why in part.failures.items()},
        removed=(),
        replaced=(),
        factors=done[0].factors,
        zero_gradients=tuple(id_ for part in done for id_ in part.zero_gradients),
    )


def resolve_settings(
    options: Mapping[str, Any], store: str | Path, *, device: str = "cpu"
) -> tuple[Settings, Network | None]:
    """Return the settings of a store to make or extend, and the network if it had to be loaded.

    An existing store supplies the defaults; options that contradict it are refused.
    """
    network_options, feature_options = split_options(options)
    if not (Path(store) / MANIFEST).exists():
        # refuses a wrong tau before a network is loaded
        FeatureOptions(**feature_options)
        loaded = load_from_options(network_options, device=device)
        return Settings.from_network(loaded, **feature_options), loaded
    stored = Settings.from_dict(read_manifest(Path(store))["settings"])
    network = _agree_on_network(network_options, stored.network)
    return replace(stored, network=network, **feature_options), None


def _files(options: NetworkOptions) -> dict[str, str | Path]:
    """Return the files that were given, by their role."""
    weights = options.get("weights")
    name = options.get("network")
    if name is not None and is_network_file(name):
        weights = file_of(name)
    given = {WEIGHTS: weights, PROTOTXT: options.get("prototxt")}
    return {role: path for role, path in given.items() if path is not None}


def _agree_on_network(options: NetworkOptions, stored: NetworkRef) -> NetworkRef:
    """Return the network of the store with its files where they are now; refuse another one."""
    name = options.get("network")
    if name is not None and not is_network_file(name) and name != stored.name:
        raise _contradiction("network", stored.name, name)
    source, files = stored.source, _files(options)
    if PROTOTXT in files and PROTOTXT not in source.files:
        raise OptionError(
            f"--prototxt must not be given for {stored.name}, which was made without; leave it out"
        )
    given = str(files.get(WEIGHTS))
    if given == RANDOM or (source.kind == RANDOM and WEIGHTS in files):
        if source.kind != RANDOM or given != RANDOM:
            known = RANDOM if source.kind == RANDOM else stored.weights_sha256
            raise _contradiction("weights", known, given)
        files = {}
    for role, path in files.items():
        expected = source.files.get(
            role, NetworkFile(path="", sha256=stored.weights_sha256)
        )
        found = NetworkFile.of(path)
        if expected.sha256 and found.sha256 != expected.sha256:
            raise _contradiction(
                role, f"sha256 {expected.sha256}", f"{path}, {found.sha256}"
            )
        source = replace(source, kind=FILES, files={**source.files, role: found})
    if "mean" in options:
        pixel = given_mean(options["mean"])
        if stored.preprocess.order != "BGR" or pixel != stored.preprocess.mean:
            raise _contradiction("mean", stored.preprocess.mean, pixel)
    if "preprocess" in options:
        pixels = find_preprocess(options["preprocess"], stored.preprocess.size)
        if pixels != stored.preprocess:
            raise _contradiction("preprocess", stored.preprocess, pixels)
    if "classes" in options and read_classes(options["classes"]) != source.classes:
        raise _contradiction(
            "classes", ", ".join(source.classes) or "none", options["classes"]
        )
    if options.get("embedding", source.embedding) != source.embedding:
        raise _contradiction(
            "embedding", source.embedding or "none", options["embedding"]
        )
    return replace(stored, source=source, dtype=options.get("dtype", stored.dtype))


def _contradiction(what: str, theirs: object, ours: object) -> StoreError:
    return StoreError(
        f"the store was made with {what} = {theirs}, got {ours}; leave --{what} out, or choose "
        "another folder"
    )
