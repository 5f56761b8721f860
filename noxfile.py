"""The checks of this project, one session each: ``nox -l`` lists them. CI runs these, in this order
(.ci/run).

They use the environment that nox itself is installed in (the ``dev`` extra): nothing is built, nothing is
downloaded, except by ``wheel``.
"""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "imports", "quick"]


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff: rules and layout."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Run mypy --strict over the package."""
    session.run("mypy", "--strict", "ckpt_tools")


@nox.session
def imports(session: nox.Session) -> None:
    """Check that imports point down (docs/design.md, section 3)."""
    session.run("lint-imports")


@nox.session
def quick(session: nox.Session) -> None:
    """Run the tests of a minute, the loop of edit and test."""
    session.run(
        "python", "-m", "pytest", "-m", "not slow and not cluster", "-n", "auto", "-q", *session.posargs
    )


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests, as README's command does."""
    session.run("python", "-m", "pytest", "-n", "auto", "-q", *session.posargs)


PYTHONS = ("3.10", "3.11", "3.12", "3.13")
"""Those that are supported; 3.14 is tried in .github/workflows/release.yml alone."""


@nox.session
@nox.parametrize("versions", ["newest", "lowest"])
@nox.parametrize("python", PYTHONS)
def wheel(session: nox.Session, python: str, versions: str) -> None:
    """Install what would be released in a fresh environment and test it there, also with the lowest versions
    of what it needs.
    """
    how = ["--lowest"] if versions == "lowest" else []
    session.run(".ci/wheel", *how, *session.posargs, env={"PYTHON": f"python{python}"}, external=True)


@nox.session
def site(session: nox.Session) -> None:
    """Build the site of the pages into site/; a link that leads nowhere within it is an error. (Links to
    other servers are not followed.)
    """
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def pages(session: nox.Session) -> None:
    """Write the pages that are made from code anew; with ``-- --check`` say whether they are up to date."""
    session.run("python", "docs/make.py", *session.posargs)
