"""The house glossary: the words used everywhere, in code, URLs, tables and on pages.

This module is the one source. ``/glossary/`` shows it and ``docs/glossary.md`` is what
``python3 -m workbench.glossary`` prints; a test keeps the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from runs.domain.estimates import REASONS
from runs.domain.report import LABELS, RESULT_WORDS, TERMS


@dataclass(frozen=True)
class Entry:
    """One word: ``key`` is its anchor, ``symbol`` how tables and formulas write it."""

    key: str
    word: str
    meaning: str
    symbol: str = ""


@dataclass(frozen=True)
class Section:
    """Entries that are read together."""

    key: str
    title: str
    entries: tuple[Entry, ...]


INTRODUCTION = (
    "The workbench asks one question: on the very tasks where a skill was returned, did it help "
    "or harm? To answer it, each task runs twice, once with skills and once without, and the two "
    "results are compared."
)


def _figure(key: str, word: str, symbol: str = "") -> Entry:
    """Return the entry of a figure; its meaning is the sentence shown beside the figure."""
    return Entry(key, word, TERMS[key], symbol or LABELS.get(key, ""))


SECTIONS: tuple[Section, ...] = (
    Section(
        "plan",
        "What is planned",
        (
            Entry("experiment", "Experiment", "A named plan: models, benchmarks and cells."),
            Entry(
                "draft",
                "Draft",
                "An experiment's file while it may still change. Starting it plans the experiment "
                "and ends the draft.",
            ),
            Entry(
                "estimate",
                "Estimate",
                "What a draft will take in calls, tokens, cost and time, reckoned from three "
                "pairs per model and benchmark that are really run.",
            ),
            Entry(
                "endpoint",
                "Endpoint",
                "A server that answers for models. Whoever runs the workbench configures those "
                "that may be chosen in the browser.",
            ),
            Entry(
                "budget",
                "Budget",
                "The calls, tokens or cost at which a running experiment pauses.",
            ),
            Entry(
                "cell",
                "Cell",
                "The reporting unit: one benchmark's partition under two arms that differ in "
                "one thing.",
            ),
            Entry(
                "design",
                "Design",
                "What differs between a cell's arms: skills at hand or not (se_sd), nothing at "
                "all (aa, to measure noise), one target skill (target), or one skill left out "
                "(leave_one_out).",
            ),
            Entry(
                "arm",
                "Arm",
                "SE is the treatment and SD the baseline, in every design.",
                "SE, SD",
            ),
            Entry("benchmark", "Benchmark", "A frozen set of tasks."),
            Entry(
                "suite",
                "Suite",
                "A named set of tasks as its author wrote it. Stored, each of its versions is a "
                "benchmark.",
            ),
            Entry("partition", "Partition", "A seeded choice of a benchmark's tasks."),
            Entry("task", "Task", "One problem, with what its answers are checked against."),
            Entry(
                "control",
                "Control",
                "What the search tool returns: normal (the best matches), schema_empty (the "
                "tool is there and returns nothing), or another stand-in. Never an arm.",
            ),
            Entry(
                "strategy",
                "Strategy",
                "How a skill reaches the model: by search, by injection, by loading from a "
                "catalogue and so on.",
            ),
            Entry("pair", "Pair", TERMS["pair"]),
            Entry(
                "replicate",
                "Replicate",
                "A repetition of a task's pair with another seed; they are numbered from 1.",
            ),
        ),
    ),
    Section(
        "run",
        "What runs",
        (
            Entry(
                "execution",
                "Execution",
                "One arm of one task, waiting, running or done. Pages call it a run.",
            ),
            Entry(
                "experiment_status",
                "Status of an experiment",
                "planned (not started), running, paused (it goes on when resumed), finished "
                "(nothing is left to run) or cancelled (ended for good).",
            ),
            Entry("attempt", "Attempt", "One recorded try of an execution: trace or failure."),
            Entry("grade", "Grade", "What a checker said of an attempt's answer."),
            Entry(
                "verdict",
                "Verdict",
                "A grade's result: pass, fail, timeout, memory, output_limit, no_result or "
                "infra_error. An infra_error is the host's fault and never counts.",
            ),
            Entry(
                "retrieved",
                "Retrieved",
                "Whether a skill reached the model in the SE run: true, false or unknown.",
            ),
            Entry("censored", "Censored", TERMS["n_censored"], "n_censored"),
            Entry(
                "dead", "Dead", "An execution that failed in all of its tries; it can be retried."
            ),
        ),
    ),
    Section(
        "work",
        "Long work",
        (
            Entry(
                "job",
                "Job",
                "Long work that somebody asked for, such as an export; it goes on without its "
                "page and says how far it is.",
            ),
            Entry(
                "export",
                "Export",
                "A file with every run, pair or attempt that was chosen; its number of rows is "
                "counted and said.",
            ),
            Entry(
                "run_row",
                "Run row",
                "One run as a line of a file: task, arm, result, and what is known beside them.",
            ),
            Entry(
                "push",
                "Push",
                "Handing in runs that another program made, as run rows, so that their report "
                "and pages are made here.",
            ),
            Entry(
                "origin",
                "Origin",
                "Where an experiment's runs come from: run here (planned), or run elsewhere and "
                "handed in (pushed).",
            ),
        ),
    ),
    Section(
        "transitions",
        "What came of a pair",
        (
            Entry("a", RESULT_WORDS["a"].capitalize(), TERMS["a"], "a"),
            Entry("b", RESULT_WORDS["b"].capitalize(), TERMS["b"] + " In codes: helpful.", "b"),
            Entry("c", RESULT_WORDS["c"].capitalize(), TERMS["c"] + " In codes: harmful.", "c"),
            Entry("d", RESULT_WORDS["d"].capitalize(), TERMS["d"], "d"),
            Entry("transition", "Transition", "The joint result of a pair: one of these four."),
            Entry(
                "harmful_flip",
                "Harmful flip",
                "A lost pair in which a skill was returned: the case worth reading.",
            ),
        ),
    ),
    Section(
        "figures",
        "What the figures mean",
        (
            _figure("rae", "Retrieved-task effect"),
            _figure("rae_ci", "Interval of the retrieved-task effect"),
            _figure("oae", "Overall effect"),
            _figure("aggregate_lift", "Aggregate lift"),
            _figure("selection_gap", "Selection gap"),
            _figure("skipped_effect", "Skipped effect"),
            _figure("decomposition", "Decomposition"),
            _figure("coverage", "Coverage"),
            _figure("se_accuracy", "Accuracy with skills"),
            _figure("sd_accuracy", "Accuracy without skills"),
            _figure("n_pairs", "Pairs", "n_pairs"),
            _figure("n_cond", "Pairs with a skill returned", "n_cond"),
            _figure("n_unknown_retrieval", "Pairs with retrieval unknown"),
            _figure("p", "p value"),
            _figure("p_adjusted", "Adjusted p value"),
            _figure("mcnemar_p", "McNemar's test"),
            _figure("sign_flip", "Sign-flip test"),
            _figure("design_effect", "Design effect"),
            _figure("sign_disagreement", "Sign disagreement"),
            _figure("reportable", "Reportable"),
            _figure("failure_readings", "Both failure readings"),
        ),
    ),
    Section(
        "comparing",
        "Comparing two experiments",
        (
            Entry(
                "comparison",
                "Comparison",
                "Two experiments side by side on their shared tasks: is one better than the other?",
            ),
            Entry(
                "shared_task",
                "Shared task",
                "A task that both compared experiments ran with the same content. Of a shared "
                "task the replicates of the same number are compared.",
            ),
            Entry(
                "compare_won",
                "Won, in a comparison",
                "A shared pair whose run with skills failed in A, the old one, and passed in B.",
            ),
            Entry(
                "compare_lost",
                "Lost, in a comparison",
                "A shared pair whose run with skills passed in A, the old one, and failed in B.",
            ),
            Entry(
                "changed_set",
                "Changed set",
                "Other skills returned in B than in A, or the same skills with another text.",
            ),
        ),
    ),
    Section(
        "undefined",
        "Why a figure is missing",
        tuple(
            Entry(code.value, code.value.replace("_", " ").capitalize(), f"No figure: {text}.")
            for code, text in REASONS.items()
        ),
    ),
    Section(
        "skills",
        "Skills",
        (
            Entry("skill", "Skill", "A text that tells a model how to go about a kind of task."),
            Entry("skill_version", "Skill version", "One immutable text of a skill."),
            Entry("library", "Library", "A frozen set of skill versions that can be searched."),
            Entry(
                "status",
                "Status",
                "Where a skill stands: candidate, active, restricted, quarantined or retired.",
            ),
            Entry(
                "validity",
                "Validity",
                "Whether what a skill assumes holds: valid, unknown or invalid.",
            ),
            Entry("member", "Member", "One file or folder of an uploaded zip."),
            Entry("companion", "Companion", "A file beside SKILL.md. The model is not given it."),
        ),
    ),
    Section(
        "labels",
        "Labelling",
        (
            Entry("batch", "Batch", "A labelling round; when it is over it is closed."),
            Entry("rater", "Rater", "A person or a model that labels."),
            Entry("blinded_case", "Blinded case", "What a rater may see of a run."),
            Entry("slot", "Slot", "One of a case's places for a rater."),
            Entry("annotation", "Annotation", "One revision of a label; the last one counts."),
        ),
    ),
    Section(
        "notices",
        "Notices",
        (
            Entry(
                "notice",
                "Notice",
                "What leads and admins are told: that an experiment paused, finished, failed (it "
                "finished with pairs that have no result) or reached its budget.",
            ),
            Entry(
                "digest",
                "Digest",
                "A mail with what is new to one person, at most one an hour, to those who asked.",
            ),
            Entry(
                "webhook",
                "Webhook",
                "An address that is sent each notice, signed, so that a program can act on it.",
            ),
            Entry(
                "delivery",
                "Delivery",
                "One notice on its way to one webhook: it waits, was taken, or was given up after "
                "eight tries in a day.",
            ),
        ),
    ),
    Section(
        "people",
        "People",
        (
            Entry(
                "audit_event",
                "Audit event",
                "Who did what, when and why. Nobody can change or remove one unseen.",
            ),
            Entry(
                "role",
                "Role",
                "What a person is here for: annotators label and see no results, leads run "
                "experiments and see results, admins also manage people.",
            ),
            Entry(
                "one_time_link",
                "One-time link",
                "An address that lets one person in, once, for a limited time. It is shown when it "
                "is made and never again.",
            ),
            Entry(
                "invitation",
                "Invitation",
                "A one-time link by which a new person chooses a password and comes in for the "
                "first time.",
            ),
            Entry(
                "token",
                "Token",
                "A key with which a program uses the API in a person's name. It can do no more "
                "than the person.",
            ),
            Entry(
                "scope",
                "Scope",
                "What a token may be used for: read, write (experiments, skills and the like) or "
                "people.",
            ),
            Entry(
                "idempotency_key",
                "Idempotency key",
                "A text that a program sends with a write, so that the write is done once however "
                "often it is sent.",
            ),
            Entry(
                "cursor",
                "Cursor",
                "Where a page of a long list begins: behind the last row of the page before it.",
            ),
        ),
    ),
    Section(
        "system",
        "The system",
        (
            Entry("broker", "Broker", "Valkey or Redis: hands work to workers. It keeps nothing."),
            Entry(
                "queue",
                "Queue",
                "One line of waiting work: executions, labelling, or default for all else.",
            ),
            Entry("worker", "Worker", "A process that takes work up from queues and does it."),
            Entry(
                "sweeper",
                "Sweeper",
                "The process that looks every 15 s for work that was cut off or is due, and hands "
                "it out again.",
            ),
            Entry(
                "heartbeat",
                "Heartbeat",
                "When a process was last heard of. A sweeper is silent after a minute without one, "
                "a queue's workers after two.",
            ),
            Entry(
                "public_address",
                "Public address",
                "Where people reach the pages: scheme and host. Every link begins with it.",
            ),
        ),
    ),
)

MEANINGS: Mapping[str, Entry] = MappingProxyType(
    {entry.key: entry for section in SECTIONS for entry in section.entries}
)


def markdown() -> str:
    """Return the glossary as the Markdown page ``docs/glossary.md``."""
    blocks = ["# Glossary", INTRODUCTION]
    for section in SECTIONS:
        blocks.append(f"## {section.title}")
        blocks.append("\n".join(_line(entry) for entry in section.entries))
    return "\n\n".join(blocks) + "\n"


def _line(entry: Entry) -> str:
    symbol = f" (`{entry.symbol}`)" if entry.symbol and entry.symbol != entry.word else ""
    return f"- **{entry.word}**{symbol}: {entry.meaning}"


if __name__ == "__main__":
    print(markdown(), end="")
