"""A network that exists only as an .onnx file gives the features of the torch network it was."""

import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import nn

from deepfishing import Preprocess, extract, gram, load_network, wrap
from deepfishing.errors import (
    MissingDependencyError,
    NetworkError,
    OptionError,
    WeightsError,
)
from deepfishing.networks.load import load_reference
from deepfishing.networks.onnx.load import KEY, load_onnx
from deepfishing.networks.reference import find_preprocess
from deepfishing.networks.zoo import RECORDS
from deepfishing.store import Store

SIZE = 12
PIXELS = Preprocess(
    size=SIZE, short_side=SIZE, mean=(0.4,) * 3, std=(0.3,) * 3, scale=1 / 255
)
JSON = json.dumps({"mean": [0.4] * 3, "std": [0.3] * 3, "scale": 1 / 255})


def save(module, path, **options):
    """Export as torch does, for any number of images unless told otherwise."""
    options = {"dynamic_axes": {"images": {0: "n"}}, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter is the old one
        size = options.pop("size", SIZE)
        inputs = (torch.zeros(1, 3, size, size),)
        names = {"input_names": ["images"], "output_names": ["scores"], **options}
        torch.onnx.export(module.eval(), inputs, path, dynamo=False, **names)
    return path


def say_pixels(path, text=JSON):
    model = onnx.load(path)
    helper.set_model_props(model, {KEY: text})
    onnx.save(model, path)
    return path


def toy(*top):
    torch.manual_seed(0)
    low = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU()
    return nn.Sequential(*low, *top).eval()


def stack():
    flat = nn.MaxPool2d(2), nn.Flatten()
    layers = (
        nn.Linear(24, 9),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(9, 8),
        nn.ReLU(),
        nn.Linear(8, 5),
    )
    return toy(*flat, *layers)


def pooled():
    return toy(nn.Conv2d(6, 8, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
               nn.Linear(8, 5, bias=False))  # fmt: skip


@pytest.fixture
def photos(tmp_path, rng):
    folder = tmp_path / "photos"
    for i, label in enumerate("aabbab"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        values = rng.integers(0, 256, (20, 16, 3), dtype=np.uint8)
        Image.fromarray(values // (1 + (label == "a"))).save(
            folder / label / f"{i}.png"
        )
    return folder


def same_features(network, module, photos, features):
    images = sorted(photos.rglob("*.png"))
    expected = extract(wrap(module, preprocess=PIXELS), images, features)
    for engine in ("torch", "onnxruntime", "openvino"):
        got = extract(network, images, features, engine=engine)
        for name, value in expected.items():
            for part in ("x", "delta") if name.startswith("dW") else ("__array__",):
                a, b = (getattr(v, part) for v in (got[name], value))
                a, b = (a(), b()) if callable(a) else (a, b)
                np.testing.assert_allclose(
                    a, b, atol=1e-5, err_msg=f"{engine} {name} {part}"
                )


@pytest.mark.parametrize("module", [stack(), pooled()], ids=["stack", "pooled"])
def test_its_features_are_those_of_the_torch_network(module, photos, tmp_path):
    network = load_onnx(save(module, tmp_path / "net.onnx"), PIXELS)
    features = "x5,x6,x7,y8,x8,dW6,dW7,dW8" if 6 in network.layers else "x7,y8,x8,dW8"
    same_features(network, module, photos, features)


def test_the_command_line_keeps_it_and_opens_it_again(
    module_file, photos, tmp_path, deepfish
):
    module, file = module_file
    asked = ("--network", file, "--features", "x7,dW8", "--precision", "float32")
    ran = deepfish(
        "extract", photos, "store", *asked, "--preprocess", tmp_path / "pixels.json"
    )
    assert ran.code == 0, ran.err
    assert "layer 8 is Gemm" in ran.err
    store, images = Store.open(tmp_path / "store"), sorted(photos.rglob("*.png"))
    rows = {row.id: row.sha256 for row in store.rows().values()}
    keys = [rows[str(image.relative_to(photos))] for image in images]
    expected = extract(wrap(module, preprocess=PIXELS), images, "x7,dW8")
    x, delta = store.read(keys, "x7"), store.read(keys, "delta8")
    np.testing.assert_allclose(
        x / np.linalg.norm(x, axis=1, keepdims=True), expected["x7"], atol=1e-5
    )
    unit = delta / np.linalg.norm(delta, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected["dW8"].delta, atol=1e-5)
    # more photos need no options, and another answer to the same question is refused
    assert deepfish("extract", photos, "store", "--features", "x7").code == 0
    other = deepfish("extract", photos, "store", "--preprocess", "imagenet")
    assert "made with preprocess" in other.err
    assert "0.png" in deepfish("search", "store", images[0], "-n", "2").out
    assert deepfish("train", "store", "model", "--features", "dW8").code == 0
    predicted = deepfish("predict", "model", photos, "--json")
    assert predicted.code == 0, predicted.err
    # the file is the network: another one under its name is refused
    save(pooled(), file)
    assert "sha256" in deepfish("predict", "model", photos).err


@pytest.fixture
def module_file(tmp_path):
    module = stack()
    (tmp_path / "pixels.json").write_text(JSON)
    return module, save(module, tmp_path / "net.onnx")


def test_what_the_file_says_of_its_pixels_is_taken(module_file):
    _, file = module_file
    with pytest.raises(OptionError, match="does not say how it wants its pixels"):
        load_network(str(file))
    assert load_network(str(say_pixels(file))).preprocess == PIXELS
    lite = load_network(str(file), preprocess="efficientnet-lite0").preprocess
    known = RECORDS["efficientnet-lite0"].preprocess
    assert lite == replace(known, size=SIZE, short_side=SIZE)
    for wrong in (
        '{"mean": [1, 2]}',
        '{"mean": [1,2,3], "std": [1,0,1]}',
        "missing.json",
    ):
        with pytest.raises(OptionError, match="preprocess must be JSON"):
            load_network(str(file), preprocess=wrong)
    with pytest.raises(OptionError, match="network's size, 12"):
        load_network(
            str(file), preprocess='{"mean": [0,0,0], "std": [1,1,1], "size": 24}'
        )


def test_a_reference_finds_the_file_where_it_is_now(module_file, tmp_path):
    _, file = module_file
    reference = load_onnx(file, PIXELS).reference()
    moved = file.rename(tmp_path / "moved.onnx")
    with pytest.raises(WeightsError, match="does not exist"):
        load_reference(reference)
    assert load_reference(reference, weights=moved).reference() == reference


SHAPES = (9, 48), (9, 5), (5,)
W7, W8, b8 = (
    np.random.default_rng(1).normal(size=s).astype(np.float32) for s in SHAPES
)


def by_hand(tmp_path, *nodes, end="y8", shape=("n", 3, 4, 4), constants=None):
    """A file of nodes from `pixels`, of 48 values, to `end`."""
    arrays = {"W7": W7, "W8": W8, "b8": b8, **(constants or {})}
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["pixels"], ["x6"]), *nodes],
        "g",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(end, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9
    )
    onnx.save(model, tmp_path / "hand.onnx")
    return tmp_path / "hand.onnx"


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), [output], **attributes)


