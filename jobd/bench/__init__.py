"""What `jobd bench` runs: jobd beside the least that the same work costs on the same machine (the floor).

report          figures, medians, the machine they were taken on, and their tables
server          a throw-away Postgres, or a given one that is left as it was
engine          enqueue, claim and complete, beside plain INSERTs and UPDATEs
node            a node without HTTP, for e2e
e2e             jobs through Postgres and Redis to consumers, beside each server alone
http            submits over HTTP, beside the server of http_floor that answers a constant
tasks           every way of running a job with handlers that do nothing, beside task_floors
"""
