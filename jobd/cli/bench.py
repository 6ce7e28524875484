"""`jobd bench`: how fast jobd is on this machine, beside what the machine could do."""

from __future__ import annotations

import os

import click
import msgspec

from jobd.cli.running import run_async, show_progress
from jobd.host import logs
from jobd.host.masking import masked_url


@click.group()
def bench() -> None:
    """Measure how fast jobd is on this machine."""


@bench.command("engine")
@click.option("--url", metavar="URL", help="Measure on this Postgres, and delete there afterwards what was written.")
@click.option("--seconds", type=click.FloatRange(min=0), default=0.5, show_default=True, help="For each figure.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="The median of them counts.")
@click.option("--profile", "only_profile", is_flag=True, help="Show instead where a lifecycle's time goes.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, with the figures of every round.")
def bench_engine(url: str | None, seconds: float, rounds: int, only_profile: bool, as_json: bool) -> None:
    """Jobs per second of enqueue, claim and complete, beside plain INSERTs and UPDATEs on the same server.

    Without HTTP and Redis. The server is a Postgres like that of `jobd serve`, made for this in TMPDIR and thrown away;
    it takes up to 1 GB there, and what is measured is that disk. With --url it is a given one: the jobs go to a queue
    of their own, jobd-bench, and are deleted when done.

    \b
    Examples:
      jobd bench engine
      TMPDIR=/mnt/nvme jobd bench engine --json | jq .batches
      jobd bench engine --url "$DATABASE_URL" --seconds 0.1
    """
    from jobd.bench import engine, report, server

    logs.set_up("warning", "auto", environ=os.environ)
    if url is not None:
        click.echo(f"jobd: note: queue {server.QUEUE} of {masked_url(url)} is used, and emptied again", err=True)
    if only_profile:
        figures = run_async(engine.profile, url, seconds)
        lines = report.profile_text(figures)
    else:
        figures = run_async(engine.measure, url, seconds, rounds, show_progress)
        lines = report.table(figures)
    click.echo(msgspec.json.encode(figures) if as_json else "\n".join(lines))


@bench.command("e2e")
@click.option("--jobs", type=click.IntRange(min=500), default=20_000, show_default=True, help="In each round.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="The median of them counts.")
@click.option("--profile", "only_profile", is_flag=True, help="Show instead where this process spends its time.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, with the figures of every round.")
def bench_e2e(jobs: int, rounds: int, only_profile: bool, as_json: bool) -> None:
    """Jobs all the way through Postgres and Redis to consumers in this process, and how soon a single one starts.

    Beside it, in the same rounds, what Postgres and Redis do alone. Both servers are like those of `jobd serve`, made
    for this in TMPDIR and thrown away.

    \b
    Examples:
      jobd bench e2e
      jobd bench e2e --jobs 5000 --rounds 3 --json | jq .median
      jobd bench e2e --profile
    """
    from jobd.bench import e2e

    logs.set_up("warning", "auto", environ=os.environ)
    if only_profile:
        click.echo("\n".join(run_async(e2e.profile, jobs)))
        return
    figures = run_async(e2e.measure, jobs, rounds, show_progress)
    click.echo(msgspec.json.encode(figures) if as_json else "\n".join(e2e.table(figures)))


@bench.command("http")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="For each figure.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="The median of them counts.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, with the figures of every round.")
def bench_http(seconds: float, rounds: int, as_json: bool) -> None:
    """Submits per second over HTTP at 50 connections, single and in batches, beside a constant answer.

    \b
    Examples:
      jobd bench http
      jobd bench http --seconds 1 --rounds 3 --json | jq .median
    """
    from jobd.bench import http

    logs.set_up("warning", "auto", environ=os.environ)
    figures = run_async(http.measure, seconds, rounds, show_progress)
    click.echo(msgspec.json.encode(figures) if as_json else "\n".join(http.table(figures)))


@bench.command("tasks")
@click.option("--jobs", type=click.IntRange(min=10, max=10_000), default=2000, show_default=True, help="In each round.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="The median of them counts.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, with the figures of every round.")
def bench_tasks(jobs: int, rounds: int, as_json: bool) -> None:
    """Jobs that do nothing, by every way of running them: async, thread, isolated, command, and a worker over HTTP.

    Beside each, in the same rounds, what that way costs without jobd: the function awaited or called in a thread, a
    child process asked, the program started, two HTTP requests. The jobd is made for this in TMPDIR and thrown away.

    \b
    Examples:
      jobd bench tasks
      jobd bench tasks --jobs 500 --rounds 1 --json | jq '.ways[] | {way, median}'
    """
    from jobd.bench import tasks

    logs.set_up("warning", "auto", environ=os.environ)
    figures = run_async(tasks.measure, jobs, rounds, show_progress)
    click.echo(msgspec.json.encode(figures) if as_json else "\n".join(tasks.table(figures)))
