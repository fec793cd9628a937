"""Stage 2, networks: Caffe's files as published -> a `Network`, by `importer.load_caffe`.

In the order of the data: `files` reads what `schema` knows into its `Message`; `importer` finds
which layers run, `layers` makes a torch module of each, and `modules` has those that torch lacks.
"""
