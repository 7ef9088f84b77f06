"""A private PostgreSQL server: made on the spot, reached over a Unix socket, gone with its starter.

The tests, the demo and the benchmarks all get their database here. The server never runs as root: a root
process hands it to the account ``nobody`` and changes nothing else on the machine.

On Linux the kernel stops the server when its starter dies in any way, kill -9 included (the temporary folder
then stays behind). Elsewhere it stops when the starter exits by itself.
"""

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, NoReturn, Self

from example_project.postgres_binaries import (
    BinariesNotFound,
    PostgresError,
    binaries_of,
    copy_install,
    find_binaries,
)

__all__ = [
    "DEFAULT_OPTIONS",
    "BinariesNotFound",
    "PostgresError",
    "PrivateServer",
    "StartFailed",
    "binaries_of",
    "find_binaries",
]

StopMode = Literal["smart", "fast", "immediate"]

# A crash of the machine may cost this data, which is made to be thrown away. A crash of the server must not:
# synchronous_commit stays on, or `restart("immediate")` would lose the latest commits.
DEFAULT_OPTIONS: dict[str, str | int] = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "max_connections": 120,
    "max_prepared_transactions": 10,
    "shared_buffers": "128MB",
}

_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_SOCKET_PATH_LIMIT = 100
_LOG_TAIL_LINES = 20

# Runs in a small process of its own that then becomes the server. A `preexec_fn` could do the same, but it is
# not safe in a process with threads. All is loaded first, for the other user may not be able to read it. The
# death signal is asked for after the change of user, which clears it; the parent may have died before that,
# hence the last look.
_BECOME_SERVER = """
import ctypes, os, signal, sys
uid, gid, parent, *command = sys.argv[1:]
libc = ctypes.CDLL(None)
if int(uid) != os.geteuid():
    os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
if os.getppid() != int(parent):
    sys.exit("the starting process is gone")
os.execv(command[0], command)
"""


class StartFailed(PostgresError):
    """The server did not come up; ``log`` holds the end of what it said."""

    def __init__(self, what: str, log: str = "") -> None:
        super().__init__(f"{what}\n{log}".rstrip())
        self.log = log


