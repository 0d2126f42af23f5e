"""Settings, all by environment. Unset means embedded: SQLite, Valkey and a small model."""

from __future__ import annotations

import contextlib
import os
import secrets
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from environs import Env

from workbench.kernel.hosts import LOOPBACK_NAMES, BadAddress, PublicAddress, public_address

env = Env()

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.str("WORKBENCH_DATA", "") or BASE_DIR / "var").absolute()
ENVIRONMENT = env.str("WORKBENCH_ENV", "") or "embedded"
if ENVIRONMENT not in ("embedded", "production"):
    raise ImproperlyConfigured(
        f"WORKBENCH_ENV is {ENVIRONMENT!r}; it may be unset, 'embedded' or 'production'"
    )
PRODUCTION = ENVIRONMENT == "production"
LEAST_KEY_CHARS = 50
LEAST_DISTINCT_CHARS = 10
SAMPLE_WORDS = ("django-insecure", "changeme", "change-me", "change_me", "your-secret", "sample")


def _private_file(path: Path, text: str) -> Path:
    """Make the file with this text, readable by its owner alone, unless it is there already.

    Written aside and linked into place: nobody ever sees it half written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(text)
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
    return path


def _check_production() -> None:
    """Refuse to start half configured; all that is missing is named at once."""
    needed = ["SECRET_KEY", "DATABASE_URL", "BROKER_URL"]
    missing = [name for name in needed if not env.str(name, "")]
    if not (env.str("WORKBENCH_PUBLIC_URL", "") or env.list("WORKBENCH_HOSTS", [])):
        missing.append("WORKBENCH_PUBLIC_URL (or WORKBENCH_HOSTS)")
    if missing:
        raise ImproperlyConfigured(
            f"WORKBENCH_ENV=production needs {', '.join(missing)}; see docs/hosting.md"
        )


def _secret_key() -> str:
    """Return SECRET_KEY, or one generated into the data folder at the first start."""
    given = env.str("SECRET_KEY", "")
    if not given:
        return _private_file(DATA_DIR / "secret_key", secrets.token_urlsafe(50)).read_text()
    if len(given) < LEAST_KEY_CHARS:
        fault = f"SECRET_KEY has {len(given)} characters; give at least {LEAST_KEY_CHARS}"
    elif len(set(given)) < LEAST_DISTINCT_CHARS:
        fault = f"SECRET_KEY repeats {len(set(given))} characters; give {LEAST_KEY_CHARS}"
    elif any(word in given.lower() for word in SAMPLE_WORDS):
        fault = f"SECRET_KEY is a sample that others know; give {LEAST_KEY_CHARS}"
    else:
        return given
    raise ImproperlyConfigured(
        f"{fault} random ones, as from: "
        'python3 -c "import secrets; print(secrets.token_urlsafe(64))"'
    )


def _public_address() -> PublicAddress | None:
    """Return the address that WORKBENCH_PUBLIC_URL names, None where it is unset."""
    given = env.str("WORKBENCH_PUBLIC_URL", "")
    try:
        return public_address(given) if given else None
    except BadAddress as error:
        raise ImproperlyConfigured(f"WORKBENCH_PUBLIC_URL: {error}") from error


def _networks(name: str, default: str) -> list[IPv4Network | IPv6Network]:
    """Return the addresses and networks that a variable lists."""
    try:
        return [ip_network(one.strip(), strict=False) for one in env.str(name, default).split(",")]
    except ValueError as error:
        raise ImproperlyConfigured(
            f"{name}: {error}; write as in 10.0.0.5,172.16.0.0/12"
        ) from error


if PRODUCTION:
    _check_production()
SECRET_KEY = _secret_key()
DEBUG = False

# --- where the pages are ------------------------------------------------------

_PUBLIC = _public_address()
# Set by the supervisor: where it serves the pages.
WEB_URL: str = env.str("WORKBENCH_WEB_URL", "")
# Hosts named one by one take the place of the loopback names.
_HOSTS: list[str] = env.list("WORKBENCH_HOSTS", [])
if PRODUCTION and any(host.startswith(("*", ".")) for host in _HOSTS):
    raise ImproperlyConfigured(
        "WORKBENCH_HOSTS names any host; name each, or give WORKBENCH_PUBLIC_URL instead"
    )
ALLOWED_HOSTS = [*(_HOSTS or LOOPBACK_NAMES), *([_PUBLIC.host] if _PUBLIC else [])]
# Production without a public address is served by TLS under the first of its hosts.
PUBLIC_URL: str = _PUBLIC.origin if _PUBLIC else f"https://{_HOSTS[0]}" if PRODUCTION else ""
HTTPS = PUBLIC_URL.startswith("https://")
CSRF_TRUSTED_ORIGINS = [_PUBLIC.origin] if _PUBLIC else []
# Nothing here speaks TLS; and where the public port isn't ours, another program has it.
BEHIND_PROXY = HTTPS or (_PUBLIC is not None and _PUBLIC.port != urlsplit(WEB_URL).port)
# Whose X-Forwarded headers count, beside those that come over a Unix socket.
PROXIES = _networks("WORKBENCH_PROXIES", "127.0.0.0/8,::1") if BEHIND_PROXY else []

INSTALLED_APPS = [
    "workbench.apps.WorkbenchConfig",
    "skills.apps.SkillsConfig",
    "runs.apps.RunsConfig",
    "annotation.apps.AnnotationConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "csp",
    "django_htmx",
]

MIDDLEWARE = [
    "workbench.middleware.drop_strangers_headers",
    "django.middleware.security.SecurityMiddleware",
    "workbench.middleware.no_store",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "workbench.middleware.refuse_nul",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # Up to the form's token nothing reads a body: first it is known whether it may come.
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "workbench.middleware.CloseToRoles",
    "workbench.middleware.RefuseOversize",
    "workbench.middleware.RefuseNulInForms",
    "django.middleware.csrf.CsrfViewMiddleware",
    "workbench.middleware.refresh_session",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "workbench.urls"
WSGI_APPLICATION = "workbench.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

# --- database ---------------------------------------------------------------

_SQLITE_OPTIONS = {
    # DEFERRED transactions that turn into writers fail at once with
    # "database is locked"; IMMEDIATE ones wait their turn.
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL",
}


def _database() -> dict[str, Any]:
    """Return the database that DATABASE_URL names; without one, SQLite in the data folder."""
    if PRODUCTION or env.str("DATABASE_URL", ""):
        database = dict(env.dj_db_url("DATABASE_URL", conn_health_checks=True))
    else:
        # Sessions and traces are in it, so it is its owner's alone.
        path = _private_file(DATA_DIR / "workbench.sqlite3", "")
        # The tests use a file too: what several connections do to each other is tested.
        test = {"NAME": DATA_DIR / "test.sqlite3"}
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "TEST": test}
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = _SQLITE_OPTIONS
    return database


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- background work --------------------------------------------------------

BROKER_URL = env.str("BROKER_URL", "")
# The supervisor passes the embedded broker's socket as BROKER_URL to its children.
CELERY_BROKER_URL = BROKER_URL or "redis+socket:///nonexistent/no-broker-configured"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3600,
    # Without these two a message of a killed worker waits about 100 s.
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "socket_connect_timeout": 5,
    # A page or command that publishes must not wait for a broker that is away.
    "max_retries": 1,
    "interval_start": 0,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_POOL_LIMIT = 4
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_TIMEZONE = "UTC"

LEASE_SECONDS = env.float("WORKBENCH_LEASE_SECONDS", 60)
RENEW_SECONDS = env.float("WORKBENCH_RENEW_SECONDS", 15)
SWEEP_SECONDS = env.float("WORKBENCH_SWEEP_SECONDS", 15)
MAX_TRIES = env.int("WORKBENCH_MAX_TRIES", 3)
# A worker of which nothing was heard for this long is called silent.
SILENT_SECONDS = env.float("WORKBENCH_SILENT_SECONDS", 120)

# --- models -----------------------------------------------------------------

OPENAI_BASE_URL = env.str("OPENAI_BASE_URL", "")
# The endpoints that the browser may use; without a name endpoints.toml in the data folder.
ENDPOINTS_FILE = env.str("WORKBENCH_ENDPOINTS", "")
# Set by the supervisor when it serves the embedded model.
EMBEDDED_MODEL_URL = env.str("WORKBENCH_EMBEDDED_MODEL_URL", "")
# Scripted models answer by rule; only tests may use them.
WORKBENCH_ALLOW_SCRIPTED = env.bool("WORKBENCH_ALLOW_SCRIPTED", False)
ALLOW_UNSANDBOXED = env.bool("WORKBENCH_ALLOW_UNSANDBOXED", False)

# --- what leaves the workbench ------------------------------------------------

# smtp+tls:// (STARTTLS), smtp+ssl:// or smtp:// and USER:PASSWORD@HOST:PORT; unset means no mail.
SMTP_URL = env.str("WORKBENCH_SMTP_URL", "")
MAIL_FROM = env.str("WORKBENCH_MAIL_FROM", "")
if SMTP_URL:
    _smtp = urlsplit(SMTP_URL)
    _SMTP_PORTS = {"smtp": 25, "smtp+tls": 587, "smtp+ssl": 465}
    if _smtp.scheme not in _SMTP_PORTS or not _smtp.hostname or _smtp.query:
        raise ImproperlyConfigured(
            "WORKBENCH_SMTP_URL must be smtp+tls://USER:PASSWORD@HOST:PORT, or the same with "
            "smtp+ssl:// or smtp:// (a password with @ or / in it is percent-encoded)"
        )
    if not MAIL_FROM:
        raise ImproperlyConfigured(
            "WORKBENCH_SMTP_URL is set without WORKBENCH_MAIL_FROM, the address mails come from"
        )
    EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    EMAIL_HOST, EMAIL_PORT = _smtp.hostname, _smtp.port or _SMTP_PORTS[_smtp.scheme]
    EMAIL_HOST_USER = unquote(_smtp.username or "")
    EMAIL_HOST_PASSWORD = unquote(_smtp.password or "")
    EMAIL_USE_TLS, EMAIL_USE_SSL = _smtp.scheme == "smtp+tls", _smtp.scheme == "smtp+ssl"
    DEFAULT_FROM_EMAIL = MAIL_FROM
EMAIL_TIMEOUT = 5
# Hosts that a webhook may name; see workbench/notices/webhooks.py for what an entry means.
WEBHOOK_HOSTS: list[str] = env.list("WORKBENCH_WEBHOOK_HOSTS", [])

# --- web --------------------------------------------------------------------

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "workbench" / "static"]
# Served straight from where they are: nothing has to be collected first.
WHITENOISE_USE_FINDERS = True

LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
SESSION_COOKIE_NAME = "workbench_session"
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_SSL_HOST = PUBLIC_URL.partition("://")[2] or None
# A proxy or a probe on this machine asks without TLS.
SECURE_REDIRECT_EXEMPT = [r"^health/$", r"^ready/$"]
# Only a proxy's own header arrives here: the first middleware drops all others.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_PROXY else None
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
# How many proxies stand before the pages and add to X-Forwarded-For; 0 believes no header.
TRUSTED_PROXIES = env.int("WORKBENCH_TRUSTED_PROXIES", 1 if BEHIND_PROXY else 0)
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["workbench.kernel.api.StrictJSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": [
        # The first names how to sign in, so that a stranger gets 401.
        "workbench.tokens.BearerAuthentication",
        "workbench.tokens.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "EXCEPTION_HANDLER": "workbench.kernel.api.exception_handler",
    # ?format= is a parameter like any other.
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_SCHEMA_CLASS": "workbench.schema.ApiSchema",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Skill Audit Workbench",
    "DESCRIPTION": "Everything the pages do. How to use it: docs/api.md.",
    "VERSION": "1",
    "COMPONENT_SPLIT_REQUEST": True,
    # Choices stand where they are used: named apart, one word of two lists would collide.
    "POSTPROCESSING_HOOKS": [],
}

# Larger files lie here while they are read, then are gone; so do task files until they are stored.
UPLOADS_DIR = DATA_DIR / "uploads"
UPLOADS_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
FILE_UPLOAD_TEMP_DIR = UPLOADS_DIR
FILE_UPLOAD_PERMISSIONS = 0o600
FILE_UPLOAD_MAX_MEMORY_SIZE = 1_000_000
# Of any form without its files; pages and endpoints that take files say how large they may be.
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_500_000
DATA_UPLOAD_MAX_NUMBER_FILES = 1

LANGUAGE_CODE = "en-gb"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "filters": {
        "links": {"()": "workbench.kernel.logs.HideLinks"},
        "beats": {"()": "workbench.kernel.logs.DropBeats"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": "plain",
            "filters": ["links", "beats"],
        }
    },
    # A stranger's Host header is answered 400; with its traceback scanners would fill the log.
    "loggers": {"django.security.DisallowedHost": {"level": "CRITICAL"}},
    "root": {"handlers": ["stderr"], "level": env.str("WORKBENCH_LOG_LEVEL", "WARNING")},
}
