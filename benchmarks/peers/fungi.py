"""Peers: gradient features of one linear layer of a ViT, by fungivision and by deepfishing.

Both take the gradient of the KL divergence between a uniform distribution and a random linear head
on the normalised embedding, as fungivision defines it, and give as many numbers per image as the
embedding has. It is checked first that the gradients are the same: theirs is a random projection
of the whole gradient, which is put together here from our factors and projected with their matrix.

The clock sees what is done beyond the forward pass. The blocks below the last one are the same for
both and are left out: tokens that enter the last block come in, and the time of that block's own
forward pass, taken in the same turn, is subtracted. The time from pixels on is told beside it.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from page import lines_of, megabytes, number, spread, table
from peak import peak
from timing import ratios
from torch import Tensor, nn
from torch.nn import functional

from deepfishing.core.features import parse_factor
from deepfishing.extraction.extract import Extractor
from deepfishing.networks.libraries.packages import import_package

# which fungivision imports, beside a torch it was not made for
import_package("torchvision")
for kind in (FutureWarning, UserWarning):  # fungivision was written for an older torch
    warnings.filterwarnings("ignore", category=kind)

MODELS = {False: "vit_small_patch16_224", True: "vit_tiny_patch16_224"}  # by `quick`
SIDES = {384: "24x16", 192: "16x12"}  # of our projection: as many numbers as theirs has
LAYERS = ("vit.blocks.11.attn.proj", "vit.blocks.11.mlp.fc2")
TOLERANCE = 1e-4


def theirs(model: nn.Module, layer: str) -> Any:
    """What a user writes for fungivision."""
    from fungivision.config import KLConfig
    from fungivision.wrapper import FUNGIWrapper

    return FUNGIWrapper(
        model, layer, torch.device("cpu"), extractor_configs=[KLConfig()]
    )


def ours(model: nn.Module, head: nn.Module, names: Sequence[str]) -> Extractor:
    """What a user writes for deepfishing, to have the same error."""
    from deepfishing import wrap
    from deepfishing.extraction.extract import Extractor

    def kl(embeddings: Tensor) -> Tensor:
        latents = head(functional.normalize(embeddings))
        uniform = torch.full_like(latents, 1 / latents.shape[1])
        return (
            functional.kl_div(latents.log_softmax(1), uniform, reduction="sum")
            / latents.shape[1]
        )

    return Extractor(wrap(model, head=kl), [parse_factor(name) for name in names])


class Vit(nn.Module):
    """A ViT of timm with random weights; takes images, or tokens that enter its last block."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vit = import_package("timm").create_model(name, num_classes=0).eval()

    def forward(self, batch: Tensor) -> Tensor:
        """Embeddings."""
        if batch.ndim == 4:
            return self.vit(batch)  # type: ignore[no-any-return]
        return self.vit.forward_head(self.vit.norm(self.vit.blocks[-1](batch)))  # type: ignore

    @torch.no_grad()
    def tokens(self, pixels: Tensor) -> Tensor:
        """What enters the last block."""
        found: list[Tensor] = []
        handle = self.vit.blocks[-1].register_forward_pre_hook(
            lambda _, x: found.append(x[0])
        )
        self(pixels)
        handle.remove()
        return found[0]


