"""Frozen networks, their records and their weights.

`zoo` lists them without loading torch, `load.load_network` makes one ready to use, `network.wrap`
one of your own module; `weights` reads files of weights.
"""

DEFAULT = "efficientnet-lite0"
