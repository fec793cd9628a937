"""Caffe networks: from Caffe's published files to a `Network`, see `importer.load_caffe`.

`files` reads the fields of `schema` into a `Message`; `importer` finds the layers that run,
`layers` makes a torch module of each, and `modules` has those that torch lacks.
"""
