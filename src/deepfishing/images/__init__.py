"""Images: files, data sets, and the arrays that networks expect."""