LAYER7 = node("Gemm", "x6 W7", "y7", transB=1)
HEADS = {
    "Gemm as it is": [node("Gemm", "x7 W8 b8", "y8", alpha=0.5, beta=2.0)],
    "MatMul": [node("MatMul", "x7 W8", "y8")],
    "MatMul and Add": [node("MatMul", "x7 W8", "m"), node("Add", "b8 m", "y8")],
    "weights transposed twice": [
        node("Transpose", "W8", "t", perm=[1, 0]),
        node("Gemm", "x7 t b8", "y8", transB=1),
    ],
    "Softmax": [node("Gemm", "x7 W8 b8", "y"), node("Softmax", "y", "y8")],
    "LogSoftmax": [node("Gemm", "x7 W8 b8", "y"), node("LogSoftmax", "y", "y8")],
    "Sigmoid": [node("Gemm", "x7 W8 b8", "y"), node("Sigmoid", "y", "y8")],
}
ACTIVATIONS = {
    "Relu": torch.relu,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "HardSwish": nn.functional.hardswish,
    "LeakyRelu": nn.functional.leaky_relu,
    "Gelu": nn.functional.gelu,
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("op", ["Relu", "Tanh"])
def test_all_spellings_of_a_head_have_its_gradients(head, op, tmp_path):
    check_gradients(
        by_hand(tmp_path, LAYER7, node(op, "y7", "x7"), *HEADS[head]), op, head
    )


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_all_activations_have_their_gradients(op, tmp_path):
    head = "Gemm as it is"
    check_gradients(
        by_hand(tmp_path, LAYER7, node(op, "y7", "x7"), *HEADS[head]), op, head
    )


def check_gradients(file, op, head):
    network = load_onnx(file, "imagenet")
    assert list(network.layers) == [7, 8]
    assert network.head == ("sigmoid" if head == "Sigmoid" else "softmax")
    image = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    got = extract(network, [image], "dW7,dW8,x7")
    # the same by hand
    W = torch.from_numpy(W8).requires_grad_()
    x6 = torch.from_numpy(network.preprocess(image)).reshape(1, -1)
    x7 = ACTIVATIONS[op](x6 @ torch.from_numpy(W7).T)
    scale = {"Gemm as it is": (0.5, 2.0), "MatMul": (1.0, 0.0)}.get(head, (1.0, 1.0))
    y8 = scale[0] * x7 @ W + scale[1] * torch.from_numpy(b8)
    kind = torch.log_softmax(y8 / 2, 1).mean() * -1
    if head == "Sigmoid":
        half = torch.full_like(y8, 0.5)
        kind = nn.functional.binary_cross_entropy_with_logits(
            y8 / 2, half, reduction="sum"
        )
    kind.backward()
    gradient = (W.grad / W.grad.norm()).numpy()
    dense = got["dW8"].dense()[0]
    np.testing.assert_allclose(dense, gradient, atol=1e-5)
    np.testing.assert_allclose(got["x7"][0], (x7 / x7.norm()).numpy()[0], atol=1e-5)


def test_a_file_made_for_one_image_at_a_time_works(photos, tmp_path):
    class Fixed(nn.Sequential):
        def forward(self, x):
            return super().forward(
                x.reshape(1, 3, SIZE * SIZE).reshape(1, 3, SIZE, SIZE)
            )

    module = Fixed(*pooled()).eval()
    network = load_onnx(save(module, tmp_path / "net.onnx", dynamic_axes={}), PIXELS)
    images = sorted(photos.rglob("*.png"))
    with pytest.warns(UserWarning, match="dynamic batch axis"):
        got = extract(network, images, "x7")["x7"]
    expected = extract(wrap(nn.Sequential(*module), preprocess=PIXELS), images, "x7")[
        "x7"
    ]
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_what_has_no_head_is_refused_in_one_line(tmp_path):
    kernel = {"K": np.ones((5, 3, 3, 3), np.float32)}
    for wrong in (node("Relu", "pixels", "y8"), node("Conv", "pixels K", "y8")):
        file = by_hand(tmp_path, wrong, constants=kernel)
        with pytest.raises(
            NetworkError, match=f"got y8 by {wrong.op_type}; pass --embedding"
        ):
            load_onnx(file, "imagenet")
    grey = by_hand(tmp_path, *HEADS["MatMul"], shape=("n", 1, 4, 4))
    with pytest.raises(
        NetworkError, match=r"must take float32 images of shape \(n, 3, S, S\)"
    ):
        load_onnx(grey, "imagenet")
    (tmp_path / "no.onnx").write_bytes(b"not at all")
    with pytest.raises(NetworkError, match="damaged or not an ONNX file"):
        load_onnx(tmp_path / "no.onnx", "imagenet")
    with pytest.raises(NetworkError, match="network file not found"):
        load_onnx(tmp_path / "nowhere.onnx", "imagenet")
    good = save(stack(), tmp_path / "net.onnx")
    with pytest.raises(OptionError, match="runs on cpu in float32"):
        load_network(str(good), dtype="float64", preprocess="imagenet")
    with pytest.raises(OptionError, match="brings its own weights"):
        load_network(str(good), good)
    with pytest.raises(OptionError, match="preprocess goes with a"):
        load_network("vgg16", preprocess="imagenet")


def test_a_head_that_is_not_what_it_seems_is_refused(tmp_path):
    turned = {"rows": np.array([-1, 9], np.int64), "W7": np.tile(W7, (2, 1))}
    halves = node("Gemm", "x6 W7", "two", transB=1), node("Reshape", "two rows", "x7")
    file = by_hand(tmp_path, *halves, *HEADS["MatMul"], constants=turned)
    with pytest.raises(NetworkError, match="must give the same in two parts"):
        load_onnx(file, "imagenet")


def test_weights_in_other_files_are_not_read(tmp_path):
    file = save(stack(), tmp_path / "net.onnx")
    model = onnx.load(file)
    for tensor in model.graph.initializer:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../secret")
    (tmp_path / "away.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(NetworkError, match="must hold all its weights"):
        load_onnx(tmp_path / "away.onnx", "imagenet")


def test_a_mistyped_preprocess_is_told_with_the_nearest():
    with pytest.raises(
        OptionError, match=r"must be imagenet, .* got 'imagnet'; did you mean imag"
    ):
        find_preprocess("imagnet", 240)


@pytest.mark.slow
def test_the_default_network_gives_the_same_as_a_file(tmp_path, photos):
    known = load_network()
    file = save(known.module, tmp_path / "lite0.onnx", size=known.preprocess.size)
    network = load_onnx(file, "efficientnet-lite0")
    images = sorted(photos.rglob("*.png"))
    expected, got = (extract(net, images, "x6,x7,dW8") for net in (known, network))
    for name in ("x6", "x7"):
        np.testing.assert_allclose(got[name], expected[name], atol=1e-5)
    np.testing.assert_allclose(got["dW8"].x, expected["dW8"].x, atol=1e-5)
    np.testing.assert_allclose(got["dW8"].delta, expected["dW8"].delta, atol=1e-5)


class Joined(nn.Module):
    """A stack whose layers are joined by a function of your own."""

    def __init__(self, join):
        super().__init__()
        self.low, self.join = toy(nn.MaxPool2d(2), nn.Flatten()), join
        self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 5)

    def forward(self, x):
        return self.join(self.low(x), self.a, self.b)


def test_weights_that_two_nodes_share_are_no_layer_of_one_of_them(tmp_path):
    tied = Joined(lambda x, a, b: b(a(a(x).relu()).relu()))
    assert load_onnx(save(tied, tmp_path / "tied.onnx"), JSON).layers == {8: "layer8"}
    once = Joined(lambda x, a, b: b(a(x).relu()))
    assert set(load_onnx(save(once, tmp_path / "once.onnx"), JSON).layers) == {7, 8}


def test_an_embedding_beside_the_scores_is_not_taken_for_them(tmp_path, photos):
    both = Joined(lambda x, a, b: (a(x).relu(), b(a(x).relu())))
    network = load_onnx(
        save(both, tmp_path / "both.onnx", output_names=["e", "scores"]), JSON
    )
    module = Joined(lambda x, a, b: b(a(x).relu()))
    module.load_state_dict(both.state_dict())
    images = sorted(photos.rglob("*.png"))
    found, expected = (
        extract(one, images, "x7,dW7,dW8")
        for one in (network, wrap(module, preprocess=PIXELS))
    )
    for name in found:
        np.testing.assert_allclose(gram(found[name]), gram(expected[name]), atol=1e-5)
    two = Joined(lambda x, a, b: (a(x), b(x)))
    with pytest.raises(
        NetworkError, match="got p by Gemm, q by Gemm; pass --embedding TENSOR"
    ):
        load_onnx(save(two, tmp_path / "two.onnx", output_names=["p", "q"]), JSON)


def test_a_file_for_several_images_at_a_time_is_told(tmp_path):
    model = onnx.load(save(stack(), tmp_path / "net.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, tmp_path / "four.onnx")
    with pytest.raises(
        NetworkError, match="takes 4 images at a time; export it for any number"
    ):
        load_onnx(tmp_path / "four.onnx", JSON)


class ChannelsLast(nn.Module):
    """A network that takes images as (n, S, S, 3)."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.permute(0, 3, 1, 2))


def save_channels_last(module, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter is the old one
        torch.onnx.export(
            ChannelsLast(module).eval(),
            (torch.zeros(1, SIZE, SIZE, 3),),
            path,
            dynamo=False,
            input_names=["images"],
            dynamic_axes={"images": {0: "n"}},
        )
    return path


def test_channels_may_come_last(photos, tmp_path):
    module = stack()
    network = load_onnx(save_channels_last(module, tmp_path / "net.onnx"), PIXELS)
    same_features(network, module, photos, "x6,x7,y8,dW7,dW8")


class Backbone(nn.Module):
    """Tokens, and a head that says nothing about classes: a map of numbers from 0 to 1."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.norm = nn.LayerNorm(16)
        self.decoder = nn.ConvTranspose2d(16, 1, 4, stride=4)

    def tokens(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        token = self.token + x.mean(1, keepdim=True)
        return self.norm(torch.cat([token, x], dim=1))

    def forward(self, x):
        patches = self.tokens(x)[:, 1:].transpose(1, 2)
        return self.decoder(patches.unflatten(2, (3, 3))).sigmoid()


TAKEN = {
    "class": lambda tokens: tokens[:, 0],
    "patches": lambda tokens: tokens[:, 1:].mean(1),
    "mean": lambda tokens: tokens.mean(1),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_any_tensor_can_be_the_embedding(photos, tmp_path, kind):
    module = Backbone().eval()
    file = save(module, tmp_path / "map.onnx", opset_version=17)
    with pytest.raises(
        NetworkError, match=r"--embedding TENSOR, such as (\S+),"
    ) as refused:
        load_onnx(file, PIXELS)
    tensor = str(refused.value).partition("such as ")[2].partition(",")[0]
    with pytest.raises(OptionError, match=f"for tokens write {tensor}@class"):
        load_onnx(file, PIXELS, embedding=tensor)
    network = load_onnx(file, PIXELS, embedding=f"{tensor}@{kind}")
    assert network.layers == {8: "-"}
    assert tensor in network.embedding
    images = sorted(photos.rglob("*.png"))
    pixels = torch.from_numpy(np.stack([PIXELS(image) for image in images]))
    expected = TAKEN[kind](module.tokens(pixels)).detach().numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    for engine in ("torch", "onnxruntime", "openvino"):
        found = extract(network, images, "x7", engine=engine)["x7"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    reference = network.reference()
    assert load_reference(reference).reference() == reference
    assert load_onnx(file, PIXELS, embedding=f"{tensor}@{kind}").weights_sha256 not in {
        load_onnx(file, PIXELS, embedding=f"{tensor}@{other}").weights_sha256
        for other in TAKEN
        if other != kind
    }


def test_an_output_without_scores_is_the_embedding(photos, tmp_path):
    module = toy(
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 9), nn.Tanh(), nn.LayerNorm(9)
    )
    network = load_onnx(save(module, tmp_path / "net.onnx", opset_version=17), PIXELS)
    assert network.layers == {8: "-"}
    assert "has no classifier: x7 is the tensor scores" in network.notes[0]
    images = sorted(photos.rglob("*.png"))
    expected = extract(wrap(module, preprocess=PIXELS), images, "x7")["x7"]
    np.testing.assert_allclose(
        extract(network, images, "x7")["x7"], expected, atol=1e-5
    )


def test_the_command_line_takes_a_tensor_and_remembers_it(photos, tmp_path, deepfish):
    file = save(Backbone(), tmp_path / "map.onnx", opset_version=17)
    (tmp_path / "pixels.json").write_text(JSON)
    asked = ("--network", file, "--preprocess", "pixels.json", "--embedding")
    wrong = deepfish("extract", photos, "store", *asked, "nothing")
    assert "--embedding must be a tensor of map.onnx" in wrong.err
    refused = deepfish("extract", photos, "store", *asked[:-1])
    tensor = refused.err.partition("such as ")[2].partition(",")[0]
    assert deepfish("extract", photos, "store", *asked, f"{tensor}@class").code == 0
    other = deepfish("extract", photos, "store", *asked, f"{tensor}@mean")
    assert "made with embedding" in other.err
    assert deepfish("train", "store", "model").code == 0
    predicted = deepfish("predict", "model", photos, "--json")
    assert predicted.code == 0, predicted.err
    assert deepfish("search", "store", sorted(photos.rglob("*.png"))[0]).code == 0


def test_a_missing_package_is_no_damaged_file(tmp_path, monkeypatch):
    file = save(stack(), tmp_path / "net.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        MissingDependencyError, match=r"^this needs the package onnx; run"
    ):
        load_onnx(file, "imagenet")
