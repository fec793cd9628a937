"""The mathematics: rank-1 gradients, kernels, recipes, projections, AP and statistics."""
