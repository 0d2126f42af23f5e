"""Models without a network: recorded replies, and replies by rule for tests.

A recording is a file of JSON lines, ``{"request_sha256", "reply"}``. Several
lines of one request are handed out in their order; the last is repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from workbench.kernel.chat import CallFailed, ChatReply, ChatRequest, Finish, ToolCall
from workbench.kernel.identity import canonical_json
from workbench.llm.wire import reply_from, reply_json, request_sha256

Recording = Mapping[str, tuple[Mapping[str, Any], ...]]

# How the agent marks a skill in the context.
_SKILL_MARK: Final = "[skill 1:"
_QUERY_WORDS: Final = 12


class Sender(Protocol):
    """What a recording is taken from."""

    def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> ChatReply:
        """Return the reply to one request, sent without the named parameters."""
        ...


def recorded_line(*, request_sha256: str, reply: Mapping[str, Any]) -> str:
    """Return one line of a recording, with its line feed."""
    return canonical_json({"request_sha256": request_sha256, "reply": reply}) + "\n"


def read_recording(path: Path) -> Recording:
    """Return the replies by request sha256.

    Raises:
        OSError: the file can't be read.
        ValueError: a line is no recorded reply; the text names it.
    """
    stat = path.stat()
    return _read_recording(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _read_recording(path: Path, mtime_ns: int, size: int) -> Recording:
    replies: dict[str, tuple[Mapping[str, Any], ...]] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                data = json.loads(line)
                reply_from(data["reply"])
                sha256 = data["request_sha256"]
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(f"{path}:{number}: no recorded reply ({error})") from error
            replies[sha256] = (*replies.get(sha256, ()), data["reply"])
    return replies


@dataclass
class ReplayModel:
    """Gives the recorded replies; a request that was never recorded fails."""

    recording: Recording
    _given: Counter[str] = field(default_factory=Counter)

    def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> ChatReply:
        """Return the next recorded reply to ``request``.

        Raises:
            CallFailed: ``bad_request``: there is none.
        """
        sha256 = request_sha256(request)
        replies = self.recording.get(sha256)
        if not replies:
            raise CallFailed("bad_request", f"the recording holds no reply to request {sha256}")
        number = min(self._given[sha256], len(replies) - 1)
        self._given[sha256] += 1
        return reply_from(replies[number])

    def complete(self, request: ChatRequest, *, step: int) -> ChatReply:
        """Return what ``send`` returns: a ``ChatModel`` without a ledger."""
        return self.send(request)


@dataclass(frozen=True)
class RecordingModel:
    """Sends through another sender and appends each reply to a recording."""

    sender: Sender
    path: Path

    def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> ChatReply:
        """Return the sender's reply, recorded; failures are passed on and not recorded."""
        reply = self.sender.send(request, without=without)
        line = recorded_line(request_sha256=request_sha256(request), reply=reply_json(reply))
        # One write to an append-only handle: lines of several workers don't mix.
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        return reply


@dataclass(frozen=True)
class ScriptedAnswer:
    """The right and the wrong reply to every task whose text holds ``when``."""

    when: str
    right: str
    wrong: str


@dataclass(frozen=True)
class ScriptedModel:
    """Answers by rule: the request's hash decides, so the same request, the same reply.

    Attributes:
        search: share of the turns that may search and do, 0 to 1.
        right, right_with_skills: share of right answers, 0 to 1, without and with a
            skill in the context.
        latency_s: seconds that each reply takes.
        answers: the first that fits a task is used; without one, right answers are
            ``\\boxed{right}`` and wrong ones ``\\boxed{wrong}``.
    """

    search: float = 0.5
    right: float = 0.6
    right_with_skills: float = 0.4
    latency_s: float = 0.0
    answers: tuple[ScriptedAnswer, ...] = ()

    def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> ChatReply:
        """Return the reply that the request's hash decides."""
        if self.latency_s:
            time.sleep(self.latency_s)
        sha256 = request_sha256(request)
        may_search = bool(request.tools) or request.response_format is not None
        searches = may_search and self._below(self.search, sha256, "search")
        query = " ".join(_text_of(request, "user").split()[:_QUERY_WORDS])
        calls: tuple[ToolCall, ...] = ()
        if request.response_format is not None:
            action = "search_skills" if searches else "answer"
            content = json.dumps({"action": action, "query": query if searches else ""})
        elif searches:
            content = ""
            arguments = json.dumps({"query": query})
            calls = (ToolCall(id=sha256[:8], name="search_skills", arguments=arguments),)
        else:
            content = self._answer(request, sha256)
        return ChatReply(
            content=content,
            finish=Finish.TOOL_CALLS if calls else Finish.STOP,
            tool_calls=calls,
            tokens_in=sum(len(message.content or "") for message in request.messages) // 4,
            tokens_out=len(content) // 4 + 1,
            latency_s=self.latency_s,
        )

    def complete(self, request: ChatRequest, *, step: int) -> ChatReply:
        """Return what ``send`` returns: a ``ChatModel`` without a ledger."""
        return self.send(request)

    def _answer(self, request: ChatRequest, sha256: str) -> str:
        with_skills = _SKILL_MARK in _text_of(request, "user") + _text_of(request, "tool")
        share = self.right_with_skills if with_skills else self.right
        right = self._below(share, sha256, "right")
        for answer in self.answers:
            if answer.when in _text_of(request, "user"):
                return answer.right if right else answer.wrong
        return "\\boxed{right}" if right else "\\boxed{wrong}"

    @staticmethod
    def _below(share: float, sha256: str, purpose: str) -> bool:
        digest = hashlib.sha256(f"{purpose}:{sha256}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < share


def _text_of(request: ChatRequest, role: str) -> str:
    return "\n".join(m.content or "" for m in request.messages if m.role == role)


def answers_to(tasks: Path) -> tuple[ScriptedAnswer, ...]:
    """Return right and wrong replies to the tasks of a task file that has references.

    Raises:
        OSError, ValueError, KeyError: the file can't be read or is no task file.
    """
    with tasks.open(encoding="utf-8") as lines:
        return tuple(_answer_to(json.loads(line)) for line in lines if line.strip())


def _answer_to(task: Mapping[str, Any]) -> ScriptedAnswer:
    checker = task["checker"]
    if task["kind"] == "code":
        nothing = f"def {checker['entry']}(*_, **__):\n    return None"
        right, wrong = (f"```python\n{code}\n```" for code in (task.get("reference"), nothing))
    else:
        gold = checker.get("gold") or checker.get("answer") or (checker.get("answers") or [""])[0]
        right, wrong = f"\\boxed{{{gold}}}", "\\boxed{wrong}"
    return ScriptedAnswer(when=task["prompt"], right=right, wrong=wrong)
