"""Arguments, options and help of each command.

A command is a dataclass: its docstring is the help, a field without a default an argument, one
with a default an option. These files import little, so that help and completion are quick; what a
command does is in the file of the same name in `deepfishing.cli`.
"""
