"""Batches: the lines of a file become jobs, and what they ended with becomes files again.

table      the rows of batches, and the changes from one status to the next
lines      the input file, read in steps; the job of a line
validate   all lines are good, or the batch fails and says which are not
submit     lines become jobs, some at a time
finish     results become the output and the error file
service    carries every batch on, one bounded step after the other
"""
