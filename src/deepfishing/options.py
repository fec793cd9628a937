"""What a user says of the settings, and what follows from it and from a store that exists.

Comes in: options, each None where nothing is said. Goes out: `Settings`, and the network if it had
to be loaded for them. A store that exists decides what is not said; what contradicts it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.errors import OptionError, StoreError
from deepfishing.networks.caffe.blobs import given_mean
from deepfishing.networks.pixels import find_preprocess
from deepfishing.networks.reference import (
    FILES,
    PROTOTXT,
    RANDOM,
    WEIGHTS,
    NetworkFile,
    NetworkRef,
    Source,
)
from deepfishing.networks.zoo import DEFAULT, RECORDS, is_network_file
from deepfishing.objectives import Label
from deepfishing.settings import Settings
from deepfishing.store.manifest import MANIFEST, read_manifest

if TYPE_CHECKING:
    from deepfishing.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user says; None means that nothing is said.

    Parameters
    ----------
    network, weights, prototxt, mean, preprocess, dtype
        As for `load_network`.
    tau, label, views
        As for `Settings`.
    """

    network: str | None = None
    weights: str | Path | None = None
    prototxt: str | Path | None = None
    mean: str | Path | None = None
    preprocess: str | Path | None = None
    dtype: str | None = None
    tau: float | None = None
    label: Label | None = None
    views: str | None = None

    def settle(
        self, store: str | Path | None = None, *, device: str = "cpu"
    ) -> tuple[Settings, Network | None]:
        """The settings, and the network where they could not be known without it.

        Parameters
        ----------
        store : path, optional
            Folder of the store that is to be made, or extended if it exists.
        device : str
            Where the network is loaded.
        """
        if store is None or not (Path(store) / MANIFEST).exists():
            Settings(network=_NOTHING, **self._own())  # tells a wrong tau before it loads a network
            network = self._load(self.network or DEFAULT, self.dtype or "float32", device)
            return Settings.of(network, **self._own()), network
        stored = Settings.from_dict(read_manifest(Path(store))["settings"])
        if self._is_beyond(stored.network):
            name = self.network or stored.network.name
            network = self._load(name, self.dtype or stored.network.dtype, device)
            oversampling = stored.network.preprocess.oversampling  # which no option says
            pixels = replace(network.preprocess, oversampling=oversampling)
            network = replace(network, preprocess=pixels)
            return replace(stored, network=network.reference(), **self._own()), network
        reference = self._agree(stored.network)
        return replace(stored, network=reference, **self._own()), None

    def _own(self) -> dict[str, Any]:
        given = {"tau": self.tau, "label": self.label, "views": self.views}
        return {name: value for name, value in given.items() if value is not None}

    def _load(self, name: str, dtype: str, device: str) -> Network:
        from deepfishing.networks.load import load_network  # torch takes seconds to load

        return load_network(
            name,
            self.weights,
            device=device,
            dtype=dtype,
            prototxt=self.prototxt,
            mean=self.mean,
            preprocess=self.preprocess,
        )

    def _files(self) -> dict[str, str | Path]:
        """The files that were given; some are a network and its weights."""
        is_file = self.network is not None and is_network_file(self.network)
        given = {WEIGHTS: self.network if is_file else self.weights, PROTOTXT: self.prototxt}
        return {role: path for role, path in given.items() if path is not None}

    def _is_beyond(self, stored: NetworkRef) -> bool:
        """Whether files were given for a store of version 0.1, which kept none to compare with."""
        files, source = self._files(), stored.source
        if not files or source.files or source.kind == RANDOM or stored.name in RECORDS:
            return False
        if PROTOTXT in files or str(files[WEIGHTS]) == RANDOM:
            return True
        return NetworkFile.of(files[WEIGHTS]).sha256 != stored.weights_sha256

    def _agree(self, stored: NetworkRef) -> NetworkRef:
        """The network of the store with its files where they are now; else an error says why."""
        name = self.network
        if name is not None and not is_network_file(name) and name != stored.name:
            raise _contradiction("network", stored.name, name)
        source, files = stored.source, self._files()
        if PROTOTXT in files and PROTOTXT not in source.files:
            raise OptionError(
                f"--prototxt must not be given for {stored.name}, which was made without; leave "
                "it out"
            )
        if str(files.get(WEIGHTS)) == RANDOM or (source.kind == RANDOM and WEIGHTS in files):
            if source.kind != RANDOM or str(files[WEIGHTS]) != RANDOM:
                raise _contradiction("weights", _known(stored), files[WEIGHTS])
            files = {}
        for role, path in files.items():
            known = source.files.get(role, NetworkFile(path="", sha256=stored.weights_sha256))
            found = NetworkFile.of(path)
            if known.sha256 and found.sha256 != known.sha256:
                raise _contradiction(role, f"sha256 {known.sha256}", f"{path}, {found.sha256}")
            source = Source(kind=FILES, files={**source.files, role: found})
        if self.mean is not None:
            order, pixel = stored.preprocess.order, given_mean(self.mean)
            if order != "BGR" or pixel != stored.preprocess.mean:
                raise _contradiction("mean", stored.preprocess.mean, pixel)
        if self.preprocess is not None:
            pixels = find_preprocess(self.preprocess, stored.preprocess.size)
            if pixels != stored.preprocess:
                raise _contradiction("preprocess", stored.preprocess, pixels)
        return replace(stored, source=source, dtype=self.dtype or stored.dtype)


def _known(stored: NetworkRef) -> str:
    return stored.source.kind if stored.source.kind == RANDOM else stored.weights_sha256


def _contradiction(what: str, theirs: object, ours: object) -> StoreError:
    return StoreError(
        f"the store was made with {what} = {theirs}, got {ours}; leave --{what} out, or choose "
        "another folder"
    )


_NOTHING = NetworkRef(name="", weights_sha256="", layers={}, preprocess=RECORDS[DEFAULT].preprocess)
