"""One self-contained page about a training: curves, mistakes, times and prototxts.

`recorder` follows a training and rewrites the page as it goes on, or writes it from a log; `page` renders HTML, with
the style and the script of `page.html`.
"""

from fcaffe.output_files import starting

PREDICTIONS = starting("page of predictions", rb"<!doctype html>.*<!-- predictions -->", ".html", ".htm")
PAGE = starting("page about a training", rb"<!doctype html>.*^:root \{\n  --page:", ".html", ".htm")
