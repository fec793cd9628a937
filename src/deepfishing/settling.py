"""What follows from a user's options and from a store that exists: `Settings`.

A store that exists decides what is not said; what contradicts it is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepfishing.errors import OptionError, StoreError
from deepfishing.networks.caffe.files import given_mean
from deepfishing.networks.reference import (
    FILES,
    PROTOTXT,
    RANDOM,
    WEIGHTS,
    NetworkFile,
    NetworkRef,
    Source,
    find_preprocess,
)
from deepfishing.networks.zoo import RECORDS, is_network_file
from deepfishing.options import FeatureOptions, Options
from deepfishing.settings import Settings
from deepfishing.store.manifest import MANIFEST, read_manifest

if TYPE_CHECKING:
    from deepfishing.networks.network import Network


def settle(
    options: Options, store: str | Path, *, device: str = "cpu"
) -> tuple[Settings, Network | None]:
    """The settings of a store to make or extend, and the network if they cannot do without it."""
    said = options.of_features()
    if not (Path(store) / MANIFEST).exists():
        FeatureOptions(**said)  # tells a wrong tau before it loads a network
        network = options.load(device=device)
        return Settings.of(network, **said), network
    stored = Settings.from_dict(read_manifest(Path(store))["settings"])
    if not _has_unknown_files(options, stored.network):
        return replace(stored, network=_agreed(options, stored.network), **said), None
    known = stored.network
    again = replace(
        options, network=options.network or known.name, dtype=options.dtype or known.dtype
    )
    network = again.load(device=device)
    pixels = replace(network.preprocess, oversampling=known.preprocess.oversampling)
    network = replace(network, preprocess=pixels)  # oversampling is what no option says
    return replace(stored, network=network.reference(), **said), network


def _files(options: Options) -> dict[str, str | Path]:
    """The files that were given; some are a network and its weights."""
    is_file = options.network is not None and is_network_file(options.network)
    given = {WEIGHTS: options.network if is_file else options.weights, PROTOTXT: options.prototxt}
    return {role: path for role, path in given.items() if path is not None}


def _has_unknown_files(options: Options, stored: NetworkRef) -> bool:
    """Whether files were given for a store of version 0.1, which kept none to compare with."""
    files, source = _files(options), stored.source
    if not files or source.files or source.kind == RANDOM or stored.name in RECORDS:
        return False
    if PROTOTXT in files or str(files[WEIGHTS]) == RANDOM:
        return True
    return NetworkFile.of(files[WEIGHTS]).sha256 != stored.weights_sha256


def _agreed(options: Options, stored: NetworkRef) -> NetworkRef:
    """The network of the store with its files where they are now; else an error says why."""
    name = options.network
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
        expected = source.files.get(role, NetworkFile(path="", sha256=stored.weights_sha256))
        found = NetworkFile.of(path)
        if expected.sha256 and found.sha256 != expected.sha256:
            raise _contradiction(role, f"sha256 {expected.sha256}", f"{path}, {found.sha256}")
        source = Source(kind=FILES, files={**source.files, role: found})
    if options.mean is not None:
        pixel = given_mean(options.mean)
        if stored.preprocess.order != "BGR" or pixel != stored.preprocess.mean:
            raise _contradiction("mean", stored.preprocess.mean, pixel)
    if options.preprocess is not None:
        pixels = find_preprocess(options.preprocess, stored.preprocess.size)
        if pixels != stored.preprocess:
            raise _contradiction("preprocess", stored.preprocess, pixels)
    return replace(stored, source=source, dtype=options.dtype or stored.dtype)


def _contradiction(what: str, theirs: object, ours: object) -> StoreError:
    return StoreError(
        f"the store was made with {what} = {theirs}, got {ours}; leave --{what} out, or choose "
        "another folder"
    )
