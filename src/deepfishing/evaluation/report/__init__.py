"""Reports: measured rows beside the paper's, in the terminal, as a page, Markdown and LaTeX."""
