"""Text files: everything that the format allows, and text that is none."""

import time

import pytest

from deepfishing.errors import NetworkError
from deepfishing.networks.caffe.files import MAX_BYTES, parse, read_prototxt


def read(text, kind="NetParameter"):
    return parse(text, kind, "net.prototxt")


PLAIN = 'name: "a" layer { type: "Pooling" pooling_param { kernel_size: 3 pool: AVE } }'
SAME = {
    "plain": PLAIN,
    "single quotes": PLAIN.replace('"', "'"),
    "colons before braces": PLAIN.replace(" {", ": {"),
    "angle brackets": PLAIN.replace("{", "<").replace("}", ">"),
    "separators": PLAIN.replace("3", "3;").replace('g"', 'g",').replace("}", "};"),
    "comments": PLAIN.replace("{", "{ # one {\n").replace("}", "# }\n}"),
    "no blanks": 'name:"a"layer{type:"Pooling"pooling_param{kernel_size:3 pool:AVE}}',
    "text in parts": PLAIN.replace("Pool", "Poo\" 'l'\n\""),
    "enum by number": PLAIN.replace("AVE", "1"),
    "hexadecimal": PLAIN.replace("3", "0x3"),
    "octal": PLAIN.replace("3", "03"),
    "lists": 'name: ["a"] layer: [{type: "Pooling" pooling_param {kernel_size: [3] pool: AVE}}]',
    "escapes": PLAIN.replace('"a"', r'"\x61"').replace("Poo", r"\120\157o"),
    "unknown fields": "x: 1 y { z: '}' u { v: [1, -2.5, W] } } t: -inf s: '\"' "
    + PLAIN,
    "returns": PLAIN.replace(" ", "\r\n"),
}


@pytest.mark.parametrize("style", SAME)
def test_every_way_of_writing_means_the_same(style):
    net = read(SAME[style])
    assert net.one("name", "") == "a"
    (layer,) = net.many("layer")
    assert layer.one("type", "") == "Pooling"
    assert layer.child("pooling_param").values == {"kernel_size": [3], "pool": ["AVE"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[
            ("1", 1.0),
            ("-1", -1.0),
            ("- 1", -1.0),
            (".5", 0.5),
            ("1.", 1.0),
            ("1e-4", 1e-4),
        ],
        *[("1.5f", 1.5), ("2.5E+3", 2500.0), ("-.25", -0.25), ("+3", 3.0)],
    ],
)
def test_numbers(text, value):
    assert read(f"alpha: {text}", "ELUParameter").one("alpha", 0.0) == value


def test_integers_keep_their_sign_and_size():
    rule = read("min_level: -2 max_level: 4294967296", "NetStateRule")
    assert (rule.one("min_level", 0), rule.one("max_level", 0)) == (-2, 2**32)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False), ("1", True), ("0", False), ("t", True)],
)
def test_truth_values(text, value):
    assert (
        read(f"bias_term: {text}", "ScaleParameter").one("bias_term", not value)
        is value
    )


def test_names_of_any_script_are_the_same_in_text_and_in_bytes():
    for name in ("façade", "卷积1", r"\345\215\267\347\247\2571"):
        expected = "卷积1" if name.startswith("\\") else name
        assert read(f'name: "{name}"').one("name", "") == expected


