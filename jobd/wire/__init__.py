"""The contracts: Structs that are decoded once at the edge and have no behaviour, and how bytes are checked.

gateway, rollups, tasks, workers,
tickets                             the client API
worker, events                      the API of HTTP workers
trace                               W3C Trace Context: traceparent and tracestate
problems                            problem documents and their codes
milliseconds, progress              times and progress as the contract writes them
json_check, json_pieces, canonical  JSON: refuse what could hurt, encode in pieces, hash
sse                                 server-sent events out of bytes
"""
