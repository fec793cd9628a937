"""Stage 6: the paper's experiments as recipes, measured rows, and the printed numbers."""
