"""One self-contained page about a training: curves, what the net confuses, its filters, layers, times and prototxts.

`recorder` follows a training and writes the page anew as it goes on; `evaluation` runs a test net to see what it
confuses; `page` makes HTML of it all, with the style and the script of `page.html`.
"""
