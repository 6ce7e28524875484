"""The command line: each command parses, calls one function, prints the answer and chooses the exit code.

main            the group of all commands; serve, env, config, migrate, doctor, version; exit codes
lazy            commands that are imported when they are called
running         running asynchronous functions; progress on a terminal
options         what commands on a configuration share
target          what commands that call a running jobd share: its address and token
jobs, watch     submit, get, cancel, retry; watch
listing, dlq    list, queues, workers, pause, resume; dead letters
limits          limits of keys
board           temperatures, power, memory
groups          groups of jobs
chat, conversations     talking to a model; which conversations there were
ticket/, top/   tickets; the live view
open_page       the web page, with a one-time login
token, backup, worker, bench, completion    one command or group each
payload, follow, show, table                reading payloads; following a job; text and tables for people
"""
