"""`run = "python"` with `isolate`: a function of the user in a child process that stays warm.

runner      keeps idle processes and gives each job one
process     one child process, seen from jobd
job         one job in a process
child       the program of the child process
frames      the messages between jobd and the child
"""
