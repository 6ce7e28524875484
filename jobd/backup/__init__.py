"""Backups: one file with all that a start cannot make again, taken while jobd runs or not, and restored elsewhere.

    archive.py   the file: how it is written, and what must hold before anything of it is believed
    output.py    where it is written to
    tools.py     the programs that Postgres brings for this
    make.py      take one; command.py: for `jobd backup`; keep.py: by itself, before a migration
    restore.py   put one back; staging.py: so that it happens or does not; load.py: what becomes of the rows
    upgrade.py   what a start would do with a data directory, without doing it

Inside are schema `jobd` of the database and the result files that its rows name. Left out is what a start makes again
(Redis, sockets, the password of the embedded Valkey) and what is kept elsewhere (jobd.toml).
"""
