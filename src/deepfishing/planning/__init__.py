"""Before the work: what features of so many images will cost (`plan`), from measured `rates`."""
