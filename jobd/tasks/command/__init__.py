"""`run = "command"`: a program of the user.

runner      starts the program, feeds it the payload, waits, stops it
output      its stdout and stderr: events, log lines, the result
workdir     its folder
processes   its process family, and how it is ended
marks       finds its descendants by an inherited resource limit
oom         whether the kernel killed it for lack of memory
"""
