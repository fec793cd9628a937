"""Stage 2, networks: Caffe's files as published -> a `Network`, by `importer.load_caffe`.

In the order of the data: `wire` (binary files) and `prototxt` (text) read what `schema` knows into
its `Message`; `graph` says which layers run, `layers` makes a torch module of each, and `modules`
has the ones that torch lacks.
"""
