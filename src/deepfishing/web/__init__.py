"""A store in the browser, for `deepfish serve`."""
