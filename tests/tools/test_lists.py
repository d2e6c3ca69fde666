"""Lists of pictures: every form of a list is read alike, by `fcaffe dataset` and `predict` as by ImageData."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from fcaffe.data.image_list import read_image_list
from fcaffe.tools.listing import list_pictures

NAMES = st.text("abc ,'\"\\ü#\u3000", min_size=1, max_size=8).map(lambda text: f"a{text}.png")
LABELS = st.sampled_from(["rose", "blaue_Blüte", "0", "12", "-1"])
FORMS = {"list.txt": " ", "tabs.txt": "\t", "table.csv": ",", "excel.csv": ";", "table.tsv": "\t"}


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(sorted(FORMS)),
    rows=st.lists(st.tuples(NAMES, LABELS), min_size=2, max_size=5, unique_by=lambda row: row[0]),
    bom=st.booleans(),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    header=st.booleans(),
)
@example(form="list.txt", rows=[("a b\\1.png", "rose"), ("a b\\2.png", "tulip")], bom=True, end="\r\n", header=False)
def test_any_list(form: str, rows: list[tuple[str, str]], bom: bool, end: str, header: bool, tmp_path: Path) -> None:
    if form == "excel.csv":  # a semicolon separates if there are more of them than of commas
        rows = [(name.replace(",", "-"), label) for name, label in rows]
        assume(len(set(rows)) == len({name for name, _ in rows}) == len(rows))
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    for name, _ in rows:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    is_table, source = not form.endswith(".txt"), str(folder / form)
    text = io.StringIO()
    if is_table:
        table = csv.writer(text, delimiter=FORMS[form], lineterminator=end)
        table.writerows([("file", "class")] * header + rows)
    else:
        text.write("".join(f"{name}{FORMS[form]}{label}{end}" for name, label in rows))
    Path(source).write_bytes(("\ufeff" * bom + text.getvalue()).encode())
    found = list_pictures(source)
    assert [(image.path, found.names[image.label]) for image in found.parts["train"]] == rows
    assert Path(found.root) == folder
    if not is_table and all(label.lstrip("-").isdecimal() for _, label in rows):
        assert [(image.path, str(image.label)) for image in read_image_list(source)] == rows
