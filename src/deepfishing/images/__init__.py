"""Stage 1: what goes in. Image files, data sets, and the arrays that networks expect."""
