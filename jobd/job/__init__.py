"""The rules of a job's life, as functions of what is known: nothing here waits, asks the time, or touches a server.

status    the words for jobs and attempts          model      what decisions read and answer
machine   the decisions, and the transition table  retry      backoff and dead letters
history   the events of a job, in order            diagram    the table as a page of the docs
graph     jobs that wait for each other in a ring  inputs     what a job gets of those that it waited for
"""
