"""Networks that exist only as an .onnx file.

`load` makes a `Network` of a file: its lower part, the trunk, stays in ONNX (`trunk`), the layers
below its scores become torch layers (`head`), and a file without scores has a tensor as its
embedding (`embedding`).
"""
