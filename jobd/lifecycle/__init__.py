"""The verbs of jobs: each a module with its statements in the .sql file of the same name.

    enqueue      new jobs, idempotency keys, twins           read_back    whether a job whose answer was lost is there
    publish      which jobs are offered next                 claim        a queued job becomes a leased, running one
    messages     jobs of messages that were never settled    heartbeat    a lease is extended
    events       what handlers emit; the history of a job    complete     the job is done
    fail         requeue after a backoff, or dead letter     release      handed back, not charged
    report       why one of these three was refused          reap         attempts of silent holders are ended
    cancel       at once, or through the holder              redrive      a dead letter runs again as a new job
    outbox       changes that are not in Redis yet           read         jobs, pages, dead letters, counters
    waiting      why a job waits                             workers      who holds jobs
    lease        leases of what is not a job                 prune        retention
    take         first jobs of a queue, without a message    modes        how a queue's jobs reach their workers
    admit        limits per key: who may stand in line       pause        tasks, or everything, are not started
    expire       jobs that have not started in time          take_fitting  the same as take, if memory suffices
    depend       new jobs that wait for others               settle       what follows from an end for those that waited
    revive       what was given up with a failed member runs again
    take_resident  the same as take, jobs of the loaded model first
    inputs       results of the jobs that were waited for    groups       jobs that are counted and waited for together
    lock_order   the one order in which batches lock rows    tally        what this process committed, in numbers
    histogram    durations by their length, in memory        dead_letter_groups  what failed in the same way

`end_of_attempt.sql` has what fail, release, reap and a claim that takes over share. A verb takes a `Session`, or the
`Database` if it needs a transaction of its own, and answers in the order of its items.
"""
