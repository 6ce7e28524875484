"""Runs one attempt of a job: a runner for each kind of task, behind one base class.

runner                  the base class, and the context that a handler gets
registry                makes the runner of each task of the configuration
declared                `@task`: tasks declared in Python modules
mock                    a demonstration: made-up text, progress and results
python, threads         a function in the event loop or in a thread
isolated/               a function in a child process
command/                a program
openai/                 a call of an OpenAI-compatible server
result                  a result as it is stored, or why it cannot be
failure                 an exception as the error of an attempt
event_check             checks one event that a handler emits
event_join              joins adjacent deltas of an answer
event_buffer            buffers events and writes them for all jobs
watchdog                kills processes that outlive their lease while jobd is frozen
"""
