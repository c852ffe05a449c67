"""The shape of the repository: what must not be there, and what every package says about itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = "programs"  # they run elsewhere, and nothing imports them
PACKAGES = sorted(
    path.parent for path in (ROOT / "operator" / "speedrun_operator").rglob("*.py") if path.parent.name != PROGRAMS
)

# Put together here, so that this file does not name them itself.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("proxy", "golang", "org"),
        ("sum", "golang", "org"),
        ("registry", "npmjs", "org"),
        ("crates", "io"),
        ("anaconda", "org"),
    )
]


def tracked_files() -> list[Path]:
    """Files that git knows or would take: what is about to be committed is looked at too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    return [path for name in listing.decode().split("\0") if name and (path := ROOT / name).is_file()]


def files_that_name(pattern: re.Pattern[str]) -> list[str]:
    """`file:line: text` for each line of a tracked file that matches."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("folder", ["operator", "trainer"])
def test_source_folders_are_no_packages(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists(), "a package named operator would hide the standard library's"


def test_import_operator_is_the_standard_library() -> None:
    code = "import operator; print(operator.__file__, operator.add(1, 2))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    file, three = result.stdout.split()
    assert three == "3"
    assert not Path(file).is_relative_to(ROOT)


@pytest.mark.parametrize("package", sorted(set(PACKAGES)), ids=lambda path: path.name)
def test_a_package_says_what_it_is_for(package: Path) -> None:
    init = package / "__init__.py"
    assert init.exists(), f"{package.relative_to(ROOT)} has modules but no __init__.py"
    assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), f"{init.relative_to(ROOT)} has no docstring"


def test_no_file_names_a_package_registry() -> None:
    hosts = "|".join(re.escape(host) for host in REGISTRIES)
    assert files_that_name(re.compile(rf"(?<![\w-])(?:{hosts})(?![\w-])")) == []


def test_no_file_names_a_folder_of_the_machine_it_was_written_on() -> None:
    folders = {"/" + "work", str(ROOT)}
    home = Path.home()
    if len(home.parts) > 2:  # /root is every container's home as well
        folders.add(str(home))
    names = "|".join(re.escape(folder) for folder in sorted(folders))
    assert files_that_name(re.compile(rf"(?<![\w$}}./~>-])(?:{names})(?=/)")) == []
