"""Stage 2, networks: frozen networks, their records and their weights.

`zoo` lists them without loading torch, `network.load_network` makes one ready to use; the
other files are one architecture each, and `weights` reads their files.
"""

DEFAULT = "efficientnet-lite0"
