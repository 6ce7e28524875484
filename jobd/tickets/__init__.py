"""Tickets: work that a person writes and approves, that jobd runs as jobs, and that gates and people judge.

machine     the states and decisions, PURE; `diagram` draws them, `errors` names the refusals
service     what people do with tickets, each verb a module with its statement:
            create (create_once, draft), edit, decide, read, trail, prune
wakeups     what wakes the pollers
render      payload and prompt of a run; gates, schemas: what an output must pass
pollers     the four steps from TODO to DONE
"""
