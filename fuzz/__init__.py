"""Fuzzing of every reader of outside bytes: `make fuzz`, or `python -m fuzz TARGET ...`.

The rule for every input: a value, or one of the package's errors in one line. Another exception, a
hang, a blow-up of memory, a started program or a file written elsewhere is a find.

`targets/`   what is read, and sound inputs to begin with, all made by code
`mutate`     sound inputs become odd ones    `parts`    several files as one input
`rule`       what an input may do            `child`    one target in a process of its own
`__main__`   all targets, the table, RESULTS.md
"""
