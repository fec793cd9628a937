"""Stage 8, the page: a store in the browser, for `deepfish serve`."""
