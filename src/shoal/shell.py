r"""Text to type into bash or zsh, also with paths that are not UTF-8: a byte that no text holds is `$'\xff'`."""

import codecs
import re
import shlex
from collections.abc import Iterable

TYPABLE = "shoal.typable"
"""Error handler of streams for what their encoding lacks: such bytes as `typable` has them, the rest escaped."""
_BYTES = re.compile("([\udc80-\udcff]+)")
"""What stands for bytes that are not UTF-8 in a path, by `os.fsdecode`."""


def typable(text: str) -> str:
    """Return `text` with bytes of paths that are not UTF-8 in quotes for bash and zsh."""
    return _BYTES.sub(lambda found: "$'" + "".join(f"\\x{ord(byte) - 0xDC00:02x}" for byte in found[0]) + "'", text)


def join_command(words: Iterable[str]) -> str:
    """Join words to a command, as `shlex.join` does, also where they hold such bytes."""
    return " ".join(typable(_BYTES.sub(r"'\1'", shlex.quote(word))) for word in words)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = typable(error.object[error.start : error.end])
    return text.encode(error.encoding, "backslashreplace").decode(error.encoding), error.end


codecs.register_error(TYPABLE, _escape)
