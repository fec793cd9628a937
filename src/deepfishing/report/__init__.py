"""Stage 7: measured rows beside the paper's printed ones, in the terminal and as an HTML page."""
