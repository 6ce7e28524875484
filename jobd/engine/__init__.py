"""The verbs as callers use them: one item in, one answer out, many callers to a commit.

engine    the table of batched verbs, and the methods that edges call
batch     group commit, for any verb
results   results that are too large for their row, in files
"""
