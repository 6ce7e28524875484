"""The board that jobd runs on: what it measures of itself, and what follows for jobs.

In reading order: `files` (sysfs and procfs under a root), `identity`, `temperatures`, `power`, `gpu`, `memory`,
`disks`, `throttling` (one kind of figure each), `sampler` (all of them), `heat` (what temperatures mean; pure),
`ledger` (memory that is promised to jobs), `service` (measures now and then).

A file that is missing or cannot be read is left out and never an error: the same code runs on a Jetson, a Raspberry Pi,
a laptop and in a container that shows nothing.
"""
