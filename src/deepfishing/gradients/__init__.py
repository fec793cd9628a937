"""Stage 3: x, y and delta of a network's layers, from one forward and one short backward pass."""
