"""The endpoints that experiments from the browser or the API may use.

They are configured where the operator stands: in ``endpoints.toml`` of the data folder (or the
file that WORKBENCH_ENDPOINTS names), by OPENAI_BASE_URL and by what the workbench serves itself.
Nothing that arrives by web can add one. Keys stay in the environment; only the names of their
variables are known here.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings

from workbench.llm.embedded import MODEL as EMBEDDED_MODEL

OPENAI: Final = "OPENAI_BASE_URL"
OPENAI_KEY: Final = "OPENAI_API_KEY"
EMBEDDED: Final = "embedded"
SCRIPTED: Final = "scripted:mixed"
DIALECTS: Final = ("native", "json_action")
FILE_NAME: Final = "endpoints.toml"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class EndpointModel:
    """A model at a configured endpoint; prices per million tokens, None is unknown."""

    id: str
    dialect: str = "native"
    price_in: float | None = None
    price_out: float | None = None
    timeout_s: float | None = None
    requests_per_minute: int | None = None


@dataclass(frozen=True)
class ConfiguredEndpoint:
    """An endpoint that may be used from the browser.

    Attributes:
        api_key_env: name of the variable that holds the key, None where there is no key.
        models: those it may be asked for; empty means any.
        source: where it was configured, for people.
    """

    name: str
    base_url: str
    api_key_env: str | None
    models: tuple[EndpointModel, ...]
    source: str

    def model(self, id: str) -> EndpointModel | None:
        """Return the configured model of this id, or None."""
        return next((model for model in self.models if model.id == id), None)


class InvalidEndpoints(Exception):
    """The file of endpoints can't be used; the text names each line and its fix."""


def endpoints_file() -> Path:
    """Return the file that names the endpoints; it need not exist."""
    return Path(settings.ENDPOINTS_FILE or settings.DATA_DIR / FILE_NAME)


def configured_endpoints() -> tuple[ConfiguredEndpoint, ...]:
    """Return the endpoints that are configured now, those of the file first.

    Raises:
        InvalidEndpoints: the file has a problem, or the environment's address.
    """
    found = list(_of_file(endpoints_file()))
    known = {plain_url(endpoint.base_url) for endpoint in found}
    implicit = []
    if url := settings.OPENAI_BASE_URL:
        if fault := environment_fault():
            raise InvalidEndpoints(fault)
        key = OPENAI_KEY if os.environ.get(OPENAI_KEY) else None
        implicit.append(ConfiguredEndpoint(OPENAI, url, key, (), "the environment"))
    if settings.EMBEDDED_MODEL_URL:
        model = EndpointModel(EMBEDDED_MODEL, dialect="json_action")
        implicit.append(
            ConfiguredEndpoint(EMBEDDED, EMBEDDED, None, (model,), "the demonstration model")
        )
    if settings.WORKBENCH_ALLOW_SCRIPTED:
        scripted = EndpointModel("scripted")
        implicit.append(ConfiguredEndpoint("scripted", SCRIPTED, None, (scripted,), "tests"))
    return (*found, *(one for one in implicit if plain_url(one.base_url) not in known))


def environment_fault() -> str:
    """Return what keeps OPENAI_BASE_URL from being used and shown, or an empty text.

    The value itself is never part of it: what is wrong with it may be a key.
    """
    url = settings.OPENAI_BASE_URL
    if not url or not (fault := _url(url)):
        return ""
    said = fault.replace("api_key_env's variable", OPENAI_KEY)
    return f"{OPENAI} (environment): the address {said}; correct it or unset it"


def plain_url(base_url: str) -> str:
    """Return ``base_url`` as two are compared: without the slash at its end."""
    return base_url.rstrip("/")


# --- reading the file -----------------------------------------------------------


