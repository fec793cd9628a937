"""Protocols: what is measured of features, one file each."""
