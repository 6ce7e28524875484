"""`jobd serve` and `jobd doctor`: everything below, put together.

tree         builds a node and lists its services, for `serve`, the benchmark and tests
daemon       one run of `jobd serve`: lock, sockets, tree, signals, reload
doctor       checks that change nothing, each with its remedy
page_login   the address of the web page, with a one-time login, for `jobd open`
"""
