"""The mathematics: rank-1 gradients, kernels, recipes, projections and statistics."""