class Contest:
    """Both contestants, on models of their own with the same weights, and the forward pass."""

    def __init__(self, name: str, layer: str) -> None:
        self.model, self.layer = Vit(name), layer
        self.fungi = theirs(Vit(name), layer)
        # pixels come in, the same for both
        self.fungi.extractors[0].transform = nn.Identity()
        self.numbers = self.fungi.embeddings_dim
        self.feature = f"dW:{layer}@{SIDES[self.numbers]}"
        self.extractor = self.extractor_of(self.feature)

    def extractor_of(self, *factors: str) -> Extractor:
        """Ours, with their random head."""
        head = self.fungi.extractors[0].projection_head
        return ours(self.model, head, list(factors))

    @torch.no_grad()
    def forward(self, batch: Tensor) -> Tensor:
        """What both do."""
        return self.model(batch)

    def by_them(self, batch: Tensor) -> Tensor:
        """Vectors of fungivision."""
        return self.fungi(batch)

    def by_us(self, batch: Tensor) -> object:
        """Vectors of deepfishing."""
        return self.extractor.compute(batch, len(batch))

    def difference(self, batch: Tensor) -> float:
        """Of their vectors, of norm 1, and of the same made from our factors: the largest."""
        names = [f"{kind}:{self.layer}@exact" for kind in ("in", "delta")]
        factors = self.extractor_of(*names).compute(batch, len(batch))
        x, delta = (torch.from_numpy(factors[parse_factor(name)]) for name in names)
        weight = torch.einsum("npe,npd->ned", delta, x)
        gradients = torch.cat([weight, delta.sum(dim=1)[..., None]], dim=2).flatten(1)
        mine = functional.normalize(gradients @ self.fungi.extractors[0].projection.T)
        return float((mine - self.by_them(batch)).norm(dim=1).max())


def run(options: Any) -> str:
    name = MODELS[options.quick]
    batch, repetitions = (8, 2) if options.quick else (32, 9)
    rows = [row for layer in LAYERS for row in contest(name, layer, batch, repetitions)]
    columns = (
        f"layer of {name}, batches of {batch}",
        "fungivision / ours, time beyond the forward pass",
        "fungivision / ours, time from pixels on",
        "ms per image beyond the forward pass",
        "memory beyond the forward pass",
        "bytes stored per image",
        "lines",
        "difference",
    )
    return (
        f"{table(columns, rows)}\n"
        f"Ratios and times: median (lowest to highest) of {repetitions} repetitions; memory: "
        'median of 3 processes. "At least": ours was in some repetitions as fast as the forward '
        "pass alone; their median over our slowest. The difference is that of our gradient, with "
        "fungivision's projection, and fungivision's vector of norm 1: at most "
        f"{TOLERANCE:.0e} is allowed.\n\n"
        f"{table(('layer', 'fungivision', 'deepfishing'), other_layers())}"
    )


def contest(
    name: str, layer: str, batch: int, repetitions: int
) -> list[Sequence[object]]:
    """A row for each of the two."""
    both = Contest(name, layer)
    pixels = images(batch)
    if not (difference := both.difference(pixels[:4])) <= TOLERANCE:
        raise RuntimeError(
            f"gradients of {layer} must be the same, but differ by {difference:.2g}"
        )
    tokens = both.model.tokens(pixels)
    beyond = measured(both, tokens, repetitions, turns=4)
    them, us = (
        [1000 * (run[who] - run["forward"]) / batch for run in beyond]
        for who in ("fungivision", "ours")
    )
    again = measured(both, pixels, repetitions, turns=2)
    whole = [run["fungivision"] / run["ours"] for run in again]
    base = peak(f"fungi:case:{name}:{layer}:{batch}:forward")
    memory = [
        peak(f"fungi:case:{name}:{layer}:{batch}:{who}") - base
        for who in ("by_them", "by_us")
    ]
    short = layer.removeprefix("vit.")
    if min(us) > 0:
        faster = spread([a / b for a, b in zip(them, us, strict=True)])
    else:  # ours cannot be told from the forward pass itself, and no ratio has a meaning
        faster = (
            f"at least {number(statistics.median(them) / max(us))}"
            if max(us) > 0
            else ""
        )
    stored = 4 * both.numbers
    side = both.feature.rpartition("@")[2]
    return [
        (
            f"{short}: fungivision",
            "",
            "",
            spread(them),
            megabytes(memory[0]),
            stored,
            lines_of(theirs),
            "",
        ),
        (
            f"{short}: ours @{side}",
            faster,
            spread(whole),
            spread(us),
            megabytes(memory[1]),
            stored,
            lines_of(ours),
            number(difference),
        ),
    ]


