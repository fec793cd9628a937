"""Classifiers: support vector machines, automatic choice of a recipe, trained models."""
