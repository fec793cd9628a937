"""How small stored factors can be: bytes against mAP and recall, on PASCAL VOC 2007.

    python benchmarks/compression.py --data VOCdevkit [--alexnet WEIGHTS] [--work DIR]

Factors are extracted once, into a store in single precision (kept in DIR, if one is given). Each
precision is applied to all of them and the same machines are trained and tested on the result; what
must be trained is trained on trainval alone. Recall is that of the 10 nearest images, for 1,000
images of test as queries in single precision against all others. Writes COMPRESSION.md beside this
file, row by row.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import faiss
import numpy as np

from deepfishing.core.features import needed_factors
from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import Array, l2_norm, l2_normalize
from deepfishing.core.recipes import Recipe, parse_recipes
from deepfishing.core.statistics import RESAMPLES, Bootstrap, bootstrap, difference
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store
from deepfishing.images.dataset import Dataset
from deepfishing.images.voc import read_voc
from deepfishing.learn.svm import train_svm
from deepfishing.networks.load import load_network
from deepfishing.store import Store
from deepfishing.store.export import compress
from deepfishing.store.precision import CODECS, signed_root

FEATURES = "x7,dW7,dW8,best"
METHODS = ("11point", "sklearn")
QUERIES, K, SEED = 1000, 10, 0
ROUNDS = 10  # of k-means, for the codebooks
LIMIT = 0.1  # points of mAP that may be lost
ALEXNET = "alexnet-torchvision"
RESULTS = Path(__file__).parent / "COMPRESSION.md"

Factors = dict[str, Array]
Line = tuple[str, float]
Written = tuple[Array, float]  # what is read back, and bytes per image
# of values (N, d) whose first n are trainval
Precision = Callable[[Array, int], Written]


def by_codec(name: str) -> Precision:
    """A precision that stores have."""

    def apply(values: Array, n: int) -> Written:
        codec = CODECS[name]
        codes, scale = codec.encode(values, l2_norm(values))
        read = codec.decode(codes, values.shape[1]) * scale[:, None]
        return read.astype(np.float32), codes.shape[
            1
        ] * codec.dtype.itemsize + scale.itemsize

    return apply


def then(first: Precision, second: Precision) -> Precision:
    """One after the other, as when a store in the first precision is compressed."""
    return lambda values, n: second(first(values, n)[0], n)


def integers(bits: int, column: bool = False) -> Precision:
    """Steps of the same size, on one scale per vector, or per column of trainval."""
    top = 2 ** (bits - 1) - 1

    def apply(values: Array, n: int) -> Written:
        rows = l2_normalize(values)
        peak = np.abs(rows[:n] if column else rows).max(
            axis=int(not column), keepdims=True
        )
        codes = np.clip(np.rint(rows / np.where(peak > 0, peak, 1) * top), -top, top)
        return (codes * (peak / top)).astype(np.float32), rows.shape[1] * bits / 8 + 8

    return apply


def codebook(group: int, *, roots: bool = True) -> Precision:
    """One byte, the number of one of 256 centres, for each group of numbers or of their roots."""

    def apply(values: Array, n: int) -> Written:
        rows = signed_root(l2_normalize(values)) if roots else l2_normalize(values)
        width = -(-rows.shape[1] // group)
        padded = np.zeros((len(rows), width * group), dtype=np.float32)
        padded[:, : rows.shape[1]] = rows
        quantiser = faiss.ProductQuantizer(width * group, width, 8)
        quantiser.cp.niter, quantiser.cp.min_points_per_centroid = ROUNDS, 1
        quantiser.train(padded[:n])
        read = quantiser.decode(quantiser.compute_codes(padded))[:, : rows.shape[1]]
        return (read * np.abs(read) if roots else read), width + 8

    return apply


# Those with a name of `--precision` are the ones that stores have.
PRECISIONS: dict[str, Precision] = {
    "float32": by_codec("float32"),
    "float16": by_codec("float16"),
    "int8": by_codec("int8"),
    "int4": by_codec("int4"),
    "int8, no roots": integers(8),
    "int8, no roots, scale per column": integers(8, column=True),
    "int4, no roots": integers(4),
    **{f"pq{group}": codebook(group) for group in (2, 4, 8)},
    "pq4, no roots": codebook(4, roots=False),
    "pq4 of int8": then(by_codec("int8"), codebook(4)),
}


@dataclass(frozen=True, eq=False)
class Measured:
    """A recipe on some factors: draws of the test images, and the nearest images of queries."""

    draws: Bootstrap
    nearest: Array


def measure(
    recipe: Recipe, values: Factors, exact: Factors, data: Dataset, resamples: int
) -> Measured:
    """Train, test and search with `values`; the queries are `exact`."""
    n = len(data.train.ids)
    values = {factor: values[factor] for factor in recipe.columns}
    fitted = recipe.fit({factor: v[:n] for factor, v in values.items()})
    everything = fitted(values)
    scores = train_svm(everything[:n], data.train.labels).decision_function(
        everything[n:]
    )
    draws = bootstrap(data.test.labels, scores, data.classes, METHODS, resamples)
    queries = n + np.random.default_rng(SEED).permutation(len(data.test.ids))[:QUERIES]
    similarity = gram(
        fitted({f: exact[f][queries] for f in recipe.columns}), everything
    )
    similarity[np.arange(len(queries)), queries] = -np.inf  # not the query itself
    return Measured(draws, np.argpartition(-similarity, K, axis=1)[:, :K])


def line_of(
    label: str, name: str, size: float, found: Measured, base: Measured
) -> Line:
    """A line of the table, and what was lost by the worse definition of AP."""
    kept = [
        len(set(a) & set(b)) for a, b in zip(base.nearest, found.nearest, strict=True)
    ]
    lost = {method: _lost(found.draws, base.draws, method) for method in METHODS}
    figures = [f"{found.draws.measured.map[m]:.2f} | {lost[m][1]}" for m in METHODS]
    line = f"| {label} | {name} | {size:,.0f} | {' | '.join(figures)} | {np.mean(kept) / K:.3f} |"
    print(line, flush=True)
    return line, max(-lost[method][0] for method in METHODS)


def _lost(draws: Bootstrap, base: Bootstrap, method: str) -> tuple[float, str]:
    measured = (draws.measured.map[method] or 0) - (base.measured.map[method] or 0)
    gap = difference(measured, draws.map(method) - base.map(method))
    return measured, f"{measured:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"


def on_disk(
    store: Store, keys: list[str], folder: Path, repetitions: int = 5
) -> list[str]:
    """Size of whole stores, and how quickly they are read."""
    lines = []
    for name in CODECS:
        copy = (
            store if name == store.precision else compress(store, folder / name, name)
        )
        size = sum(f.stat().st_size for f in copy.folder.rglob("*") if f.is_file())
        seconds = []
        for _ in range(repetitions):
            start = time.perf_counter()
            values = sum(copy.read(keys, factor).nbytes for factor in copy.factors())
            seconds.append(time.perf_counter() - start)
        speed = values / statistics.median(seconds) / 1e9
        lines.append(f"| {name} | {size / len(keys):,.0f} | {speed:.1f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--alexnet", help="weights of alexnet-torchvision, measured too"
    )
    parser.add_argument("--work", type=Path, help="folder for stores, to be used again")
    parser.add_argument("--features", default=FEATURES)
    parser.add_argument("--precisions", help="some of them, separated by semicolons")
    parser.add_argument("--draws", type=int, default=RESAMPLES, help="of the bootstrap")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    names = chosen.precisions.split(";") if chosen.precisions else PRECISIONS
    names = list(dict.fromkeys(["float32", *names]))
    data = read_voc(chosen.data, 2007)
    networks = {"efficientnet-lite0": None}
    if chosen.alexnet:
        networks[ALEXNET] = chosen.alexnet
    report = Report(chosen.results, bool(chosen.alexnet), chosen.draws)
    with tempfile.TemporaryDirectory() as temporary:
        work = chosen.work or Path(temporary)
        for name, weights in networks.items():
            network = load_network(name, weights)
            recipes = {
                r: parse_recipes(r, network.layers)[0]
                for r in chosen.features.split(",")
            }
            settings = Settings.from_network(network)
            store = Store(work / name, settings.as_dict(), "float32")
            paths = [*data.train.paths, *data.test.paths]
            factors = needed_factors(recipes.values())
            done = extract_to_store(
                store, paths, factors, settings=settings, network=network
            )
            keys = [str(key) for key in done.keys]
            compare(report, name, store, keys, recipes, names, data)
            if not report.disk:  # sizes of files and speed are the same story for all
                with tempfile.TemporaryDirectory(dir=work) as folder:
                    report.disk[name] = on_disk(store, keys, Path(folder))
            report.write()


def compare(
    report: Report,
    network: str,
    store: Store,
    keys: list[str],
    recipes: dict[str, Recipe],
    names: list[str],
    data: Dataset,
) -> None:
    """All precisions of one network, the first of which the others are compared with."""
    n = len(data.train.ids)
    exact = {
        factor.name: store.read(keys, factor.name)
        for factor in needed_factors(recipes.values())
    }
    bases: dict[str, Measured] = {}
    for name in names:
        written = {
            factor: PRECISIONS[name](values, n) for factor, values in exact.items()
        }
        values = {factor: read for factor, (read, _) in written.items()}
        for label, recipe in recipes.items():
            found = measure(recipe, values, exact, data, report.draws)
            size = sum(written[factor][1] for factor in recipe.columns)
            base = bases.setdefault(label, found)
            line, lost = line_of(label, name, size, found, base)
            report.lines.setdefault(network, {}).setdefault(label, []).append(line)
            report.worst[name] = max(report.worst.get(name, lost), lost)
        report.write()


@dataclass(eq=False)
class Report:
    """COMPRESSION.md as far as it is measured."""

    path: Path
    has_alexnet: bool
    draws: int
    begin: float = field(default_factory=time.perf_counter)
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    disk: dict[str, list[str]] = field(default_factory=dict)

    def write(self) -> None:
        """Replace the file."""
        machine = (
            f"{os.cpu_count()} cores, {platform.machine()}, FAISS {faiss.__version__}"
        )
        minutes = (time.perf_counter() - self.begin) / 60
        alexnet = " --alexnet WEIGHTS" if self.has_alexnet else ""
        text = HEAD.format(alexnet=alexnet, machine=machine, minutes=minutes)
        for name, lost in self.worst.items():
            text += f"| {name} | {max(lost, 0.0) + 0.0:.3f} | {'yes' if lost < LIMIT else 'no'} |\n"
        for network, table in self.lines.items():
            rows = [line for lines in table.values() for line in lines]
            text += f"\n## {network}\n\n{COLUMNS}" + "\n".join(rows) + "\n"
            if network in self.disk:
                text += f"\n{DISK}" + "\n".join(self.disk[network]) + "\n"
        if self.has_alexnet and ALEXNET not in self.lines:
            text += f"\n## {ALEXNET}\n\nNot measured: the run ended before it.\n"
        self.path.write_text(text)


HEAD = """# Compression of stored factors

Made by `python benchmarks/compression.py --data VOCdevkit{alexnet}` on {machine}, in {minutes:.0f}
minutes. PASCAL VOC 2007, trainval to test, tau = 2, C = 1.

Bytes are those of the numbers that a feature needs of one image, with a scale for each factor; keys
are in the second table of the first network. mAP is in percent, and beside it the
difference to float32 with the 95 % interval of the paired bootstrap. Recall is the share of the 10
nearest images in float32 that is found, for 1,000 images of test as queries in float32 against all
others.
`int8`, `int4` and `pq` write signed square roots unless it says "no roots". `pq2` is one byte for
2 numbers (256 centres), and so on, trained on trainval, which no store writes.

The largest loss over all rows below, by either definition of AP:

| precision | points of mAP | below 0.1 |
|---|---|---|
"""
COLUMNS = """\
| feature | precision | bytes | 11-point | to float32 | sklearn | to float32 | recall@10 |
|---|---|---|---|---|---|---|---|
"""
DISK = """\
All factors that these features need, as a store on disk, and how quickly it is read (median of
5, beside whatever else ran on the machine):

| precision | bytes per image | GB/s of float32 read |
|---|---|---|
"""


if __name__ == "__main__":
    main()
