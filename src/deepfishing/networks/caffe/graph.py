"""Stage 2, networks: which of a Caffe network's layers run, and on what.

Comes in: a `NetParameter` message of either generation. Goes out: a `Graph`: the layers that the
class scores depend on, in the order of the file, each with the layers it takes its input from.
Whatever the scores do not depend on is left out: labels, losses, accuracies, the auxiliary
classifiers of a training net. A blob may be overwritten (`top` equal to `bottom`): a layer reads
what the layers before it in the file have made of the blob. So a file cannot describe a cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deepfishing.errors import NetworkError
from deepfishing.networks.caffe.schema import V1_TYPES, Message

# Their first top is the image.
SOURCES = frozenset({"Input", "Data", "ImageData", "MemoryData", "WindowData", "HDF5Data"})
# They say something about the scores, and stand after what makes them.
_MEASURES = frozenset({"Accuracy", "ArgMax", "Silence", "HDF5Output"})
# They turn scores into probabilities, or compare them with labels.
_ENDS = frozenset(
    {"Softmax", "SoftmaxWithLoss", "MultinomialLogisticLoss", "InfogainLoss", "HingeLoss"}
    | {"Sigmoid", "SigmoidCrossEntropyLoss", "EuclideanLoss"}
)
_NOBODY = -1  # makes what a layer takes
_ELEMENT_WISE = frozenset(
    {"ReLU", "PReLU", "ELU", "Sigmoid", "TanH", "Dropout", "BatchNorm", "Scale", "Flatten"}
)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of the file, of either generation; `type` is always the second one's name."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    message: Message

    @property
    def title(self) -> str:
        """Name and type for an error message, without control characters of a hostile file."""
        return f"layer {self.name!r} ({repr(self.type)[1:-1]})"

    def error(self, text: str) -> NetworkError:
        """What is wrong with this layer, to be raised."""
        return self.message.error(f"{self.title} {text}")


@dataclass(frozen=True, eq=False)
class Graph:
    """What has to be computed for the class scores, which the last layer makes."""

    source: Layer  # where the image comes in
    layers: tuple[Layer, ...]  # in the order in which they run
    inputs: tuple[tuple[int, ...], ...]  # per layer: 0 is the image, i the output of the i-th layer


def read_layers(net: Message) -> list[Layer]:
    """All layers of a network, the inputs that the file lists apart from them first."""
    old, new = net.many("layers"), net.many("layer")
    if old and new:
        raise net.error("a network must have `layer` or `layers`, got both; use one generation")
    if any(layer.many("layer") for layer in old):
        raise net.error(
            "the format of Caffe before 2014 (V0) is not supported; convert the file with Caffe's "
            "upgrade_net_proto_text or upgrade_net_proto_binary"
        )
    if not old and not new:
        raise net.error("a network must have layers, got none; is this a Caffe network?")
    shapes = net.many("input_shape")
    if dims := net.many("input_dim"):  # four numbers per input
        starts = range(0, len(dims), 4)
        shapes = [Message(net.where, {"dim": dims[i : i + 4]}) for i in starts]
    layers = []
    for place, name in enumerate(net.many("input")):
        parameter = Message(net.where, {"shape": shapes[place : place + 1]})
        message = Message(net.where, {"input_param": [parameter]})
        layers.append(Layer(name, "Input", (), (name,), message))
    for message in old + new:
        kind = message.one("type", "NONE" if old else "None")
        kind = V1_TYPES.get(kind, kind) if old else kind
        bottoms, tops = tuple(message.many("bottom")), tuple(message.many("top"))
        layers.append(Layer(message.one("name", ""), kind, bottoms, tops, message))
    return layers


def in_test_phase(net: Message, layers: Iterable[Layer]) -> list[Layer]:
    """The layers that Caffe keeps for testing: rules on phase, level and stage."""
    state = net.child("state")
    level, stages = state.one("level", 0), set(state.many("stage"))

    def met(rule: Message) -> bool:
        return (
            rule.one("phase", "TEST") == "TEST"
            and rule.one("min_level", level) <= level <= rule.one("max_level", level)
            and stages.issuperset(rule.many("stage"))
            and stages.isdisjoint(rule.many("not_stage"))
        )

    kept = []
    for layer in layers:
        include, exclude = layer.message.many("include"), layer.message.many("exclude")
        if include and exclude:
            raise layer.error("must have include or exclude rules, got both")
        if any(map(met, include)) if include else not any(map(met, exclude)):
            kept.append(layer)
    return kept


def trace(layers: Sequence[Layer]) -> Graph:
    """Find the class scores and what they depend on.

    The scores are what the last layer of the file makes, or takes if it is a Softmax, a Sigmoid
    or a loss; layers that only measure (Accuracy, ArgMax, Silence) do not count.
    """
    takes = _connections(layers)

    def below(place: int, most: int | None = None) -> list[int]:
        """The layers that a layer takes its inputs, or the first few of them, from."""
        for name, taken in list(zip(layers[place].bottoms, takes[place], strict=True))[:most]:
            if taken == _NOBODY:
                raise layers[place].error(
                    f"takes {name!r}, which no layer before it makes; check its bottom"
                )
        return takes[place][:most]

    last = [i for i, layer in enumerate(layers) if layer.type not in _MEASURES | SOURCES][-1:]
    while last and layers[last[0]].type in _ENDS:
        last = below(last[0], most=1)
    if not last:
        raise layers[-1].error("ends a file without class scores; is this a classifier?")
    end = last[0]
    needed = {end}
    for place in range(end, -1, -1):  # a layer takes what layers before it make
        if place in needed:
            needed.update(below(place))
    sources = [place for place in sorted(needed) if layers[place].type in SOURCES]
    if len(sources) != 1:
        names = ", ".join(repr(layers[place].name) for place in sources[:5]) or "none"
        raise layers[end].error(f"must depend on one image input, got {names}")
    run = sorted(needed - set(sources))
    if not run:
        raise layers[end].error("is all there is; a network must have layers after its input")
    number = {place: i for i, place in enumerate(sources + run)}
    inputs = tuple(tuple(number[taken] for taken in takes[place]) for place in run)
    return Graph(layers[sources[0]], tuple(layers[place] for place in run), inputs)


def _connections(layers: Sequence[Layer]) -> list[list[int]]:
    """Per layer and bottom: the place of the layer that made it last, or `_NOBODY`."""
    made: dict[str, int] = {}
    takes: list[list[int]] = []
    for place, layer in enumerate(layers):
        takes.append([made.get(name, _NOBODY) for name in layer.bottoms])
        for top in layer.tops:
            if top in made and top not in layer.bottoms:
                raise layer.error(f"makes {top!r}, which {layers[made[top]].name!r} has made")
        # a split's tops are its bottom; any other second top (a label, a mask) is not followed
        is_split = layer.type == "Split"
        origin = takes[-1][0] if is_split and layer.bottoms else _NOBODY
        for top in layer.tops if is_split else layer.tops[:1]:
            made[top] = place if origin == _NOBODY else origin
    return takes


def numbered_layers(graph: Graph) -> dict[int, int]:
    """The paper's numbers: k -> place in `graph.layers`, the classifier being 8.

    Layer 8 is the fully connected layer or convolution whose output the scores are, up to
    element-wise layers and pooling. 7 and 6 are the fully connected layers below it, if only
    element-wise layers lie between.
    """
    found: dict[int, int] = {}
    value, through = len(graph.layers), _ELEMENT_WISE | {"Pooling", "Reshape"}
    wanted = {"InnerProduct", "Convolution"}
    for k in (8, 7, 6):
        while value and graph.layers[value - 1].type in through:
            value = graph.inputs[value - 1][0]
        if not value or graph.layers[value - 1].type not in wanted:
            break
        found[k] = value - 1
        value, through, wanted = graph.inputs[value - 1][0], _ELEMENT_WISE, {"InnerProduct"}
    if not found:
        raise graph.layers[-1].error(
            "must follow a fully connected layer or convolution that makes the class scores"
        )
    return dict(sorted(found.items()))
