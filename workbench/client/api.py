"""Everything that the pages do, as methods."""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import httpx2

from workbench.client.errors import JobFailed, TimedOut, WorkbenchError
from workbench.client.shapes import (
    Check,
    Draft,
    Experiment,
    Export,
    Invitation,
    Job,
    Pair,
    Person,
    Token,
)
from workbench.client.transport import Transport, now

if TYPE_CHECKING:
    import pandas as pd

    Rows: TypeAlias = "Iterable[Mapping[str, Any]] | pd.DataFrame"

Transition = Literal["both_pass", "helpful", "harmful", "both_fail"]
Retrieved = Literal["true", "false", "unknown"]


class Workbench:
    """A workbench and what its owner of a token may do there.

    Args:
        url: of the workbench, such as ``https://workbench.example``.
        token: made on the page of your account; its scopes say what it may do.
        timeout_s: seconds that one answer may take.
        retries: how often a request is sent again when no answer comes; a write is done once.
        transport: for tests, what carries the requests.
        sleep: for tests, what waits.

    Every method may raise ``ApiError`` (by status: ``Invalid``, ``NotFound``, ``Conflict`` and so
    on) or ``Unreachable``.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 60,
        retries: int = 4,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = Transport(
            url, token, timeout_s=timeout_s, retries=retries, transport=transport, sleep=sleep
        )
        self.libraries = Libraries(self._http)
        self.suites = Suites(self._http)
        self.people = People(self._http)
        self.tokens = Tokens(self._http)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # --- experiments ----------------------------------------------------------------

    def experiments(
        self,
        *,
        status: str | None = None,
        origin: str | None = None,
        author: str | None = None,
        sort: str | None = None,
    ) -> Iterator[Experiment]:
        """Yield the experiments, the newest first."""
        found = self._http.rows(
            "experiments/", status=status, origin=origin, author=author, sort=sort
        )
        return map(Experiment.of, found)

    def experiment(self, slug: str) -> Experiment:
        """Return one experiment and how far it is."""
        return Experiment.of(self._http.get(f"experiments/{slug}/"))

    def report(self, slug: str) -> dict[str, Any]:
        """Return the report, as docs/report-schema.json has it."""
        found: dict[str, Any] = self._http.get(f"experiments/{slug}/report/")
        return found

    def experiment_toml(self, slug: str) -> str:
        """Return the file that an experiment was planned from."""
        return str(self._http.get(f"experiments/{slug}/toml/"))

    def cells(self, slug: str) -> Iterator[dict[str, Any]]:
        """Yield an experiment's cells in the order of its plan."""
        return self._http.rows(f"experiments/{slug}/cells/")

    def cell(self, slug: str, sha12: str) -> dict[str, Any]:
        """Return one cell with its arms' settings and its figures."""
        found: dict[str, Any] = self._http.get(f"experiments/{slug}/cells/{sha12}/")
        return found

    def pairs(
        self,
        slug: str,
        *,
        cell: str | None = None,
        transition: Transition | None = None,
        retrieved: Retrieved | None = None,
        censored: bool | None = None,
        skill: str | None = None,
    ) -> Iterator[Pair]:
        """Yield an experiment's pairs as its report counts them.

        Args:
            cell: only those of the cell of this ``sha12``.
            transition: only those that came out so.
            skill: only those in which the skill of this slug was returned.
        """
        where = f"experiments/{slug}/" + (f"cells/{cell}/" if cell else "")
        found = self._http.rows(
            f"{where}pairs/",
            transition=transition,
            retrieved=retrieved,
            censored=censored,
            skill=skill,
            limit=200,
        )
        return map(Pair.of, found)

    def pair(self, uid: str) -> dict[str, Any]:
        """Return one pair: task, both arms, grades and returned skills."""
        found: dict[str, Any] = self._http.get(f"pairs/{uid}/")
        return found

    def attempts(self, execution: str) -> Iterator[dict[str, Any]]:
        """Yield the recorded tries of an execution, with their traces."""
        return self._http.rows(f"executions/{execution}/attempts/", limit=10)

    def pause(self, slug: str, reason: str | None = None) -> Experiment:
        """Pause a running experiment; runs that are under way still finish."""
        return self._act(slug, "pause", {"reason": reason} if reason else None)

    def resume(self, slug: str) -> Experiment:
        """Resume a paused experiment."""
        return self._act(slug, "resume")

    def cancel(self, slug: str, reason: str) -> Experiment:
        """Cancel an experiment for good; what is recorded stays."""
        return self._act(slug, "cancel", {"reason": reason})

    def retry(self, slug: str) -> Experiment:
        """Give the runs that failed in all of their tries new ones."""
        return self._act(slug, "retry")

    def rescore(self, slug: str) -> Job:
        """Have the stored answers graded again; no model is called."""
        return Job.of(self._http.write("POST", f"experiments/{slug}/rescore/"))

    def change_budget(
        self,
        slug: str,
        *,
        calls: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
    ) -> Experiment:
        """Put other caps in force; one that isn't named is none."""
        caps = {"calls": calls, "tokens": tokens, "cost": cost}
        return Experiment.of(self._http.write("PUT", f"experiments/{slug}/budget/", caps))

    def _act(self, slug: str, verb: str, body: Any = None) -> Experiment:
        return Experiment.of(self._http.write("POST", f"experiments/{slug}/{verb}/", body))

    # --- drafts ---------------------------------------------------------------------

    def drafts(self) -> Iterator[Draft]:
        """Yield the drafts, the one saved last first."""
        return map(Draft.of, self._http.rows("drafts/"))

    def draft(self, slug: str) -> Draft:
        """Return a draft with its file, what is wrong with it and its newest estimate."""
        return Draft.of(self._http.get(f"drafts/{slug}/"))

    def create_draft(self, file: str | Mapping[str, Any]) -> Draft:
        """Keep an experiment file as a draft; nothing runs.

        Args:
            file: as TOML, or its keys and tables; ``docs/experiments.md`` has them.
        """
        body = {"toml": file} if isinstance(file, str) else {"experiment": dict(file)}
        return Draft.of(self._http.write("POST", "drafts/", body))

    def save_draft(self, draft: Draft, toml: str) -> Draft:
        """Save a draft's file.

        Raises:
            Conflict: somebody saved a newer revision than ``draft``.
        """
        body = {"toml": toml, "revision": draft.revision}
        return Draft.of(self._http.write("PUT", f"drafts/{draft.slug}/", body))

    def discard_draft(self, slug: str) -> None:
        """Discard a draft."""
        self._http.write("DELETE", f"drafts/{slug}/")

    def validate(self, slug: str) -> Check:
        """Return what is wrong with a draft's file, by line, and how much it will run."""
        return Check.of(self._http.get(f"drafts/{slug}/validate/"))

    def estimate(self, slug: str) -> Job:
        """Have a few pairs run and the whole reckoned from them.

        Wait for the job; the estimate then stands in ``draft(slug).estimate``.
        """
        return Job.of(self._http.write("POST", f"drafts/{slug}/estimate/"))

    def start(self, slug: str) -> Job:
        """Plan a draft and start its experiment; the job's result names it."""
        return Job.of(self._http.write("POST", f"drafts/{slug}/start/"))

    def start_planned(self, slug: str) -> Experiment:
        """Start an experiment that is planned already."""
        return self._act(slug, "start")

    def clone(self, slug: str) -> Draft:
        """Make a draft that plans the same as an experiment, under a free slug."""
        return Draft.of(self._http.write("POST", f"experiments/{slug}/clone/"))

    def clone_draft(self, slug: str) -> Draft:
        """Make another draft of the same file, under a free slug."""
        return Draft.of(self._http.write("POST", f"drafts/{slug}/clone/"))

    # --- waiting --------------------------------------------------------------------

    def job(self, uid: str) -> Job:
        """Return how far a job is."""
        return Job.of(self._http.get(f"jobs/{uid}/"))

    def wait(self, job: Job | str, *, timeout_s: float = 600, every_s: float = 1) -> Job:
        """Return the job once it is done.

        Raises:
            JobFailed: it came to no result.
            TimedOut: it isn't done after ``timeout_s`` seconds; it goes on.
        """
        found = self.job(job if isinstance(job, str) else job.uid)
        end = now() + timeout_s
        while found.state not in ("done", "failed"):
            if now() >= end:
                raise TimedOut(f"{found.kind} of {found.subject} is {found.state}")
            self._http.sleep(every_s)
            found = self.job(found.uid)
        if found.state == "failed":
            raise JobFailed(found)
        return found

    def follow(
        self, slug: str, *, timeout_s: float = math.inf, every_s: float = 5
    ) -> Iterator[Experiment]:
        """Yield an experiment as it goes on, until it ends or is paused; then once more.

        Raises:
            TimedOut: it still runs after ``timeout_s`` seconds.
        """
        end = now() + timeout_s
        while True:
            found = self.experiment(slug)
            yield found
            if found.ended or found.status == "paused":
                return
            if now() >= end:
                raise TimedOut(f"{slug} is {found.status}")
            self._http.sleep(every_s)

    # --- one's own runs, comparing, exports --------------------------------------------

    def push_runs(
        self,
        rows: Rows,
        *,
        experiment: str,
        preset: str | None = None,
        failure_policy: str | None = None,
    ) -> Job:
        """Hand in runs that were made elsewhere; they become a finished experiment.

        Args:
            rows: mappings or a frame with the columns of docs/exports.md; a missing value (None,
                NaN) is left out.
            experiment: slug of the experiment that they become.
        """
        body = "".join(f"{json.dumps(row)}\n" for row in _plain_rows(rows)).encode()
        params = {"experiment": experiment, "preset": preset, "failure_policy": failure_policy}
        return Job.of(
            self._http.write(
                "POST",
                "run-rows/",
                content=body,
                content_type="application/x-ndjson",
                params=params,
            )
        )

    def compare(
        self,
        a: str,
        b: str,
        *,
        cell_a: str | None = None,
        cell_b: str | None = None,
        allow: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return two experiments compared over the tasks they share.

        Args:
            a: slug of the experiment before the edit.
            b: slug of the one after it.
            allow: factors that may differ too.

        Raises:
            Invalid: they can't be compared; ``fields`` says why.
        """
        found: dict[str, Any] = self._http.get(
            "comparisons/", a=a, b=b, cell_a=cell_a, cell_b=cell_b, allow=list(allow) or None
        )
        return found

    def request_export(
        self,
        kind: str,
        format: str,
        *,
        experiments: Sequence[str] = (),
        cells: Sequence[str] = (),
    ) -> Export:
        """Ask for an export; its ``uid`` is that of the job that writes it.

        Args:
            kind: runs, pairs, attempts or audit-events.
            format: csv, jsonl or parquet.
            experiments: slugs.
            cells: only these, by ``sha12``.
        """
        body = {
            "kind": kind,
            "format": format,
            "experiments": list(experiments),
            "cells": list(cells),
        }
        return Export.of(self._http.write("POST", "exports/", body))

    def export(
        self,
        kind: str,
        format: str,
        to: str | Path,
        *,
        experiments: Sequence[str] = (),
        cells: Sequence[str] = (),
        timeout_s: float = 3600,
    ) -> Path:
        """Write an export to the file ``to`` and return its path; arguments as above.

        Raises:
            JobFailed: it could not be written.
            WorkbenchError: what arrived isn't what was written there.
        """
        asked = self.request_export(kind, format, experiments=experiments, cells=cells)
        self.wait(asked.uid, timeout_s=timeout_s)
        done = Export.of(self._http.get(f"exports/{asked.uid}/"))
        path, digest = Path(to), hashlib.sha256()
        with path.open("wb") as file:
            for piece in self._http.download(str(done.file)):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != done.sha256:
            path.unlink()
            raise WorkbenchError("the file arrived damaged; ask for the export again")
        return path

    # --- frames ---------------------------------------------------------------------

    def report_frame(self, slug: str) -> pd.DataFrame:
        """Return the report's cells as a frame: what was run, and every figure."""
        import pandas as pd

        return pd.json_normalize(self.report(slug)["cells"], sep=".")

    def pairs_frame(self, slug: str, **filters: Any) -> pd.DataFrame:
        """Return pairs as a frame, one row each; ``filters`` as of ``pairs``."""
        import pandas as pd

        rows = [dict(pair.raw) for pair in self.pairs(slug, **filters)]
        columns = None if rows else _PAIR_COLUMNS
        return pd.DataFrame(pd.json_normalize(rows, sep="."), columns=columns)

    # --- the rest -------------------------------------------------------------------

    def skills(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield the skills by their newest versions."""
        return self._http.rows("skills/", **filters)

    def endpoints(self) -> list[dict[str, Any]]:
        """Return the endpoints and models that drafts may name."""
        found: list[dict[str, Any]] = self._http.get("endpoints/")["endpoints"]
        return found

    def notices(self) -> Iterator[dict[str, Any]]:
        """Yield what happened, the newest first."""
        return self._http.rows("notices/")

    def status(self) -> dict[str, Any]:
        """Return whether database, broker, sweeper and worker do their work."""
        found: dict[str, Any] = self._http.get("status/")
        return found

    def audit_events(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield what people did, the newest first; for admins."""
        return self._http.rows("audit-events/", **filters)


class Libraries:
    """Libraries of skills."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def list(self) -> Iterator[dict[str, Any]]:
        """Yield the libraries by their newest versions."""
        return self._http.rows("libraries/")

    def get(self, slug: str) -> dict[str, Any]:
        """Return the newest version of a library."""
        found: dict[str, Any] = self._http.get(f"libraries/{slug}/")
        return found

    def entries(self, slug: str, number: int) -> Iterator[dict[str, Any]]:
        """Yield the skills as a version of a library holds them."""
        return self._http.rows(f"libraries/{slug}/versions/{number}/entries/")

    def upload(
        self, path: str | Path, library: str, *, skip_invalid: bool = False
    ) -> dict[str, Any]:
        """Upload skills, which become the newest version of a library.

        Args:
            path: a zip, or a folder whose files are packed into one.
            library: slug; of a new library or of one that is there.
            skip_invalid: take the usable skills although others are left out.
        """
        found: dict[str, Any] = self._http.write(
            "POST",
            "libraries/",
            content=_zipped(Path(path)),
            content_type="application/zip",
            params={"library": library, "skip_invalid": skip_invalid},
        )
        return found


class Suites:
    """Stored suites of tasks."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def list(self) -> Iterator[dict[str, Any]]:
        """Yield the suites by their newest versions."""
        return self._http.rows("suites/")

    def get(self, slug: str) -> dict[str, Any]:
        """Return the newest version of a suite."""
        found: dict[str, Any] = self._http.get(f"suites/{slug}/")
        return found

    def tasks(self, slug: str, number: int) -> Iterator[dict[str, Any]]:
        """Yield the tasks of a version of a suite, by key."""
        return self._http.rows(f"suites/{slug}/versions/{number}/tasks/")

    def upload(self, path: str | Path, suite: str, *, format: str | None = None) -> dict[str, Any]:
        """Upload a task file; where ``job`` isn't None, a job grades and stores it.

        Args:
            path: of a file of docs/tasks.md.
            suite: slug; of a new suite or of one that is there.
            format: of the file; known by its first line without it.

        Raises:
            Invalid: ``fields`` names each line that can't be used.
        """
        found: dict[str, Any] = self._http.write(
            "POST",
            "suites/",
            content=Path(path).read_bytes(),
            content_type="application/x-ndjson",
            params={"suite": suite, "format": format},
        )
        return found


class People:
    """Who may come in, and as what; the token needs the scope ``people`` to change it."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def list(self, **filters: Any) -> Iterator[Person]:
        """Yield the people."""
        return map(Person.of, self._http.rows("people/", **filters))

    def get(self, name: str) -> Person:
        """Return one person."""
        return Person.of(self._http.get(f"people/{name}/"))

    def invite(
        self, role: str, names: Sequence[str], *, emails: Mapping[str, str] | None = None
    ) -> tuple[Invitation, ...]:
        """Invite people: leads invite annotators, admins anyone; all or nobody.

        Returns:
            a one-time link for each, which is answered here and nowhere else.
        """
        known = emails or {}
        people = [{"name": name, "email": known.get(name, "")} for name in names]
        made = self._http.write("POST", "invitations/", {"role": role, "people": people})
        return tuple(Invitation.of(one) for one in made["invitations"])

    def invite_again(self, name: str) -> Invitation:
        """Make a new link for somebody who hasn't come in; the ones before it end."""
        return Invitation.of(self._http.write("POST", f"people/{name}/invitation/"))

    def revoke_invitation(self, name: str) -> None:
        """End the invitation that is out."""
        self._http.write("DELETE", f"people/{name}/invitation/")

    def reset_password(self, name: str) -> Invitation:
        """Make a one-time link to a new password."""
        return Invitation.of(self._http.write("POST", "password-resets/", {"name": name}))

    def change(self, name: str, *, role: str | None = None, active: bool | None = None) -> Person:
        """Change somebody's role, or whether they may come in; for admins."""
        wanted = {"role": role, "active": active}
        body = {key: value for key, value in wanted.items() if value is not None}
        return Person.of(self._http.write("PATCH", f"people/{name}/", body))


class Tokens:
    """Your own tokens. A token makes no tokens: that is done on the page of your account."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def list(self) -> Iterator[Token]:
        """Yield your tokens, ended ones too, the newest first."""
        return map(Token.of, self._http.rows("tokens/"))

    def revoke(self, uid: str) -> None:
        """End a token."""
        self._http.write("DELETE", f"tokens/{uid}/")


_PAIR_COLUMNS = (
    "uid", "cell", "task", "replicate", "transition", "censored", "pending", "retrieved",
    "skills", "url", "se.passed", "se.failure", "sd.passed", "sd.failure",
)  # fmt: skip


def _plain_rows(rows: Any) -> Iterator[dict[str, Any]]:
    """Yield rows as plain JSON values, without what is missing."""
    found = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
    for row in found:
        plain = {str(name): _plain(value) for name, value in row.items()}
        yield {name: value for name, value in plain.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return a value of a frame as JSON has it: NaN and NA are None, numpy's are Python's."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset) or hasattr(value, "tolist"):
        several = value.tolist() if hasattr(value, "tolist") else list(value)
        return [_plain(one) for one in several] if isinstance(several, list) else _plain(several)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    # pandas' NA and NaT equal nothing, not even themselves.
    return None if str(value) in ("<NA>", "NaT") else str(value)


def _zipped(path: Path) -> bytes:
    if path.is_file():
        return path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                # The same folder is the same zip, so that a request sent again is the same.
                member = zipfile.ZipInfo(file.relative_to(path).as_posix())
                archive.writestr(member, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()
