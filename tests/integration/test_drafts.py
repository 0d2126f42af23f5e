"""Drafts: what a file from the web may name, saving by revision, cloning, estimate and start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db import connection
from django.utils import timezone

from runs.domain.plan import CellSpec, ModelSpec, parse_experiment
from runs.models import (
    Arm,
    ArmSpec,
    Execution,
    Experiment,
    ExperimentDraft,
    ExperimentStatus,
    Pair,
    PairArm,
    Position,
)
from runs.services import launching, lifecycle, planning, probing
from runs.services.drafting import (
    DraftChanged,
    DraftMissing,
    UnreadableFile,
    check_draft,
    clone_draft,
    clone_experiment,
    create_draft,
    discard_draft,
    draft_by_slug,
    file_text,
    free_slug,
    save_draft,
)
from runs.services.launching import (
    DraftBusy,
    DraftNotReady,
    estimate_from,
    estimate_of,
    is_outdated,
    request_estimate,
    request_start,
)
from runs.services.planning import lay_out
from runs.services.preparing import import_suite, stored_partitions
from runs.services.tasks import suite_load
from tests import drafts
from tests.drafts import TOML, estimate, experiment_of, make_draft, start, store_suite
from tests.experiments import grader, make_spec, plan, run_left, write_tasks
from tests.factories import SKILLS, make_library, make_user
from workbench.kernel.chat import EndpointFault
from workbench.kernel.identity import sha256_of
from workbench.kernel.leases import LeaseState
from workbench.kernel.roles import Role
from workbench.llm.endpoints import endpoints_file
from workbench.models import AuditEvent, Call, Job

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def suite(tmp_path: Path, settings: Any) -> None:
    settings.DATA_DIR = tmp_path
    store_suite(tmp_path)


def problems_of(toml: str) -> list[tuple[int | None, str]]:
    return [(problem.line, problem.message) for problem in check_draft(toml).problems]


# --- what a file from the web may name ------------------------------------------


def test_a_file_that_names_what_is_here_has_no_problem_and_its_size() -> None:
    check = check_draft(TOML)
    assert check.problems == ()
    assert (check.pairs, check.cells) == (12, 1)  # 12 tasks, one of everything else
    more = TOML.replace("seed = 7", "replicates = 3").replace(
        'suite = "counting"', 'suite = "counting"\npartition = { size = 5 }'
    )
    more += 'control = ["normal", "schema_empty"]\n'
    check = check_draft(more)
    assert (check.pairs, check.cells) == (30, 2)  # 5 tasks x 3 replicates x 2 cells


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254",
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:6379",
        "http://localhost:8000/v1",
        "http://[::ffff:127.0.0.1]/v1",
        "http://[::1]/v1",
        "http://2130706433/v1",
        "http://0x7f000001/v1",
        "http://127.1/v1",
        "http://internal.example/v1",
        "https://llm.example.evil.example/v1",
        "https://llm.example/v1/../other",
        "https://LLM.example/v2",
        "https://user@llm.example/v1",
        "https://llm.example/v1?key=1",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_INFO",
        "replay:/etc/passwd",
        "embedded",
        "scripted:mixed?tasks=/etc/passwd",
        "",
    ],
)
def test_an_address_that_is_not_configured_is_refused(address: str) -> None:
    endpoints_file().write_text(
        '[[endpoint]]\nname = "gateway"\nbase_url = "https://llm.example/v1"\n'
    )
    allowed = TOML.replace("scripted:mixed", "https://llm.example/v1/")
    assert problems_of(allowed) == []
    ((line, message),) = problems_of(TOML.replace("scripted:mixed", address))
    assert line == 7
    assert "base_url" in message


def test_no_key_but_the_endpoints_own_can_be_sent_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another variable's value would travel to the endpoint as a key."""
    monkeypatch.setenv("SECRET_KEY", "do-not-tell")
    endpoints_file().write_text(
        '[[endpoint]]\nname = "open"\nbase_url = "https://open.example/v1"\n'
        '[[endpoint]]\nname = "keyed"\nbase_url = "https://keyed.example/v1"\n'
        'api_key_env = "OUR_KEY"\n'
    )
    stolen = TOML.replace(
        'base_url = "scripted:mixed"',
        'base_url = "https://open.example/v1"\napi_key_env = "SECRET_KEY"',
    )
    assert problems_of(stolen) == [(8, "the endpoint open uses another key; remove api_key_env")]
    other = stolen.replace("open.example", "keyed.example")
    wanted = 'the endpoint keyed uses another key; write api_key_env = "OUR_KEY"'
    assert problems_of(other) == [(8, wanted)]
    unnamed = wanted.replace("uses another key;", "needs its key named:")
    assert problems_of(other.replace('api_key_env = "SECRET_KEY"\n', "")) == [(5, unnamed)]
    assert problems_of(other.replace("SECRET_KEY", "OUR_KEY")) == []


