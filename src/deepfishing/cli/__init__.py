"""The command `deepfish`: it parses, calls one library function and prints."""

from deepfishing.cli.app import main

__all__ = ["main"]
