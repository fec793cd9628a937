"""Protocols, measured results, and the report."""
