"""Schedules: they make jobs at the times of a cron expression or an interval.

definition  what a schedule is: when, which job, which policies
decide      pure: what becomes of its occurrences at a moment, and which is next
job         the job of one occurrence
table       reading: one, pages, events; the row that all other modules work on
change      create, edit, delete, pause, resume, each with its row in the audit table
reconcile   the schedules of the configuration
fire        one transaction: occurrences become jobs, and the schedules advance
extra       run now, and backfill
service     the service on every node that does so when the time has come

One occurrence is one job, by one transaction: it locks the row of the schedule, writes its next occurrence and inserts
the job under the idempotency key `schedule:{name}:{milliseconds since 1970}`. A kill, a second node and a lost answer
can neither double nor lose it. Which time it is, Postgres says.
"""