def _of_file(path: Path) -> tuple[ConfiguredEndpoint, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if settings.ENDPOINTS_FILE:
            raise InvalidEndpoints(
                f"{path}: there is no such file; write it, or unset WORKBENCH_ENDPOINTS"
            ) from None
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidEndpoints(f"{path} can't be read: {error}") from error
    return parse_endpoints(text, path=str(path))


def parse_endpoints(text: str, *, path: str) -> tuple[ConfiguredEndpoint, ...]:
    """Return the endpoints that the TOML ``text`` names.

    Raises:
        InvalidEndpoints: naming each wrong place of ``path`` by line, and its fix.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"at line (\d+)", str(error))
        where = f"{path}:{found[1]}" if found else path
        raise InvalidEndpoints(f"{where}: not valid TOML: {error}") from error
    reader = _Reader(text, path)
    endpoints = reader.endpoints(data)
    if reader.problems:
        raise InvalidEndpoints("\n".join(reader.problems))
    return endpoints


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be text"


def _dialect(value: Any) -> str | None:
    return None if value in DIALECTS else f"must be one of {', '.join(DIALECTS)}"


def _price(value: Any) -> str | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return None if good else "must be a number from 0 to 1e9, per million tokens"


def _seconds(value: Any) -> str | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= 3600
    return None if good else "must be a number of seconds from 1 to 3600"


def _rate(value: Any) -> str | None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return None if good else "must be a whole number from 1"


def _variable(value: Any) -> str | None:
    if isinstance(value, str) and _VARIABLE.match(value):
        return None
    # The value itself isn't shown: it may be a key that was written in the wrong place.
    return "must be the name of an environment variable, never the key itself"


def _url(value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be text"
    if value.partition("?")[0] == SCRIPTED:
        return None if settings.WORKBENCH_ALLOW_SCRIPTED else "is a scripted model, for tests only"
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:  # its text quotes the URL
        return "is no URL; check its host and port"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must be an address that begins with https:// or http://"
    if "@" in parts.netloc or parts.query or parts.fragment or ";" in parts.path:
        return "may hold host, port and path only; a key belongs into api_key_env's variable"
    return None


def _name(value: Any) -> str | None:
    if value in (OPENAI, EMBEDDED, "scripted"):
        return f"may not be {value}, which the workbench calls an endpoint of its own"
    good = isinstance(value, str) and _NAME.match(value)
    return None if good else "must be letters, digits, dots, hyphens and underscores, 80 at most"


_ENDPOINT: Final = {"name": _name, "base_url": _url, "api_key_env": _variable}
_MODEL: Final = {
    "id": _text,
    "dialect": _dialect,
    "price_in": _price,
    "price_out": _price,
    "timeout_s": _seconds,
    "requests_per_minute": _rate,
}


class _Reader:
    """Collects every problem of the file."""

    def __init__(self, text: str, path: str) -> None:
        self._path = path
        self._lines = text.splitlines()
        self.problems: list[str] = []

    def endpoints(self, data: Mapping[str, Any]) -> tuple[ConfiguredEndpoint, ...]:
        for key in data:
            if key != "endpoint":
                self._problem(
                    self._line(key), f"unknown key '{key}'; the file holds [[endpoint]] tables"
                )
        tables = data.get("endpoint", [])
        if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
            self._problem(self._line("endpoint"), "write [[endpoint]], with two brackets")
            return ()
        found: list[ConfiguredEndpoint] = []
        for index, table in enumerate(tables):
            endpoint = self._endpoint(table, index)
            for other in found:
                if endpoint.name == other.name:
                    self._problem(self._place(index, "name"), f"'{other.name}' is named twice")
                if plain_url(endpoint.base_url) == plain_url(other.base_url):
                    self._problem(
                        self._place(index, "base_url"),
                        f"the address is that of '{other.name}'; add its models there",
                    )
            found.append(endpoint)
        return tuple(found)

    def _endpoint(self, table: Mapping[str, Any], index: int) -> ConfiguredEndpoint:
        plain = {k: v for k, v in table.items() if k not in ("models", "model")}
        values = self._checked(plain, _ENDPOINT, index, "[[endpoint]]", also="models, model")
        for needed in ("name", "base_url"):
            if needed not in table:
                self._problem(self._place(index), f"[[endpoint]] needs the key '{needed}'")
        models = self._models(table, index)
        for position, model in enumerate(models):
            if model.id in [one.id for one in models[:position]]:
                self._problem(self._place(index), f"the model '{model.id}' is named twice")
        return ConfiguredEndpoint(
            name=values.get("name", ""),
            base_url=values.get("base_url", ""),
            api_key_env=values.get("api_key_env"),
            models=models,
            source=self._path,
        )

    def _models(self, table: Mapping[str, Any], index: int) -> tuple[EndpointModel, ...]:
        names, tables = table.get("models", []), table.get("model", [])
        if not isinstance(names, list) or any(_text(name) for name in names):
            self._problem(
                self._place(index, "models"), 'models must be a list of names: models = ["a", "b"]'
            )
            names = []
        if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
            self._problem(
                self._place(index, "model"), "write [[endpoint.model]], with two brackets"
            )
            tables = []
        found = [EndpointModel(name) for name in names]
        for number, model in enumerate(tables):
            values = self._checked(model, _MODEL, index, "[[endpoint.model]]", model=number)
            if "id" not in model:
                self._problem(
                    self._place(index, model=number), "[[endpoint.model]] needs the key 'id'"
                )
            found.append(EndpointModel(**{"id": "", **values}))
        return tuple(found)

    def _checked(
        self,
        table: Mapping[str, Any],
        keys: Mapping[str, Any],
        index: int,
        shown: str,
        *,
        also: str = "",
        model: int | None = None,
    ) -> dict[str, Any]:
        values = {}
        for key, value in table.items():
            line = self._place(index, key, model=model)
            if key not in keys:
                known = ", ".join([*keys, *([also] if also else [])])
                self._problem(line, f"unknown key '{key}' in {shown}; it may hold: {known}")
            elif fault := keys[key](value):
                self._problem(line, f"'{key}' {fault}")
            else:
                values[key] = value
        return values

    def _problem(self, line: int | None, text: str) -> None:
        where = f"{self._path}:{line}" if line else self._path
        self.problems.append(f"{where}: {text}")

    def _line(self, key: str) -> int | None:
        """Return the first line that begins with ``key``, or with its table."""
        start = re.compile(rf"\s*(\[\[?\s*)?[\"']?{re.escape(key)}\b")
        return next((n for n, line in enumerate(self._lines, start=1) if start.match(line)), None)

    def _place(self, index: int, key: str = "", *, model: int | None = None) -> int | None:
        """Return the line of an endpoint's key, by a second scan: tomllib keeps no positions."""
        endpoint = inner = -1
        head = None
        for number, line in enumerate(self._lines, start=1):
            if found := re.match(r"\s*\[\[?\s*([\w.]+)\s*\]\]?", line):
                if found[1] == "endpoint":
                    endpoint, inner = endpoint + 1, -1
                elif found[1] == "endpoint.model":
                    inner += 1
            here = endpoint == index and inner == (-1 if model is None else model)
            if here and head is None:
                head = number
            if here and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return number
        return head
