"""Before stage 1: weights and data sets by name, from their public addresses.

`catalogue` is the table of what can be fetched, `answer` asks a server, `download` makes a whole
and verified file of what it sends, `unpack` turns archives into a folder, and `place.fetch` puts
a thing where the other stages look for it. Nothing here loads torch.
"""
