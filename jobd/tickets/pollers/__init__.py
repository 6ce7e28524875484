"""The pollers that carry a ticket from TODO to DONE, in the order of its way; each with its verb and statements.

poller      what they have in common; `claims` the leases that they hold, `free_claims` those of dead pollers
readiness   mark_ready: a TICKET_READY event; find_work: which poller has something to do
scheduler   schedule: a work order for each event
runner      run: a job for each work order, and its output
gate        judge: the verdict of the gates; gate_process, schema_child: gates that need a process
"""
