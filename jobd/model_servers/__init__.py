"""Model servers that jobd starts itself: `[models.NAME] argv`.

turns     who may be asked next, and when a server makes room for another (pure)
output    what a server writes, as log lines
process   one run of a server: started, asked whether it is up, ended to the last process
service   all servers of a node: starts, restarts, swaps and stops them, and lets jobs in
"""
