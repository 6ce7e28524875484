"""The HTTP side of jobd: from a listening socket to a call of one verb, and back.

Modules in the order of a request:

    listen, accept              bind addresses; accept and limit connections
    connection                  bytes, timeouts and the end of a connection
    whole_request, http1        HTTP/1.1 to ASGI: plain requests in one piece, and all others
    hypercorn_names             the private names of Hypercorn and h11 that these use, checked at import
    gateway                     the service: running requests, and how they end at a stop
    request_checks              headers, host, origin and caller of every request
    request_counts              how many there were, and how long they took
    app, endpoint, services     the table of routes; a route as data; what routes may call
    body, query, answers,
    problems                    parse a body or query; objects and problem documents as answers
    submit, dependencies, disk,
    drain_rates                 a submit from bytes to a new job, and when it is refused
    eta                         when a waiting job will start
    hang_up, wait               long answers, and how they end
    jobs, job_batch, job_filter,
    bulk, result, events,
    groups, job_graph           the client API of jobs
    queues, limits, rollups,
    dead_letters,
    tasks, lease_holders,
    schemas, health, host_space,
    board                       the client API of everything else
    metrics, metric_families    /metrics
    tickets, ticket_decisions,
    ticket_events               the client API of tickets
    openai/                     the OpenAI interface
    worker_request              what the calls of HTTP workers share
    worker_claim,
    worker_heartbeat,
    heartbeat_limit,
    worker_events,
    worker_reports,
    worker_batches              the worker API, in the order of a worker's life
    openapi, field_comments,
    descriptions, pages/        /openapi.json, /docs and /problems
    page, bundle, pages/app/    the web page at /
"""
