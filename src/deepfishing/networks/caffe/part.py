"""Stage 2, networks: one Caffe layer together with all that decides its module.

Comes in: a layer, the shapes of its inputs and its blobs. Goes out: its parameters within their
limits and its weights in the shapes they must have, or an error that names the layer. All sizes
are plain integers until they are known to agree with numbers that are really in the file, so
nothing is allocated on a file's word.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepfishing.errors import WeightsError
from deepfishing.networks.caffe.blobs import Array
from deepfishing.networks.caffe.graph import Layer
from deepfishing.networks.caffe.modules import Pair
from deepfishing.networks.caffe.schema import FIELDS, Message

Shape = tuple[int, ...]  # of one image's values, without the batch
MAX_WINDOW = 10_000  # for kernels, strides, paddings


@dataclass(frozen=True, eq=False)
class Part:
    """A layer, ready to be built.

    Parameters
    ----------
    layer : Layer
        From the file.
    given : Message
        The parameters of its type.
    shapes : tuple of shapes
        Of its inputs.
    blobs : tuple of arrays
        Its weights in Caffe's order.
    source : str
        The file that the blobs come from, for error messages.

    Examples
    --------
    >>> layer = Layer("pool1", "Pooling", ("a",), ("b",), Message("LayerParameter", "net.prototxt"))
    >>> given = Message("PoolingParameter", "net.prototxt", {"kernel_h": [3], "kernel_w": [2]})
    >>> part = Part(layer, given, ((96, 55, 55),), (), "net.caffemodel")
    >>> part.pair("kernel_size", 0), part.pair("stride", 1), part.choice("pool", "MAX", "AVE")
    ((3, 2), (1, 1), 'MAX')
    >>> part.weights(weight=(96,))
    Traceback (most recent call last):
    deepfishing.errors.WeightsError: net.caffemodel: layer 'pool1' (Pooling) must have weights of
        96, got none; give the weights of this network
    """

    layer: Layer
    given: Message
    shapes: tuple[Shape, ...]
    blobs: tuple[Array, ...]
    source: str

    @property
    def shape(self) -> Shape:
        """Of the first or only input."""
        return self.shapes[0]

    def map_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the only input."""
        if len(self.shape) != 3:
            raise self.layer.error(f"must take a map of 3 axes, got {shape_text(self.shape)}")
        return self.shape[0], self.shape[1], self.shape[2]

    def count(self, name: str, default: int) -> int:
        """A number of things, at least one; 0 as default means that the file must give it."""
        value = self.given.one(name, default)
        if value < 1:
            raise self.layer.error(f"must have {name} of at least 1, got {value}")
        return value

    def pair(self, name: str, default: int, least: int = 1) -> Pair:
        """A value for height and width: `stride` once or twice, or `stride_h` and `stride_w`."""
        values = self.given.many(name)
        sides = [f"{name.removesuffix('_size')}_{side}" for side in "hw"]
        if sides[0] in FIELDS[self.given.kind] and any(map(self.given.has, sides)):
            if values:
                raise self.layer.error(f"must have {name} or {' and '.join(sides)}, got both")
            values = [self.given.one(side, default) for side in sides]
        values = values or [default]
        if len(values) > 2 or not all(least <= value <= MAX_WINDOW for value in values):
            raise self.layer.error(
                f"must have 1 or 2 values of {name}, {least} to {MAX_WINDOW}, got {values[:3]}"
            )
        return values[0], values[-1]

    def choice(self, name: str, *allowed: str) -> str:
        """One of the allowed names, the first if the file gives none."""
        value = self.given.one(name, allowed[0])
        if value not in allowed:
            raise self.layer.error(f"must have {name} {' or '.join(allowed)}, got {value}")
        return value

    def axis(self, name: str, default: int) -> int:
        """An axis, counted with the batch, which is 0 and must not be touched."""
        axes = len(self.shape) + 1
        value = self.given.one(name, default)
        axis = value + axes if value < 0 else value
        if not 1 <= axis < axes:
            raise self.layer.error(f"must have {name} between 1 and {axes - 1}, got {value}")
        return axis

    def weights(self, **expected: Shape) -> dict[str, Array]:
        """The blobs under these names, if they have these shapes."""
        given = [blob.shape for blob in self.blobs]
        # the first generation stores every blob with four axes, (1, 1, 1, 96) for (96)
        if list(map(_bare, given)) != list(map(_bare, expected.values())):
            raise WeightsError(
                f"{self.source}: {self.layer.title} must have weights "
                f"of {shape_text(*expected.values())}, got {shape_text(*given) or 'none'}; "
                "give the weights of this network"
            )
        pairs = zip(expected.items(), self.blobs, strict=True)
        return {name: blob.reshape(shape) for (name, shape), blob in pairs}


def _bare(shape: Shape) -> Shape:
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def shape_text(*shapes: Shape) -> str:
    """Shapes for an error message.

    Examples
    --------
    >>> shape_text((96, 3, 11, 11), (96,))
    '96x3x11x11, 96'
    """
    few = ", ".join("x".join(map(str, shape)) or "1" for shape in shapes[:6])
    return few + (", ..." if len(shapes) > 6 else "")
