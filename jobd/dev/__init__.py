"""`jobd dev`: jobd beside an editor. Tasks that are saved are loaded at once; jobs that run finish with the old code.

watch        which files have changed, by polling their times
modules      modules of the project forgotten, to be imported again, or put back
runners      runners that can be exchanged while their jobs run
reload       the service that watches and reloads
project      `jobd new`: a small project to begin with
"""
