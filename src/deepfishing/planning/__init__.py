"""Before the work: what features of so many images will cost, from rates that were measured.

`rates` measures a network on this machine, `footprint` says how many bytes and files a store
has, and `plan` puts both together for any number of images, workers and cores.
"""
