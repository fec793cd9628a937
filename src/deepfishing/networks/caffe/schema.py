"""The part of Caffe's file format that a classifier needs.

`FIELDS` lists the fields of each message by name (text files) and number (binary files). Both
readers fill a `Message`, so all later code is independent of the kind of file; `blob_array` returns
the weights of a message. Fields that cannot change a classifier's output (fillers, learning rates,
engines) have the kind `skip`. A field that is not listed is noted in `Message.unknown`: it may
change the output of its layer, so such a layer is refused (`layers.build`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.errors import NetworkError, WeightsError

T = TypeVar("T")

MAX_NAME = 256  # bytes of a layer's or blob's name
MOST_NUMBERS = 2**31 - 1  # of a blob, as in Caffe

# Per field: name, number, kind. Kinds: int (any varint), bool, float, string, skip, float32s and
# float64s (raw bytes of the numbers), the name of an enum or of a message.
_TABLE = """
NetParameter:
    name 1 string; layers 2 V1LayerParameter; input 3 string; input_dim 4 int; state 6 NetState
    input_shape 8 BlobShape; layer 100 LayerParameter
NetState:
    phase 1 Phase; level 2 int; stage 3 string
NetStateRule:
    phase 1 Phase; min_level 2 int; max_level 3 int; stage 4 string; not_stage 5 string
BlobShape:
    dim 1 int
BlobProto:
    num 1 int; channels 2 int; height 3 int; width 4 int; data 5 float32s; diff 6 skip
    shape 7 BlobShape; double_data 8 float64s; double_diff 9 skip
LayerParameter:
    name 1 string; type 2 string; bottom 3 string; top 4 string; blobs 7 BlobProto
    include 8 NetStateRule; exclude 9 NetStateRule; transform_param 100 TransformationParameter
    concat_param 104 ConcatParameter; convolution_param 106 ConvolutionParameter
    data_param 107 DataParameter; dropout_param 108 DropoutParameter
    eltwise_param 110 EltwiseParameter; image_data_param 115 DataParameter
    inner_product_param 117 InnerProductParameter; lrn_param 118 LRNParameter
    memory_data_param 119 MemoryDataParameter; pooling_param 121 PoolingParameter
    relu_param 123 ReLUParameter; sigmoid_param 124 EngineParameter
    softmax_param 125 SoftmaxParameter; tanh_param 127 EngineParameter
    window_data_param 129 DataParameter; prelu_param 131 PReLUParameter
    reshape_param 133 ReshapeParameter; flatten_param 135 FlattenParameter
    batch_norm_param 139 BatchNormParameter; elu_param 140 ELUParameter
    scale_param 142 ScaleParameter; input_param 143 InputParameter
V1LayerParameter:
    layer 1 skip; bottom 2 string; top 3 string; name 4 string; type 5 V1Type; blobs 6 BlobProto
    concat_param 9 ConcatParameter; convolution_param 10 ConvolutionParameter
    data_param 11 DataParameter; dropout_param 12 DropoutParameter
    image_data_param 15 DataParameter; inner_product_param 17 InnerProductParameter
    lrn_param 18 LRNParameter; pooling_param 19 PoolingParameter
    window_data_param 20 DataParameter; memory_data_param 22 MemoryDataParameter
    eltwise_param 24 EltwiseParameter; relu_param 30 ReLUParameter; include 32 NetStateRule
    exclude 33 NetStateRule; transform_param 36 TransformationParameter
    tanh_param 37 EngineParameter; sigmoid_param 38 EngineParameter
    softmax_param 39 SoftmaxParameter
TransformationParameter:
    scale 1 float; crop_size 3 int; mean_file 4 string; mean_value 5 float
DataParameter:
    scale 2 float; mean_file 3 string; crop_size 5 int
MemoryDataParameter:
    channels 2 int; height 3 int; width 4 int
InputParameter:
    shape 1 BlobShape
BatchNormParameter:
    use_global_stats 1 bool; moving_average_fraction 2 skip; eps 3 float
ConcatParameter:
    concat_dim 1 int; axis 2 int
ConvolutionParameter:
    num_output 1 int; bias_term 2 bool; pad 3 int; kernel_size 4 int; group 5 int; stride 6 int
    weight_filler 7 skip; bias_filler 8 skip; pad_h 9 int; pad_w 10 int; kernel_h 11 int
    kernel_w 12 int; stride_h 13 int; stride_w 14 int; engine 15 skip; axis 16 int
    force_nd_im2col 17 skip; dilation 18 int
DropoutParameter:
    dropout_ratio 1 skip
ELUParameter:
    alpha 1 float
EltwiseParameter:
    operation 1 EltwiseOp; coeff 2 float; stable_prod_grad 3 skip
EngineParameter:
    engine 1 skip
FlattenParameter:
    axis 1 int; end_axis 2 int
InnerProductParameter:
    num_output 1 int; bias_term 2 bool; weight_filler 3 skip; bias_filler 4 skip; axis 5 int
    transpose 6 bool
LRNParameter:
    local_size 1 int; alpha 2 float; beta 3 float; norm_region 4 NormRegion; k 5 float
    engine 6 skip
PReLUParameter:
    filler 1 skip; channel_shared 2 bool
PoolingParameter:
    pool 1 PoolMethod; kernel_size 2 int; stride 3 int; pad 4 int; kernel_h 5 int; kernel_w 6 int
    stride_h 7 int; stride_w 8 int; pad_h 9 int; pad_w 10 int; engine 11 skip
    global_pooling 12 bool; round_mode 13 RoundMode
