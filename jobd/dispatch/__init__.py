"""Brings jobs to the callers that wait for them on this node (slots, HTTP workers), and runs those of its slots.

In reading order: `dispatcher` (who calls), `waiting_line` (who is next), `direct` (jobs from Postgres), `stream_reader`
and `pending` (jobs through messages in Redis); `slots` (jobs that run here), `slot_pool` (those of one queue),
`job_run` (one of them), `reports` (what came of them).
"""
