"""Text from a file, such as the name of a layer, as a log line, a table or an error message shows it.

A name may hold any character. Control characters could change what a terminal shows, a line break could forge a line
of the log, and marks of direction could reorder one.
"""

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_BREAKS = (0x2028, 0x2029)  # between lines and paragraphs
_BYTES = range(0xD800, 0xE000)  # surrogates, which stand for bytes that are no text
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(32), *range(127, 160), *_DIRECTIONS, *_BREAKS, *_BYTES)
    if chr(code) != "\t"
}


def shown(text: object) -> str:
    """The text in one line, with control characters and marks of direction as escape sequences."""
    return str(text).translate(_ESCAPES)


def shown_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(shown, text.split("\n")))
