"""Scripts that are started by their names can be."""

from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_what_names_its_interpreter_is_executable():
    files = [path for path in SCRIPTS.rglob("*") if path.is_file()]
    scripts = [path for path in files if path.read_bytes().startswith(b"#!")]
    assert scripts
    assert not [path.name for path in scripts if not path.stat().st_mode & 0o100]
