"""Under fire: commands are killed, bits flipped, disks filled. `python -m fire` does all of it."""
