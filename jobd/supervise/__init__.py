"""Keeps services alive: starts them in order of need, restarts them, and drains them in order.

service      what a service is: name, phase, needs, one coroutine
supervisor   runs a tree of services
restart      whether and when a failed service is started again
signals      runs a supervisor until SIGTERM or SIGINT; SIGHUP reloads
wakeup       an event that resets itself, between code that makes work and the task that does it
"""
