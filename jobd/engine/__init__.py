"""The verbs as callers use them: one item in, one answer out, many callers to a commit.

engine    the table of batched verbs, and the methods that edges call
batch     group commit, for any verb
demand    who wants jobs, and is served by commits that happen anyway
limits    the limits per key that are configured
bulk      the same change to all jobs that fit a filter, a batch a call
results   results that are too large for their row, in files
"""