def test_comments_in_another_encoding_do_not_matter(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_bytes(b"\xef\xbb\xbf# \xbe\xed\xbb\xfd\nname: 'a'")
    assert read_prototxt(path).one("name", "") == "a"


def test_what_the_table_does_not_know_is_noted():
    net = read("layer { pooling_param { ceil_mode: false kernel_size: 2 } brand: 'x' }")
    (layer,) = net.many("layer")
    assert layer.unknown == ["brand"]
    assert layer.child("pooling_param").unknown == ["ceil_mode"]


WRONG = {
    "layer {": (1, "a field's name expected, got 'the end'"),
    "layer {\n}\n}": (3, "a field's name expected, got '}'"),
    "layer { >": (1, "a field's name expected, got '>'"),
    "name 'a'": (1, "a colon expected after name"),
    "name: a": (1, "name must be a text in quotes, got 'a'"),
    "name:": (1, "name must be a text in quotes"),
    "name: 'a\n'": (1, "text of a network expected"),
    "\nname: { }": (2, "name must be a single value, got a message"),
    "layer: 5": (1, "layer must be a message in braces, got '5'"),
    "input_dim: 1.5": (1, "input_dim must be an integer, got '1.5'"),
    "input_dim: 'a'": (1, "input_dim must be given without quotes"),
    "input_dim: }": (1, "input_dim must have a value"),
    "input_dim: " + "9" * 30: (1, "input_dim must be an integer"),
    "input_dim: " + "9" * 20: (1, "input_dim must be an integer"),
    "input_dim: 1_0": (1, "input_dim must be an integer"),
    "input_dim: [1 2]": (1, r"a comma or \] expected"),
    "input_dim: [1, 2": (1, "a comma or"),
    "layers {\ntype: CONVOLUTIO }": (2, "got 'CONVOLUTIO'; did you mean CONVOLUTION?"),
    "layers { type: 'Convolution' }": (1, "type must be given without quotes"),
    "layer { type: CONVOLUTION }": (
        1,
        "type must be a text in quotes, got 'CONVOLUTION'",
    ),
    "layer { pooling_param { pool: 7 } }": (
        1,
        "pool must be one of MAX, AVE, STOCHASTIC, got '7'",
    ),
    "layer { scale_param { bias_term: yes } }": (
        1,
        "bias_term must be true or false, got 'yes'",
    ),
    "layer { elu_param { alpha: 1.2.3 } }": (1, "alpha must be a number, got '1.2.3'"),
    "name: '" + "a" * 300 + "'": (1, "name must have at most 256 bytes"),
    "a {" * 40 + "}" * 40: (1, "at most 32 deep"),
    "a {" * 100_000: (1, "at most 32 deep"),
    "a: [" * 100_000: (1, "a comma or"),
    "a: " + "[" * 100_000: (1, "a must have a value"),
    "b" * 100_000: (1, "a colon expected after b{40}, got 'the end'"),
    "\x00\x01": (1, "is this a prototxt"),
    "ä: 1": (1, "is this a prototxt"),
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:20])
def test_wrong_text_is_named_with_its_line(text):
    line, message = WRONG[text]
    with pytest.raises(NetworkError, match=message) as caught:
        read(text)
    assert str(caught.value).startswith(f"net.prototxt, line {line}: ")
    assert "\n" not in str(caught.value)


def test_a_field_given_twice_is_an_error_where_one_is_wanted():
    with pytest.raises(
        NetworkError, match="line 1: name must be given once, got 2 times"
    ):
        read("name: 'a' name: 'b'").one("name", "")


def test_infinity_is_no_parameter():
    with pytest.raises(NetworkError, match="alpha must be a finite number, got inf"):
        read("alpha: 1e999", "ELUParameter").one("alpha", 0.0)


def test_a_text_of_the_largest_size_ends_soon(tmp_path):
    path = tmp_path / "large.prototxt"
    path.write_text("a:1 " * (MAX_BYTES // 4))
    began = time.process_time()
    assert len(read_prototxt(path).unknown) == MAX_BYTES // 4
    assert time.process_time() - began < 20
    path.write_text("a:1 " * (MAX_BYTES // 4 + 1))
    with pytest.raises(NetworkError, match=f"at most 1,000,000 bytes: {path}"):
        read_prototxt(path)


def test_folders_and_missing_files_are_clear_errors(tmp_path):
    with pytest.raises(NetworkError, match=f"prototxt not found: {tmp_path / 'no'}"):
        read_prototxt(tmp_path / "no")
    with pytest.raises(NetworkError, match=f"must be a file .*: {tmp_path}"):
        read_prototxt(tmp_path)


def test_damaged_text_never_escapes_as_another_error(caffe, w, write, rng):
    prototxt, caffemodel = write(caffe.a_bit_of_everything(w), 10)
    whole = prototxt.read_text()
    assert caffe.loads_and_runs(caffemodel, prototxt)
    loaded = 0
    for length in range(0, len(whole), 11):
        prototxt.write_text(whole[:length])
        loaded += caffe.loads_and_runs(caffemodel, prototxt)
    alphabet = "0123456789{}:\"'-.<[]e#ax \n"
    for _ in range(300):
        broken = list(whole)
        for place in rng.integers(0, len(whole), size=rng.integers(1, 4)):
            broken[place] = alphabet[rng.integers(len(alphabet))]
        prototxt.write_text("".join(broken))
        loaded += caffe.loads_and_runs(caffemodel, prototxt)
    assert 0 < loaded < 300
