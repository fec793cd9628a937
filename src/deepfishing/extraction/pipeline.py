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
from deepfishing.extraction.distributed import check_cluster, connect
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
from deepfishing.extraction.relabel import labels_follow_pixels, log_corrections
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
from deepfishing.images.tables import is_table
from deepfishing.networks.caffe.files import given_mean, is_mean
from deepfishing.networks.prompts import read_classes
from deepfishing.networks.reference import (
    FILES,
    PROTOTXT,
    PYTHON,
    RANDOM,
    WEIGHTS,
    NetworkFile,
    NetworkRef,
    Source,
    find_preprocess,
)
from deepfishing.networks.zoo import PROTOTXT_SUFFIX, file_of, is_network_file
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
    keep_labels: bool = True,
    table: str = "",
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
        Or images in memory: one image, a Hugging Face data set, a torch Dataset or DataLoader, an
        iterable of PIL images, arrays or (image, label), see `streams`. Their ids are numbers in
        their order after `name`, by default the split of a data set, or `image`.
    network : str, Network or torch module, optional
        A name or file as for `load_network`, a network that is loaded already, or a module as
        `wrap` takes it.
    features : str or list of str
        Names or recipes, such as `x7,dW7`; `all` gives the rows of the paper's Table 1.
    precision : str, optional
        Numbers on disk: int8, int4, float16 or float32; a new store is in int8, or in float16
        where int8 would change the kernel of a forward feature by more than 1 %.
    resources : Resources, optional
        Batch size, memory, engine and device, which change no stored number.
    on : str
        `local`, `ray`, or `ray://HOST:PORT` of a Ray cluster.
    retry, prune, strict, keep_labels, progress, on_failure
        See `extract_to_store`.
    table : str
        Name of the table that the images are from, if their labels are a table's. Labels that
        differ from those in the store go to its label log, which comes before folder names.
    notice : callable, optional
        Called with a line for each assumption that was made when the network was loaded.
    options
        weights, preprocess, dtype, tau, label, views: see `NetworkOptions` and
        `FeatureOptions`.
    """
    folder = Path(store)
    resources = resources or Resources()
    is_remote = on != LOCAL
    if is_remote:
        check_cluster(on)
    split_options(options)  # refuses unknown ones before the images are listed
    items = _list_files(images)
    if items is None and (prune or is_remote):
        raise OptionError(
            "images in memory are read once, in this process, so prune and on must be left out; "
            "give a folder or a list of paths for them"
        )
    # for a cluster on the CPU, since this computer may have no GPU
    device = "cpu" if is_remote else resources.device
    settings, loaded = _choose_settings(network, options, features, folder, device)
    if notice is not None and loaded is not None:
        for line in loaded.notes:
            notice(line)
    factors = needed_factors(parse_recipes(features, settings.network.layers))
    parts: Iterator[list[Item]] = iter(())
    sample: Sequence[Item | Path] = items or []
    if items is None:
        sample, parts = _first_part(blocks(cast("Iterable[Any]", images), name))
    executor = Local()
    if precision is None:
        precision = _known_precision(folder, settings.network, factors)
    if precision is None and sample and not (folder / MANIFEST).exists():
        executor.extractor = start_extractor(factors, settings, resources, loaded)
        precision, why = measure_precision(executor.extractor, sample)
        if why and notice is not None:
            notice(why)
    opened = Store(folder, settings.as_dict(), precision)
    with ExitStack() as stack:
        if is_remote:
            needs_gpu = resources.device.startswith("cuda")
            executor = stack.enter_context(connect(on, needs_gpu, resources.batch_size))
            if needs_gpu:
                # a worker sees its GPU as the only one
                resources = replace(resources, device="cuda")
            if settings.network.source.kind != PYTHON:
                loaded = None  # workers load it themselves
        run = partial(
            extract_to_store,
            opened,
            factors=factors,
            settings=settings,
            network=loaded,
            resources=resources,
            on=executor,
            retry=retry,
            prune=prune,
            strict=strict,
            keep_labels=keep_labels,
            progress=progress,
            on_failure=on_failure,
        )
        stack.enter_context(labels_follow_pixels(opened))
        if isinstance(images, str | Path) and is_table(images):
            table = str(images)
        if table and items is not None:
            stack.enter_context(log_corrections(opened, items, f"extract {table}"))
        if items is not None:
            return run(items)
        return _sum_of_parts(map(run, _refuse_other_images(opened, parts)))


def _choose_settings(
    network: str | Network | nn.Module | None,
    options: Mapping[str, Any],
    features: str | Iterable[str],
    folder: Path,
    device: str,
) -> tuple[Settings, Network | None]:
    """Return the settings of the store, and the network if it is loaded by now."""
    if isinstance(network, str | None):
        wanted = {"network": network, **options}
        if not (folder / MANIFEST).exists():
            check_features(wanted, features)  # before torch is loaded
        return resolve_settings(wanted, folder, device=device)
    from deepfishing.networks.load import as_network  # torch takes seconds to load

    loaded = as_network(network)
    network_options, feature_options = split_options(options)
    if network_options:
        names = ", ".join(field.name for field in FEATURES)
        given = ", ".join(network_options)
        raise OptionError(
            f"options beside a loaded network must be {names}, got {given}"
        )
    return Settings.from_network(loaded, **feature_options), loaded


def _known_precision(
    store: Path, network: NetworkRef, factors: Sequence[Factor]
) -> str | None:
    """Return the precision of a store that needs no measurement; None for others."""
    if is_unmeasured(network, factors):
        return None
    if (store / MANIFEST).exists():
        return Store.open(store).precision
    return DEFAULT


def _first_part(
    parts: Iterator[list[Item]],
) -> tuple[list[Item], Iterator[list[Item]]]:
    """Return the first part, empty if there is none, and all of them."""
    first = next(parts, [])
    if not first:
        return first, iter(())
    return first, itertools.chain([first], parts)


def _list_files(images: str | Path | Iterable[Any]) -> list[Item | Path] | None:
    """Return the files, or None for images that exist only in Python."""
    if isinstance(images, str | Path):
        return [*find_images(images)]
    if not isinstance(images, Sequence):
        return None
    files: list[Item | Path] = []
    for image in images:
        if isinstance(image, Item):
            files.append(image)
        elif isinstance(image, str | Path):
            files.append(Path(image))
        else:
            return None
    return files


def _refuse_other_images(
    store: Store, parts: Iterable[list[Item]]
) -> Iterator[list[Item]]:
    """Yield the parts; refuse an id that another image of the store has."""
    before = store.rows()
    for part in parts:
        for item in part:
            row = before.get(item.id)
            if row is None or not isinstance(item.path, ImageBytes):
                continue
            if row.stamp != item.signature()[1]:
                raise StoreError(
                    f"{item.id} is another image in {store.folder}; pass name= for what ids of "
                    "these images begin with, or choose another folder"
                )
        yield part


def _sum_of_parts(parts: Iterable[Extraction]) -> Extraction:
    """Return the summary of all parts together."""
    keys: list[str | None] = []
    computed = 0
    failures: dict[str, str] = {}
    zero_gradients: list[str] = []
    factors: tuple[str, ...] = ()
    for part in parts:
        keys += part.keys
        computed += part.computed
        failures |= part.failures
        zero_gradients += part.zero_gradients
        factors = part.factors
    if not keys:
        raise OptionError("images must hold at least one image, got none")
    return Extraction(
        keys=tuple(keys),
        computed=computed,
        failures=failures,
        removed=(),
        replaced=(),
        factors=factors,
        zero_gradients=tuple(zero_gradients),
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


def _agree_on_network(options: NetworkOptions, stored: NetworkRef) -> NetworkRef:
    """Return the network of the store with its files where they are now; refuse another one."""
    name = options.get("network")
    if name is not None and not is_network_file(name) and name != stored.name:
        raise _contradiction("network", stored.name, name)
    source = _agree_on_files(options, stored)
    if "preprocess" in options and is_mean(options["preprocess"]):
        pixel = given_mean(options["preprocess"])
        if stored.preprocess.order != "BGR" or pixel != stored.preprocess.mean:
            raise _contradiction("preprocess", stored.preprocess.mean, pixel)
    elif "preprocess" in options:
        pixels = find_preprocess(options["preprocess"], stored.preprocess.size)
        if pixels != stored.preprocess:
            raise _contradiction("preprocess", stored.preprocess, pixels)
    if (
        "classes" in options
        and read_classes(options["classes"]).names != source.classes
    ):
        classes = ", ".join(source.classes) or "none"
        raise _contradiction("classes", classes, options["classes"])
    if options.get("embedding", source.embedding) != source.embedding:
        embedding = source.embedding or "none"
        raise _contradiction("embedding", embedding, options["embedding"])
    return replace(stored, source=source, dtype=options.get("dtype", stored.dtype))


def _agree_on_files(options: NetworkOptions, stored: NetworkRef) -> Source:
    """Return the source of the store's network with the files that were given; refuse others."""
    source = stored.source
    files = _given_files(options)
    if PROTOTXT in files and PROTOTXT not in source.files:
        raise OptionError(
            f"{stored.name} was made without a .prototxt file, got {files[PROTOTXT]}; give "
            "--network its .caffemodel"
        )
    weights = str(files.get(WEIGHTS))
    if source.kind == RANDOM and WEIGHTS in files and weights != RANDOM:
        raise _contradiction("weights", RANDOM, weights)
    if source.kind != RANDOM and weights == RANDOM:
        raise _contradiction("weights", stored.weights_sha256, weights)
    if weights == RANDOM:
        return source
    for role, path in files.items():
        by_hash = NetworkFile(path="", sha256=stored.weights_sha256)
        expected = source.files.get(role, by_hash).sha256
        file = NetworkFile.of(path)
        if expected and file.sha256 != expected:
            if role == WEIGHTS and options.get("weights") is None:
                raise _contradiction("network", stored.name, path)
            raise _contradiction(role, f"sha256 {expected}", f"{path}, {file.sha256}")
        source = replace(source, kind=FILES, files={**source.files, role: file})
    return source


def _given_files(options: NetworkOptions) -> dict[str, str | Path]:
    """Return the files that were given, by their role."""
    weights = options.get("weights")
    name = options.get("network")
    prototxt = None
    if name is not None and name.endswith(PROTOTXT_SUFFIX):
        prototxt = name
    elif name is not None and is_network_file(name):
        weights = file_of(name)
    files = {WEIGHTS: weights, PROTOTXT: prototxt}
    return {role: path for role, path in files.items() if path is not None}


def _contradiction(option: str, stored: object, given: object) -> StoreError:
    return StoreError(
        f"the store was made with {option} = {stored}, got {given}; leave --{option} out, or "
        "choose another folder"
    )