def measured(
    both: Contest, batch: Tensor, repetitions: int, turns: int
) -> list[dict[str, float]]:
    """Seconds a batch of the forward pass and both contestants, by repetition of some turns."""
    runs = {
        "fungivision": lambda: both.by_them(batch),
        "ours": lambda: both.by_us(batch),
    }
    both.forward(batch), both.by_them(batch), both.by_us(batch)
    found = []
    for _ in range(repetitions):
        total = dict.fromkeys(("forward", *runs), 0.0)
        for turn in range(turns):
            order = dict(list(runs.items())[:: 1 if turn % 2 else -1])
            rows = ratios(order, "forward pass", lambda: both.forward(batch), 1)
            total["forward"] += rows[0].seconds / rows[0].median / turns
            for row in rows:
                total[row.name] += row.seconds / turns
        found.append(total)
    return found


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 224, 224, generator=torch.Generator().manual_seed(1))


def case(name: str, layer: str, batch: str, who: str) -> None:
    """One of the three, in a process of its own; each makes only what it needs."""
    import fungivision.wrapper  # noqa: F401, all have the same packages in memory

    pixels = images(int(batch))
    model = Vit(name)
    if who == "forward":
        with torch.no_grad():
            model(pixels), model(pixels)
    elif who == "by_them":
        fungi = theirs(model, layer)
        fungi.extractors[0].transform = nn.Identity()
        fungi(pixels), fungi(pixels)
    else:
        width = model.vit.num_features
        head = nn.Linear(width, 768)
        extractor = ours(model, head, [f"dW:{layer}@{SIDES[width]}"])
        extractor.compute(pixels, len(pixels)), extractor.compute(pixels, len(pixels))


def other_layers() -> list[Sequence[object]]:
    """Layers that are not token-wise: what fungivision says as it is, and ours against autograd."""
    rows: list[Sequence[object]] = []
    for layer, what in (
        ("7", "fully connected 512 x 64, as in AlexNet and VGG"),
        ("2", "convolution 3x3"),
        ("4", "convolution 1x1"),
    ):
        torch.manual_seed(0)
        pixels = torch.randn(4, 3, 224, 224)
        rows.append((what, _told(layer, pixels), _checked(layer, pixels)))
    return rows


def _convnet() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.AvgPool2d(14), nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1),
        nn.MaxPool2d(5, stride=1), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    ).eval()  # fmt: skip


def _told(layer: str, pixels: Tensor) -> str:
    fungi = theirs(_convnet(), layer)
    fungi.extractors[0].transform = nn.Identity()
    try:
        return f"a vector of {fungi(pixels).shape[1]} numbers"
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        return f"`{type(error).__name__}: {' '.join(str(error).split())}`"


def _checked(layer: str, pixels: Tensor) -> str:
    """Our gradient against that of each image alone."""
    model, head = _convnet(), nn.Linear(10, 768)
    extractor = ours(
        model, head, names := [f"in:{layer}@exact", f"delta:{layer}@exact"]
    )
    factors = extractor.compute(
        extractor.compute.run(pixels.numpy()).clone(), len(pixels)
    )
    x, delta = (torch.from_numpy(factors[parse_factor(name)]) for name in names)
    if x.ndim == 2:
        x, delta = x[:, None], delta[:, None]
    mine = torch.einsum("npe,npd->ned", delta, x)
    objective = extractor.compute.objective
    weight = model.get_submodule(layer).weight.requires_grad_()  # type: ignore[union-attr]
    worst = 0.0
    for image, gradient in zip(pixels, mine, strict=True):
        (alone,) = torch.autograd.grad(objective(model(image[None])), weight)
        alone = alone.flatten(1)
        worst = max(worst, float((gradient - alone).abs().max() / alone.abs().max()))
    return f"x and delta; their product is the gradient to {worst:.0e} of its largest entry"