def test_the_environments_own_endpoint_may_go_with_its_own_key_or_without(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the workers have the key, both sides must still come to the same answer."""
    settings.OPENAI_BASE_URL = "https://llm.example/v1"
    bare = TOML.replace("scripted:mixed", "https://llm.example/v1")
    keyed = bare.replace("price_in", 'api_key_env = "OPENAI_API_KEY"\nprice_in')
    for key in ("", "sk-1"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        assert problems_of(bare) == problems_of(keyed) == []
        ((line, message),) = problems_of(keyed.replace("OPENAI_API_KEY", "SECRET_KEY"))
        assert (line, "uses another key" in message) == (8, True)


def test_configured_prices_hold_where_a_file_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUR_KEY", "sk-1")
    endpoints_file().write_text(
        '[[endpoint]]\nname = "keyed"\nbase_url = "https://keyed.example/v1"\n'
        'api_key_env = "OUR_KEY"\n'
        '[[endpoint.model]]\nid = "scripted"\nprice_in = 0.2\nprice_out = 0.6\n'
    )
    priced = TOML.replace(
        'base_url = "scripted:mixed"',
        'base_url = "https://keyed.example/v1/"\napi_key_env = "OUR_KEY"',
    )
    bare = priced.replace("price_in = 1\nprice_out = 2\n", "") + "\n[budget]\ncost = 5\n"
    for toml, prices in (
        (bare, (0.2, 0.6)),
        (priced, (1, 2)),
        (bare.replace('OUR_KEY"', 'OUR_KEY"\nprice_out = 3'), (0.2, 3)),
    ):
        check = check_draft(toml)
        assert check.problems == ()
        assert check.spec is not None
        (model,) = check.spec.models
        assert (model.price_in, model.price_out) == prices
    # Without a configured price the budget can't be kept.
    endpoints_file().write_text(endpoints_file().read_text().replace("price_out = 0.6\n", ""))
    ((_, message),) = problems_of(bare)
    assert message == "a cost budget needs price_in and price_out of every model"


def test_a_model_or_rate_beyond_what_is_configured_is_refused() -> None:
    endpoints_file().write_text(
        '[[endpoint]]\nname = "gateway"\nbase_url = "https://llm.example/v1"\n'
        '[[endpoint.model]]\nid = "small"\nrequests_per_minute = 60\n'
    )
    toml = TOML.replace("scripted:mixed", "https://llm.example/v1")
    assert problems_of(toml) == [(6, "the endpoint gateway offers no 'scripted'; it offers: small")]
    small = toml.replace('id = "scripted"', 'id = "small"')
    fault = "the endpoint gateway takes no more; write requests_per_minute = 60"
    check = check_draft(small)  # one that asks for no rate gets the configured one
    assert check.spec is not None
    assert check.spec.models[0].requests_per_minute == 60
    slow = small.replace("price_in = 1", "requests_per_minute = 61")
    assert problems_of(slow) == [(8, fault)]
    assert problems_of(slow.replace("61", "60")) == []


@pytest.mark.parametrize("source", ["/etc/passwd", "./counting.jsonl", "counting.jsonl", "other"])
def test_a_suite_is_a_name_and_never_a_file(source: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # where counting.jsonl lies
    ((line, message),) = problems_of(TOML.replace('suite = "counting"', f'suite = "{source}"'))
    assert line == 12
    assert "there is no suite" in message
    assert "counting" in message


def test_everything_that_is_missing_is_told_at_once_by_line() -> None:
    toml = TOML.replace('"counting"', '"other"').replace('"coding"', '"none"')
    toml = toml.replace("scripted:mixed", "http://127.0.0.1")
    assert [line for line, _ in problems_of(toml)] == [7, 12, 15]
    too_many = TOML.replace('suite = "counting"', 'suite = "counting"\npartition = {size = 13}')
    assert problems_of(too_many) == [
        (13, "the suite counting has 12 tasks, not 13; lower the size or leave it out")
    ]


def test_endpoints_that_can_not_be_read_are_told_and_nothing_passes() -> None:
    endpoints_file().write_text("[[endpoint]]\n")
    ((line, message),) = problems_of(TOML)
    assert line is None
    assert "needs the key 'name'" in message


@pytest.mark.parametrize("hostile", ["[" * 5000, "a = " + "[" * 5000, 'slug = "x"\n' * 3])
def test_hostile_files_are_problems_and_no_crash(hostile: str) -> None:
    assert problems_of(hostile)
    assert make_draft(file_text(hostile)).slug == "draft"


def test_a_file_whose_lists_explode_is_refused_before_they_do() -> None:
    lists = f"k = {list(range(1, 51))}\ntemperature = {[n / 100 for n in range(200)]}\n"
    ((line, message),) = problems_of(TOML + lists)
    assert line == 14
    assert "10,000 cells" in message


def test_what_is_no_text_or_too_large_is_refused() -> None:
    assert file_text(b"\xef\xbb\xbfa = 1\r\nb = 2") == "a = 1\nb = 2\n"
    for content, fault in (
        (b"\xff\xfe", "UTF-8"),
        (b"a = '\0'", "NUL"),
        (b"#" * 256_001, "256,000"),
    ):
        with pytest.raises(UnreadableFile, match=fault):
            file_text(content)


# --- saving -----------------------------------------------------------------------


def test_a_draft_takes_the_files_slug_and_another_where_it_is_taken() -> None:
    first = make_draft()
    assert first.slug == "panel"
    assert make_draft().slug == "draft"
    assert make_draft().slug == "draft-2"
    ((line, message),) = [(p.line, p.message) for p in check_draft(TOML, slug="draft").problems]
    assert (line, message) == (2, "a draft 'panel' exists; choose another slug, such as panel-2")
    assert check_draft(TOML, slug="panel").problems == ()


@pytest.mark.both_databases
def test_saving_over_a_newer_revision_changes_nothing() -> None:
    lead = make_user("lee", Role.LEAD)
    draft = make_draft()
    mine, theirs = TOML + "k = 5\n", TOML + "k = 7\n"
    saved = save_draft(slug="panel", toml=theirs, revision=1, actor=lead, at=timezone.now())
    assert (saved.revision, saved.toml) == (2, theirs)
    with pytest.raises(DraftChanged) as changed:
        save_draft(slug="panel", toml=mine, revision=draft.revision, actor=lead, at=timezone.now())
    assert changed.value.now.toml == theirs
    assert draft_by_slug("panel").toml == theirs
    event = AuditEvent.objects.filter(verb="draft.saved").get()
    assert (event.actor, event.subject) == (lead, "panel")


def test_the_slug_follows_the_file_unless_it_is_taken() -> None:
    make_draft(TOML.replace("panel", "other"))
    make_draft()
    at = timezone.now()
    renamed = save_draft(
        slug="panel", toml=TOML.replace("panel", "new-name"), revision=1, actor=None, at=at
    )
    assert renamed.slug == "new-name"
    kept = save_draft(
        slug="new-name", toml=TOML.replace("panel", "other"), revision=2, actor=None, at=at
    )
    assert (kept.slug, kept.revision) == ("new-name", 3)
    with pytest.raises(DraftMissing):
        draft_by_slug("panel")


def test_a_discarded_draft_is_gone() -> None:
    make_draft()
    discard_draft(slug="panel", actor=None, at=timezone.now())
    assert not ExperimentDraft.objects.exists()
    with pytest.raises(DraftMissing):
        discard_draft(slug="panel", actor=None, at=timezone.now())


# --- cloning ----------------------------------------------------------------------


def test_a_draft_is_cloned_with_all_but_its_slug() -> None:
    toml = "# why we look\n" + TOML.replace('slug = "panel"', 'slug = "panel"  # the first')
    make_draft(toml)
    clone = clone_draft(slug="panel", actor=None, at=timezone.now())
    assert clone.slug == "panel-2"
    assert clone.toml == toml.replace('"panel"', '"panel-2"')
    assert clone_draft(slug="panel-2", actor=None, at=timezone.now()).slug == "panel-3"


def test_an_experiment_from_a_file_of_the_command_line_is_cloned_from_its_plan(
    tmp_path: Path,
) -> None:
    """Its file wasn't kept and its suite was a path: the stored benchmark stands for it."""
    cells = (
        CellSpec(library="coding", k=5, types=("guard", "utility"), temperature=0.25),
        CellSpec(library="coding", control="schema_empty"),
    )
    spec = make_spec(
        tmp_path / "counting.jsonl", slug="panel", cells=cells, failure_policy="incorrect"
    )
    experiment = plan(spec)
    assert experiment.toml == ""
    clone = clone_experiment(experiment=experiment, actor=None, at=timezone.now())
    assert clone.slug == "panel-2"
    again = parse_experiment(clone.toml, path="")
    assert again.cells == spec.cells
    assert again.models == spec.models
    assert again.failure_policy == "incorrect"
    assert [one.suite for one in again.benchmarks] == ["counting"]
    assert check_draft(clone.toml, slug="panel-2").problems == ()


def test_a_started_draft_is_cloned_with_its_comments() -> None:
    experiment = experiment_of(start(make_draft("# why\n" + TOML)))
    clone = clone_experiment(experiment=experiment, actor=None, at=timezone.now())
    assert clone.toml == "# why\n" + TOML.replace("panel", "panel-2")


def test_a_free_slug_fits_and_counts_on() -> None:
    assert free_slug("panel") == "panel-2"
    make_draft(TOML.replace("panel", "panel-2"))
    assert free_slug("panel") == free_slug("panel-2") == "panel-3"
    assert len(free_slug("x" * 100)) == 100


# --- estimate and start -----------------------------------------------------------


def test_an_estimate_plans_nothing_and_says_what_it_will_take() -> None:
    draft = make_draft(TOML + 'control = ["normal", "schema_empty"]\n')
    job = estimate(draft)
    assert (job.state, job.problem) == (LeaseState.DONE, "")
    assert not Experiment.objects.exists()
    assert not Execution.objects.exists()
    found = estimate_of(draft)
    assert found is not None
    # Two cells of 12 pairs: 12 SE runs each, and 12 SD runs that serve both.
    assert (found.pairs, found.executions, found.workers) == (24, 36, 2)
    (model,) = found.models
    assert model.probed == 3
    # Every run answers with one call; each search adds one. Three runs of each arm were probed:
    # the 24 SE runs take what 8 times these three took, the 12 SD runs 4 times.
    with_skills = Call.objects.filter(subject__in=probed_runs("SE", draft))
    without = Call.objects.exclude(pk__in=with_skills)
    assert without.count() == 3
    assert found.calls == 8 * with_skills.count() + 4 * 3
    # Only the 12 pairs of the cell whose tool returns skills can have one returned.
    (told,) = model.probes
    assert (told.benchmark, told.cell, told.probed) == ("counting@1", 1, 3)
    assert found.expected_n_cond == 4 * told.returned
    assert found.n_cond_low <= found.expected_n_cond <= found.n_cond_high <= 12
    cost = [sum(call.cost or 0 for call in calls) for calls in (with_skills, without)]
    assert found.cost == pytest.approx(8 * cost[0] + 4 * cost[1])
    assert (found.cost_unknown, found.over_budget) == ("", ())
    assert not is_outdated(found, draft)
    changed = save_draft(slug="panel", toml=TOML, revision=1, actor=None, at=timezone.now())
    assert is_outdated(found, changed)


def probed_runs(arm: str, draft: ExperimentDraft) -> list[Any]:
    """Return the uids of the runs of one arm that the draft's first cell will have."""
    spec = check_draft(draft.toml, slug=draft.slug).spec
    assert spec is not None
    partitions = stored_partitions(spec)
    assert partitions is not None
    layout = lay_out(spec=spec, partitions=partitions)
    stated = layout.cells[0].arm(Arm(arm)).to_json()
    stored = ArmSpec(sha256=sha256_of(stated), spec=stated)
    return [layout.execution(stored, *one).uid for one in layout.ordered(layout.cells[0])]


def test_an_estimate_is_outdated_by_a_new_library_or_suite_too(tmp_path: Path) -> None:
    draft = make_draft(TOML.replace("coding", "team"))
    make_library("team", SKILLS)
    estimate(draft)
    found = estimate_of(draft)
    assert found is not None
    assert not is_outdated(found, draft)
    make_library("team", {**SKILLS, "prefix-sum": "another text"})
    assert is_outdated(found, draft), "a start would now give the other skills"
    estimate(draft)
    found = estimate_of(draft)
    assert found is not None
    assert not is_outdated(found, draft)
    drafts.store_suite(tmp_path, number=13)
    assert is_outdated(found, draft), "a start would now run 13 tasks"
    assert is_outdated(replace(found, toml_sha256="0"), draft)


class Bill(NamedTuple):
    """What the runs of invented arms take."""

    turns: int
    tokens_in: int
    tokens_out: int
    latency_s: float
    invocations: int
    retrieved: bool


@pytest.mark.parametrize("ks", [(3,), (1, 3), (1, 2, 3, 4), tuple(range(1, 13))])
def test_an_estimate_counts_the_shared_runs_without_skills_once(
    ks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An SE run takes 3 calls, 1000 k + 600 tokens and 9 s; an SD run 1 call, 800 tokens, 2 s.

    Of c cells of 12 pairs with k up to K, at the price of the largest: 12 c SE runs and 12 SD
    runs, however many cells share these. So 36 c + 12 calls, 12 c (1000 K + 600) + 9,600 tokens
    and 108 c + 24 s.
    """
    make_library("team", SKILLS)

    def bill(execution: Any, experiment: Any, still_ours: Any) -> Bill:
        k = execution.arm_spec.spec.get("k")
        if execution.arm_spec.spec.get("library_sha256") is None:
            return Bill(1, 400, 400, 2.0, 0, False)
        return Bill(3, 1000 * k, 600, 9.0, 1, True)

    monkeypatch.setattr(probing, "run_execution_agent", bill)
    toml = TOML.replace("coding", "team") + f"k = {list(ks)}\n\n[budget]\ncalls = "
    cells, calls = len(ks), 36 * len(ks) + 12
    found = estimate_from(estimate(make_draft(f"{toml}{calls - 1}\n")).result or {})
    assert (found.executions, found.calls) == (12 * cells + 12, calls)
    assert found.tokens == 12 * cells * (1000 * max(ks) + 600) + 9_600
    assert found.seconds == (108 * cells + 24) / 2  # two workers
    assert [told.cell for told in found.models[0].probes] == [cells], "the largest k"
    assert len(found.over_budget) == 1, "one call more than the budget"
    within = make_draft(f"{toml}{calls}\n".replace("panel", "within"))
    assert estimate_from(estimate(within).result or {}).over_budget == ()


def test_each_benchmark_of_a_model_is_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SE runs take 1 call on the 12 tasks of counting and 5 on the 4 of another suite.

    SD runs take 1 everywhere: 12 (1 + 1) + 4 (5 + 1) = 48 calls. A skill is returned in 3 of 3
    pairs of the larger suite and in 0 of 3 of the other: 12 expected. With two groups each has
    97.5% limits: (0.0125)^(1/3) = 0.23208 of 12 and 1 of 12; 0 and 1 - 0.23208 of 4. In sum
    2.785 to 12 + 3.0717.
    """
    make_library("team", SKILLS)
    rows = (write_tasks(tmp_path / "more.jsonl", number=16)).read_text().splitlines(True)[12:]
    (tmp_path / "more.jsonl").write_text("".join(rows))
    import_suite(suite=suite_load(source=str(tmp_path / "more.jsonl")), open_grader=grader)

    def bill(execution: Any, experiment: Any, still_ours: Any) -> Bill:
        is_sd = execution.arm_spec.spec.get("library_sha256") is None
        dear = execution.task.benchmark.slug == "more"
        return Bill(5 if dear and not is_sd else 1, 1, 1, 1.0, 0, not dear and not is_sd)

    monkeypatch.setattr(probing, "run_execution_agent", bill)
    toml = TOML.replace("coding", "team").replace(
        "[[cell]]", '[[benchmark]]\nsuite = "more"\n\n[[cell]]'
    )
    job = estimate(make_draft(toml))
    found = estimate_from(job.result or {})
    assert (job.steps, found.calls, found.expected_n_cond) == (12, 48, 12)
    assert (found.n_cond_low, found.n_cond_high) == (
        pytest.approx(2.785, abs=1e-3),
        pytest.approx(15.0717, abs=1e-3),
    )


def test_an_estimate_says_what_is_unknown_and_what_exceeds_the_budget() -> None:
    toml = TOML.replace("price_in = 1\nprice_out = 2\n", "")
    result = estimate(make_draft(toml + "\n[budget]\ncalls = 10\n")).result
    assert result is not None
    found = estimate_from(result)
    assert found.cost is None
    assert found.cost_unknown == "no price is given for scripted"
    (over,) = found.over_budget
    assert over.endswith("calls, and the budget is 10")


def test_a_start_after_an_estimate_repeats_no_call(tmp_path: Path) -> None:
    draft = make_draft()
    estimate(draft)
    probed = set(Call.objects.values_list("pk", flat=True))
    experiment = experiment_of(start(draft))
    run_left(experiment)
    assert experiment.status == ExperimentStatus.FINISHED
    after_probe = list(Call.objects.values_list("subject", "step", "try_number"))
    assert probed <= set(Call.objects.values_list("pk", flat=True))
    # The same experiment without an estimate makes just as many calls, under the same uids.
    runs = set(Execution.objects.values_list("uid", flat=True))
    assert {subject for subject, _, _ in after_probe} == runs
    assert len(after_probe) == len({(subject, step) for subject, step, _ in after_probe})
    other = Experiment.objects.get(slug=start(make_draft(TOML.replace("panel", "other"))).subject)
    before = Call.objects.count()
    run_left(other)
    assert Call.objects.count() - before == len(after_probe)


def test_a_start_keeps_the_file_its_author_and_an_event_and_ends_the_draft() -> None:
    lead = make_user("lee", Role.LEAD)
    draft = make_draft("# why\n" + TOML)
    job = request_start(slug=draft.slug, actor=lead, at=timezone.now())
    drafts.work_off(job)
    assert (job.problem, job.result) == ("", {"experiment": "panel", "path": "/experiments/panel/"})
    experiment = Experiment.objects.get(slug="panel")
    assert (experiment.status, experiment.author) == (ExperimentStatus.RUNNING, lead)
    assert experiment.toml == "# why\n" + TOML
    assert not ExperimentDraft.objects.exists()
    verbs = list(
        AuditEvent.objects.filter(actor=lead, subject="panel").values_list("verb", flat=True)
    )
    assert verbs == ["draft.start_requested", "experiment.planned", "experiment.running"]


@pytest.mark.both_databases
def test_what_is_asked_for_twice_is_done_once() -> None:
    draft, at = make_draft(), timezone.now()
    first = request_estimate(slug=draft.slug, actor=None, at=at)
    assert request_estimate(slug=draft.slug, actor=None, at=at) == first
    with pytest.raises(DraftBusy, match="is being estimated; wait"):
        request_start(slug=draft.slug, actor=None, at=at)
    drafts.work_off(first)
    assert request_estimate(slug=draft.slug, actor=None, at=at) != first


def test_a_draft_with_problems_is_neither_estimated_nor_started() -> None:
    draft = make_draft(TOML.replace("scripted:mixed", "http://127.0.0.1:6379"))
    for request in (request_estimate, request_start):
        with pytest.raises(DraftNotReady, match="has 1 problem;"):
            request(slug=draft.slug, actor=None, at=timezone.now())
    assert not Job.objects.exists()


def test_the_worker_checks_again_what_the_page_has_checked(settings: Any) -> None:
    draft = make_draft()
    job = request_start(slug=draft.slug, actor=None, at=timezone.now())
    settings.WORKBENCH_ALLOW_SCRIPTED = False  # the endpoint was taken away meanwhile
    drafts.work_off(job)
    assert "line 7: base_url 'scripted:mixed' is none of the configured" in job.problem
    assert not Experiment.objects.exists()


def test_a_draft_that_was_changed_or_discarded_meanwhile_is_not_started() -> None:
    draft = make_draft()
    job = request_start(slug=draft.slug, actor=None, at=timezone.now())
    save_draft(slug="panel", toml=TOML + "k = 5\n", revision=1, actor=None, at=timezone.now())
    drafts.work_off(job)
    assert "changed after this was asked for" in job.problem
    job = request_start(slug=draft.slug, actor=None, at=timezone.now())
    discard_draft(slug="panel", actor=None, at=timezone.now())
    drafts.work_off(job)
    assert "discarded" in job.problem
    assert not Experiment.objects.exists()


def test_an_endpoints_fault_is_told_and_the_draft_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from runs.services import arms

    def refuse(**_: Any) -> Any:
        raise EndpointFault("wrong_key", "the environment variable OUR_KEY is not set")

    monkeypatch.setattr(arms, "chat_model_for", refuse)
    job = estimate(make_draft())
    assert job.problem == (
        "A model can't be used: the environment variable OUR_KEY is not set. "
        "Set OUR_KEY where the workers are started, restart them, then ask again."
    )
    assert ExperimentDraft.objects.count() == 1


class Killed(BaseException):
    """Not an Exception: nothing may catch a killed process."""


@pytest.mark.both_databases
@pytest.mark.parametrize("at_call", [1, 2, 3, 4])
def test_a_start_that_was_killed_goes_on_where_it_stopped(
    at_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the chunks of the plan, and after the start: the rows are the same."""
    monkeypatch.setattr(planning, "PAIRS_AT_ONCE", 5)  # 12 pairs: three transactions
    undisturbed = experiment_of(start(make_draft()))
    expected = rows_of(undisturbed)
    wipe(undisturbed)
    draft = make_draft()
    job = request_start(slug=draft.slug, actor=None, at=timezone.now())
    calls = 0
    with monkeypatch.context() as patched:
        store, publish = planning._store_pairs, lifecycle.publish_pending

        def dies_between(*args: Any, **kwargs: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == at_call:
                raise Killed
            store(*args, **kwargs)

        def dies_after(*args: Any, **kwargs: Any) -> None:
            publish(*args, **kwargs)
            raise Killed

        patched.setattr(planning, "_store_pairs", dies_between)
        if at_call == 4:
            patched.setattr(lifecycle, "publish_pending", dies_after)
        with pytest.raises(Killed):
            drafts.work_off(job)
    experiment = Experiment.objects.get(slug="panel")
    if at_call < 4:
        # Half a plan can't be started by anybody.
        assert Pair.objects.count() == 5 * (at_call - 1)
        with pytest.raises(lifecycle.WrongStatus, match="only partly stored"):
            lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    Job.objects.filter(pk=job.pk).update(state=LeaseState.PENDING, lease_until=None)
    drafts.work_off(job)
    assert (job.state, job.problem) == (LeaseState.DONE, "")
    experiment.refresh_from_db()
    assert experiment.status == ExperimentStatus.RUNNING
    assert rows_of(experiment) == expected
    assert AuditEvent.objects.filter(verb="experiment.planned").count() == 2  # one of each plan
    assert not ExperimentDraft.objects.exists()


def rows_of(experiment: Experiment) -> list[tuple[Any, ...]]:
    """Return everything that planning wrote of the experiment, without row numbers."""
    pairs = Pair.objects.filter(cell__experiment=experiment)
    return sorted(
        (
            str(experiment.uid),
            cell.number,
            cell.sha256,
            position.number,
            str(pair.uid),
            *(
                f"{arm.arm} {arm.execution.uid}"
                for arm in PairArm.objects.filter(pair=pair).order_by("arm")
            ),
        )
        for pair in pairs
        for cell in [pair.cell]
        for position in Position.objects.filter(pair=pair)
    )


def wipe(experiment: Experiment) -> None:
    """Delete the experiment's rows beneath the guards, as if it had never been."""
    tables = ("runs_pairarm", "runs_position", "runs_pair", "runs_execution", "runs_cell")
    with connection.cursor() as cursor:
        for table in (*tables, "runs_experiment"):
            cursor.execute(f"DELETE FROM {table}")


def test_planning_from_the_command_line_twice_after_a_kill_is_the_same_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(
        write_tasks(tmp_path / "twelve.jsonl"), model=ModelSpec("scripted", "scripted:mixed")
    )
    monkeypatch.setattr(planning, "PAIRS_AT_ONCE", 5)
    store = planning._store_executions

    def dies(*args: Any, **kwargs: Any) -> Any:
        if Pair.objects.count() > 5:
            raise Killed  # with pairs and positions written, and their arms not yet
        return store(*args, **kwargs)

    monkeypatch.setattr(planning, "_store_executions", dies)
    with pytest.raises(Killed):
        plan(spec)
    assert Pair.objects.count() == Position.objects.count() == 5
    monkeypatch.setattr(planning, "_store_executions", store)
    experiment = plan(spec)
    assert planning.is_complete(experiment)
    again = rows_of(experiment)
    assert (Pair.objects.count(), PairArm.objects.count(), len(again)) == (12, 24, 12)
    assert plan(spec) == experiment
    assert rows_of(experiment) == again


@pytest.mark.django_db(transaction=True)
def test_other_writers_find_gaps_between_the_transactions_of_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait for SQLite look every 100 ms: without gaps they give up after 20 s."""
    gaps: list[float] = []
    monkeypatch.setattr(planning, "PAIRS_AT_ONCE", 5)
    monkeypatch.setattr(planning.time, "sleep", gaps.append)
    plan(make_spec(tmp_path / "counting.jsonl"))
    # 12 pairs in three transactions, on SQLite alone.
    assert gaps == [planning.GAP_S] * 2 * (connection.vendor == "sqlite")
    assert planning.GAP_S > 0.1


def test_launching_names_its_tasks_as_celery_knows_them() -> None:
    from runs import tasks

    names = {tasks.estimate_draft_task.name, tasks.start_draft_task.name, tasks.rescore_task.name}
    assert names == {launching.ESTIMATE_TASK, launching.START_TASK, launching.RESCORE_TASK}


def test_a_new_draft_names_its_author() -> None:
    lead = make_user("lee", Role.LEAD)
    draft = create_draft(toml=TOML, author=lead, at=timezone.now())
    assert draft_by_slug("panel").author == draft.author == lead
