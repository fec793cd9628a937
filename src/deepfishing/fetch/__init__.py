"""Before stage 1: weights and data sets by name, from their public addresses, without torch."""
