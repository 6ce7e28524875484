"""Event streams for clients: who follows which job or ticket on this node, and the task that reads for all of them.

followers   a follower, the registry of followers, and the service that reads for them
jobs        the events of jobs, and waits for their end
firehose    the notes about all jobs (`GET /v1/events`)
tickets     the events of tickets
"""