ReLUParameter:
    negative_slope 1 float; engine 2 skip
ReshapeParameter:
    shape 1 BlobShape; axis 2 int; num_axes 3 int
ScaleParameter:
    axis 1 int; num_axes 2 int; filler 3 skip; bias_term 4 bool; bias_filler 5 skip
SoftmaxParameter:
    engine 1 skip; axis 2 int
"""

# The types of the first generation, `layers`, in the order of their numbers, and what the second,
# `layer`, calls them.
_V1_TYPES = """
    NONE=None ACCURACY=Accuracy BNLL=BNLL CONCAT=Concat CONVOLUTION=Convolution DATA=Data
    DROPOUT=Dropout EUCLIDEAN_LOSS=EuclideanLoss FLATTEN=Flatten HDF5_DATA=HDF5Data
    HDF5_OUTPUT=HDF5Output IM2COL=Im2col IMAGE_DATA=ImageData INFOGAIN_LOSS=InfogainLoss
    INNER_PRODUCT=InnerProduct LRN=LRN MULTINOMIAL_LOGISTIC_LOSS=MultinomialLogisticLoss
    POOLING=Pooling RELU=ReLU SIGMOID=Sigmoid SOFTMAX=Softmax SOFTMAX_LOSS=SoftmaxWithLoss
    SPLIT=Split TANH=TanH WINDOW_DATA=WindowData ELTWISE=Eltwise POWER=Power
    SIGMOID_CROSS_ENTROPY_LOSS=SigmoidCrossEntropyLoss HINGE_LOSS=HingeLoss MEMORY_DATA=MemoryData
    ARGMAX=ArgMax THRESHOLD=Threshold DUMMY_DATA=DummyData SLICE=Slice MVN=MVN ABSVAL=AbsVal
    SILENCE=Silence CONTRASTIVE_LOSS=ContrastiveLoss EXP=Exp DECONVOLUTION=Deconvolution
"""
V1_TYPES: Mapping[str, str] = dict(pair.split("=") for pair in _V1_TYPES.split())
# A value's place is its number.
ENUMS: Mapping[str, tuple[str, ...]] = {
    "Phase": ("TRAIN", "TEST"),
    "EltwiseOp": ("PROD", "SUM", "MAX"),
    "NormRegion": ("ACROSS_CHANNELS", "WITHIN_CHANNEL"),
    "PoolMethod": ("MAX", "AVE", "STOCHASTIC"),
    "RoundMode": ("CEIL", "FLOOR"),
    "V1Type": tuple(V1_TYPES),
}


def _read_table(table: str) -> dict[str, dict[str, tuple[int, str]]]:
    messages: dict[str, dict[str, tuple[int, str]]] = {}
    for line in table.strip().splitlines():
        if line.endswith(":"):
            fields = messages[line[:-1]] = {}
            continue
        for entry in line.split(";"):
            name, number, kind = entry.split()
            fields[name] = int(number), kind
    return messages


# message -> name of a field -> its number and kind
FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = _read_table(_TABLE)


@dataclass(frozen=True, eq=False)
class Message:
    """The fields of one message: name -> values in order, enums as their names."""

    where: str  # file and line, or file and byte, for error messages
    values: dict[str, list[Any]] = field(default_factory=dict)
    # fields that the table does not know
    unknown: list[str] = field(default_factory=list)

    def many(self, name: str) -> list[Any]:
        """All values of a field, [] if it is absent."""
        return self.values.get(name, [])

    def one(self, name: str, default: T) -> T:
        """The value of a field that occurs at most once."""
        values = self.many(name)
        if len(values) > 1:
            raise self.error(f"{name} must be given once, got {len(values)} times")
        value: T = values[0] if values else default
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(f"{name} must be a finite number, got {value}")
        return value

    def child(self, name: str) -> Message:
        """The message in a field; an absent one has no fields."""
        return self.one(name, Message(self.where))

    def error(self, text: str) -> NetworkError:
        """Return an error about this message."""
        return NetworkError(f"{self.where}: {text}")


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
        """Return an error about this layer."""
        return self.message.error(f"{self.title} {text}")


def blob_array(blob: Message) -> Array:
    """View a blob as an array of float32, or of float64 where the file has that."""
    name, dtype = (
        ("double_data", "<f8") if blob.many("double_data") else ("data", "<f4")
    )
    chunks = blob.many(name)
    # one chunk is what Caffe writes; unpacked numbers come one per chunk
    values = np.frombuffer(chunks[0] if len(chunks) == 1 else b"".join(chunks), dtype)
    old = ("num", "channels", "height", "width")  # the first generation's four axes
    shape: tuple[int, ...] = (values.size,)
    if blob.many("shape"):
        shape = tuple(blob.child("shape").many("dim"))
    elif any(map(blob.many, old)):
        shape = tuple(blob.one(name, 0) for name in old)
    if len(shape) > 32:  # Caffe's limit
        raise WeightsError(
            f"{blob.where}: a blob must have at most 32 axes, got {len(shape)}"
        )
    if math.prod(max(size, 1) for size in shape) > MOST_NUMBERS:
        # an empty one may claim any
        raise WeightsError(
            f"{blob.where}: a blob must have at most {MOST_NUMBERS:,} numbers, as in Caffe, got "
            f"shape {shape}; get the file again"
        )
    if any(size < 0 for size in shape) or math.prod(shape) != values.size:
        raise WeightsError(
            f"{blob.where}: a blob of shape {shape} must hold {math.prod(shape):,} numbers, "
            f"got {values.size:,}; get the file again"
        )
    return values.reshape(shape)