class PrivateServer:
    """One server of one's own, also usable as a context manager.

    With no ``data_dir`` the data lives in a temporary folder until ``stop``. ``options`` are server settings
    laid over ``DEFAULT_OPTIONS``; ``ALTER SYSTEM`` overrides them. With ``tcp`` it listens on 127.0.0.1 too.
    """

    def __init__(
        self,
        bin_dir: Path | str | None = None,
        data_dir: Path | str | None = None,
        options: dict[str, str | int] | None = None,
        *,
        tcp: bool = False,
        timeout: float = 60,
    ) -> None:
        self._given_bin_dir = Path(bin_dir) if bin_dir else find_binaries()
        self._given_data_dir = Path(data_dir).absolute() if data_dir else None
        self._options = DEFAULT_OPTIONS | (options or {})
        self._timeout = timeout
        self._account = _Account.unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._base: Path | None = None
        self.tcp = tcp
        self.port = _free_port() if tcp else 5432
        self.version = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def data_dir(self) -> Path:
        return self._given_data_dir or self._require_base() / "data"

    @property
    def socket_dir(self) -> Path:
        return self._require_base() / "run"

    @property
    def log_path(self) -> Path:
        return self.data_dir / "server.log"

    @property
    def pid(self) -> int | None:
        """The process id of the server's main process while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def dsn(self) -> str:
        """Connection string of the maintenance database, for psycopg and psql."""
        return f"host={self.socket_dir} port={self.port} user=postgres dbname=postgres"

    def url(self, dbname: str = "postgres") -> str:
        """URL of a database over the Unix socket, as libpq and django-environ read it."""
        return f"postgresql://postgres@:{self.port}/{dbname}?host={self.socket_dir}"

    def tcp_url(self, dbname: str = "postgres") -> str:
        """URL of a database over 127.0.0.1; only a server made with ``tcp`` answers there."""
        if not self.tcp:
            raise PostgresError("this server was not asked to listen on 127.0.0.1")
        return f"postgresql://postgres@127.0.0.1:{self.port}/{dbname}"

    def start(self) -> Self:
        """Bring the server up and return once it takes connections; nothing happens if it already runs."""
        if self.pid is not None:
            return self
        try:
            self._prepare()
            self._launch()
        except BaseException:
            self.stop("immediate")
            raise
        return self

    def halt(self, mode: StopMode = "fast") -> None:
        """Bring the server down and keep its data, so that ``start`` brings the same databases back."""
        process = self._process
        if process is None:
            return
        for sign in (_STOP_SIGNALS[mode], signal.SIGQUIT, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(sign)
            try:
                process.wait(self._timeout)
                break
            except subprocess.TimeoutExpired:
                continue
        self._process = None

    def stop(self, mode: StopMode = "fast") -> None:
        """Bring the server down and remove every temporary file of it."""
        if os.getpid() != self._owner:
            return  # a forked child inherited this object, not the server
        atexit.unregister(self.stop)
        self.halt(mode)
        if self._base is not None:
            shutil.rmtree(self._base, ignore_errors=True)
            self._base = None

    def restart(self, mode: StopMode = "immediate") -> None:
        """Down and up on the same data, socket and port; "immediate" is a crash with recovery."""
        self.halt(mode)
        self.start()

    def _require_base(self) -> Path:
        if self._base is None:
            raise PostgresError("the server has not been started")
        return self._base

    def _prepare(self) -> None:
        if self._base is None:
            self._base = _make_base(self._account)
            atexit.register(self.stop)
            self.socket_dir.mkdir()
            self._hand_over(self.socket_dir, 0o755)
            self._bin_dir, self.version = self._reachable_binaries()
        if not (self.data_dir / "PG_VERSION").exists():
            self._init_data_dir()
        settings = self.data_dir / "launcher.conf"
        settings.write_text("".join(f"{name} = {_quoted(value)}\n" for name, value in self._options.items()))
        self._hand_over(settings, 0o600)
        self.log_path.touch()
        self._hand_over(self.log_path, 0o600)

    def _hand_over(self, path: Path, mode: int) -> None:
        os.chown(path, self._account.uid, self._account.gid)
        path.chmod(mode)

    def _reachable_binaries(self) -> tuple[Path, str]:
        """A folder of programs that the server's account can run, a copy if need be, and their version."""
        version = self._version_in(self._given_bin_dir)
        if version:
            return self._given_bin_dir, version
        copy = copy_install(self._given_bin_dir.resolve().parent, self._require_base() / "install")
        version = self._version_in(copy / "bin")
        if not version:
            raise StartFailed(f"the programs in {self._given_bin_dir} do not run as {self._account.name}")
        return copy / "bin", version

    def _version_in(self, bin_dir: Path) -> str | None:
        try:
            answer = self._run([bin_dir / "postgres", "--version"])
        except PermissionError:
            return None
        return answer.stdout.split()[2] if answer.returncode == 0 else None

    def _init_data_dir(self) -> None:
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self.data_dir.iterdir()):
            raise StartFailed(f"{self.data_dir} holds something other than a PostgreSQL's data")
        self._hand_over(self.data_dir, 0o700)
        command = [self._bin_dir / "initdb", f"--pgdata={self.data_dir}", "--username=postgres"]
        command += ["--auth=trust", "--encoding=UTF8", "--no-sync", "--no-instructions"]
        # Not every machine knows C.UTF-8; both sort by code point.
        for locale in ("C.UTF-8", "C"):
            answer = self._run([*command, f"--locale={locale}"])
            if answer.returncode == 0:
                break
        else:
            raise StartFailed(f"initdb failed in {self.data_dir}", answer.stdout)
        with (self.data_dir / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude_if_exists = 'launcher.conf'\n")

    def _run(self, command: list[Path | str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._require_base(),
            env=_environment(),
            **self._account.popen_arguments,
        )

    def _launch(self) -> None:
        listen = "127.0.0.1" if self.tcp else ""
        server = [self._bin_dir / "postgres", "-D", self.data_dir, "-k", self.socket_dir]
        server += ["-p", str(self.port), "-c", f"listen_addresses={listen}"]
        account = [str(self._account.uid), str(self._account.gid)]
        self._owner = os.getpid()
        with self.log_path.open("ab") as log:
            self._process = _popen_from_lasting_thread(
                [sys.executable, "-I", "-S", "-c", _BECOME_SERVER, *account, str(self._owner), *server],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._require_base(),
                env=_environment(),
                start_new_session=True,  # Ctrl-C must reach the starter alone, which then stops the server
            )
        deadline = time.monotonic() + self._timeout
        while not self._is_ready():
            if self._process.poll() is not None:
                self._fail(f"PostgreSQL {self.version} ended at start with code {self._process.returncode}")
            if time.monotonic() > deadline:
                self._fail(f"PostgreSQL {self.version} was not ready after {self._timeout:g} s")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # A crashed server leaves its file behind, so the process id must be this one's.
        return len(lines) >= 8 and lines[0].strip() == str(self.pid) and lines[7].strip() == "ready"

    def _fail(self, what: str) -> NoReturn:
        lines = self.log_path.read_text(errors="replace").splitlines()
        raise StartFailed(what, "\n".join(lines[-_LOG_TAIL_LINES:]))


class _Account:
    """Who the server runs as."""

    def __init__(self, name: str, uid: int, gid: int) -> None:
        self.name, self.uid, self.gid = name, uid, gid

    @classmethod
    def unprivileged(cls) -> Self:
        """The present user, or ``nobody`` in place of root, whom PostgreSQL refuses to serve."""
        if os.geteuid() != 0:
            return cls("the present user", os.geteuid(), os.getegid())
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise PostgresError("PostgreSQL does not run as root and there is no account nobody") from None
        return cls("nobody", nobody.pw_uid, nobody.pw_gid)

    @property
    def is_other(self) -> bool:
        return self.uid != os.geteuid()

    @property
    def popen_arguments(self) -> dict[str, object]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.is_other else {}


def _make_base(account: _Account) -> Path:
    """A new temporary folder, short enough for a socket and open to the account all the way down."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        folder = Path(parent).resolve()
        is_open = all(step.stat().st_mode & 0o001 for step in (folder, *folder.parents))
        is_short = len(os.fsencode(folder / "tenantfair-pg-12345678/run/.s.PGSQL.12345")) < _SOCKET_PATH_LIMIT
        if is_short and (is_open or not account.is_other):
            base = Path(tempfile.mkdtemp(prefix="tenantfair-pg-", dir=folder))
            base.chmod(0o755)
            return base
    raise PostgresError(f"no temporary folder is short enough for a socket and open to {account.name}")


def _popen_from_lasting_thread(command: list[Path | str], **arguments: object) -> subprocess.Popen[bytes]:
    """Start a process from a thread that outlives it: to the kernel that thread is the parent."""
    if threading.current_thread() is threading.main_thread():
        return subprocess.Popen(command, **arguments)
    started: Future[subprocess.Popen[bytes]] = Future()

    def start_and_stay() -> None:
        try:
            process = subprocess.Popen(command, **arguments)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        process.wait()

    threading.Thread(target=start_and_stay, name="private-postgres", daemon=True).start()
    return started.result()


def _environment() -> dict[str, str]:
    """The environment less libpq's variables, which would point initdb and the server elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _quoted(value: str | int) -> str:
    return "'" + str(value).replace("'", "''") + "'"
