"""Stage 2, networks: Caffe's files as published.

Comes in: a `.caffemodel`, and optionally a deploy `.prototxt` and a mean `.binaryproto`. Goes
out: a `Network`, by `importer.load_caffe`. The files in the order of the data:

`schema`    the part of Caffe's format that a classifier needs, and `Message`, its values
`wire`      binary bytes -> Message        `prototxt`  text -> Message
`blobs`     a message's numbers -> array   `graph`     which layers run, in which order
`part`      a layer with its shapes and weights, checked
`layers`    that -> torch module, output shape, tensors    `modules`  the ones that torch lacks
"""
