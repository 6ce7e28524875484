"""`jobd chat` and `jobd models`: a conversation in the terminal that can be left and taken up again.

Every answer is a response in the background: it goes on though the terminal is closed, and is there afterwards.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_models
from jobd.cli.conversations import Conversation, Conversations
from jobd.cli.follow import INTERRUPTED
from jobd.cli.show import note, one_line, plain
from jobd.cli.table import Column, ago, coloured, is_terminal, show_rows
from jobd.cli.target import client_options

if TYPE_CHECKING:
    from jobd import Client
    from jobd.client import ChatResponse, Event
    from jobd.wire.board import ModelServerObject

#: Exit code after a single answer, by its status; any other is 0.
CHAT_OUTCOMES = {"failed": 1, "cancelled": 3}
MODEL_COLUMNS = (Column("MODEL"),)
SERVER_COLUMNS = (Column("MODEL"), Column("SERVER"), Column("JOBS", is_number=True), Column("WHY"))
CONVERSATION_COLUMNS = (Column("LAST RESPONSE"), Column("MODEL"), Column("AGE", is_number=True), Column("BEGINS"))
PROMPT = "> "


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def models(client: Client, as_json: bool) -> None:
    """List the models that this jobd answers for. Their servers are not asked, and may be down.

    Of servers that jobd starts itself the state is shown: stopped, starting, ready, stopping or failed, and why.

    \b
    Examples:
      jobd models
      jobd models --json | jq -r .id
    """
    found = client.models()
    if as_json:
        for model in found:
            click.echo(msgspec.json.encode(model))
        return
    servers = {server.model: server for server in client.board().model_servers}
    if servers:
        rows = ((model.id, *server_values(servers.get(model.id))) for model in found)
        show_rows(SERVER_COLUMNS, rows, nothing="")
        return
    show_rows(MODEL_COLUMNS, ((model.id,) for model in found), nothing="no models: add a table [models.NAME]")


def server_values(server: ModelServerObject | None) -> tuple[str | int | None, ...]:
    if server is None:
        return None, None, None
    return server.state, server.jobs, None if server.reason is None else one_line(server.reason)


@click.command()
@click.argument("model", required=False, shell_complete=complete_models)
@click.option("-m", "--message", metavar="TEXT", help="Ask this, print the answer, and leave.")
@click.option("-c", "--continue", "is_continued", is_flag=True, help="Go on with the newest conversation.")
@click.option("--resume", metavar="RESPONSE", help="Go on behind this response, or with the conversation it is in.")
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@click.option("--list", "is_list", is_flag=True, help="List conversations; with --json one JSON object a line.")
@click.option("--json", "as_json", is_flag=True, help="Print each answer as one JSON object: the response.")
@client_options
def chat(
    client: Client,
    model: str | None,
    message: str | None,
    is_continued: bool,
    resume: str | None,
    system: str | None,
    is_list: bool,
    as_json: bool,
) -> None:
    """Talk to a model.

    Without MODEL it is the only one there is. Ctrl-C ends an answer, Ctrl-D leaves. An answer goes on when the terminal
    is closed or the line is cut: --continue shows what became of it. Where the input is no terminal, all of it is one
    message.

    \b
    Examples:
      jobd chat small
      jobd chat small --system "Answer in one sentence."
      jobd chat --continue
      jobd chat --list
      jobd chat --resume resp_019a8f6e0c1d7b3aa2c4e5f60718293a
      jobd chat small -m "What is a lease?" --json | jq -r '.output[-1].content[0].text'
      git diff | jobd chat small --system "Review this."
    """
    kept = Conversations()
    if is_list:
        _show_conversations(kept, as_json=as_json)
        return
    if is_continued and resume:
        raise click.UsageError("--continue and --resume do not go together")
    talk = Talk(client, kept, model, system, as_json=as_json)
    text = message if message is not None else None if sys.stdin.isatty() else sys.stdin.read()
    if resume or is_continued:
        talk.take_up(resume, is_shown=text is None)
    else:
        talk.choose_model()
    if text is None:
        talk.until_left()
    elif text.strip():
        sys.exit(CHAT_OUTCOMES.get(talk.ask(text).status, 0))
    else:
        raise click.UsageError("there is nothing to ask: the message is empty")


def _show_conversations(kept: Conversations, *, as_json: bool) -> None:
    found = list(reversed(kept.all()))
    if as_json:
        for each in found:
            click.echo(msgspec.json.encode(each))
        return
    rows = ((each.last, each.model, ago(each.at_ts), one_line(each.title)) for each in found)
    show_rows(CONVERSATION_COLUMNS, rows, nothing="no conversations yet")


class Talk:
    """One conversation."""

    def __init__(
        self, client: Client, kept: Conversations, model: str | None, system: str | None, *, as_json: bool
    ) -> None:
        self._client = client
        self._kept = kept
        self._model = model
        self._system = system
        self._as_json = as_json
        #: None: nothing was said yet.
        self._conversation: Conversation | None = None
        #: The response that the next one continues.
        self._previous: str | None = None

    def choose_model(self) -> None:
        """Take the only model there is if none was named; what was named is checked by jobd, which knows aliases."""
        if self._model is None:
            names = [model.id for model in self._client.models()]
            if len(names) != 1:
                has = f"has {', '.join(names)}; name one" if names else "has no models: add a table [models.NAME]"
                raise click.UsageError(f"the jobd at {self._url} {has}")
            self._model = names[0]

    def take_up(self, response_id: str | None, *, is_shown: bool) -> None:
        """Wait for the end of the last answer, and show it if asked to; the conversation goes on behind it."""
        found = self._kept.with_response(response_id) if response_id else self._kept.newest(self._url, self._model)
        if found is None and response_id is None:
            raise click.UsageError(f"there is no conversation with {self._url} to go on with; begin one")
        last = found.last if found is not None else response_id
        assert last is not None
        response = self._client.response(last)
        self._model = self._model or response.model
        if found is not None:
            self._system = self._system if self._system is not None else found.system
            self._conversation = found
        if is_shown and not self._as_json:
            note(f"response {last}: {one_line(found.title) if found is not None else response.model}")
        response = self._follow(last, is_shown=is_shown)
        self._note_answer(response)
        if is_shown:
            self._show_end(response)

    def until_left(self) -> None:
        import readline  # noqa: F401 - line editing and history for `input`

        if not self._as_json:
            note(f"{self._model} listens; Ctrl-C ends an answer, Ctrl-D leaves")
        while True:
            try:
                text = input(PROMPT if is_terminal() else "")
            except EOFError:
                click.echo()
                break
            except KeyboardInterrupt:
                click.echo()
                self._say_how_to_come_back()
                sys.exit(INTERRUPTED)
            if text.strip():
                self._ask_on_terminal(text)
        self._say_how_to_come_back()

    def ask(self, text: str) -> ChatResponse:
        made = self._client.respond(
            text, model=self._model, instructions=self._system, previous_response_id=self._previous
        )
        before = self._conversation
        if before is None:
            title = one_line(text).strip()
            before = Conversation(responses=[], model=made.model, url=self._url, title=title, system=self._system)
        responses = [*before.responses, made.id]
        self._conversation = self._kept.keep(msgspec.structs.replace(before, responses=responses))
        self._model = made.model
        response = self._follow(made.id, is_shown=True)
        self._note_answer(response)
        self._show_end(response)
        return response

    @property
    def _url(self) -> str:
        return self._client.url

    def _ask_on_terminal(self, text: str) -> None:
        """What is refused leaves the conversation as it was."""
        from jobd.client import ApiProblem

        try:
            self.ask(text)
        except ApiProblem as problem:
            note(str(problem))

    def _follow(self, response_id: str, *, is_shown: bool) -> ChatResponse:
        """The response at its end; its text is shown as it comes. Ctrl-C ends it."""
        shown = ShownAnswer(is_quiet=self._as_json or not is_shown)
        try:
            for event in self._client.response_events(response_id):
                shown.show(event)
        except KeyboardInterrupt:
            self._client.cancel_response(response_id)
            shown.end()
            note("the answer was ended")
        shown.end()
        return self._client.response(response_id)

    def _note_answer(self, response: ChatResponse) -> None:
        """One that failed, or was ended, is left out of the conversation: the next goes on behind the one before."""
        if response.status in ("completed", "incomplete"):
            self._previous = response.id
        elif self._previous is None:
            self._previous = response.previous_response_id

    def _show_end(self, response: ChatResponse) -> None:
        if self._as_json:
            click.echo(msgspec.json.encode(response))
        elif response.status == "failed":
            note(f"no answer: {one_line(str((response.error or {}).get('message', 'the job failed')))}")
        elif response.status == "incomplete":
            note(f"the answer was cut: {(response.incomplete_details or {}).get('reason')}")

    def _say_how_to_come_back(self) -> None:
        if self._conversation is not None and not self._as_json:
            note(f"to go on:  jobd chat --resume {self._conversation.last}")


class ShownAnswer:
    """Prints the text of an answer to standard output, and what the model thinks, dimmed, to standard error."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_within_line = False
        self._is_thinking = False

    def show(self, event: Event) -> None:
        if self._is_quiet:
            return
        data: dict[str, Any] = event.data
        if event.type == "response.output_text.delta":
            self._switch(is_thinking=False)
            self._write(plain(data["delta"]))
        elif event.type == "response.reasoning_text.delta" and sys.stderr.isatty():
            self._switch(is_thinking=True)
            self._write(plain(data["delta"]))
        elif event.type == "response.output_item.done":
            self._item_done(data["item"])

    def end(self) -> None:
        if self._is_within_line:
            click.echo(err=self._is_thinking)
        self._is_within_line = False

    def _item_done(self, item: dict[str, Any]) -> None:
        self.end()
        if item["type"] == "function_call":
            note(f"calls {one_line(item['name'])}({one_line(item['arguments'])}); nobody here runs functions")

    def _switch(self, *, is_thinking: bool) -> None:
        if is_thinking is not self._is_thinking:
            self.end()
        self._is_thinking = is_thinking

    def _write(self, text: str) -> None:
        if text:
            shown = coloured(text, fg="bright_black") if self._is_thinking else text
            click.echo(shown, nl=False, err=self._is_thinking)
            self._is_within_line = not text.endswith("\n")
