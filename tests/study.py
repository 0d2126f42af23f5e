"""The study of a small team: its skills, its tasks, and an endpoint that answers by rule."""

from __future__ import annotations

import io
import json
import re
import zipfile

from tests.scripted_server import Answer, Seen, completion

TASKS = 8
# By the number of the task: without skills the even ones pass, with the first text of the skill
# the multiples of three, with the edited text all but the last.
PASSES_WITHOUT = {0, 2, 4, 6}
FIRST_TEXT = "Keep a running total."
EDITED_TEXT = "Keep a running total, then subtract."
PASSES_WITH = {FIRST_TEXT: {0, 3, 6}, EDITED_TEXT: set(range(7))}
PRICE_IN, PRICE_OUT = 2.0, 8.0  # per million tokens


def answer_by_rule(seen: Seen) -> Answer:
    """Search once where skills are offered, then pass or fail as the tables above say."""
    messages = seen.body["messages"]
    asked = re.search(r"Question (\d+):", json.dumps(messages))
    if asked is None:  # the small call before a start
        return completion({"content": "fine"})
    number = int(asked[1])
    returned = [str(m["content"]) for m in messages if m["role"] == "tool"]
    if seen.body.get("tools") and not returned:
        call = {"name": "search_skills", "arguments": '{"query": "running total of a range"}'}
        tool_calls = [{"id": "c1", "type": "function", "function": call}]
        return completion({"content": None, "tool_calls": tool_calls}, finish="tool_calls")
    passes = PASSES_WITHOUT
    for text, numbers in PASSES_WITH.items():
        if returned and text in returned[0]:
            passes = numbers
    return completion({"content": "right" if number in passes else "wrong"})


def skills_zip(body: str) -> bytes:
    """Return a library of two skills as a zip; ``body`` is the text of the first."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in {"running-total": body, "sort-first": "Sort the input."}.items():
            head = f"---\nname: {name}\ndescription: When a range total is asked for.\n---\n"
            archive.writestr(f"{name}/SKILL.md", head + text + "\n")
    return made.getvalue()


def task_file() -> bytes:
    """Return the tasks as JSONL."""
    return "".join(
        json.dumps(
            {
                "key": f"range/{n}",
                "prompt": f"Question {n}: give the total of the range.",
                "kind": "exact",
                "checker": {"answers": ["right"]},
            }
        )
        + "\n"
        for n in range(TASKS)
    ).encode()


def endpoint_file(base_url: str) -> str:
    """Return an ``endpoints.toml`` that names the endpoint; its key is PAID_KEY."""
    return (
        f'[[endpoint]]\nname = "paid"\nbase_url = "{base_url}"\napi_key_env = "PAID_KEY"\n'
        f'[[endpoint.model]]\nid = "thinker"\nprice_in = {PRICE_IN}\nprice_out = {PRICE_OUT}\n'
    )
